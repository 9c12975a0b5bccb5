"""The texts of a column: which there are, how often, in bounded memory.

Kept are the `KEPT` texts with the smallest marks (`chosen.mark_of`). A mark that is kept at the end was small enough all along, so counts of kept texts
are exact. Up to `KEPT` different texts are all there; how many more there are is estimated from the largest kept mark (Bar-Yossef et al., "Counting
distinct elements in a data stream", 2002), with a standard error of about 1/sqrt(KEPT - 2): 6 %.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rlds2reverb.episodes import Array
from rlds2reverb.report.chosen import mark_of

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
        """Takes in [T, ...] texts."""
        for value, count in Counter(column.ravel().tolist()).items():
            text = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            if isinstance(text, bytes):
                self._count(mark_of(text, self.seed), count, text[:_LONGEST])
                self.total += count
            else:
                self.others += count

    def add_texts(self, other: Texts) -> None:
        """Takes in the texts of another part."""
        self.total += other.total
        self.others += other.others
        self._above = min(self._above, other._above)
        self.kept = {mark: found for mark, found in self.kept.items() if mark <= self._above}
        for mark, (count, text) in other.kept.items():
            self._count(mark, count, text)

    @property
    def distinct(self) -> int:
        """How many different ones there are; exact up to `KEPT`, an estimate beyond."""
        return round((KEPT - 1) * 2**64 / (self._above + 1)) if self.is_estimate else len(self.kept)

    @property
    def is_estimate(self) -> bool:
        """Whether there are more than are kept."""
        return self._above < 1 << 64

    def most_frequent(self, most: int) -> list[tuple[int, bytes]]:
        """Counts and texts of those kept, frequent ones first."""
        return sorted(self.kept.values(), key=lambda found: (-found[0], found[1]))[:most]

    def _count(self, mark: int, count: int, text: bytes) -> None:
        if mark in self.kept:
            self.kept[mark] = self.kept[mark][0] + count, text
        elif mark <= self._above:
            self.kept[mark] = count, text
            if len(self.kept) > KEPT:
                del self.kept[max(self.kept)]
                self._above = max(self.kept)
