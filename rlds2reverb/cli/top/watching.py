"""Servers that are polled, each by threads of its own, so that a slow one delays no other.

The threads make a `WatchedServer` of each server, a value that the views draw. Rates come from counts at different moments:

| counts of a table | rate |
| --- | --- |
| seen once | not known |
| seen again in the same process | the difference by the seconds between |
| smaller than before: the table was reset | not known, until it is seen again |
| of another process: the server was restarted | not known, until it is seen again |
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.text import line_of, visible
from rlds2reverb.transport.http import Status
from rlds2reverb.wire.messages import ServerInfo, TableInfo

_END_SECONDS = 2.0  # for the threads to end, together; they end with the process in any case


class ServerWay(Protocol):
    """See `rlds2reverb.transport.base.Transport`; `close` ends a request that is under way."""

    def server_info(self, at_once: bool = False) -> ServerInfo: ...

    def close(self) -> None: ...


class ServerStatusHttp(Protocol):
    """See `rlds2reverb.transport.http.ServerHttp`."""

    url: str

    def status(self, seconds: float) -> Status: ...


@dataclass(frozen=True)
class WatchTarget:
    """A server to watch."""

    name: str
    way: ServerWay  # the watch closes it
    http: ServerStatusHttp | None = None
    address: str = ""


class Watch:
    """All servers, polled every `interval` seconds inside the `with` block. Thread-safe.

    `timeout` is for answers over HTTP; the ways have deadlines of their own.
    """

    def __init__(self, targets: Sequence[WatchTarget], interval: float, timeout: float) -> None:
        self._interval, self._timeout = interval, timeout
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._known = [
            WatchedServer(target.name, time.time(), target.http.url if target.http else "", address=target.address)
            for target in targets
        ]
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

    def servers(self) -> tuple[WatchedServer, ...]:
        """What is known of each server now; raises what ended one of the threads."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return tuple(self._known)

    def wait(self, is_enough: Callable[[Sequence[WatchedServer]], bool], seconds: float) -> tuple[WatchedServer, ...]:
        """Waits until enough is known, or the time is over; then as `servers`."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._error is None and not is_enough(self._known) and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        return self.servers()

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
            # Shown once the answer takes long, see `WatchedServer.waited`.
            self._known[number] = replace(self._known[number], asked_at=time.time())  # no news, so no notification
        try:
            info = self._targets[number].way.server_info(at_once=True)
        except Rlds2ReverbError as error:
            self._set(number, problem=visible(line_of(error)), history=(), asked_at=None)
            return
        before, now = self._known[number], time.time()
        newest = read_moment(info, time.monotonic())
        history = add_moment(before.history, newest, max(SPAN_SECONDS, 1.5 * self._interval))
        past = add_mark(before.past, newest, max(TREND_STEP_SECONDS, self._interval))
        another = self._processes.setdefault(number, info.state_id) != info.state_id
        self._processes[number] = info.state_id
        restarted_at = now if another else before.restarted_at
        changes: dict[str, Any] = {
            "tables": info.tables,
            "history": history,
            "past": past,
            "restarted_at": restarted_at,
        }
        self._set(number, problem="", answered_at=now, asked_at=None, **changes)

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


PATIENCE_SECONDS = 3.0  # age from which that of a request, or of an answer over HTTP, is shown


@dataclass(frozen=True)
class WatchedServer:
    """One server. Times are Unix times.

    Attributes:
      name: its address, or the name given with it.
      tables: of its last answer; empty before the first.
      history: counts at the last moments; empty while it does not answer.
      past: counts at moments that are further apart, for trends; of one process.
      problem: why it did not answer the newest request, on one line; "" when it did.
      answered_at: time of its last answer.
      asked_at: time of a request that is under way.
      restarted_at: when another process was found to answer.
      url: of its HTTP, or "".
      status: of the last answer over HTTP, which came at `status_at`.
      status_problem: why the last request over HTTP failed, or "".
      address: its HOST:PORT.
    """

    name: str
    watched_since: float
    url: str = ""
    tables: Mapping[str, TableInfo] = field(default_factory=dict)
    history: History = ()
    past: History = ()
    problem: str = ""
    answered_at: float | None = None
    asked_at: float | None = None
    restarted_at: float | None = None
    status: Status | None = None
    status_at: float = 0.0
    status_problem: str = ""
    address: str = ""

    @property
    def answers(self) -> bool:
        """Whether the newest request that has ended was answered."""
        return self.answered_at is not None and not self.problem

    @property
    def silent_since(self) -> float:
        """Time of the last answer, or of the first request."""
        return self.watched_since if self.answered_at is None else self.answered_at

    def waited(self, now: float) -> float:
        """Seconds that a request has waited for its answer, 0 below `PATIENCE_SECONDS`."""
        if self.asked_at is None or now - self.asked_at < PATIENCE_SECONDS:
            return 0.0
        return now - self.asked_at

    def rates(self) -> dict[str, Rate]:
        """Known rates by table; {} while the server does not answer."""
        return rates(self.history) if self.answers else {}


SPAN_SECONDS = 5.0  # how far a rate looks back, unless the interval is longer


@dataclass(frozen=True)
class Moment:
    """The counts of a server's answer, by table."""

    seconds: float  # of a monotonic clock
    state_id: int  # of the server's process
    counts: Mapping[str, tuple[int, int]]  # completed inserts and samples


