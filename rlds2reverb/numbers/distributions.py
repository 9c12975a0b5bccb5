"""Statistics of columns in one pass and bounded memory: histograms, moments, values by time step.

Histograms have bins that grow with the data, and exact counts. A bin is `2**exponent` wide and begins at a multiple of its width. When the values span
more than `BINS` bins, neighbours are joined until they do not. A wide bin is exactly two narrow ones, so the counts are those of all values put into the
last bins, whatever the order in which they came; and histograms of parts add up to that of the whole. The only error is the width of a bin: it is less
than 1/15 of the span of the values, except where these differ in their last digits only.

Moments are joined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979). Results are those
of all values at once up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.episode import Array

_ROWS = 128
"""Of a block, or up to twice as many: enough that calls into numpy cost little."""
_TOGETHER = 16  # rows of a block that are looked at together
_WIDTH = 1 << 11  # values of a row of a block, about
_COUNTED_TOGETHER = 1 << 14  # bins: their counts, 128 kB, stay in a core's own cache
_FOLDS = 16  # parts of a row: each has as many values of each dimension
_ENDS: tuple[np.ufunc, np.ufunc] = np.minimum, np.maximum


class Block:
    """Values of some dimensions, all of them finite.

    Args:
      values: [rows, width] contiguous float32 or float64; a row has as many values of each dimension, all dimensions in turn.
      low, high: [dimensions] smallest and largest, float64.

    Attributes:
      values, low, high: as given.
      count: values of each dimension.
      is_one: [dimensions] whether all are the same.
    """

    def __init__(self, values: Array, low: Array, high: Array) -> None:
        self.values, self.low, self.high = values, low, high
        self.count, self.width = values.size // len(low), int(values.shape[1])
        self.is_one = low == high

    def parts(self, dtype: Any, rows: int = _TOGETHER) -> Iterator[Array]:
        """The values as a dtype, in parts [rows, width], each until the next; few rows stay in the processor's fastest caches."""
        # An array for all parts: the system hands out large ones page by page, which takes longer than to fill them.
        converted = None if self.values.dtype == dtype else np.empty((min(rows, len(self.values)), self.width), dtype)
        for start in range(0, len(self.values), rows):
            part = self.values[start : start + rows]
            if converted is not None:
                converted[: len(part)] = part
                part = converted[: len(part)]
            yield part

    def sums(self, row: Array) -> Array:
        """[dimensions] sums of what belongs to the values of a row, [width]."""
        return _fold(np.add, row, len(self.low))


