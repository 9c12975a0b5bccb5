"""Counts, means and standard deviations of several dimensions in one pass, without the cancellation that sums of squares have.

Parts are joined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979). Results are those
of all values at once up to rounding.
"""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.report.blocks import Block, across

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
        """Takes in [n, dimensions] float64 values; of `finite` only those that are marked."""
        with np.errstate(over="ignore", invalid="ignore"):  # squares beyond float64 are told as such
            if finite is None:
                counts = np.full(values.shape[1], float(len(values)))
                means = values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
                self._join(counts, means, np.square(values - means).sum(axis=0))
                return
            counts = finite.sum(axis=0).astype(np.float64)
            means = np.where(finite, values, 0.0).sum(axis=0) / np.maximum(counts, 1)
            self._join(counts, means, np.square(np.where(finite, values - means, 0.0)).sum(axis=0))

    def add_block(self, block: Block) -> None:
        """Takes in values that are finite.

        Sums of squares are told from sums where few digits cancel; only else from distances, which take longer.
        """
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
        """Takes in [n] float64 values, of which each dimension has [dimensions, n]."""
        totals = counts.sum(axis=1).astype(np.float64)
        means = (counts * values).sum(axis=1) / np.maximum(totals, 1)
        self._join(totals, means, (counts * np.square(values - means[:, None])).sum(axis=1))

    def add_grouped(self, groups: Array, values: Array) -> None:
        """Takes in [n] finite values; each belongs to the dimension that `groups`, [n], names."""
        size = len(self.counts)
        counts = np.bincount(groups, minlength=size).astype(np.float64)
        means = np.bincount(groups, values, size) / np.maximum(counts, 1)
        self._join(counts, means, np.bincount(groups, np.square(values - means[groups]), size))

    def add_moments(self, other: Moments) -> None:
        """Takes in what others counted, of the same dimensions."""
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
    summed: Array = np.einsum("ij,ij->j", values, values)
    return summed
