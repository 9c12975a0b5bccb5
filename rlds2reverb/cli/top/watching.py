"""Servers that are asked again and again, each in threads of its own, so that one that is slow or gone keeps nobody waiting.

What is known of a server is a `Known`: a value, made by the threads that ask, read by whoever draws. Rates come from counts at
different moments:

| counts of a table | rate |
| --- | --- |
| seen once | not known |
| seen again in the same process | the difference by the seconds between |
| smaller than before: the table was reset | not known, until it is seen again |
| of another process: the server was restarted | not known, until it is seen again |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.text import line_of, visible
from rlds2reverb.transport.http import Status
from rlds2reverb.wire.messages import ServerInfo, TableInfo

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


PATIENCE_SECONDS = 3.0
"""How old a question or an answer over HTTP may get before its age is told."""


@dataclass(frozen=True)
class Known:
    """One server.

    Attributes:
      name: what it is called, its address or the name beside it.
      tables: as it last told them; empty before the first answer.
      history: their counts at the last moments; empty while it does not answer.
      problem: why it did not answer the newest question, on one line; "" when it did.
      answered_at: Unix time of its last answer; None before the first.
      watched_since: Unix time of the first question.
      asked_at: Unix time of a question that is under way, or None.
      restarted_at: Unix time at which another process was found to answer, or None.
      url: of its HTTP, or "" when that is not known.
      status: as it last came over HTTP, or None.
      status_at: Unix time of that.
      status_problem: why none came when it was last asked for, or "".
    """

    name: str
    watched_since: float
    url: str = ""
    tables: Mapping[str, TableInfo] = field(default_factory=dict)
    history: History = ()
    problem: str = ""
    answered_at: float | None = None
    asked_at: float | None = None
    restarted_at: float | None = None
    status: Status | None = None
    status_at: float = 0.0
    status_problem: str = ""

    @property
    def answers(self) -> bool:
        """Whether the newest question that has ended was answered."""
        return self.answered_at is not None and not self.problem

    @property
    def silent_since(self) -> float:
        """Unix time since which there is no answer: that of the last one, or of the first question."""
        return self.watched_since if self.answered_at is None else self.answered_at

    def waited(self, now: float) -> float:
        """Seconds that a question has waited for its answer, where that is worth telling; else 0."""
        if self.asked_at is None or now - self.asked_at < PATIENCE_SECONDS:
            return 0.0
        return now - self.asked_at

    def rates(self) -> dict[str, Rate]:
        """By table, where they are known: none while it does not answer."""
        return rates(self.history) if self.answers else {}


SPAN_SECONDS = 5.0
"""How far a rate looks back, if the interval between two questions is not longer."""


@dataclass(frozen=True)
class Counts:
    """Completed calls of a table."""

    inserts: int
    samples: int


@dataclass(frozen=True)
class Moment:
    """What a server told at one moment.

    Attributes:
      seconds: of a clock that never goes back.
      state_id: of the server's process.
      counts: by table.
    """

    seconds: float
    state_id: int
    counts: Mapping[str, Counts]


@dataclass(frozen=True)
class Rate:
    """Per second, over the last `seconds`."""

    inserts: float
    samples: float
    seconds: float


History = tuple[Moment, ...]
"""Moments of one server process, oldest first."""


def moment(info: ServerInfo, seconds: float) -> Moment:
    """The counts of an answer that came at `seconds`."""
    limiters = {name: table.rate_limiter for name, table in info.tables.items()}
    return Moment(seconds, info.state_id, {name: Counts(one.inserts, one.samples) for name, one in limiters.items()})


def with_moment(history: History, newest: Moment, span_seconds: float = SPAN_SECONDS) -> History:
    """The history and one more moment; without those of another process, and without those too long ago but for one."""
    if history and (history[-1].state_id != newest.state_id or newest.seconds <= history[-1].seconds):
        return (newest,)
    within = tuple(one for one in history if newest.seconds - one.seconds <= span_seconds)
    return (*(within or history[-1:]), newest)


def rates(history: History) -> dict[str, Rate]:
    """The rates of the tables whose rates are known; none is negative."""
    if not history:
        return {}
    found = {name: _rate(history, name) for name in history[-1].counts}
    return {name: one for name, one in found.items() if one is not None}


def _rate(history: History, name: str) -> Rate | None:
    """From the oldest moment after which its counts have only grown."""
    newest = oldest = history[-1]
    for earlier in reversed(history[:-1]):
        if name not in earlier.counts or not _grows(earlier.counts[name], oldest.counts[name]):
            break
        oldest = earlier
    seconds = newest.seconds - oldest.seconds
    if seconds <= 0:
        return None
    before, after = oldest.counts[name], newest.counts[name]
    return Rate((after.inserts - before.inserts) / seconds, (after.samples - before.samples) / seconds, seconds)


def _grows(before: Counts, after: Counts) -> bool:
    return before.inserts <= after.inserts and before.samples <= after.samples
