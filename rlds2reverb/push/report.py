"""What a push did, how far it is, and the sums over its servers or workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlds2reverb.display import as_html
from rlds2reverb.episode import Notice


@dataclass(frozen=True)
class PushReport:
    """The account of one push, finished or stopped.

    `episodes_read == episodes_pushed + sum(rejected.values()) + episodes_duplicate + episodes_left_out + episodes_unconfirmed` always holds. In a
    finished push nothing is unconfirmed, but what was on its way to a server that was lost, where some may be missing.

    Attributes:
      source, tables, view: what went where, cut how.
      episodes_read, steps_read: taken from the source, without those resumed.
      episodes_pushed, steps_pushed: of these, stored: every item is confirmed.
      items_confirmed: items that the server confirmed, over all tables; includes those that were there before.
      rejected: code -> episodes rejected; each counts once, under its first problem.
      steps_rejected: steps of the rejected episodes.
      advice: code -> episodes stored although a learner may misread them.
      repaired: code -> episodes mended before they were stored.
      ends_mended: episodes whose last row was left out, or got the observation before it (`last_observation`).
      notices: what was found of the dataset as a whole, up to here.
      filled: step fields that the dataset lacks and that were filled (`conventions`).
      episodes_resumed: skipped because the ledger has them as confirmed.
      episodes_duplicate: good, and not stored because an equal one was (`duplicates="once"`).
      bytes: sent to the server.
      seconds: wall time.
      reconnects: times the stream broke and was taken up again.
      items_made: table -> items that its view made of the episodes sent, the resumed ones included.
      without_items: table -> episodes sent of which its view made no item while another view of the push did.
      left_over: table -> steps at the end of the stream that no item holds; only for views of streams.
      not_in_items: table -> paths of the dataset's step columns that none of its items holds in any form.
      items_new: how many of items_confirmed the tables did not have before. None when that is not known: the push was cut off, a
        table was reset, or it took more items than the push sent. When another push fills the table meanwhile, its items may count.
      episodes_unread: left in the source; None when it does not know how many it has.
      stopped: what ended the push, on one line; "" when it is finished.
      transform: what was done to the columns first: operation -> value, those that did something.
      workers: processes that pushed parts of the source at a time; 0 for a push by one process.
      parts_again: how often a part was begun anew because its worker, or the machine, was lost.
      ends_found_late: episodes stored although their ends are not their own (`last_observation_shared`): their part did not know it in
        time. One process would have treated them as bad. There is a remark with the first of them.
      episodes_left_out: read, and not sent: their server is missing. The same push, run again when it is back, stores them.
      items_moved: items taken out of servers where they do not belong any more (`move`), by the sizes of their tables.
      servers: of several servers, address -> the account of its part; the others are their sums. `stopped` says there why a
        server is missing.
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
    workers: int = 0
    parts_again: int = 0
    ends_found_late: int = 0
    episodes_left_out: int = 0
    items_moved: int = 0
    servers: Mapping[str, PushReport] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def episodes_rejected(self) -> int:
        """All rejected episodes."""
        return sum(self.rejected.values())

    @property
    def episodes_unconfirmed(self) -> int:
        """Episodes read and not rejected that are not known to be stored whole; 0 for a finished push."""
        stored = self.episodes_pushed + self.episodes_duplicate + self.episodes_left_out
        return self.episodes_read - self.episodes_rejected - stored

    @property
    def items_per_second(self) -> float:
        """Confirmed items over wall time."""
        return self.items_confirmed / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        totals = {
            "episodes_unconfirmed": self.episodes_unconfirmed,
            "items_per_second": self.items_per_second,
        }
        plain = asdict(replace(self, servers={}))
        return {**plain, **totals, "servers": {address: one.as_dict() for address, one in self.servers.items()}}


_SUMS = (
    "episodes_read",
    "steps_read",
    "episodes_pushed",
    "steps_pushed",
    "items_confirmed",
    "steps_rejected",
    "ends_mended",
    "episodes_resumed",
    "episodes_duplicate",
    "episodes_left_out",
    "bytes",
    "reconnects",
)
_COUNTS = ("rejected", "advice", "repaired", "items_made", "without_items", "left_over")


class ReportSums:
    """The sums of reports: of the servers of a push, or of its workers.

    Attributes:
      sums: field -> number.
      counts: field -> code or table -> number, in the order in which they first came.
    """

    def __init__(self, *reports: PushReport) -> None:
        self.sums: Counter[str] = Counter()
        self.counts = {name: Counter[str]() for name in _COUNTS}
        for report in reports:
            self.add(report)

    def add(self, report: PushReport) -> None:
        """Adds one."""
        self.sums.update({name: getattr(report, name) for name in _SUMS})
        for name, one in self.counts.items():
            one.update(getattr(report, name))

    def copy(self) -> ReportSums:
        """The same, to which more may be added."""
        made = ReportSums()
        made.sums.update(self.sums)
        for name, one in self.counts.items():
            made.counts[name].update(one)
        return made

    def unread(self, episodes: int | None) -> int | None:
        """How many of so many episodes are left in the source; None when that is not known."""
        return None if episodes is None else episodes - self.sums["episodes_read"] - self.sums["episodes_resumed"]

    def fields(self) -> dict[str, Any]:
        """Field of `PushReport` -> value."""
        return {**{name: self.sums[name] for name in _SUMS}, **{name: dict(one) for name, one in self.counts.items()}}


def total(whole: PushReport, servers: Mapping[str, PushReport]) -> PushReport:
    """The account of a push to one server or to several.

    Args:
      whole: what is the same for all: source, tables, view, notices, seconds; `episodes_unread` as if none had been read.
      servers: address -> account. That of one server alone is the push's.
    """
    sums = ReportSums(*servers.values())
    new = [one.items_new for one in servers.values() if one.items_new is not None]
    return replace(
        whole,
        **sums.fields(),
        items_new=sum(new) if len(new) == len(servers) else None,
        episodes_unread=sums.unread(whole.episodes_unread),
        servers=dict(servers) if len(servers) > 1 else {},
    )