@dataclass(frozen=True)
class Rate:
    """Per second, over the last `seconds`."""

    inserts: float
    samples: float
    seconds: float


History = tuple[Moment, ...]  # of one server process, oldest first


def read_moment(info: ServerInfo, seconds: float) -> Moment:
    limiters = {name: table.rate_limiter for name, table in info.tables.items()}
    return Moment(
        seconds, info.state_id, {name: (limiter.inserts, limiter.samples) for name, limiter in limiters.items()}
    )


def add_moment(history: History, newest: Moment, span_seconds: float = SPAN_SECONDS) -> History:
    """The history with one more moment, without those of another process, and with at most one that is older than the span."""
    # Another process counts from 0 again: differences to the earlier one mean nothing.
    if history and (history[-1].state_id != newest.state_id or newest.seconds <= history[-1].seconds):
        return (newest,)
    within = tuple(earlier for earlier in history if newest.seconds - earlier.seconds <= span_seconds)
    return (*(within or history[-1:]), newest)


def rates(history: History) -> dict[str, Rate]:
    """The rates of the tables whose rates are known; none is negative."""
    if not history:
        return {}
    by_table = {name: _rate(history, name) for name in history[-1].counts}
    return {name: rate for name, rate in by_table.items() if rate is not None}


def _rate(history: History, name: str) -> Rate | None:
    """From the oldest moment after which its counts have only grown."""
    newest = oldest = history[-1]
    for earlier in reversed(history[:-1]):
        if name not in earlier.counts or any(a > b for a, b in zip(earlier.counts[name], oldest.counts[name])):
            break
        oldest = earlier
    seconds = newest.seconds - oldest.seconds
    if seconds <= 0:
        return None
    inserts, samples = ((after - before) / seconds for before, after in zip(oldest.counts[name], newest.counts[name]))
    return Rate(inserts, samples, seconds)


TREND_MOST = 16  # rates of a trend
TREND_STEP_SECONDS = 2.0  # between them, unless the interval is longer
_EARLY = 0.9  # of a step: polls are not punctual


def add_mark(past: History, newest: Moment, step_seconds: float) -> History:
    """The moments of a trend with one more, if a step is over; anew for another process."""
    if not past or past[-1].state_id != newest.state_id:
        return (newest,)
    if newest.seconds - past[-1].seconds < _EARLY * step_seconds:
        return past
    return (*past, newest)[-TREND_MOST - 1 :]


def trend(past: History, name: str) -> tuple[Rate | None, ...]:
    """The rates of a table from moment to moment, oldest first; None where they are not known, as across a reset."""
    return tuple(_rate(pair, name) if name in pair[-1].counts else None for pair in itertools.pairwise(past))
