"""Statistics of one column (`ColumnStatistics`), and of the columns of a dataset as files hold them (`StatisticsContent`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Notice
from rlds2reverb.errors import ConfigError
from rlds2reverb.numbers.distributions import Histograms, Moments
from rlds2reverb.numbers.sketch import Numbers
from rlds2reverb.plain import Count, printed
from rlds2reverb.text import counted

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def quantile_name(share: float) -> str:
    """As LeRobot's files have it: q01 for 0.01."""
    return f"q{round(100 * share):02d}"


@printed("*")
@dataclass(frozen=True)
class ListedColumn:
    """The statistics of a column, as lists: numbers of all dimensions in turn, the last axis fastest; null where nothing is known.

    Attributes:
      shape: of the numbers; channels of an image; [] for one number.
      dtype: of the column.
      is_image: whether the numbers are of the channels of images.
      count: values of each dimension that are finite; 0 where it is not known.
      not_finite: values that are NaN or infinite, and left out.
      mean, std, min, max: over the finite values; the deviation is that of the values themselves, over n.
      q01, q10, q50, q90, q99: quantiles.
      quantile_error: how far each of them may be off; 0 where they are exact.
    """

    shape: list[int]
    dtype: str
    is_image: bool
    count: list[int]
    not_finite: list[int]
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]
    q01: list[float | None]
    q10: list[float | None]
    q50: list[float | None]
    q90: list[float | None]
    q99: list[float | None]
    quantile_error: list[float | None]


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """What the values of a column are, for each dimension of a row; of images, for each channel.

    Attributes:
      mean, std, min, max: float64 of the shape of a row, [channels] of images; NaN where nothing is known.
      quantiles: share, such as 0.01, -> the same for the value below which that share of the values lies.
      count: int64 of that shape, values that are finite; 0 where it is not known.
      quantile_error: float64 of that shape, how far quantiles may be off; 0 where they are exact.
      not_finite: int64 of that shape, values that are NaN or infinite, and left out.
      dtype: of the column.
      is_image: whether the numbers are of the channels of images.
      mask: bool of that shape, which dimensions a normaliser changes, as OpenVLA's files have it; None for all.
      histograms: of all dimensions, the last axis fastest; None where only the numbers above are known.
    """

    mean: Array
    std: Array
    min: Array
    max: Array
    quantiles: Mapping[float, Array]
    count: Array
    quantile_error: Array
    not_finite: Array
    dtype: str = "float32"
    is_image: bool = False
    mask: Array | None = None
    histograms: Histograms | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mean.shape)

    @property
    def is_constant(self) -> Array:
        """Which dimensions have one value, bool of that shape."""
        return np.asarray(np.where(np.isnan(self.min), self.std == 0, self.min == self.max))

    @property
    def listed(self) -> ListedColumn:
        """As lists, for JSON."""
        nothing = np.full(self.shape, np.nan)
        return ListedColumn(
            list(self.shape),
            self.dtype,
            self.is_image,
            self.count.ravel().tolist(),
            self.not_finite.ravel().tolist(),
            as_list(self.mean),
            as_list(self.std),
            as_list(self.min),
            as_list(self.max),
            **{quantile_name(share): as_list(self.quantiles.get(share, nothing)) for share in QUANTILES},
            quantile_error=as_list(self.quantile_error),
        )

    @staticmethod
    def of(numbers: Numbers) -> ColumnStatistics:
        """The statistics of values that were looked at; no more can be added."""
        rows, errors = numbers.quantiles(QUANTILES)
        moments, histograms = numbers.moments, numbers.histograms
        shape = numbers.row_shape
        is_empty = moments.counts == 0

        def shaped(values: Array) -> Array:
            return np.where(is_empty, np.nan, values).reshape(shape)

        is_one = histograms.low == histograms.high  # sums may have been rounded
        return ColumnStatistics(
            mean=shaped(np.where(is_one, histograms.low, moments.means)),
            std=shaped(np.where(is_one, 0.0, moments.deviations)),
            min=shaped(histograms.low),
            max=shaped(histograms.high),
            quantiles={share: shaped(row) for share, row in zip(QUANTILES, rows)},
            count=moments.counts.astype(np.int64).reshape(shape),
            quantile_error=shaped(errors),
            not_finite=numbers.not_finite.reshape(shape),
            dtype=numbers.dtype.name,
            is_image=numbers.is_image,
            histograms=histograms,
        )

    @staticmethod
    def merge(columns: Sequence[ColumnStatistics], where: str = "") -> ColumnStatistics:
        """The statistics of all values together.

        Quantiles come from the histograms. Where a file has none, they are means weighted by counts, as LeRobot merges them: those of all
        values lie between the smallest and the largest of the parts, and `quantile_error` says so.

        Raises:
          ConfigError: shapes differ, or a part does not say how many values it has.
        """
        first = columns[0]
        for column in columns[1:]:
            if (column.shape, column.is_image) != (first.shape, first.is_image):
                raise ConfigError(
                    f"{where}statistics of another signature: expected shape {first.shape}, found {column.shape}"
                )
            if first.is_image and column.dtype != first.dtype:
                raise ConfigError(
                    f"{where}statistics of another signature: images of {first.dtype} and of {column.dtype} have other units (LeRobot's "
                    "are in [0, 1]); merge those of one kind of file"
                )
        if len(columns) == 1:
            return first
        for column in columns:
            if ((column.count == 0) & ~np.isnan(column.mean)).any():
                raise ConfigError(f"{where}statistics without counts, as openpi's, cannot be merged")
        moments = Moments(first.mean.size)
        for column in columns:
            moments.add_moments(_moments_of(column))
        is_empty = (moments.counts == 0).reshape(first.shape)
        quantiles, errors, histograms = _merge_quantiles(columns)
        if any(_listed_mask(column) != _listed_mask(first) for column in columns):
            raise ConfigError(f"{where}masks differ; give the parts one mask")
        return ColumnStatistics(
            mean=np.where(is_empty, np.nan, moments.means.reshape(first.shape)),
            std=np.where(is_empty, np.nan, moments.deviations.reshape(first.shape)),
            min=np.fmin.reduce([column.min for column in columns]),
            max=np.fmax.reduce([column.max for column in columns]),
            quantiles=quantiles,
            count=moments.counts.astype(np.int64).reshape(first.shape),
            quantile_error=errors,
            not_finite=np.sum([column.not_finite for column in columns], axis=0),
            dtype=first.dtype if len({column.dtype for column in columns}) == 1 else "float64",
            is_image=first.is_image,
            mask=first.mask,
            histograms=histograms,
        )

    def at(self, *place: int) -> ColumnStatistics:
        """The statistics of a part of a row, such as `.at(0)` of the first of several vectors."""
        numbers = np.arange(self.mean.size).reshape(self.shape)[place]
        return replace(
            self,
            **{name: getattr(self, name)[place] for name in ("mean", "std", "min", "max", "count", "not_finite")},
            quantile_error=self.quantile_error[place],
            quantiles={share: values[place] for share, values in self.quantiles.items()},
            mask=None if self.mask is None else self.mask[place],
            histograms=None if self.histograms is None else self.histograms.of_dimensions(numbers.ravel()),
        )


