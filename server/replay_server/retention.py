"""Which checkpoints are kept, of those of a folder or of a place in a bucket. Arithmetic only.

A rule keeps the newest checkpoint of each of so many hours, days or weeks in which there are any, and `last` the newest ones. A
checkpoint is kept that any rule keeps, as by `restic forget`: the rules know nothing of each other. Hours, days and weeks are those of
UTC; a week begins on Monday.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from rlds2reverb.text import counted, size

MOST_KEPT = 100_000

_HOUR, _DAY = 3600, 86_400
_MONDAY = 3  # days after a Monday on which Unix time begins, a Thursday

_PERIODS: dict[str, Callable[[float], int]] = {
    "hourly": lambda time: int(time // _HOUR),
    "daily": lambda time: int(time // _DAY),
    "weekly": lambda time: int((time // _DAY + _MONDAY) // 7),
}
"""Rule -> number of the period that a Unix time is in."""

_Count = Annotated[int, Meta(ge=0, le=MOST_KEPT)]


class Keep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checkpoints that are kept: the newest of each of so many hours, days and weeks that have any, in UTC, and the `last` ones, as many as without rules.

    Attributes:
      last: the newest ones, whenever they were written.
      hourly: hours of which the newest is kept.
      daily: days of which the newest is kept.
      weekly: weeks, from Monday, of which the newest is kept.
    """

    last: Annotated[int, Meta(ge=1, le=MOST_KEPT)] = 3
    hourly: _Count = 0
    daily: _Count = 0
    weekly: _Count = 0

    @property
    def most(self) -> int:
        """Most checkpoints that are kept; fewer when one is kept by several rules."""
        return self.last + self.hourly + self.daily + self.weekly

    @property
    def needs_times(self) -> bool:
        """Whether any rule but `last` counts."""
        return self.most > self.last

    def words(self) -> str:
        """Such as "3 last, 24 hourly"; the number alone where only `last` counts."""
        if not self.needs_times:
            return str(self.last)
        return ", ".join(f"{count} {name}" for name, count in msgspec.structs.asdict(self).items() if count)


def keep_of(keep: int | Keep) -> Keep:
    """The rules that a config's value stands for: a number keeps so many last ones."""
    return keep if isinstance(keep, Keep) else Keep(last=keep)


@dataclass(frozen=True)
class DiskNeed:
    """What the rules take on disk at most, if every checkpoint is as large as the newest one.

    Attributes:
      most: checkpoints.
      bytes: all of them, and one more, since the oldest goes when a new one is there.
      more_bytes: beyond what the checkpoints take now that a rule keeps, or that the next one replaces.
      free_bytes: on the disk; None where it does not answer.
    """

    most: int
    bytes: int
    more_bytes: int
    free_bytes: int | None

    @property
    def is_short(self) -> bool:
        return self.free_bytes is not None and self.free_bytes < self.more_bytes

    def words(self) -> str:
        """For people."""
        free = "the disk does not answer" if self.free_bytes is None else f"{size(self.free_bytes)} free"
        short = ", which is not enough" if self.is_short else ""
        return (
            f"at most {counted(self.most, 'checkpoint')} and one while it is written, {size(self.bytes)} if each is as large as the newest; "
            f"{size(self.more_bytes)} more than now, {free}{short}"
        )


def disk_need(keep: Keep, sizes: Sequence[int], newest_bytes: int, free_bytes: int | None) -> DiskNeed:
    """What the rules take.

    Args:
      sizes: bytes of the checkpoints that are there and make room some day, see `makes_room`.
    """
    whole = (keep.most + 1) * newest_bytes
    return DiskNeed(keep.most, whole, max(0, whole - sum(sizes)), free_bytes)


def makes_room(reasons: Collection[str], passing: Collection[str]) -> bool:
    """Whether a checkpoint with these reasons to keep it goes some day by the rules; one that is pinned takes its room beside what they need.

    Args:
      passing: reasons beside the rules that end by themselves.
    """
    return not reasons or any(reason in _PERIODS or reason == "last" or reason in passing for reason in reasons)


def plain_keep(keep: Keep) -> int | dict[str, int]:
    """As a config has it, for JSON and YAML: a number where only `last` counts, else the rules that do."""
    return (
        {name: count for name, count in msgspec.structs.asdict(keep).items() if count}
        if keep.needs_times
        else keep.last
    )


def kept_because(times: Sequence[float | None], keep: Keep) -> list[tuple[str, ...]]:
    """The rules that keep each checkpoint; () for one that none keeps.

    Args:
      times: Unix times of checkpoints, the newest checkpoint first, whatever clocks said; None for a broken one, which only `last` keeps.
    """
    reasons: list[list[str]] = [["last"] if place < keep.last else [] for place in range(len(times))]
    for rule, period in _PERIODS.items():
        periods = set[int]()
        for place, time in enumerate(times):
            if len(periods) == getattr(keep, rule):
                break
            if time is not None and (number := period(time)) not in periods:
                periods.add(number)
                reasons[place].append(rule)
    return [tuple(names) for names in reasons]
