"""A table as a row: what its columns hold, as numbers to sort by and as texts to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlds2reverb.cli.top.rates import Rate
from rlds2reverb.cli.top.texts import compact, rate, ratio, visible
from rlds2reverb.wire.limiter import Wait, clause, insert_wait, sample_wait
from rlds2reverb.wire.messages import TableInfo

_UNBOUNDED = 1e300
"""A limiter whose bounds are wider holds nothing to its ratio: Reverb's own unbounded ones are the largest floats."""


@dataclass(frozen=True)
class Row:
    """A table, and its rate when that is known."""

    table: TableInfo
    rate: Rate | None

    @property
    def fill(self) -> float:
        """Items by places, 0 to 1."""
        return self.table.current_size / self.table.max_size if self.table.max_size > 0 else 0.0

    @property
    def samples_per_insert(self) -> float | None:
        """So far; None before the first insert."""
        limiter = self.table.rate_limiter
        return limiter.samples / limiter.inserts if limiter.inserts > 0 else None

    @property
    def wanted_ratio(self) -> float | None:
        """Samples per insert that its rate limiter holds it to; None when to none."""
        limiter = self.table.rate_limiter
        is_free = limiter.min_diff <= -_UNBOUNDED and limiter.max_diff >= _UNBOUNDED
        return None if is_free or not limiter.samples_per_insert > 0 else limiter.samples_per_insert

    @property
    def waiting(self) -> str:
        """Which of the two its rate limiter lets through none of: "inserts", "samples", "both", or ""."""
        inserts, samples = insert_wait(self.table).blocks, sample_wait(self.table).blocks
        return "both" if inserts and samples else "inserts" if inserts else "samples" if samples else ""

    def blocked(self) -> list[Wait]:
        """Inserts, samples, or both, where none may go on."""
        return [wait for wait in (insert_wait(self.table), sample_wait(self.table)) if wait.blocks]


def wait_text(wait: Wait) -> str:
    """Whose wait it is and what for, in words; or that there is none."""
    return visible(f"{wait.of}s: {clause(wait)}")


def items_text(row: Row, is_wide: bool) -> str:
    """Items of places; all digits where there is room."""
    table = row.table
    if is_wide:
        return f"{table.current_size:,} / {table.max_size:,}"
    return f"{compact(table.current_size)}/{compact(table.max_size)}"


def ratio_text(row: Row) -> str:
    """Samples per insert so far, and what the rate limiter wants."""
    return f"{ratio(row.samples_per_insert)}/{'any' if row.wanted_ratio is None else ratio(row.wanted_ratio)}"


@dataclass(frozen=True)
class Column:
    """A column of the view, but for the names.

    Attributes:
      key: its name in --sort.
      heading: what stands above it.
      width, wide: cells it takes, and takes on a wide terminal.
      rank: those with the highest are the first to go on a narrow terminal.
      text: of a row; told whether the terminal is wide.
    """

    key: str
    heading: str
    width: int
    wide: int
    rank: int
    text: Callable[[Row, bool], str]


COLUMNS = (
    Column("items", "ITEMS/MAX", 16, 25, 2, items_text),
    Column("full", "FULL", 5, 6, 4, lambda row, _: f"{math.floor(min(row.fill, 99.0) * 100)}%"),
    Column("inserts", "INSERTS/S", 10, 12, 0, lambda row, _: rate(row.rate.inserts if row.rate else None)),
    Column("samples", "SAMPLES/S", 10, 12, 1, lambda row, _: rate(row.rate.samples if row.rate else None)),
    Column("ratio", "PER INSERT", 11, 14, 5, lambda row, _: ratio_text(row)),
    Column("waits", "WAITS", 8, 10, 3, lambda row, _: row.waiting or "-"),
)

_VALUES: dict[str, Callable[[Row], float]] = {
    "items": lambda row: row.table.current_size,
    "full": lambda row: row.fill,
    "inserts": lambda row: row.rate.inserts if row.rate else -1.0,
    "samples": lambda row: row.rate.samples if row.rate else -1.0,
    "ratio": lambda row: -1.0 if row.samples_per_insert is None else row.samples_per_insert,
    "waits": lambda row: ("", "samples", "inserts", "both").index(row.waiting),
}

SORTS = ("name", *_VALUES)
"""What rows can be sorted by."""


def rows(tables: Mapping[str, TableInfo], rates: Mapping[str, Rate], sort: str, is_reverse: bool) -> Sequence[Row]:
    """The tables in order: by name from the first, by anything else from the largest; the other way round in reverse.

    Args:
      sort: one of `SORTS`.
    """
    found = [Row(tables[name], rates.get(name)) for name in sorted(tables)]
    if sort == "name":
        return found[::-1] if is_reverse else found
    return sorted(found, key=_VALUES[sort], reverse=not is_reverse)