def as_list(values: Array) -> list[float | None]:
    """All numbers in turn; None for those that are not finite."""
    return [value if math.isfinite(value) else None for value in np.asarray(values, np.float64).ravel().tolist()]


def _listed_mask(column: ColumnStatistics) -> list[bool] | None:
    return None if column.mask is None else column.mask.ravel().tolist()


def _moments_of(column: ColumnStatistics) -> Moments:
    moments = Moments(column.mean.size)
    moments.counts = column.count.ravel().astype(np.float64)
    moments.means = np.nan_to_num(column.mean.ravel())
    moments.squares = np.nan_to_num(np.square(column.std.ravel()) * moments.counts)
    return moments


def _merge_quantiles(columns: Sequence[ColumnStatistics]) -> tuple[dict[float, Array], Array, Histograms | None]:
    first = columns[0]
    shares = [share for share in first.quantiles if all(share in column.quantiles for column in columns)]
    joined = Histograms.join([column.histograms for column in columns])
    if joined is not None:
        rows = joined.quantiles(shares).reshape(len(shares), *first.shape)
        is_empty = np.isnan(rows[0]) if shares else np.zeros(first.shape, bool)
        return dict(zip(shares, rows)), np.where(is_empty, np.nan, joined.widths.reshape(first.shape)), joined
    counts = np.stack([column.count for column in columns]).astype(np.float64)
    weights = counts / np.maximum(counts.sum(axis=0), 1)
    own_errors = np.stack([np.nan_to_num(column.quantile_error) for column in columns])
    errors = np.zeros(first.shape)
    quantiles = {}
    for share in shares:
        values = np.stack([column.quantiles[share] for column in columns])
        means = np.where(weights > 0, values * weights, 0.0).sum(axis=0)
        quantiles[share] = np.where(counts.sum(axis=0) > 0, means, np.nan)
        low = np.min(np.where(counts > 0, values - own_errors, np.inf), axis=0)
        high = np.max(np.where(counts > 0, values + own_errors, -np.inf), axis=0)
        with np.errstate(invalid="ignore"):
            errors = np.fmax(errors, np.maximum(high - quantiles[share], quantiles[share] - low))
    return quantiles, errors, None


def mask_of(path: str, mask: Any, shape: tuple[int, ...]) -> Array:
    """A mask of the dimensions of a column; raises `ConfigError` for another width."""
    values = np.asarray(mask)
    if values.dtype != bool or values.shape != shape:
        raise ConfigError(
            f'mask of "{path}": expected {counted(math.prod(shape), "bool")} of shape {shape}, found {values.dtype} of shape {values.shape}'
        )
    return values


@printed("source", "view", "trajectories", "transitions", "columns=listed")
@dataclass(frozen=True, eq=False)
class StatisticsContent:
    """What a file of statistics holds.

    Attributes:
      columns: path -> statistics.
      source: name of the dataset; of several, joined by " + ".
      view: whose items were looked at; "" for steps.
      trajectories: episodes that count; 0 where it is not known.
      transitions: their steps that have an action, all steps without actions; items of a view; 0 where it is not known.
      left_out: columns that have no statistics though they hold numbers.
    """

    columns: Mapping[str, ColumnStatistics]
    source: str = ""
    view: str = ""
    trajectories: Count = 0
    transitions: Count = 0
    left_out: tuple[Notice, ...] = ()

    @property
    def listed(self) -> dict[str, ListedColumn]:
        """Path -> the statistics of a column."""
        return {path: column.listed for path, column in self.columns.items()}
