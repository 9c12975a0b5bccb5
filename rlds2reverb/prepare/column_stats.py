"""Finds columns whose dtype is larger than their values need, over many episodes, by the first rows of each.

Two things are found. A float64 column of which every value is one of float32: TFDS 4.9.10 writes float64 through float32 where a feature's
encoding is none, and 1e300 becomes infinite. And an image of floats that are whole numbers from 0 to 255. One other value is enough to
end the suspicion, so that a column that is as it should be costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Episode, Notice
from rlds2reverb.images import LAST, kind
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted

_ROWS = 16
"""Rows of an episode that are looked at; values that are not of float32 fill a column, or none of it."""

_ENOUGH_VALUES = 32
"""Values that need nearly all of float32's digits; fewer may be there by chance, such as multiples of 1/8."""

_LOW_DIGITS = 0xFF
"""Of float32's 23: 255 of 256 measured values need them, and round numbers do not."""


@dataclass(frozen=True)
class ColumnStats:
    """What is known of the columns so far; a value, so that taking an episode in gives another.

    Attributes:
      rounded: path -> values seen that need float32's digits and no more, for float64 columns without any other.
      images: path -> values seen beyond 0 and 1, for images of floats that held only whole numbers from 0 to 255.
    """

    rounded: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(columns: Mapping[str, ArraySpec]) -> ColumnStats:
        """Nothing seen yet of these columns."""
        return ColumnStats(
            {path: 0 for path, spec in columns.items() if _is_float64(spec.dtype)},
            {path: 0 for path, spec in columns.items() if _is_image_of_floats(spec)},
        )

    def after(self, episode: Episode) -> ColumnStats:
        """What is known once this episode is taken in."""
        if not self.rounded and not self.images:
            return self
        return ColumnStats(
            _counted(self.rounded, episode, _ROWS, _rounded_values),
            _counted(self.images, episode, 1, _whole_values),
        )

    def with_others(self, other: ColumnStats) -> ColumnStats:
        """What is known once other episodes of the same columns are taken in as well."""
        return ColumnStats(_together(self.rounded, other.rounded), _together(self.images, other.images))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What to say of the columns."""
        rounded = (
            Notice("rounded_float64", _ROUNDED.format(count), count, path)
            for path, count in self.rounded.items()
            if count >= _ENOUGH_VALUES
        )
        images = (
            Notice("float_image", _IMAGE.format(count), count, path)
            for path, count in self.images.items()
            if count >= _ENOUGH_VALUES
        )
        return (*rounded, *images)


_ROUNDED = (
    "every value of {:,} looked at is one of float32; if they had more digits once, what wrote them has rounded them, as TFDS does "
    "unless the dataset is prepared with an encoding (bytes, zlib)"
)
_IMAGE = "every value of {:,} looked at is a whole number from 0 to 255; as uint8 the column would need a quarter of the room, or less"


def duplicates_notice(copies: int) -> tuple[Notice, ...]:
    """What to say where so many episodes are equal to earlier ones; nothing of none."""
    if not copies:
        return ()
    text = (
        f"{counted(copies, 'episode')}, equal to earlier ones step by step: a file that is there twice, perhaps, or parts of a "
        'mix that overlap. A push stores each; duplicates="once" (--duplicates once) stores one of each'
    )
    return (Notice("duplicate_episode", text, copies),)


def _together(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {path: count + other[path] for path, count in one.items() if path in other}


def _counted(
    counts: Mapping[str, int], episode: Episode, rows: int, count_in: Callable[[Array], int | None]
) -> Mapping[str, int]:
    """The counts with this episode's; without the columns of which it shows that there is nothing to tell."""
    added = {path: count_in(episode.columns[path][:rows]) if path in episode.columns else 0 for path in counts}
    return {path: counts[path] + more for path, more in added.items() if more is not None}


def _rounded_values(column: Array) -> int | None:
    """How many values need float32's digits; None where one needs more."""
    if not _is_float64(column.dtype):
        return None
    values = column[np.isfinite(column)]
    with np.errstate(over="ignore", under="ignore"):
        small = values.astype(np.float32)
    if np.any(small != values):
        return None
    return int(np.count_nonzero(small.view(np.uint32) & _LOW_DIGITS))


def _whole_values(column: Array) -> int | None:
    """How many values are whole numbers from 2 to 255; None where one is no whole number from 0 to 255."""
    if column.dtype.kind != "f" or np.any((column != np.rint(column)) | (column < 0) | (column > 255)):
        return None
    return int(np.count_nonzero(column > 1))


def _is_float64(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and dtype.itemsize == 8


def _is_image_of_floats(spec: ArraySpec) -> bool:
    return spec.dtype.kind == "f" and kind(spec) == LAST
