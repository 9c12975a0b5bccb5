"""How a learner waits: it is told why no batch comes, and for how long it waits is bounded."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from rlds2reverb.learner.question import Question
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.silence import Silent, why_silent
from rlds2reverb.transport.stream_user import Reason

LOG = logging.getLogger("rlds2reverb.learner")
"""Where a sampler tells what nobody asked it for: waits, broken streams, losses."""

_AGAIN_SECONDS = 60.0
"""After which the same wait is logged once more."""


class WaitLog:
    """Tells waits to the log: each reason's beginning, once more every minute, and that it is over. The default `on_wait`.

    Args:
      table: as messages call it.
      write: takes the lines instead of the log.
    """

    def __init__(self, table: str, write: Callable[[str], object] = LOG.warning) -> None:
        self._table, self._write = table, write
        self._told: tuple[str, ...] | None = None
        self._told_at = 0.0

    def __call__(self, reason: Reason) -> None:
        """Logs a reason, when it is new."""
        now, kind = time.monotonic(), (*reason.held_by, reason.text.split(":")[0])  # the rest of it counts
        if not reason.text:
            self._write(f'table "{self._table}": samples come again')
            self._told = None
        elif kind != self._told or now - self._told_at > _AGAIN_SECONDS:
            self._write(f'table "{self._table}": waiting for samples: {reason.text}')
            self._told, self._told_at = kind, now


class Watch:
    """Waits for what streams bring. Several threads may wait; the reason is told by one of them.

    The server is asked in another thread: what comes meanwhile ends the wait at once, however slow the server answers.

    Args:
      transport: asked why, when nothing comes.
      streams: which may be silent.
      changed: the lock and condition of all that is waited for.
      on_wait: told the reason after `notice_seconds` and as often again, and an empty one when the wait is over.
      notice_seconds: see there.
    """

    def __init__(
        self,
        transport: Transport,
        streams: Sequence[Silent],
        changed: threading.Condition,
        on_wait: Callable[[Reason], object],
        notice_seconds: float,
    ) -> None:
        self._transport, self._streams, self._changed = transport, streams, changed
        self._on_wait, self._notice_seconds = on_wait, notice_seconds
        self._telling = threading.Lock()
        self._question: Question[Reason] | None = None
        self._told_at: float | None = None

    def until(self, done: Callable[[], bool], seconds: float | None) -> bool:
        """Waits until the claim holds, which is asked with the lock held; False when the time was over first.

        Raises:
          Exception: whatever `done` raises.
          WireError: the server, when it was asked for the reason, gave an answer that is not Reverb's.
        """
        began = time.monotonic()
        end = math.inf if seconds is None else began + seconds
        while not self.is_done_until(done, min(end, max(began, self._told_at or began) + self._notice_seconds)):
            if time.monotonic() >= end:
                return False
            self._tell(done, end)
        self._tell_the_end()
        return True

    def is_done_until(self, done: Callable[[], bool], end: float) -> bool:
        """Waits until the claim holds or the clock, `time.monotonic`, is at `end`, and tells nobody; whether it holds."""
        with self._changed:
            while not (is_done := done()) and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return is_done

    def reason(self) -> Reason:
        """Why nothing comes, as the server explained it just now, or else explains it; waits for that.

        Raises:
          WireError: the server gave an answer that is not Reverb's.
        """
        with self._changed:
            question = self._question
            if question is None or question.age_seconds > 2 * self._notice_seconds:
                question = self._ask()
        return question.answer()

    def _ask(self) -> Question[Reason]:
        """Asks the server, unless an answer is awaited already. With the lock held."""
        if self._question is None or self._question.is_over:
            self._question = Question(self._changed, lambda: why_silent(self._transport, self._streams))
        return self._question

    def _tell(self, done: Callable[[], bool], end: float) -> None:
        """Tells the reason, unless the wait is over before the server has explained it."""
        if not self._telling.acquire(blocking=False):  # another thread is at it
            self.is_done_until(done, min(end, time.monotonic() + self._notice_seconds))
            return
        try:
            with self._changed:
                question = self._ask()
            if self.is_done_until(lambda: done() or question.is_over, end) and question.is_over:
                reason = question.answer()
                self._told_at = time.monotonic()
                self._on_wait(reason)
        finally:
            self._telling.release()

    def _tell_the_end(self) -> None:
        if self._told_at is not None and self._telling.acquire(blocking=False):
            try:
                told, self._told_at = self._told_at, None
                if told is not None:
                    self._on_wait(Reason())
            finally:
                self._telling.release()
