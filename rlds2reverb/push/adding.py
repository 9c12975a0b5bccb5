"""What the accounts of a push's parts come to together: of several servers, or of several workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rlds2reverb.push.report import PushReport

_SUMS = (
    "episodes_read",
    "steps_read",
    "episodes_pushed",
    "steps_pushed",
    "items_confirmed",
    "items_taken_out",
    "steps_rejected",
    "ends_mended",
    "episodes_resumed",
    "episodes_duplicate",
    "episodes_left_out",
    "bytes",
    "reconnects",
)
_COUNTS = ("rejected", "advice", "repaired", "items_made", "without_items", "left_over")


class Added:
    """The sums of reports.

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

    def copy(self) -> Added:
        """The same, to which more may be added."""
        made = Added()
        made.sums.update(self.sums)
        for name, one in self.counts.items():
            made.counts[name].update(one)
        return made

    def fields(self) -> dict[str, Any]:
        """Field of `PushReport` -> value."""
        return {**{name: self.sums[name] for name in _SUMS}, **{name: dict(one) for name, one in self.counts.items()}}
