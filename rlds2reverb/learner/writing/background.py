"""The thread that sends finished episodes, so that the loop which makes them is not held up by the network.

Whoever finishes an episode judges it, and learns at once when it is bad; this thread encodes and sends. A request goes when it is full, when
nothing is on its way, or a moment after: so short episodes share requests, and none waits for the next one. The loop waits when too many bytes do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rlds2reverb.errors import ConfigError, keep_report, reason_of
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.shard import Outgoing, Shard

_LOOK_SECONDS = 0.25
"""How often the thread looks whether the sending goes well, while something is on its way."""

_KEPT_SECONDS = 0.02
"""How long a request that is not full waits for further episodes, while another one is on its way."""


class Background:
    """Sends what is judged. Any thread may call; the order of `put` is the order of sending.

    Args:
      push: open; the thread closes it when it ends.
      most_bytes: of the episodes that wait.
    """

    def __init__(self, push: Shard, most_bytes: int) -> None:
        self._push, self._most_bytes = push, most_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Outgoing] = deque()
        self._bytes = 0
        self._asked = self._drained = 0  # how often a drain was asked for, and which of these is done
        self._is_closing = False
        self._failure: BaseException | None = None
        self._is_told = False
        self._is_kept = False  # whether a request in the making has items
        self._thread = threading.Thread(target=self._run, name="rlds2reverb-write", daemon=True)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether nothing is sent any more."""
        return self._failure is not None

    @property
    def report(self) -> PushReport:
        """The account so far."""
        failure = self._failure
        return replace(self._push.report(), stopped="" if failure is None else reason_of(failure))

    def check(self) -> None:
        """Raises what has ended the sending: itself the first time, and that the writer has stopped from then on.

        Raises:
          TransportError, CapacityError: sending failed.
          ConfigError: the writer has stopped, or is closed.
        """
        with self._changed:
            self._check()

    def put(self, judged: Outgoing) -> None:
        """Hands over an episode; waits while too many bytes wait.

        Raises:
          Exception: as `check`; the episode was not taken.
        """
        with self._changed:
            self._wait(lambda: self._bytes <= self._most_bytes)
            self._waiting.append(judged)
            self._bytes += judged.episode.nbytes
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until everything is confirmed; raises as `check` does."""
        with self._changed:
            self._check()
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            self._wait(lambda: self._drained >= mine)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was handed over is confirmed."""
        return not self._bytes and not self._is_kept and self._push.awaits_nothing

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def close(self, seconds: float | None = None) -> BaseException | None:
        """Waits until everything is confirmed or sending has failed, and ends the thread; what failed, unless it was raised before.

        Args:
          seconds: wait no longer, and leave the thread at it; None for as long as it takes.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        is_told, self._is_told = self._is_told, True
        return None if is_told else self._failure

    def _wait(self, done: Callable[[], bool]) -> None:
        """Waits with the lock held."""
        self._changed.wait_for(lambda: done() or self._failure is not None)
        self._check()

    def _check(self) -> None:
        if self._failure is None and not self._is_closing:
            return
        if self._failure is not None and not self._is_told:
            self._is_told = True
            raise self._failure
        why = "has been closed" if self._failure is None else f"stopped earlier ({reason_of(self._failure)})"
        raise ConfigError(f"writer: it {why}; nothing more is stored by it. Make another one (client.writer)")

    # The sending thread.

    def _run(self) -> None:
        try:
            while self._go_on():
                pass
            self._push.finish()
            self._push.note()
        except BaseException as error:  # not handled here: raised in the caller's thread
            self._push.wind_up(error)
            self._fail(error)
        finally:
            self._push.close()

    def _go_on(self) -> bool:
        """Does what is to be done next; whether there may be more."""
        with self._changed:
            if not self._changed.wait_for(self._has_work, self._patience()):
                judged, asked, is_idle = None, 0, False
            else:
                judged = self._waiting.popleft() if self._waiting else None
                asked = 0 if judged else self._asked
                is_idle = not self._waiting
            is_over = self._is_closing and is_idle and judged is None
        if judged is not None:
            self._send(judged)
        elif asked > self._drained:
            self._push.drain()
            self._is_kept = False
            self._drain_done(asked)
        elif not is_over:
            self._push.check()
            self._flush()
        self._push.record()
        return not is_over

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._asked > self._drained or self._is_closing

    def _patience(self) -> float | None:
        """How long to wait for work; None for ever."""
        if self._is_kept:
            return _KEPT_SECONDS
        return None if self._push.awaits_nothing else _LOOK_SECONDS

    def _send(self, judged: Outgoing) -> None:
        self._push.send(judged)
        self._is_kept = True
        if self._push.awaits_nothing:
            self._flush()
        with self._changed:
            self._bytes -= judged.episode.nbytes
            self._changed.notify_all()

    def _flush(self) -> None:
        self._push.flush()
        self._is_kept = False

    def _drain_done(self, asked: int) -> None:
        self._push.note()
        with self._changed:
            self._drained = asked
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        keep_report(error, replace(self._push.report(), stopped=reason_of(error)))
        with self._changed:
            self._failure = error
            self._waiting.clear()
            self._changed.notify_all()
