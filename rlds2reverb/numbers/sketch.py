"""What the values of a column look like: counts, ends, moments and a histogram for each of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.images import FIRST, LAST, kind
from rlds2reverb.numbers.distributions import BINS, Block, Histograms, Moments, blocks_of, interpolate, whole_rows
from rlds2reverb.specs import ArraySpec, shape_fits

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
      bins: of a histogram.
      kept: bytes of values that are kept, so that quantiles are exact; values of one byte need not be. With one byte more, none is kept.
      pixels: rows and columns of an image that are counted, about; None for all.

    Attributes:
      dimensions: that are kept separate: of an image its channels; 1 where the size of rows is free, for all values together.
      of: number of all dimensions.
      dtype: of the column.
      is_image: whether rows are images.
      is_flag: whether values are true or false.
      not_finite: [dimensions] values that are NaN or infinite.
      passed_over: rows of another shape, or that are no numbers.
    """

    def __init__(
        self,
        spec: ArraySpec,
        most: int,
        waiting: int = WAITING,
        bins: int = BINS,
        kept: int = 0,
        pixels: int | None = _PIXELS,
    ) -> None:
        self._kind = kind(spec)
        self._shape, self.dtype = spec.shape, spec.dtype
        self._is_free = None in spec.shape
        self.is_image, self.is_flag = bool(self._kind), spec.dtype.kind == "b"
        if self.is_image:
            self.of = {LAST: spec.shape[-1], FIRST: spec.shape[0]}.get(self._kind) or 1
        else:
            self.of = 1 if self._is_free else math.prod(size or 0 for size in spec.shape)
        self.dimensions = min(self.of, most)
        self.histograms = Histograms(self.dimensions, spec.dtype.kind in "biu", bins)
        self.moments = Moments(self.dimensions)
        self.not_finite = np.zeros(self.dimensions, np.int64)
        self.passed_over = 0
        self._waiting: list[Array] = []
        self._bytes, self._most_bytes = 0, waiting
        self._pixels = pixels
        self._kept: list[Array] | None = [] if kept else None
        self._kept_bytes, self._most_kept = 0, kept

    def add(self, column: Array) -> None:
        """Adds [T, ...]; values are looked at once there are enough."""
        if column.dtype.kind != self.dtype.kind or not shape_fits(column.shape[1:], self._shape):
            self.passed_over += len(column)
            return
        self._wait(self._in_rows(column))
        if self._bytes >= self._most_bytes:
            values = self._together()
            whole = whole_rows(len(values), self.dimensions)
            self._look(values[:whole])
            self._wait(values[whole:].copy())

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Of the dimensions, where all are kept separate: [channels] of images, () where all values count together."""
        return (self.of,) if self.is_image else () if self._is_free else tuple(size or 0 for size in self._shape)

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
        for values in other._kept or ():
            self._keep(values)
        if other._kept is None:
            self._count_kept()
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
        values = np.ascontiguousarray(values, dtype)
        for part in blocks_of(values):
            self._add_moments(part)
            if self._kept is None:
                self._add_to_bins(part)
        if self._kept is not None:
            self._keep(values)

    def _add_moments(self, part: Block | Array) -> None:
        if isinstance(part, Block):
            self.moments.add_block(part)
            return
        doubles = part.astype(np.float64)
        finite = np.isfinite(doubles)
        self.not_finite += len(doubles) - finite.sum(axis=0)
        self.moments.add(doubles, finite)

    def _add_to_bins(self, part: Block | Array) -> None:
        if isinstance(part, Block):
            self.histograms.add_block(part)
        else:
            doubles = part.astype(np.float64)
            self.histograms.add(doubles, np.isfinite(doubles))

    def _keep(self, values: Array) -> None:
        """Keeps values as long as there is room. Their bins can wait, because kept values can be put into bins later."""
        if self._kept is None:
            for part in blocks_of(values):
                self._add_to_bins(part)
            return
        self._kept.append(values)
        self._kept_bytes += values.nbytes
        if self._kept_bytes > self._most_kept:
            self._count_kept()

    def _count_kept(self) -> None:
        kept, self._kept = self._kept or [], None
        for values in kept:
            self._keep(values)

    def quantiles(self, shares: Sequence[float]) -> tuple[Array, Array]:
        """[shares, dimensions] quantiles, as numpy's, and [dimensions] how far they may be off; NaN without values. Keeps none any more."""
        self.flush()
        kept, self._kept = self._kept or [], None
        if not kept:
            return self.histograms.quantiles(shares), self.histograms.widths
        # Column by column: together they take a second time the memory.
        columns = [_sorted_finite([values[:, at] for values in kept]) for at in range(self.dimensions)]
        self.histograms.add_sorted(columns)
        return np.stack([_quantiles_of(column, shares) for column in columns], axis=1), np.zeros(self.dimensions)

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
            down, across = (max(1, size // (self._pixels or size)) for size in pixels.shape[1:3])
            return np.ascontiguousarray(pixels[:, ::down, ::across]).reshape(-1, self.of)[:, : self.dimensions].copy()
        if self._is_free:
            return column.reshape(-1, 1)
        rows = column.reshape(len(column), self.of)
        return rows if self.dimensions == self.of else rows[:, : self.dimensions].copy()


def _sorted_finite(parts: Sequence[Array]) -> Array:
    """The finite values of arrays [n]."""
    values = np.concatenate(parts)
    values.sort()  # NaN and infinity come last
    if len(values) and not (np.isfinite(values[0]) and np.isfinite(values[-1])):
        values = values[np.isfinite(values)]
    return values


def _quantiles_of(values: Array, shares: Sequence[float]) -> Array:
    """[shares] float64 of [n] finite values, sorted."""
    if not len(values):
        return np.full(len(shares), np.nan)
    ranks = np.asarray(shares, np.float64) * (len(values) - 1)
    below = np.floor(ranks).astype(np.int64)
    above = np.minimum(below + 1, len(values) - 1)
    return interpolate(values[below].astype(np.float64), values[above].astype(np.float64), ranks - below)


def _counts_of_bytes(values: Array) -> Array:
    """[dimensions, 256] how often each byte is in [n, dimensions]."""
    dimensions = values.shape[1]
    places = values.view(np.uint8) + 256 * np.arange(dimensions)
    return np.bincount(places.ravel(), minlength=256 * dimensions).reshape(dimensions, 256)
