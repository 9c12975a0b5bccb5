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

import numpy as np
import xxhash

from rlds2reverb.episode import Array
from rlds2reverb.images import FILE, FIRST, LAST, kind
from rlds2reverb.look.statistics import Block, Histograms, Moments, blocks_of, whole_rows
from rlds2reverb.specs import ArraySpec, shape_fits

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


DIMENSIONS = 512
"""Most dimensions of a column that are kept separate."""
WAITING = 1 << 20
"""Bytes of values that wait until they are looked at together: enough that calls into numpy cost little."""
_COUNTED = 1 << 16  # values of one byte that are counted together
_PIXELS = 32  # rows and columns of an image whose pixels are counted, about


class Numbers:
    """A column of numbers, flags or images.

    Args:
      spec: of a row.
      most: dimensions to keep separate.
      waiting: bytes that wait until they are looked at.

    Attributes:
      dimensions: that are kept separate: of an image its channels; 1 where the size of rows is free, for all values together.
      of: number of all dimensions.
      is_image: whether rows are images; of those, every few pixels are counted.
      is_flag: whether values are true or false.
      not_finite: [dimensions] values that are NaN or infinite.
      passed_over: rows of another shape, or that are no numbers.
    """

    def __init__(self, spec: ArraySpec, most: int, waiting: int = WAITING) -> None:
        self._kind = kind(spec)
        self._shape, self._dtype = spec.shape, spec.dtype
        self._is_free = None in spec.shape
        self.is_image, self.is_flag = bool(self._kind), spec.dtype.kind == "b"
        if self.is_image:
            self.of = {LAST: spec.shape[-1], FIRST: spec.shape[0]}.get(self._kind) or 1
        else:
            self.of = 1 if self._is_free else math.prod(size or 0 for size in spec.shape)
        self.dimensions = min(self.of, most)
        self.histograms = Histograms(self.dimensions, spec.dtype.kind in "biu")
        self.moments = Moments(self.dimensions)
        self.not_finite = np.zeros(self.dimensions, np.int64)
        self.passed_over = 0
        self._waiting: list[Array] = []
        self._bytes, self._most_bytes = 0, waiting

    def add(self, column: Array) -> None:
        """Adds [T, ...]; values are looked at once there are enough."""
        if column.dtype.kind != self._dtype.kind or not shape_fits(column.shape[1:], self._shape):
            self.passed_over += len(column)
            return
        self._wait(self._in_rows(column))
        if self._bytes >= self._most_bytes:
            values = self._together()
            whole = whole_rows(len(values), self.dimensions)
            self._look(values[:whole])
            self._wait(values[whole:].copy())

    def dimension_name(self, at: int) -> str:
        """Its channel, or its place in a row; "" where a row is one number."""
        if self.is_image:
            return f"channel {at}"
        shape = [1 if size is None else size for size in self._shape]
        return f"[{', '.join(str(place) for place in np.unravel_index(at, shape))}]" if shape else ""

    def flush(self) -> None:
        if self._waiting:
            self._look(self._together())

    def add_numbers(self, other: Numbers) -> None:
        self.flush()
        other.flush()
        self.histograms.add_histograms(other.histograms)
        self.moments.add_moments(other.moments)
        self.not_finite += other.not_finite
        self.passed_over += other.passed_over

    def _wait(self, values: Array) -> None:
        self._waiting.append(values)
        self._bytes += values.nbytes

    def _together(self) -> Array:
        """[n, dimensions] all that is waiting."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return waiting[0] if len(waiting) == 1 else np.concatenate(waiting)

    def _look(self, values: Array) -> None:
        if not values.size:
            return
        if values.dtype.itemsize == 1:
            self._count(values)
            return
        is_single = values.dtype.itemsize <= 2 or values.dtype == np.float32  # float32 holds all its numbers
        dtype = np.float32 if is_single else np.float64
        for part in blocks_of(np.ascontiguousarray(values, dtype)):
            if isinstance(part, Block):
                self.histograms.add_block(part)
                self.moments.add_block(part)
            else:
                doubles = part.astype(np.float64)
                finite = np.isfinite(doubles)
                self.not_finite += len(doubles) - finite.sum(axis=0)
                self.histograms.add(doubles, finite)
                self.moments.add(doubles, finite)

    def _count(self, values: Array) -> None:
        """Looks at flags and numbers of one byte: there are few different ones, so it is enough to count each."""
        if values.dtype.kind == "b":
            different = np.array([0.0, 1.0])
            true = np.atleast_1d(np.count_nonzero(values, axis=0 if self.dimensions > 1 else None))
            counts = np.stack((len(values) - true, true), axis=1)
        else:
            different = np.arange(256).astype(np.uint8).view(values.dtype).astype(np.float64)
            parts = np.array_split(values, max(1, values.size // _COUNTED))
            counts = sum(map(_counts_of_bytes, parts), np.zeros((self.dimensions, 256), np.int64))
        self.histograms.add_counted(different, counts)
        self.moments.add_counted(different, counts)

    def _in_rows(self, column: Array) -> Array:
        """[n, dimensions]; never a part of a larger array, which would be kept whole while it waits."""
        if self.is_image:
            pixels = np.moveaxis(column, 1, -1) if self._kind == FIRST else column
            down, across = (max(1, size // _PIXELS) for size in pixels.shape[1:3])
            return np.ascontiguousarray(pixels[:, ::down, ::across]).reshape(-1, self.of)[:, : self.dimensions].copy()
        if self._is_free:
            return column.reshape(-1, 1)
        rows = column.reshape(len(column), self.of)
        return rows if self.dimensions == self.of else rows[:, : self.dimensions].copy()


def _counts_of_bytes(values: Array) -> Array:
    """[dimensions, 256] how often each byte is in [n, dimensions]."""
    dimensions = values.shape[1]
    places = values.view(np.uint8) + 256 * np.arange(dimensions)
    return np.bincount(places.ravel(), minlength=256 * dimensions).reshape(dimensions, 256)


Sketch = Numbers | Texts


def sketch_of(spec: ArraySpec, most: int, seed: int, waiting: int) -> Sketch | None:
    """What to keep of a column; None for one of encoded images, of complex numbers, and for rows without values."""
    if kind(spec) == FILE or 0 in spec.shape:
        return None
    if spec.dtype.kind in "OSU":
        return Texts(seed)
    return None if spec.dtype.kind == "c" else Numbers(spec, most, waiting)