def across(one_each: Array, width: int) -> Array:
    """[width] what belongs to the dimensions, [dimensions], for every value of a row."""
    repeated = np.broadcast_to(one_each, (width // len(one_each), len(one_each)))
    return repeated.reshape(-1)


def whole_rows(rows: int, dimensions: int) -> int:
    """The largest number of rows, at most `rows`, that fills rows of blocks."""
    return rows - rows % _rows_in_row(dimensions)


def blocks_of(values: Array) -> Iterator[Block | Array]:
    """Splits [n, dimensions], contiguous float32 or float64: blocks, or [m, dimensions] with values that are not finite. It is quick for `whole_rows`."""
    dimensions = values.shape[1]
    whole = whole_rows(len(values), dimensions)
    wide = values[:whole].reshape(-1, dimensions * _rows_in_row(dimensions))
    for part in np.array_split(wide, max(1, len(wide) // _ROWS)) if whole else ():
        yield _block(part, dimensions) or part.reshape(-1, dimensions)
    if whole < len(values):
        yield _block(values[whole:], dimensions) or values[whole:]


def _rows_in_row(dimensions: int) -> int:
    return _FOLDS * max(1, _WIDTH // _FOLDS // dimensions)


def _block(values: Array, dimensions: int) -> Block | None:
    with np.errstate(invalid="ignore"):  # NaN is found below
        ends = [_fold(end, end.reduce(values, axis=0), dimensions) for end in _ENDS]
    low, high = (end.astype(np.float64) for end in ends)
    are_finite = np.isfinite(low).all() and np.isfinite(high).all()
    return Block(values, low, high) if are_finite else None


def _fold(ufunc: np.ufunc, row: Array, dimensions: int) -> Array:
    """[dimensions] of [width]; in two steps, for numpy is slow with short rows."""
    if row.size % (_FOLDS * dimensions) == 0:
        row = ufunc.reduce(row.reshape(_FOLDS, -1), axis=0)
    folded: Array = ufunc.reduce(row.reshape(-1, dimensions), axis=0)
    return folded


def interpolate(low: Array, high: Array, share: Array) -> Array:
    """Between two values, as numpy's quantiles do: exact at both ends."""
    with np.errstate(over="ignore", invalid="ignore"):  # the distance may be beyond float64
        apart = high - low
        between = np.where(share < 0.5, low + apart * share, high - apart * (1 - share))
    return np.asarray(np.where(np.isfinite(apart), between, np.where(share < 0.5, low, high)))


BINS = 64  # most bins of a histogram that is drawn

_DIGITS = 50
"""Most bits of a value that bins distinguish, so that numbers of bins are whole in float64."""

_NARROWEST = -1000
"""Exponent of the narrowest bins; smaller values are distinguished from larger ones, not from one another."""

_SINGLE_BINS, _SINGLE_EXPONENT = 1 << 22, 100
"""Numbers of first bins, and exponents, below which float32 finds the bins of float32 values exactly."""


@dataclass(frozen=True)
class _WayToBins:
    """From the values of a block to the places of their counts.

    Attributes:
      kind: width and dtype of the block.
      scale, first: [width] what values are multiplied with; the first bin's number, minus that of all bins of the dimensions before.
      may_vanish: whether there may be values below 0 that float64 scales to -0.0.
    """

    kind: tuple[int, np.dtype[Any]]
    scale: Array
    first: Array
    may_vanish: bool


@dataclass(frozen=True)
class Histogram:
    """How often values fell into bins.

    Attributes:
      exponent: bins are 2**exponent wide.
      first: number of the first bin; bin b holds values in [b, b + 1) times the width.
      counts: [n] int64; () for no values.
      low, high: smallest and largest value; infinite and reversed without any.
      is_whole: values are whole numbers.
    """

    exponent: int
    first: int
    counts: Array
    low: float
    high: float
    is_whole: bool = False

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def value_at(self, ranks: Array) -> Array:
        """[n] the values with these ranks, [n] from 0; as if the values of a bin were spread evenly over it."""
        ends = self.counts.cumsum()
        at = np.searchsorted(ends, ranks, side="right")
        place = 0.0 if self.has_a_bin_each else (ranks - (ends - self.counts)[at] + 0.5) / self.counts[at]
        values = np.ldexp(self.first + at + place, self.exponent)
        values = np.where(ranks == 0, self.low, np.where(ranks == self.total - 1, self.high, values))
        return np.asarray(np.clip(values, self.low, self.high))

    @property
    def has_a_bin_each(self) -> bool:
        """Whether a bin holds one whole number and nothing else, so that narrower bins can be filled exactly."""
        return self.is_whole and self.exponent == 0


class Histograms:
    """One histogram per dimension, filled together.

    Args:
      dimensions: number of histograms.
      is_whole: values are whole numbers. No bin is narrower than 1 then: narrow spans have a bin per value.
      bins: most bins of each, a power of 2.
    """

    def __init__(self, dimensions: int, is_whole: bool = False, bins: int = BINS) -> None:
        self.bins = bins
        self.is_whole, self._narrowest = is_whole, 0 if is_whole else _NARROWEST
        self.low = np.full(dimensions, np.inf)
        self.high = np.full(dimensions, -np.inf)
        self.exponents = np.full(dimensions, self._narrowest, np.int64)
        self.firsts = np.zeros(dimensions, np.int64)
        self.counts = np.zeros((dimensions, bins), np.int64)
        self._way: _WayToBins | None = None

    def add(self, values: Array, finite: Array | None = None) -> None:
        """Adds [n, dimensions] float64 values; `finite` [n, dimensions] says which of them are, None for all."""
        if not values.size:
            return
        low = values if finite is None else np.where(finite, values, np.inf)
        high = values if finite is None else np.where(finite, values, -np.inf)
        self._widen(low.min(axis=0), high.max(axis=0))
        self.counts += self._counted(values, finite)

    def add_block(self, block: Block) -> None:
        self._widen(block.low, block.high)
        if block.is_one.all():
            bins = _bin_of(block.low, self.exponents) - self.firsts
            self.counts[np.arange(len(bins)), bins] += block.count
            return
        way = self._way_to_bins(block)
        may_vanish = way.may_vanish and block.values.dtype != np.float32
        if self.counts.size > _COUNTED_TOGETHER:
            self._add_by_dimension(block, way, may_vanish)
            return
        for values in block.parts(way.scale.dtype):
            places = _places_in_bins(values, way.scale, way.first, may_vanish)
            self.counts += np.bincount(places, minlength=self.counts.size).reshape(self.counts.shape)

    def _add_by_dimension(self, block: Block, way: _WayToBins, may_vanish: bool) -> None:
        """Adds a few dimensions at a time, so that their counts stay in the processor's caches."""
        dimensions = len(self.low)
        columns = block.values.reshape(-1, dimensions).T
        scale, first = way.scale[:dimensions, None], way.first[:dimensions, None]
        together = max(1, _COUNTED_TOGETHER // self.bins)
        for start in range(0, dimensions, together):
            group = slice(start, start + together)
            values = np.ascontiguousarray(columns[group], scale.dtype)
            # The first dimension of a group has the first bins.
            places = _places_in_bins(values, scale[group], first[group] + self.bins * start, may_vanish)
            counts = self.counts[group]
            counts += np.bincount(places, minlength=counts.size).reshape(counts.shape)

    def _way_to_bins(self, block: Block) -> _WayToBins:
        """Reuses the last block's bins if they fit."""
        kind = block.width, block.values.dtype
        if self._way is None or self._way.kind != kind:
            may_vanish = bool(((self.exponents > 0) & (self.low < 0)).any())
            are_small = (np.abs(self.firsts) < _SINGLE_BINS) & (np.abs(self.exponents) < _SINGLE_EXPONENT)
            # float32 finds the same bins in half the memory; float64 scales what float32 would make 0.
            is_single = block.values.dtype == np.float32 and not may_vanish and are_small.all()
            dtype = np.float32 if is_single else np.float64
            scale = across(np.ldexp(1.0, -self.exponents).astype(dtype), block.width)
            firsts = self.firsts - self.bins * np.arange(len(self.firsts))
            self._way = _WayToBins(kind, scale, across(firsts.astype(dtype), block.width), may_vanish)
        return self._way

    def add_sorted(self, columns: Sequence[Array]) -> None:
        """Adds finite values, sorted, [n] of each dimension."""
        ends = [(column[0], column[-1]) if len(column) else (np.inf, -np.inf) for column in columns]
        low, high = np.array(ends, np.float64).T
        self._widen(low, high)
        for dimension, column in enumerate(columns):
            if len(column):
                bins = self.firsts[dimension] + np.arange(self.bins + 1)
                edges = np.ldexp(bins.astype(np.float64), self.exponents[dimension])
                self.counts[dimension] += np.diff(_count_below(edges, column))

    def add_counted(self, values: Array, counts: Array) -> None:
        """Adds [n] float64 values, of which each dimension has [dimensions, n]."""
        is_there = counts > 0
        self._widen(np.where(is_there, values, np.inf).min(axis=1), np.where(is_there, values, -np.inf).max(axis=1))
        dimension, at = np.nonzero(is_there)
        places = _bin_of(values[at], self.exponents[dimension]) - self.firsts[dimension]
        np.add.at(self.counts, (dimension, places), counts[dimension, at])

    def add_histograms(self, other: Histograms) -> None:
        self._widen(other.low, other.high)
        self.counts += _rebin(other, np.arange(len(self.low)), self.exponents, self.firsts)

    def of_dimensions(self, dimensions: Array) -> Histograms:
        """A copy of some, [n] their numbers."""
        chosen = Histograms(len(dimensions), self.is_whole, self.bins)
        for name in ("low", "high", "exponents", "firsts", "counts"):
            setattr(chosen, name, getattr(self, name)[dimensions])
        return chosen

    @staticmethod
    def join(parts: Sequence[Histograms | None]) -> Histograms | None:
        """All values together; None where a part is missing or has other bins."""
        first = parts[0]
        if first is None:
            return None
        joined = Histograms(len(first.low), first.is_whole, first.bins)
        for part in parts:
            if part is None or (part.is_whole, part.bins) != (first.is_whole, first.bins):
                return None
            joined.add_histograms(part)
        return joined

    def histogram(self, dimension: int) -> Histogram:
        """The histogram of one dimension, from its first to its last bin that has a value."""
        filled = np.flatnonzero(self.counts[dimension])
        start, stop = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
        counts = self.counts[dimension, start:stop].copy()
        first, exponent = int(self.firsts[dimension]) + start, int(self.exponents[dimension])
        low, high = float(self.low[dimension]), float(self.high[dimension])
        return Histogram(exponent, first, counts, low, high, self.is_whole)

    @property
    def widths(self) -> Array:
        """[dimensions] width of the bins; 0 where each value has one of its own, or all are the same."""
        is_exact = (self.is_whole & (self.exponents == 0)) | (self.low >= self.high)
        return np.where(is_exact, 0.0, np.ldexp(1.0, self.exponents))

    def quantiles(self, shares: Sequence[float]) -> Array:
        """[shares, dimensions] float64 values below which these shares of the values lie; NaN without any.

        They lie between two neighbours of rank share * (n - 1), as numpy's; a neighbour is known up to the width of its bin.
        """
        quantiles = np.full((len(shares), len(self.low)), np.nan)
        for dimension in np.flatnonzero(self.counts.any(axis=1)):
            histogram = self.histogram(int(dimension))
            ranks = np.asarray(shares, np.float64) * (histogram.total - 1)
            below = np.floor(ranks)
            above = np.minimum(below + 1, histogram.total - 1)
            low, high = histogram.value_at(below), histogram.value_at(above)
            quantiles[:, dimension] = interpolate(low, high, ranks - below)
        return quantiles

    def _counted(self, values: Array, finite: Array | None) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):  # of values that are not finite, and not counted
            places = _places(values, self.exponents)  # [n, dimensions]
            places += self.bins * np.arange(len(self.low)) - self.firsts
        flat = places.ravel() if finite is None else places[finite]
        return np.bincount(flat.astype(np.intp), minlength=self.counts.size).reshape(self.counts.shape)

    def _widen(self, low: Array, high: Array) -> None:
        """Joins bins until they span these values, too."""
        if (low >= self.low).all() and (high <= self.high).all():
            return
        low, high = np.minimum(self.low, low), np.maximum(self.high, high)
        # The scale was that of the narrower bins.
        self._way = None
        self.low, self.high = low, high
        is_empty = low > high
        # A dimension without values has infinite ends, which have no bin.
        low, high = np.where(is_empty, 0.0, low), np.where(is_empty, 0.0, high)
        exponents = _exponents(low, high, self._narrowest, self.bins)
        firsts = _bin_of(low, exponents)
        moved = np.flatnonzero((exponents != self.exponents) | (firsts != self.firsts))
        self.counts[moved] = _rebin(self, moved, exponents, firsts)
        self.exponents, self.firsts = exponents, firsts


def join_histograms(histograms: Sequence[Histogram]) -> list[Histogram]:
    """Counts all histograms over the same bins: those that span the values of all.

    One without values, or with zeros only, decides nothing. Whole numbers beside fractions are put into bins narrower than 1 where those are.
    """
    filled = [histogram for histogram in histograms if histogram.total]
    if not filled:
        return [replace(histogram, exponent=0, first=0, counts=np.zeros(0, np.int64)) for histogram in histograms]
    are_whole = all(histogram.is_whole for histogram in filled)
    decide = [
        histogram
        for histogram in filled
        if (are_whole or not histogram.has_a_bin_each) and (histogram.low, histogram.high) != (0, 0)
    ]
    narrowest = max((histogram.exponent for histogram in decide), default=0 if are_whole else _NARROWEST)
    low, high = (
        np.array([end])
        for end in (min(histogram.low for histogram in filled), max(histogram.high for histogram in filled))
    )
    exponents = _exponents(low, high, narrowest)
    exponent, first = int(exponents[0]), int(_bin_of(low, exponents)[0])
    counts = [_counts_over(histogram, exponent, first) for histogram in histograms]
    stop = int(np.flatnonzero(sum(counts))[-1]) + 1
    return [
        replace(histogram, exponent=exponent, first=first, counts=each[:stop])
        for histogram, each in zip(histograms, counts)
    ]


def largest_gap(histogram: Histogram, other: Histogram) -> float | None:
    """The largest gap between two cumulative distributions, 0 to 1 (Kolmogorov-Smirnov), at the edges of bins; None where one has no values."""
    if not (histogram.total and other.total):
        return None
    a, b = (each.counts.cumsum() / each.total for each in join_histograms([histogram, other]))
    return float(np.abs(a - b).max())


def _counts_over(histogram: Histogram, exponent: int, first: int) -> Array:
    """[BINS] its counts over other bins: wider ones, or narrower ones where it has a bin for each value."""
    places = np.flatnonzero(histogram.counts)
    wider = max(min(exponent - histogram.exponent, 63), -63)
    bins = histogram.first + places
    counts = np.zeros(BINS, np.int64)
    np.add.at(counts, (bins << -wider if wider < 0 else bins >> wider) - first, histogram.counts[places])
    return counts


def _exponents(low: Array, high: Array, narrowest: int, bins: int = BINS) -> Array:
    """The narrowest bins that span each pair of values with no more than `bins` of them."""
    _, digits = np.frexp(np.maximum(np.abs(low), np.abs(high)))
    half = high / 2 - low / 2  # the span itself may be beyond float64
    _, span = np.frexp(half)
    least = np.maximum(digits.astype(np.int64) - _DIGITS, narrowest)
    exponents = np.where(half > 0, np.maximum(span.astype(np.int64) - bins.bit_length() + 2, least), least)
    while (too_narrow := _bin_of(high, exponents) - _bin_of(low, exponents) >= bins).any():
        exponents = exponents + too_narrow
    return exponents


def _places_in_bins(values: Array, scale: Array, first: Array, may_vanish: bool) -> Array:
    """[n] intp places of values in counts, where the bin 0 of a dimension is `-first`."""
    places = np.multiply(values, scale)
    np.floor(places, out=places)
    if may_vanish:
        places -= (values < 0) & (places == 0)
    np.subtract(places, first, out=places)
    return places.ravel().astype(np.intp)


def _count_below(edges: Array, values: Array) -> Array:
    """[n] how many of the sorted float32 or float64 values are below each edge, [n] float64."""
    with np.errstate(over="ignore"):
        own = edges.astype(values.dtype)
    # Edges that float32 holds exactly save a copy of the values as float64.
    is_exact = (own == edges).all()
    return np.searchsorted(values, own) if is_exact else np.searchsorted(values.astype(np.float64), edges)


def _bin_of(values: Array, exponents: Array) -> Array:
    bins: Array = _places(values, exponents).astype(np.int64)
    return bins


def _places(values: Array, exponents: Array) -> Array:
    """The number of each value's bin, as float64."""
    places: Array = np.floor(values * np.ldexp(1.0, -exponents))
    if exponents.size and exponents.max() > 0:  # then a tiny value may become -0.0, and is still below 0
        places -= (values < 0) & (places == 0)
    return places


def _rebin(histograms: Histograms, dimensions: Array, exponents: Array, firsts: Array) -> Array:
    """[n, bins] the counts of some dimensions, [n] their numbers, over other bins, which are wider or the same."""
    own = histograms.counts[dimensions]
    at, place = np.nonzero(own)
    dimension = dimensions[at]
    wider = np.clip(exponents - histograms.exponents, 0, 63)[dimension]
    bins = (histograms.firsts[dimension] + place >> wider) - firsts[dimension]
    counts = np.zeros_like(own)
    np.add.at(counts, (at, bins), own[at, place])
    return counts


_LEAST_LEFT = 2.0**-20
"""Of a sum of squares, once the mean's share is taken away: a third of float64's digits are lost at most."""


class Moments:
    """Count, mean and spread per dimension.

    Attributes:
      counts: [dimensions] values.
      means: [dimensions] of them; 0 without any.
      squares: [dimensions] sums of squared distances from the mean.
    """

    def __init__(self, dimensions: int) -> None:
        self.counts, self.means, self.squares = (np.zeros(dimensions) for _ in range(3))

    def add(self, values: Array, finite: Array | None = None) -> None:
        """Adds [n, dimensions] float64 values; of `finite` only those that are marked."""
        with np.errstate(over="ignore", invalid="ignore"):  # squares beyond float64 become infinite
            if finite is None:
                counts = np.full(values.shape[1], float(len(values)))
                means = values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
                self._join(counts, means, np.square(values - means).sum(axis=0))
                return
            counts = finite.sum(axis=0).astype(np.float64)
            means = np.where(finite, values, 0.0).sum(axis=0) / np.maximum(counts, 1)
            self._join(counts, means, np.square(np.where(finite, values - means, 0.0)).sum(axis=0))

    def add_block(self, block: Block) -> None:
        """Adds finite values. Sums of squares come from sums where few digits cancel; else from distances, which take longer."""
        counts = np.full(len(block.low), float(block.count))
        with np.errstate(over="ignore", invalid="ignore"):
            if block.is_one.all():
                self._join(counts, block.low, np.zeros_like(block.low))
                return
            sums = np.zeros((2, block.width))
            for values in block.parts(np.float64):
                sums[0] += np.add.reduce(values, axis=0)
                sums[1] += _squares(values)
            totals, squares = map(block.sums, sums)
            means = np.where(block.is_one, block.low, totals / block.count)
            apart = squares - totals * means
            if (block.is_one | (apart >= squares * _LEAST_LEFT)).all():
                apart[block.is_one] = 0.0
            else:
                repeated = across(means, block.width)
                rows = [_squares(values - repeated) for values in block.parts(np.float64)]
                apart = block.sums(np.add.reduce(rows, axis=0))
            self._join(counts, means, apart)

    def add_counted(self, values: Array, counts: Array) -> None:
        """Adds [n] float64 values, of which each dimension has [dimensions, n]."""
        totals = counts.sum(axis=1).astype(np.float64)
        means = (counts * values).sum(axis=1) / np.maximum(totals, 1)
        self._join(totals, means, (counts * np.square(values - means[:, None])).sum(axis=1))

    def add_grouped(self, groups: Array, values: Array) -> None:
        """Adds [n] finite values; each belongs to the dimension that `groups`, [n], names."""
        size = len(self.counts)
        counts = np.bincount(groups, minlength=size).astype(np.float64)
        means = np.bincount(groups, values, size) / np.maximum(counts, 1)
        self._join(counts, means, np.bincount(groups, np.square(values - means[groups]), size))

    def add_moments(self, other: Moments) -> None:
        self._join(other.counts, other.means, other.squares)

    def in_pairs(self) -> None:
        """Joins dimensions 0 and 1 to the first, 2 and 3 to the second, ...; the second half is empty then."""
        other = Moments(len(self.counts))
        half = len(self.counts) // 2
        for name in ("counts", "means", "squares"):
            values = getattr(self, name)
            getattr(other, name)[:half] = values[1::2]
            setattr(self, name, np.concatenate((values[::2], np.zeros(half))))
        self.add_moments(other)

    @property
    def deviations(self) -> Array:
        """[dimensions] standard deviations of the values (over n)."""
        return np.asarray(np.sqrt(self.squares / np.maximum(self.counts, 1)))

    def _join(self, counts: Array, means: Array, squares: Array) -> None:
        together = self.counts + counts
        with np.errstate(over="ignore", invalid="ignore"):
            share = counts / np.maximum(together, 1)
            apart = means - self.means
            self.squares = self.squares + squares + np.square(apart) * self.counts * share
            self.means = self.means + apart * share
        self.counts = together


def _squares(values: Array) -> Array:
    """[n] sums of squares of [m, n]."""
    # einsum makes no array of the squares, unlike np.square(values).sum(axis=0).
    summed: Array = np.einsum("ij,ij->j", values, values)
    return summed


SPANS = 256  # most spans of steps


class ByTime:
    """Means and spreads of a value by time step.

    Attributes:
      width: steps of a span, a power of 2; span s holds steps s * width and the width - 1 that follow.
      moments: of each span.
    """

    def __init__(self) -> None:
        self.width = 1
        self.moments = Moments(SPANS)

    def add(self, steps: Array, values: Array) -> None:
        """Adds [n] finite values, each at its time step."""
        if len(steps):
            while steps.max() >= self.width * SPANS:
                self.widen(self.width * 2)
            self.moments.add_grouped(steps // self.width, values)

    def add_times(self, other: ByTime) -> None:
        """Adds those of another, which then is as wide as this one."""
        self.widen(other.width)
        other.widen(self.width)
        self.moments.add_moments(other.moments)

    def widen(self, width: int) -> None:
        """Joins spans until they are `width` wide."""
        while self.width < width:
            self.moments.in_pairs()
            self.width *= 2


def reaching(lengths: Sequence[int], steps: Array) -> Array:
    """[n] the number of episodes that have each of these time steps, [n]."""
    ordered = np.sort(np.asarray(lengths, np.int64))
    return len(ordered) - np.searchsorted(ordered, steps, side="right")


def time_steps(longest: int) -> Array:
    """Time steps up to the first that no episode has, at most `SPANS`, evenly spaced."""
    return np.unique(np.linspace(0, longest, SPANS).astype(np.int64))
