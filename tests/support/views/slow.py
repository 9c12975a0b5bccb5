"""What the slow, obvious ways of views have in common: one row of a column at a time, any columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views.base import View
from tests.support.views.cutting import columns_of

Item = dict[str, Array]
"""Field path -> what an item holds."""


def value(column: Array, row: int) -> Array:
    """One row of a column, an array even where it is one text."""
    return column[row : row + 1].reshape(column.shape[1:])


def one_wide(row: int, column: Array) -> Array:
    """One row of a column with an axis of size 1 behind it."""
    return column[row][..., None]


def zeros(column: Array) -> Array:
    """What stands where there is no row: zeros, or empty text."""
    return (
        np.full(column.shape[1:], b"", object) if column.dtype == object else np.zeros(column.shape[1:], column.dtype)
    )


def stacked(values: list[Array], column: Array) -> Array:
    """Rows -> one array with a leading axis."""
    found = np.empty((len(values), *column.shape[1:]), column.dtype)
    for number, row in enumerate(values):
        found[number : number + 1] = row.reshape(1, *row.shape)
    return found


def read(episode: Episode, name: str, field: str, get: Callable[[Array], Array]) -> Item:
    """`get` of every column of a step field, nested or not, under the name `field`."""
    paths = [path for path in episode.columns if path.split("/")[0] == name]
    return {field + path[len(name) :]: get(episode.columns[path]) for path in paths}


def at(episode: Episode, name: str, row: int, field: str = "") -> Item:
    """One row of a step field."""
    return read(episode, name, field or name, lambda column: value(column, row))


def made_up(column: Array, fill: Any) -> Array:
    """A row that the episode does not have: the first one, zeros, or a number everywhere."""
    if fill == "first":
        return value(column, 0)
    return zeros(column) if fill == "zero" else np.full(column.shape[1:], fill, column.dtype)


def in_order(view: View, episode: Episode, items: list[Item]) -> list[list[Array]]:
    """Items as lists, in the order of the view's signature."""
    order = columns_of(view, episode)
    assert all(set(item) == set(order) for item in items)
    return [[item[path] for path in order] for item in items]
