"""The report of a push, and sums of reports over servers or workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rlds2reverb.episode import Notice
from rlds2reverb.formats.source import LeftOut
from rlds2reverb.plain import members, printed
from rlds2reverb.text import as_html


@printed("*", "episodes_unconfirmed", "items_per_second")
@dataclass(frozen=True)
class PushReport:
    """The report of one push, finished or stopped.

    `episodes_read == episodes_pushed + sum(rejected.values()) + episodes_duplicate + episodes_left_out + episodes_unconfirmed` always holds. In a
    finished push nothing is unconfirmed, except episodes in flight to a server that was lost.

    Attributes:
      source, tables, view: of the push.
      episodes_read, steps_read: read from the source, without resumed ones.
      episodes_pushed, steps_pushed: stored: every item is confirmed.
      items_confirmed: items that the server confirmed, over all tables; items that were there before included.
      rejected: code -> episodes rejected; each counts once, under its first problem.
      steps_rejected: steps of the rejected episodes.
      advice: code -> episodes stored although a learner may misread them.
      repaired: code -> episodes repaired before they were stored.
      ends_mended: episodes whose last row was left out, or got the observation before it (`last_observation`).
      notices: about the dataset as a whole.
      filled: step fields that the dataset lacks and that were filled (`conventions`).
      episodes_resumed: skipped because the ledger has them as confirmed.
      episodes_duplicate: good, and not stored because an equal one was (`duplicates="once"`).
      bytes: sent to the server.
      seconds: wall time.
      reconnects: streams opened anew after one broke.
      items_made: table -> items that its view made of the episodes sent or resumed.
      without_items: table -> episodes sent of which its view made no item while another view of the push did.
      left_over: table -> steps at the end of the stream that no item holds; only for views of streams.
      not_in_items: table -> paths of the dataset's step columns that none of its items holds in any form.
      items_new: items confirmed that the tables did not have before; None when it is not known: the push was cut off, a table was
        reset, or it got more items than the push sent. Items of another push at the same time may count.
      episodes_unread: left in the source; None when the source does not know its number of episodes.
      stopped: the error that ended the push, on one line; "" for a finished push.
      transform: operations on the columns that did something: operation -> value.
      filtered: rule -> what it took out of the source before it was read.
      workers: number of worker processes; 0 for a push by one process.
      parts_again: tasks begun again because their worker, or its machine, was lost.
      ends_found_late: episodes stored by workers although their ends are those of other episodes (`last_observation_shared`), which
        their worker did not know in time; one process would have rejected them. A notice names the first.
      episodes_left_out: read, and not sent, because their server is missing. The same push, run again when it is back, stores them.
      episodes_deleted: not stored, because they were deleted from the tables (`rlds2reverb delete`), and not counted as read.
      items_moved: items deleted from servers where they do not belong any more (`move`), by the sizes of their tables.
      servers: with many servers, address -> report of its part; its `stopped` says why a server is missing.
    """

    source: str
    tables: tuple[str, ...]
    view: str
    episodes_read: int = 0
    steps_read: int = 0
    episodes_pushed: int = 0
    steps_pushed: int = 0
    items_confirmed: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    steps_rejected: int = 0
    advice: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    ends_mended: int = 0
    notices: tuple[Notice, ...] = ()
    filled: tuple[str, ...] = ()
    episodes_resumed: int = 0
    episodes_duplicate: int = 0
    bytes: int = 0
    seconds: float = 0.0
    reconnects: int = 0
    items_made: Mapping[str, int] = field(default_factory=dict)
    without_items: Mapping[str, int] = field(default_factory=dict)
    left_over: Mapping[str, int] = field(default_factory=dict)
    not_in_items: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    items_new: int | None = None
    episodes_unread: int | None = None
    stopped: str = ""
    transform: Mapping[str, Any] = field(default_factory=dict)
    filtered: Mapping[str, LeftOut] = field(default_factory=dict)
    workers: int = 0
    parts_again: int = 0
    ends_found_late: int = 0
    episodes_left_out: int = 0
    episodes_deleted: int = 0
    items_moved: int = 0
    servers: Mapping[str, PushReport] = field(default_factory=dict)

    _repr_html_ = as_html

    @property
    def episodes_rejected(self) -> int:
        """Number of rejected episodes."""
        return sum(self.rejected.values())

    @property
    def episodes_unconfirmed(self) -> int:
        """Good episodes that are not known to be stored whole; 0 for a finished push."""
        stored = self.episodes_pushed + self.episodes_duplicate + self.episodes_left_out
        return self.episodes_read - self.episodes_rejected - stored

    @property
    def items_per_second(self) -> float:
        """Confirmed items over wall time."""
        return self.items_confirmed / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return members(self)


_OF_ALL = ("workers", "parts_again", "ends_found_late", "items_moved")  # known of a whole push only
# Annotations are texts in this module (`from __future__ import annotations`): so a new counter of the report is summed by itself.
_SUMS = tuple(field.name for field in fields(PushReport) if str(field.type) == "int" and field.name not in _OF_ALL)
_COUNTS = tuple(field.name for field in fields(PushReport) if str(field.type) == "Mapping[str, int]")


def sum_if_known(counts: Iterable[int | None]) -> int | None:
    """The sum of the counts; None if one of them is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


class ReportSums:
    """Sums of reports: `sums` maps a field to a number, `counts` a field to code or table -> number."""

    def __init__(self, *reports: PushReport) -> None:
        self.sums: Counter[str] = Counter()
        self.counts = {name: Counter[str]() for name in _COUNTS}
        for report in reports:
            self.add(report)

    def add(self, report: PushReport) -> None:
        self.sums.update({name: getattr(report, name) for name in _SUMS})
        for name, count in self.counts.items():
            count.update(getattr(report, name))

    def unread(self, episodes: int | None) -> int | None:
        passed = ("episodes_read", "episodes_resumed", "episodes_deleted")
        return None if episodes is None else episodes - sum(self.sums[name] for name in passed)

    def fields(self) -> dict[str, Any]:
        return {
            **{name: self.sums[name] for name in _SUMS},
            **{name: dict(count) for name, count in self.counts.items()},
        }


def total(whole: PushReport, servers: Mapping[str, PushReport]) -> PushReport:
    """Adds the reports of the servers to `whole`, in which `episodes_unread` is still the number of all episodes."""
    sums = ReportSums(*servers.values())
    return replace(
        whole,
        **sums.fields(),
        items_new=sum_if_known(report.items_new for report in servers.values()),
        episodes_unread=sums.unread(whole.episodes_unread),
        servers=dict(servers) if len(servers) > 1 else {},
    )
