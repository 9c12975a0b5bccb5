"""Servers asked again and again, each in threads of its own: one that is slow, or gone, keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlds2reverb.cli.top.rates import SPAN_SECONDS, moment, with_moment
from rlds2reverb.cli.top.state import Known
from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.transport.http import Status
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.wording import line_of, visible

_END_SECONDS = 2.0
"""For the threads to end, together; they end with the process in any case."""


class Way(Protocol):
    """A way to a server; see `rlds2reverb.transport.base.Transport`."""

    def server_info(self, at_once: bool = False) -> ServerInfo:
        """Asks for all tables."""
        ...

    def close(self) -> None:
        """Ends it, and a question that is under way."""
        ...


class Http(Protocol):
    """The HTTP of a server; see `rlds2reverb.transport.http.ServerHttp`."""

    url: str

    def status(self, seconds: float) -> Status:
        """What it tells of itself now."""
        ...


@dataclass(frozen=True)
class Target:
    """A server to watch.

    Attributes:
      name: what it is called.
      way: to it; the watch closes it.
      http: its HTTP, or None.
    """

    name: str
    way: Way
    http: Http | None = None


class Watch:
    """All servers, asked inside the `with` block. Thread-safe.

    Args:
      targets: the servers.
      interval: seconds from one question to the next.
      timeout: seconds for an answer over HTTP; the ways have deadlines of their own.
    """

    def __init__(self, targets: Sequence[Target], interval: float, timeout: float) -> None:
        self._interval, self._timeout = interval, timeout
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._known = [_unknown(target) for target in targets]
        self._targets = tuple(targets)
        self._processes: dict[int, int] = {}  # server -> its state_id
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(job, number), name=f"top {target.name}", daemon=True)
            for number, target in enumerate(targets)
            for job in ((self._ask, self._ask_status) if target.http else (self._ask,))
        ]
        self.on_change: Callable[[], object] = lambda: None

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for target in self._targets:
            target.way.close()
        end = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def known(self) -> tuple[Known, ...]:
        """What is known of each server now.

        Raises:
          BaseException: what ended one of the threads.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            return tuple(self._known)

    def wait(self, is_enough: Callable[[Sequence[Known]], bool], seconds: float) -> tuple[Known, ...]:
        """Waits until enough is known, or the time is over; what is known then.

        Raises:
          BaseException: see `known`.
        """
        end = time.monotonic() + seconds
        with self._changed:
            while self._error is None and not is_enough(self._known) and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        return self.known()

    def _run(self, job: Callable[[int], None], number: int) -> None:
        try:
            while not self._stopped.is_set():
                began = time.monotonic()
                job(number)
                self._stopped.wait(max(self._interval / 10, began + self._interval - time.monotonic()))
        except BaseException as error:
            with self._changed:
                self._error = error
            self._tell()

    def _ask(self, number: int) -> None:
        with self._changed:
            self._known[number] = replace(self._known[number], asked_at=time.time())  # no news: nobody is woken
        try:
            info = self._targets[number].way.server_info(at_once=True)
        except Rlds2ReverbError as error:
            self._set(number, problem=visible(line_of(error)), history=(), asked_at=None)
        else:
            self._answered(number, info)

    def _answered(self, number: int, info: ServerInfo) -> None:
        before, now = self._known[number], time.time()
        newest = moment(info, time.monotonic())
        history = with_moment(before.history, newest, max(SPAN_SECONDS, 1.5 * self._interval))
        another = self._processes.setdefault(number, info.state_id) != info.state_id
        self._processes[number] = info.state_id
        restarted_at = now if another else before.restarted_at
        known: dict[str, Any] = {"tables": info.tables, "history": history, "restarted_at": restarted_at}
        self._set(number, problem="", answered_at=now, asked_at=None, **known)

    def _ask_status(self, number: int) -> None:
        http = self._targets[number].http
        assert http is not None  # else there is no such thread
        try:
            status = http.status(self._timeout)
        except Rlds2ReverbError as error:
            self._set(number, status_problem=visible(line_of(error)))
        else:
            self._set(number, status=status, status_at=time.time(), status_problem="")

    def _set(self, number: int, **changes: Any) -> None:
        with self._changed:
            self._known[number] = replace(self._known[number], **changes)
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self.on_change()


def _unknown(target: Target) -> Known:
    return Known(target.name, time.time(), target.http.url if target.http else "")
