"""Statistics of a dataset's columns, as what normalises needs them: `DatasetStatistics`, made in one pass, merged, read and written.

Mean, standard deviation (over n), ends and counts are those of all values up to rounding. Quantiles are numpy's, between two neighbours, and exact
as long as the values of a column fit into `KEPT_BYTES`, or have a bin each, as bytes, flags and narrow spans of whole numbers do. Beyond that they
come from histograms of up to `MOST_BINS` bins, and `quantile_error` says how far they may be off: by the width of a bin, less than 1/4,000 of the span
of values in a column of up to 64 dimensions.
"""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, Array, Notice, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.images import FILE, kind
from rlds2reverb.numbers.columns import ColumnStatistics, StatisticsContent, mask_of
from rlds2reverb.numbers.forms import read_statistics, write_statistics
from rlds2reverb.numbers.sketch import Numbers
from rlds2reverb.specs import ArraySpec, is_number
from rlds2reverb.text import counted, did_you_mean

KEPT_BYTES = 1 << 26
"""Bytes of values that a column may keep for exact quantiles: 2.4 million steps of 7 numbers of float32, in a dataset of up to four such columns."""
_ALL_KEPT_BYTES = 1 << 28
_WAITING = 1 << 22  # as much as numpy keeps in huge pages, which the system hands out in less time
MOST_BINS = 1 << 14
_ALL_BINS = 1 << 20
_LEAST_BINS = 1 << 6
_BYTE_BINS = 1 << 9
"""Enough that each of 256 values has a bin, wherever the first one lies."""
MOST_DIMENSIONS = 1 << 14
"""A wider column has no statistics: images are told by channel."""


