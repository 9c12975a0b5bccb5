"""Columns whose items differ in rows, filled up at the end to one shape.

Observations of T + 1 rows beside actions of T, in a batch of two items with 2 and 3 actions:

| | rows | comes out as | its mask |
| --- | --- | --- | --- |
| observation | 3, 4 | [2, 4, ...] | `masks["observation"]` 1110 1111 |
| action | 2, 3 | [2, 3, ...] | `masks["action"]` 110 111 |
| all of them | 2, 3 | | `mask` 110 111 |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wire.sample.batches import Column


class Padded(NamedTuple):
    """Columns of one shape each.

    Attributes:
      columns: as they came, or [B, L, ...] where they were filled up, with L of their own.
      mask: [B, L] bool, the rows that an item has in every column that was filled up; None when none was.
      masks: by column, [B, L] bool, the rows that it has there.
    """

    columns: list[Column]
    mask: Array | None
    masks: Mapping[str, Array] | None


def padded(columns: Sequence[Column], names: Sequence[str], is_free: Sequence[bool], rows: int | None) -> Padded:
    """Fills columns up with zeros, or empty text: those whose items differ, and those whose items might.

    Args:
      columns: [B, ...], or B arrays.
      names: of the columns.
      is_free: whether the signature leaves their rows open, so that they have a mask even where all items are of one length.
      rows: L of every column that is filled up; None for those of its longest item.

    Raises:
      ConfigError: items differ in more than their rows, in their dtype, say, or have more than there are to be.
    """
    out: list[Column] = []
    lengths: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for name, column, free in zip(names, columns, is_free, strict=True):
        if free or isinstance(column, list):
            lengths[name] = _lengths(name, column)
            sizes[name] = int(lengths[name].max()) if rows is None else rows
            column = _filled(name, column, lengths[name], sizes[name])
        out.append(column)
    if not lengths:
        return Padded(out, None, None)
    masks = {name: np.arange(sizes[name]) < there[:, np.newaxis] for name, there in lengths.items()}
    in_all = np.min(list(lengths.values()), axis=0)  # [B]
    size = int(in_all.max()) if rows is None else rows
    return Padded(out, np.arange(size) < in_all[:, np.newaxis], masks)


def rows_are_free(leaves: Iterable[object]) -> list[bool]:
    """Of every leaf, whether it is a spec that leaves an item's rows open."""
    return [isinstance(leaf, ArraySpec) and leaf.shape[:1] == (None,) for leaf in leaves]


def _lengths(name: str, column: Column) -> Array:
    """[B] rows of every item."""
    shapes = {value.shape[1:] if value.ndim else None for value in column}
    if None in shapes or len(shapes) > 1:
        found = sorted({str(list(value.shape)) for value in column})
        raise ConfigError(
            f'sample: ragged="pad" fills rows only; column "{name}" has items of {", ".join(found)}; use "list"'
        )
    if isinstance(column, list) and len(dtypes := {value.dtype for value in column}) > 1:
        found = sorted(map(str, dtypes))
        raise ConfigError(
            f'sample: ragged="pad" makes one array; column "{name}" has items of {", ".join(found)}; use "list"'
        )
    return np.array([len(value) for value in column], np.int64)


def _filled(name: str, column: Column, lengths: Array, rows: int) -> Array:
    if (longest := int(lengths.max())) > rows:
        raise ConfigError(
            f'sample: pad_to {rows}: column "{name}" has an item of {longest} rows; raise it, or use slices'
        )
    if not isinstance(column, list) and rows == longest:
        return column
    fill: Any = b"" if column[0].dtype.kind == "O" else 0
    whole = np.full((len(column), rows, *column[0].shape[1:]), fill, column[0].dtype)
    for number, value in enumerate(column):
        whole[number, : len(value)] = value
    return whole
