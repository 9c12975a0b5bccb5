"""What the values of a column look like: a histogram, mean and spread for each of its dimensions, or its texts.

The texts with the smallest marks are kept (`mark_of`), `KEPT` at most. A mark that is kept at the end was small enough all along, so counts of kept texts
are exact. Up to `KEPT` different texts are all there; the number of further ones is estimated from the largest kept mark (Bar-Yossef et al., "Counting
distinct elements in a data stream", 2002), with a standard error of about 1/sqrt(KEPT - 2): 6 %.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import xxhash

from rlds2reverb.episode import Array
from rlds2reverb.images import FILE, kind
from rlds2reverb.numbers.sketch import Numbers
from rlds2reverb.specs import ArraySpec

Value = TypeVar("Value")


def mark_of(name: bytes, seed: int) -> int:
    """A number of 64 bits that a name and a seed decide."""
    return xxhash.xxh3_64_intdigest(name, seed=seed)


class Chosen(Generic[Value]):
    """The `most` things with the smallest marks; the seed, at least 0, decides which."""

    def __init__(self, most: int, seed: int) -> None:
        self._most, self._seed = most, seed
        self._kept: dict[tuple[int, str], Value] = {}

    def wants(self, name: str) -> bool:
        """Whether a thing of this name would be kept; one that is there already is not kept again."""
        key = self._key(name)
        return key not in self._kept and (len(self._kept) < self._most or key < max(self._kept))

    def add(self, name: str, value: Value) -> None:
        self._kept[self._key(name)] = value
        if len(self._kept) > self._most:
            del self._kept[max(self._kept)]

    def add_chosen(self, other: Chosen[Value]) -> None:
        """Adds what was chosen elsewhere by the same seed."""
        for (_, name), value in other._kept.items():
            if self.wants(name):
                self.add(name, value)

    def values(self) -> list[Value]:
        """The chosen things in the order of their marks."""
        return [self._kept[key] for key in sorted(self._kept)]

    def _key(self, name: str) -> tuple[int, str]:
        return mark_of(name.encode("utf-8", "surrogateescape"), self._seed), name


KEPT = 256
_LONGEST = 300
"""Bytes of a text that are kept."""


@dataclass
class Texts:
    """The texts of a column.

    Attributes:
      seed: decides which are kept.
      total: texts seen.
      others: values that are no text.
      kept: mark -> count and text, shortened.
    """

    seed: int
    total: int = 0
    others: int = 0
    kept: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    _above: int = 1 << 64
    """Larger marks are not kept."""

    def add(self, column: Array) -> None:
        """Adds [T, ...] texts."""
        for value, count in Counter(column.ravel().tolist()).items():
            text = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            if isinstance(text, bytes):
                self._count(mark_of(text, self.seed), count, text[:_LONGEST])
                self.total += count
            else:
                self.others += count

    def add_texts(self, other: Texts) -> None:
        self.total += other.total
        self.others += other.others
        self._above = min(self._above, other._above)
        self.kept = {mark: entry for mark, entry in self.kept.items() if mark <= self._above}
        for mark, (count, text) in other.kept.items():
            self._count(mark, count, text)

    def difference(self, other: Texts) -> float | None:
        """The share of texts that is not common to both, 0 to 1, by those kept; None where one keeps none of those that decide.

        Both need the same seed. It is half the sum of differences between shares (the total variation distance).
        """
        if not (self.total and other.total):
            return float(self.total != other.total)
        above = min(self._above, other._above)
        counts = [{mark: count for mark, (count, _) in texts.kept.items() if mark <= above} for texts in (self, other)]
        totals = [sum(kept.values()) for kept in counts]
        if not all(totals):
            return None
        marks = counts[0].keys() | counts[1].keys()
        shares = ([kept.get(mark, 0) / total for mark in marks] for kept, total in zip(counts, totals))
        return math.fsum(abs(a - b) for a, b in zip(*shares)) / 2

    @property
    def distinct(self) -> int:
        """The number of different texts; exact up to `KEPT`, an estimate beyond."""
        return round((KEPT - 1) * 2**64 / (self._above + 1)) if self.is_estimate else len(self.kept)

    @property
    def is_estimate(self) -> bool:
        return self._above < 1 << 64

    def most_frequent(self, most: int) -> list[tuple[int, bytes]]:
        """Counts and texts of those kept, frequent ones first."""
        return sorted(self.kept.values(), key=lambda entry: (-entry[0], entry[1]))[:most]

    def _count(self, mark: int, count: int, text: bytes) -> None:
        if mark in self.kept:
            self.kept[mark] = self.kept[mark][0] + count, text
        elif mark <= self._above:
            self.kept[mark] = count, text
            if len(self.kept) > KEPT:
                del self.kept[max(self.kept)]
                # From now on a larger mark is not kept, even where there is room again: its earlier counts are lost.
                self._above = max(self.kept)


Sketch = Numbers | Texts


def sketch_of(spec: ArraySpec, most: int, seed: int, waiting: int) -> Sketch | None:
    """What to keep of a column; None for one of encoded images, of complex numbers, and for rows without values."""
    if kind(spec) == FILE or 0 in spec.shape:
        return None
    if spec.dtype.kind in "OSU":
        return Texts(seed)
    return None if spec.dtype.kind == "c" else Numbers(spec, most, waiting)
