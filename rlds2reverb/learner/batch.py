"""Batches in the structure of their table, and the server's information about every sample.

A list in a batch may be a container, or a leaf: items that differ in shape. Only the structure distinguishes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec, Nest, map_with_path
from rlds2reverb.text import as_html
from rlds2reverb.wire.sample.batches import Column


class BatchInfo(NamedTuple):
    """Information about every sample of a batch, as of the moment when the server drew it.

    Attributes:
      key: [B] uint64, the item's, for `update_priorities` and `delete`.
      probability: [B] float64, with which the sampler drew it; 1 of samplers without chance (fifo, heaps).
      table_size: [B] int64, items in the table.
      priority: [B] float64, the item's.
      times_sampled: [B] int32, this time included.
      weight: [B] float32 importance weights, where the options ask for them; else None.
      mask: [B, L] bool, the rows that an item has in every column that was filled up, or that its slice has of the
        episode; None where nothing is filled up or sliced.
      masks: by column, [B, L] bool, the rows that an item has there, where columns were filled up; else None. See
        `pad_columns`.
      start: [B] int64, the row or step where an item begins in the episode that it was cut out of; else None.
      source: [B] int64, the part of a mix, or the server, that a sample came from; else None.
    """

    key: Array
    probability: Array
    table_size: Array
    priority: Array
    times_sampled: Array
    weight: Array | None = None
    mask: Array | None = None
    masks: Mapping[str, Array] | None = None
    start: Array | None = None
    source: Array | None = None

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def ends(self) -> Array | None:
        """[B, L] bool, the last row of every item, where a slice was cut off; None without a mask."""
        if self.mask is None:
            return None
        after = np.zeros_like(self.mask)
        after[..., :-1] = self.mask[..., 1:]
        ends: Array = self.mask & ~after
        return ends


class Batch(NamedTuple):
    """Samples of one table: `data, info = batch`.

    Attributes:
      data: in the structure of the table's signature; every leaf is [B, ...], or a list of B arrays where shapes differ.
      info: see `BatchInfo`.
    """

    data: Nest
    info: BatchInfo

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def size(self) -> int:
        """The number of samples, also of a stacked batch."""
        return int(self.info.key.size)


def unbatch(batch: Batch, structure: Nest | None) -> Batch:
    """Takes the only sample of a batch out of the axis of the batch; `structure` is the sampler's."""

    def first(values: Any) -> Any:
        if values is None:
            return None
        return {name: mask[0] for name, mask in values.items()} if isinstance(values, Mapping) else values[0]

    fields: list[Any] = [first(values) for values in batch.info]
    paths = paths_of(batch.data, structure)
    values = [column[0] for column in columns_of(batch.data, paths)]
    return Batch(in_structure(values, paths), BatchInfo(*fields))


_Own = TypeVar("_Own", bound="BatchIterator")


