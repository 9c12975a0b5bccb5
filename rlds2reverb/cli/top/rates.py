"""Rates of tables, from the counts that a server tells at different moments. Pure: no clocks, no threads.

| counts of a table | rate |
| --- | --- |
| seen once | not known |
| seen again in the same process | the difference by the seconds between |
| smaller than before: the table was reset | not known, until it is seen again |
| of another process: the server was restarted | not known, until it is seen again |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlds2reverb.wire.messages import ServerInfo

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
