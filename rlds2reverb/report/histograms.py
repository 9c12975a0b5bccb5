"""Histograms whose bins grow with the data: one pass, bounded memory, and exact counts.

A bin is `2**exponent` wide and begins at a multiple of its width. When the values span more than `BINS` bins, neighbours are joined until
they do not. A wide bin is exactly two narrow ones, so the counts are those of all values put into the last bins, whatever the order in
which they came; and histograms of parts add up to that of the whole. The only error is the width of a bin: it is less than 1/15 of the
span of the values, except where these differ in their last digits only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.report.blocks import Block, across

BINS = 64
"""Most bins of a histogram."""

_DIGITS = 50
"""Bits of a value that a bin tells apart at most, so that numbers of bins are whole in float64."""

_NARROWEST = -1000
"""Exponent of the narrowest bins; smaller values are told apart from others, not from one another."""

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
        """Values in all bins."""
        return int(self.counts.sum())

    @property
    def has_a_bin_each(self) -> bool:
        """Whether a bin holds one whole number and nothing else, so that narrower bins can be filled exactly."""
        return self.is_whole and self.exponent == 0


class Histograms:
    """One histogram per dimension, filled together.

    Args:
      dimensions: how many.
      is_whole: values are whole numbers, so no bin is narrower than 1: narrow spans have a bin per value.
    """

    def __init__(self, dimensions: int, is_whole: bool = False) -> None:
        self._is_whole, self._narrowest = is_whole, 0 if is_whole else _NARROWEST
        self.low = np.full(dimensions, np.inf)
        self.high = np.full(dimensions, -np.inf)
        self.exponents = np.full(dimensions, self._narrowest, np.int64)
        self.firsts = np.zeros(dimensions, np.int64)
        self.counts = np.zeros((dimensions, BINS), np.int64)
        self._way: _WayToBins | None = None

    def add(self, values: Array, finite: Array | None = None) -> None:
        """Takes in [n, dimensions] float64 values.

        Args:
          values: what to count.
          finite: [n, dimensions] which of them are; None for all.
        """
        if not values.size:
            return
        low = values if finite is None else np.where(finite, values, np.inf)
        high = values if finite is None else np.where(finite, values, -np.inf)
        self._widen(low.min(axis=0), high.max(axis=0))
        self.counts += self._counted(values, finite)

    def add_block(self, block: Block) -> None:
        """Takes in values that are finite."""
        self._widen(block.low, block.high)
        if block.is_one.all():
            bins = _bin_of(block.low, self.exponents) - self.firsts
            self.counts[np.arange(len(bins)), bins] += block.count
            return
        way = self._way_to_bins(block)
        may_vanish = way.may_vanish and block.values.dtype != np.float32
        for values in block.parts(way.scale.dtype):
            places = np.multiply(values, way.scale)
            np.floor(places, out=places)
            if may_vanish:
                places -= (values < 0) & (places == 0)
            np.subtract(places, way.first, out=places)
            counts = np.bincount(places.astype(np.int32).ravel(), minlength=self.counts.size)
            self.counts += counts.reshape(self.counts.shape)

    def _way_to_bins(self, block: Block) -> _WayToBins:
        """The one of the last block, where that fits."""
        kind = block.width, block.values.dtype
        if self._way is None or self._way.kind != kind:
            may_vanish = bool(((self.exponents > 0) & (self.low < 0)).any())
            are_small = (np.abs(self.firsts) < _SINGLE_BINS) & (np.abs(self.exponents) < _SINGLE_EXPONENT)
            is_single = block.values.dtype == np.float32 and not may_vanish and are_small.all()
            dtype = np.float32 if is_single else np.float64
            scale = across(np.ldexp(1.0, -self.exponents).astype(dtype), block.width)
            firsts = self.firsts - BINS * np.arange(len(self.firsts))
            self._way = _WayToBins(kind, scale, across(firsts.astype(dtype), block.width), may_vanish)
        return self._way

    def add_counted(self, values: Array, counts: Array) -> None:
        """Takes in [n] float64 values, of which each dimension has [dimensions, n]."""
        is_there = counts > 0
        self._widen(np.where(is_there, values, np.inf).min(axis=1), np.where(is_there, values, -np.inf).max(axis=1))
        dimension, at = np.nonzero(is_there)
        places = _bin_of(values[at], self.exponents[dimension]) - self.firsts[dimension]
        np.add.at(self.counts, (dimension, places), counts[dimension, at])

    def add_histograms(self, other: Histograms) -> None:
        """Takes in what others counted, of the same dimensions."""
        self._widen(other.low, other.high)
        self.counts += _rebinned(other, self.exponents, self.firsts)

    def histogram(self, dimension: int) -> Histogram:
        """That of one dimension, from its first to its last bin that has a value."""
        filled = np.flatnonzero(self.counts[dimension])
        start, stop = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
        counts = self.counts[dimension, start:stop].copy()
        first, exponent = int(self.firsts[dimension]) + start, int(self.exponents[dimension])
        low, high = float(self.low[dimension]), float(self.high[dimension])
        return Histogram(exponent, first, counts, low, high, self._is_whole)

    def _counted(self, values: Array, finite: Array | None) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):  # of values that are not finite, and not counted
            places = _places(values, self.exponents)  # [n, dimensions]
            places += BINS * np.arange(len(self.low)) - self.firsts
        flat = places.ravel() if finite is None else places[finite]
        return np.bincount(flat.astype(np.intp), minlength=self.counts.size).reshape(self.counts.shape)

    def _widen(self, low: Array, high: Array) -> None:
        """Joins bins until they span these values, too."""
        if (low >= self.low).all() and (high <= self.high).all():
            return
        low, high = np.minimum(self.low, low), np.maximum(self.high, high)
        self._way = None
        self.low, self.high = low, high
        is_empty = low > high
        low, high = np.where(is_empty, 0.0, low), np.where(is_empty, 0.0, high)
        exponents = _exponents(low, high, self._narrowest)
        firsts = _bin_of(low, exponents)
        self.counts = _rebinned(self, exponents, firsts)
        self.exponents, self.firsts = exponents, firsts


def joined(histograms: Sequence[Histogram]) -> list[Histogram]:
    """The same histograms over the same bins: those of all their values together.

    One without values, or with zeros only, decides nothing. Whole numbers beside others are put into narrower bins than 1 where the others are.
    """
    filled = [one for one in histograms if one.total]
    if not filled:
        return [replace(one, exponent=0, first=0, counts=np.zeros(0, np.int64)) for one in histograms]
    are_whole = all(one.is_whole for one in filled)
    decide = [one for one in filled if (are_whole or not one.has_a_bin_each) and (one.low, one.high) != (0, 0)]
    narrowest = max((one.exponent for one in decide), default=0 if are_whole else _NARROWEST)
    low, high = (np.array([end]) for end in (min(one.low for one in filled), max(one.high for one in filled)))
    exponents = _exponents(low, high, narrowest)
    exponent, first = int(exponents[0]), int(_bin_of(low, exponents)[0])
    counts = [_counts_over(one, exponent, first) for one in histograms]
    stop = int(np.flatnonzero(sum(counts))[-1]) + 1
    return [replace(one, exponent=exponent, first=first, counts=each[:stop]) for one, each in zip(histograms, counts)]


def _counts_over(histogram: Histogram, exponent: int, first: int) -> Array:
    """[BINS] its counts over other bins: wider ones, or narrower ones where it has a bin for each value."""
    places = np.flatnonzero(histogram.counts)
    wider = max(min(exponent - histogram.exponent, 63), -63)
    bins = histogram.first + places
    counts = np.zeros(BINS, np.int64)
    np.add.at(counts, (bins << -wider if wider < 0 else bins >> wider) - first, histogram.counts[places])
    return counts


def _exponents(low: Array, high: Array, narrowest: int) -> Array:
    """The narrowest bins that span each pair of values."""
    _, digits = np.frexp(np.maximum(np.abs(low), np.abs(high)))
    half = high / 2 - low / 2  # the span itself may be beyond float64
    _, span = np.frexp(half)
    least = np.maximum(digits.astype(np.int64) - _DIGITS, narrowest)
    exponents = np.where(half > 0, np.maximum(span.astype(np.int64) - 5, least), least)
    while (too_narrow := _bin_of(high, exponents) - _bin_of(low, exponents) >= BINS).any():
        exponents = exponents + too_narrow
    return exponents


def _bin_of(values: Array, exponents: Array) -> Array:
    bins: Array = _places(values, exponents).astype(np.int64)
    return bins


def _places(values: Array, exponents: Array) -> Array:
    """The number of each value's bin, as float64."""
    places: Array = np.floor(values * np.ldexp(1.0, -exponents))
    if exponents.size and exponents.max() > 0:  # then a tiny value may become -0.0, and is still below 0
        places -= (values < 0) & (places == 0)
    return places


def _rebinned(found: Histograms, exponents: Array, firsts: Array) -> Array:
    """[dimensions, BINS] the counts over other bins, which are wider or the same."""
    dimension, place = np.nonzero(found.counts)
    wider = np.clip(exponents - found.exponents, 0, 63)[dimension]
    bins = (found.firsts[dimension] + place >> wider) - firsts[dimension]
    weights = found.counts[dimension, place]
    made = np.zeros_like(found.counts)
    np.add.at(made, (dimension, bins), weights)
    return made