@dataclass(frozen=True, eq=False)
class DatasetStatistics(StatisticsContent):
    """Statistics of the numeric columns of a dataset, by path: `statistics["observation/state"].mean`."""

    def __getitem__(self, path: str) -> ColumnStatistics:
        try:
            return self.columns[path]
        except KeyError:
            known = ", ".join(self.columns)
            raise KeyError(f'no statistics of "{path}"; there are {known}{did_you_mean(path, self.columns)}') from None

    def __contains__(self, path: object) -> bool:
        return path in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def keys(self) -> KeysView[str]:
        return self.columns.keys()

    def items(self) -> ItemsView[str, ColumnStatistics]:
        return self.columns.items()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What does not suit a normaliser: dimensions of one value, q01 = q99; and columns that were left out."""
        return (*self.left_out, *_advice(self.columns))

    def with_mask(self, path: str, mask: Sequence[bool]) -> DatasetStatistics:
        """The same with a mask of dimensions, False for those that a normaliser leaves alone, such as a gripper's.

        Raises:
          ConfigError: it is no mask of such a column.
        """
        column = self[path]
        return replace(self, columns={**self.columns, path: replace(column, mask=mask_of(path, mask, column.shape))})

    @staticmethod
    def merge(parts: Iterable[DatasetStatistics]) -> DatasetStatistics:
        """The statistics of all values together: of workers, of days, of datasets.

        Raises:
          ConfigError: there are none, their columns differ, or one does not say how many values it has; see `ColumnStatistics.merge`.
        """
        many = list(parts)
        if not many:
            raise ConfigError("merge: expected at least one statistics")
        first = many[0]
        for other in many[1:]:
            if other.columns.keys() != first.columns.keys():
                missing = sorted(first.columns.keys() ^ other.columns.keys())
                raise ConfigError(
                    f"merge: statistics of another signature: {first.source or 'the first'} and {other.source or 'another'} differ in {', '.join(missing)}; "
                    "keep the same columns of each, with a transform"
                )
        return DatasetStatistics(
            {
                path: ColumnStatistics.merge([part.columns[path] for part in many], f'column "{path}": ')
                for path in first.columns
            },
            " + ".join(dict.fromkeys(part.source for part in many if part.source)),
            first.view if all(part.view == first.view for part in many) else "",
            sum(part.trajectories for part in many),
            sum(part.transitions for part in many),
            tuple(dict.fromkeys(notice for part in many for notice in part.left_out)),
        )

    @staticmethod
    def read(path: str | Path, dataset: str = "") -> DatasetStatistics:
        """Reads a file of statistics: this package's, LeRobot's stats.json, openpi's norm_stats.json, OpenVLA's or Octo's dataset_statistics.json.

        Args:
          path: the file.
          dataset: which of several datasets of a file of OpenVLA.

        Raises:
          SourceError: it cannot be read, or is none of these.
          ConfigError: there is no such dataset, or several and none is named.
        """
        return DatasetStatistics(**vars(read_statistics(Path(path), dataset)))

    def write(self, path: str | Path, form: str = "", names: Mapping[str, str] | None = None) -> None:
        """Writes the statistics to a file, whole or not at all; a file that is there is replaced.

        Args:
          path: the file.
          form: "rlds2reverb", which can be merged without loss, "lerobot", "openpi", "openvla" or "octo"; "" by the file's name: stats.json,
            norm_stats.json, dataset_statistics.json and dataset_statistics_HASH.json are those of these systems.
          names: the system's key -> the column, where they are not what is usual: {"state": "observation/joints"}.

        Raises:
          ConfigError: an unknown form or column, or the form needs a column that there is not.
          WriteError: it cannot be written.
        """
        write_statistics(self, Path(path), form, names or {})


def _advice(columns: Mapping[str, ColumnStatistics]) -> Iterator[Notice]:
    for path, column in columns.items():
        if column.dtype == "bool" or not (is_under(path, ACTION) or is_under(path, OBSERVATION)):
            continue
        is_constant = column.is_constant
        if is_constant.any():
            text = (
                f"{_dimensions(is_constant)} of one value: a normaliser divides by 0 there, or by a small epsilon; rlds2reverb's makes "
                "it 0, elsewhere mask it, or leave it out with a transform"
            )
            yield Notice("constant_dimension", text, int(is_constant.sum()), path, is_note=True)
        nothing = np.full(column.shape, np.nan)
        low, high = (column.quantiles.get(share, nothing) for share in (0.01, 0.99))
        is_equal = (low == high) & ~is_constant
        if is_equal.any():
            text = (
                f"{_dimensions(is_equal)} with q01 = q99 beside other values, as a gripper that hardly moves: normalise it by min and max, as "
                "rlds2reverb's normaliser does, or mask it"
            )
            yield Notice("equal_quantiles", text, int(is_equal.sum()), path, is_note=True)


_NAMED = 8


def _dimensions(is_meant: Array) -> str:
    """Where they are, such as: 2 dimensions ([0], [6])."""
    places = [", ".join(map(str, place)) for place in np.argwhere(is_meant).tolist()]
    names = ", ".join(f"[{place}]" for place in places[:_NAMED]) + (", ..." if len(places) > _NAMED else "")
    return "a number" if places == [""] else f"{counted(len(places), 'dimension')} ({names})"


class StatisticsBuilder:
    """Statistics of columns that come in parts.

    Args:
      columns: path -> spec of a row.
      images: whether to look at images, all their pixels.

    Attributes:
      numbers: path -> the values so far.
      left_out: columns that were left out though they hold numbers.
    """

    def __init__(self, columns: Mapping[str, ArraySpec], images: bool = False) -> None:
        self.left_out: list[Notice] = []
        looked_at = {path: spec for path, spec in columns.items() if self._has_statistics(path, spec, images)}
        kept = min(KEPT_BYTES, _ALL_KEPT_BYTES // max(1, len(looked_at)))
        waiting = min(_WAITING, _ALL_KEPT_BYTES // max(1, len(looked_at)) // 8)
        self.numbers = {path: _numbers_of(spec, kept, waiting) for path, spec in looked_at.items()}
        self.trajectories = self.transitions = 0

    def add(self, columns: Mapping[str, Array], transitions: int) -> None:
        """Adds the [T, ...] columns of an episode that has so many transitions."""
        self.trajectories += 1
        self.transitions += transitions
        for path, numbers in self.numbers.items():
            column = columns.get(path)
            if column is not None and len(column):
                numbers.add(column)

    def add_part(self, other: StatisticsBuilder) -> None:
        self.trajectories += other.trajectories
        self.transitions += other.transitions
        for path, numbers in self.numbers.items():
            numbers.add_numbers(other.numbers[path])

    def build(self, source: str = "", view: str = "") -> DatasetStatistics:
        """The statistics; nothing can be added any more."""
        columns = {path: ColumnStatistics.of(numbers) for path, numbers in self.numbers.items()}
        return DatasetStatistics(columns, source, view, self.trajectories, self.transitions, tuple(self.left_out))

    def _has_statistics(self, path: str, spec: ArraySpec, images: bool) -> bool:
        image = kind(spec)
        if not is_number(spec.dtype) or 0 in spec.shape:
            if image == FILE and images:
                text = "images are kept encoded, so they have no statistics; leave out encoded (--encoded) and encode (--encode)"
                self.left_out.append(Notice("no_statistics", text, 1, path, is_note=True))
            return False
        if image:
            return images
        dimensions = math.prod(1 if size is None else size for size in spec.shape)
        if None not in spec.shape and dimensions > MOST_DIMENSIONS:
            text = f"{dimensions:,} dimensions have no statistics; at most {MOST_DIMENSIONS:,} have"
            self.left_out.append(Notice("no_statistics", text, 1, path, is_note=True))
            return False
        return True


def _numbers_of(spec: ArraySpec, kept: int, waiting: int) -> Numbers:
    dimensions = 1 if kind(spec) or None in spec.shape else math.prod(size or 0 for size in spec.shape)
    bins = min(MOST_BINS, max(_LEAST_BINS, 1 << (_ALL_BINS // dimensions).bit_length() - 1))
    if spec.dtype.itemsize == 1:
        bins = max(bins, _BYTE_BINS)
    return Numbers(spec, MOST_DIMENSIONS, waiting, bins, kept, pixels=None)
