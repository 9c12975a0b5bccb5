"""What a learner gets: a batch in the structure of its table, and what the server tells of every sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.images import decode_columns
from rlds2reverb.learner.options import PAD, SampleOptions
from rlds2reverb.specs import Nest, flatten, map_leaves, map_with_path
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import Column, FlatBatch


class BatchInfo(NamedTuple):
    """What is known of every sample of a batch; as of the moment when the server took it.

    Attributes:
      key: [B] uint64, the item's, for `update_priorities` and `delete`.
      probability: [B] float64, with which the sampler drew it; 1 of samplers that leave nothing to chance (fifo, heaps).
      table_size: [B] int64, items in the table.
      priority: [B] float64, the item's.
      times_sampled: [B] int32, this time included.
      weight: [B] float32 importance weights, where they were asked for; else None.
      mask: [B, L] bool, the rows that are the item's, where columns were padded; else None.
      source: [B] int64, which part of a mix, or which server of several, a sample came from; else None.
    """

    key: Array
    probability: Array
    table_size: Array
    priority: Array
    times_sampled: Array
    weight: Array | None = None
    mask: Array | None = None
    source: Array | None = None


class Batch(NamedTuple):
    """Samples of one table: `data, info = batch`.

    Attributes:
      data: in the structure of the table's signature; every leaf is [B, ...], or a list of B arrays where shapes differ.
      info: see `BatchInfo`.
    """

    data: Nest
    info: BatchInfo

    @property
    def size(self) -> int:
        """B, the number of samples."""
        return len(self.info.key)


def unbatched(batch: Batch) -> Batch:
    """The only sample of a batch, without the axis of the batch."""
    fields: list[Any] = [None if values is None else values[0] for values in batch.info]
    return Batch(map_leaves(lambda column: column[0], batch.data), BatchInfo(*fields))


class Packing:
    """Makes batches of columns.

    Args:
      table: as the server tells of it.
      options: `spec`, `decode` and `ragged` count.

    Raises:
      ConfigError: there are two structures that differ in their number of columns.
    """

    def __init__(self, table: TableInfo, options: SampleOptions) -> None:
        self._name, self._options = table.name, options
        self._structure = table.signature if options.spec is None else options.spec
        self._leaves = None if self._structure is None else list(flatten(self._structure))
        if options.spec is not None and table.signature is not None:
            expected = len(flatten(table.signature))
            if len(self._leaves or ()) != expected:
                raise ConfigError(
                    f'table "{table.name}": spec has {len(self._leaves or ())} leaves, the table\'s items have {expected} columns'
                )
        self._signature = table.signature if options.decode else None

    def pack(self, flat: FlatBatch) -> Batch:
        """The batch.

        Raises:
          ConfigError: the items do not have the columns of the structure.
          DecodeError: an encoded image cannot be decoded.
        """
        columns: Sequence[Column] = flat.columns
        if self._signature is not None and _has_images(self._signature):
            columns = _decoded(columns, self._signature)
        mask = None
        if self._options.ragged == PAD:
            columns, mask = padded(columns)
        return Batch(self._packed(columns), BatchInfo(*flat.info, mask=mask))

    def _packed(self, columns: Sequence[Column]) -> Nest:
        if self._leaves is None:
            return list(columns)
        if len(columns) != len(self._leaves):
            raise ConfigError(
                f'table "{self._name}": items have {len(columns)} columns, the structure has {len(self._leaves)} leaves: {self._leaves}'
            )
        left: Iterator[Column] = iter(columns)
        return map_with_path(lambda _path, _leaf: next(left), self._structure)


def padded(columns: Sequence[Column]) -> tuple[list[Column], Array | None]:
    """Columns whose items differ in rows, with zeros after the end.

    Returns:
      The columns [B, L, ...], and [B, L] bool: the rows that are the items'; None when no column needed it.

    Raises:
      ConfigError: items differ in more than their rows.
    """
    out: list[Column] = []
    mask: Array | None = None
    for column in columns:
        if isinstance(column, list):
            column, rows = _padded_column(column)
            mask = rows if mask is None or rows.shape[1] > mask.shape[1] else mask
        out.append(column)
    return out, mask


def _padded_column(values: list[Array]) -> tuple[Array, Array]:
    if len({value.shape[1:] for value in values}) > 1 or any(value.ndim == 0 for value in values):
        shapes = sorted({str(list(value.shape)) for value in values})
        raise ConfigError(f'sample: ragged="pad" fills rows only; a batch has items of {", ".join(shapes)}; use "list"')
    lengths = np.array([len(value) for value in values])
    most = int(lengths.max())
    fill: Any = b"" if values[0].dtype.kind == "O" else 0
    whole = np.full((len(values), most, *values[0].shape[1:]), fill, values[0].dtype)
    for number, value in enumerate(values):
        whole[number, : len(value)] = value
    return whole, np.arange(most) < lengths[:, np.newaxis]


def _has_images(signature: Nest) -> bool:
    return any(leaf.image is not None for leaf in flatten(signature).values())


def _decoded(columns: Sequence[Column], signature: Nest) -> list[Column]:
    ragged = {number for number, column in enumerate(columns) if isinstance(column, list)}
    if not ragged:
        return list(decode_columns(list(columns), signature))
    leaves = list(flatten(signature).values())
    out: list[Column] = []
    for number, (column, leaf) in enumerate(zip(columns, leaves)):
        values: list[Column] = list(column) if isinstance(column, list) else [column]
        decoded = [decode_columns([value], [leaf])[0] for value in values]
        out.append(decoded if number in ragged else decoded[0])
    return out