class BatchIterator(Iterator[Batch], ABC):
    """Iterates batches until they end, or until it is closed. Close it, or use it as a context manager."""

    @abstractmethod
    def next_batch(self) -> Batch | None:
        """Returns the next batch; None at the end. Iterating raises the same errors."""

    @abstractmethod
    def stop(self) -> None:
        """Requests no more samples. Prefetched ones still come."""

    @abstractmethod
    def close(self) -> None:
        """Ends it at once."""

    def __iter__(self: _Own) -> _Own:
        return self

    def __next__(self) -> Batch:
        if (batch := self.next_batch()) is None:
            raise StopIteration
        return batch

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Raises TypeError: nobody knows the number of batches. A DataLoader asks for it, and so the message names what it takes."""
        raise TypeError(
            f"{type(self).__name__}: batches come one after the other, and their number is not known. For a DataLoader of PyTorch: LocalDataset, "
            "TableDataset or MixDataset of rlds2reverb.adapters.torch, with DataLoader(dataset, batch_size=None)"
        )

    def __bool__(self) -> bool:
        return True  # by `__len__` otherwise


def only_sample(batches: BatchIterator, structure: Nest | None) -> Batch:
    """The only sample of an iterator of one batch of one, without the axis of a batch. Closes it. Raises as `next_batch` does."""
    with batches:
        (batch,) = batches
    return unbatch(batch, structure)


def paths_of(data: Nest, structure: Nest | None) -> Nest:
    """The nest of a batch's columns, with its path in place of every leaf.

    Without a structure, a list at the top has one entry per column, and any other list is a leaf.
    """
    if structure is not None:
        return map_with_path(lambda path, _: path, structure)
    if isinstance(data, list):  # a table without a signature
        return [str(number) for number in range(len(data))]
    return map_with_path(lambda path, _: path, _without_lists(data))


def columns_of(data: Nest, paths: Nest) -> list[Column]:
    """The columns of a batch in the order of `paths_of`. A list of arrays in place of a leaf is one column."""
    return list(_walk_columns(data, paths))


def in_structure(columns: Iterable[object], structure: Nest) -> Nest:
    """The nest with one column in place of each leaf, in their order."""
    return _fill_structure(iter(columns), structure)


def _fill_structure(left: Iterator[object], structure: Nest) -> Nest:
    """Puts the next column in place of each leaf. Every batch passes here: `map_with_path` makes the text of each path, and takes longer."""
    fill = partial(_fill_structure, left)
    if isinstance(structure, Mapping):
        keys = sorted(structure)
        return dict(zip(keys, map(fill, map(structure.__getitem__, keys))))
    if not isinstance(structure, (list, tuple)):
        return next(left)
    if hasattr(structure, "_fields"):
        return type(structure)(*map(fill, structure))
    return type(structure)(map(fill, structure))


def _walk_columns(data: Nest, paths: Nest) -> Iterator[Column]:
    if isinstance(paths, str):  # a leaf: its data may be a list of arrays, which is no container
        yield data
    elif isinstance(paths, Mapping):
        for key in sorted(paths):
            yield from _walk_columns(data[key], paths[key])
    else:
        for child, inside in zip(data, paths, strict=True):
            yield from _walk_columns(child, inside)


def _without_lists(data: Nest) -> Nest:
    """Puts a leaf in place of every list: below the top, a list holds items that differ in shape."""
    if isinstance(data, list):
        return None
    if isinstance(data, Mapping):
        return {key: _without_lists(child) for key, child in data.items()}
    if isinstance(data, tuple):
        inside = [_without_lists(child) for child in data]
        return type(data)(*inside) if hasattr(data, "_fields") else tuple(inside)
    return data


class Padded(NamedTuple):
    """Columns, each an array: unchanged, or [B, L, ...] with an L of its own; masks as of `BatchInfo`."""

    columns: list[Column]
    mask: Array | None
    masks: Mapping[str, Array] | None


def pad_columns(columns: Sequence[Column], names: Sequence[str], is_free: Sequence[bool], rows: int | None) -> Padded:
    """Fills up the columns whose items differ in rows, or may differ, at the end, with zeros or empty text.

    Observations of T + 1 rows beside actions of T, in a batch of two items with 2 and 3 actions:

    | | rows | becomes | its mask |
    | --- | --- | --- | --- |
    | observation | 3, 4 | [2, 4, ...] | `masks["observation"]` 1110 1111 |
    | action | 2, 3 | [2, 3, ...] | `masks["action"]` 110 111 |
    | all of them | 2, 3 | | `mask` 110 111 |

    Args:
      columns: [B, ...], or B arrays.
      is_free: for every column, whether the signature leaves its rows open; it then has a mask even if all items have one length.
      rows: L of every column that is filled up; None for the rows of its longest item.

    Raises:
      ConfigError: items differ in more than their rows, in their dtype, say, or have more than `rows`.
    """
    out: list[Column] = []
    lengths: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for name, column, free in zip(names, columns, is_free, strict=True):
        if free or isinstance(column, list):
            lengths[name] = _count_rows(name, column)
            sizes[name] = int(lengths[name].max()) if rows is None else rows
            column = _fill_column(name, column, lengths[name], sizes[name])
        out.append(column)
    if not lengths:
        return Padded(out, None, None)
    masks = {name: np.arange(sizes[name]) < there[:, np.newaxis] for name, there in lengths.items()}
    in_all = np.min(list(lengths.values()), axis=0)  # [B]
    size = int(in_all.max()) if rows is None else rows
    return Padded(out, np.arange(size) < in_all[:, np.newaxis], masks)


def rows_are_free(leaves: Iterable[object]) -> list[bool]:
    """For every leaf, whether it is a spec that leaves an item's rows open."""
    return [isinstance(leaf, ArraySpec) and leaf.shape[:1] == (None,) for leaf in leaves]


def _count_rows(name: str, column: Column) -> Array:
    """[B] rows of every item."""
    shapes = {value.shape[1:] if value.ndim else None for value in column}
    if None in shapes or len(shapes) > 1:
        listed = sorted({str(list(value.shape)) for value in column})
        raise ConfigError(
            f'sample: ragged="pad" fills rows only; column "{name}" has items of {", ".join(listed)}; use "list"'
        )
    if isinstance(column, list) and len(dtypes := {value.dtype for value in column}) > 1:
        listed = sorted(map(str, dtypes))
        raise ConfigError(
            f'sample: ragged="pad" makes one array; column "{name}" has items of {", ".join(listed)}; use "list"'
        )
    return np.array([len(value) for value in column], np.int64)


def _fill_column(name: str, column: Column, lengths: Array, rows: int) -> Array:
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
