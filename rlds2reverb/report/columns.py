"""What the values of a column look like: a histogram, mean and spread for each of its dimensions, or its texts."""

from __future__ import annotations

import math

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.report.histograms import Histograms
from rlds2reverb.report.moments import Moments
from rlds2reverb.report.pictures import is_picture
from rlds2reverb.report.texts import Texts
from rlds2reverb.specs import ArraySpec

DIMENSIONS = 32
"""Most dimensions of a column that are told apart."""
_BLOCK_VALUES = 1 << 15
"""Values that are looked at together: enough that calls into numpy do not count, few enough that they stay in the processor's cache."""
_PIXELS = 32
"""Rows and columns of an image whose pixels are counted, about."""


class Numbers:
    """A column of numbers, flags or images.

    Args:
      spec: of a row.
      most: dimensions to tell apart.

    Attributes:
      dimensions: that are told apart: of an image its channels; 1 where the size of rows is free, for all values together.
      of: how many there are.
      is_image: whether rows are images; of those, every few pixels are counted.
      not_finite: [dimensions] values that are NaN or infinite.
      passed_over: rows of another shape, or that are no numbers.
    """

    def __init__(self, spec: ArraySpec, most: int) -> None:
        self.is_image = is_picture(spec)
        self._shape, self._dtype = spec.shape, spec.dtype
        self._is_free = None in spec.shape
        self.of = self._all_dimensions()
        self.dimensions = min(self.of, most)
        self.histograms = Histograms(self.dimensions, spec.dtype.kind in "biu")
        self.moments = Moments(self.dimensions)
        self.not_finite = np.zeros(self.dimensions, np.int64)
        self.passed_over = 0
        self._waiting: list[Array] = []
        self._values = 0

    def add(self, column: Array) -> None:
        """Takes in [T, ...]; looked at once there are enough."""
        if column.dtype.kind != self._dtype.kind or not self._fits(column.shape[1:]):
            self.passed_over += len(column)
            return
        self._waiting.append(self._in_rows(column))
        self._values += self._waiting[-1].size
        if self._values >= _BLOCK_VALUES:
            self.flush()

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Sizes of a row; a free one is 1."""
        return tuple(1 if size is None else size for size in self._shape)

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return self._dtype.kind in "biu"

    @property
    def is_flag(self) -> bool:
        """Whether values are true or false."""
        return self._dtype.kind == "b"

    def flush(self) -> None:
        """Looks at all that is waiting."""
        waiting, self._waiting, self._values = self._waiting, [], 0
        if not waiting:
            return
        values = np.concatenate(waiting).astype(np.float64)  # [n, dimensions]
        finite = np.isfinite(values) if self._dtype.kind not in "biu" else None
        if finite is not None and finite.all():
            finite = None
        if finite is not None:
            self.not_finite += len(values) - finite.sum(axis=0)
        self.histograms.add(values, finite)
        self.moments.add(values, finite)

    def add_numbers(self, other: Numbers) -> None:
        """Takes in what another part of the dataset has in this column."""
        self.flush()
        other.flush()
        self.histograms.add_histograms(other.histograms)
        self.moments.add_moments(other.moments)
        self.not_finite += other.not_finite
        self.passed_over += other.passed_over

    def _all_dimensions(self) -> int:
        if self.is_image:
            return (self._shape[2] or 1) if len(self._shape) == 3 else 1
        return 1 if self._is_free else math.prod(size or 0 for size in self._shape)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self._shape) and all(
            wanted is None or size == wanted for size, wanted in zip(shape, self._shape)
        )

    def _in_rows(self, column: Array) -> Array:
        """[n, dimensions]."""
        if self.is_image:
            down, across = (max(1, size // _PIXELS) for size in column.shape[1:3])
            return np.ascontiguousarray(column[:, ::down, ::across]).reshape(-1, self.of)[:, : self.dimensions]
        if self._is_free:
            return column.reshape(-1, 1)
        return column.reshape(len(column), self.of)[:, : self.dimensions]


Sketch = Numbers | Texts
"""What is kept of a column."""


def sketch_of(spec: ArraySpec, most: int, seed: int) -> Sketch | None:
    """What to keep of a column; None for one of encoded images, of complex numbers, and for rows without values."""
    if spec.image is not None or 0 in spec.shape:
        return None
    if spec.dtype.kind in "OSU":
        return Texts(seed)
    return None if spec.dtype.kind == "c" else Numbers(spec, most)
