"""Anchors and fields -> items, a whole episode at once.

Source: schema.proto, PrioritizedItem: key(1), table(2), priority(5), flat_trajectory(8){columns(1)
{chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.

Items whose windows touch the same numbers of chunks have the same size in bytes, because every varint in them
has a fixed width (`wire.varint`). Each such group is one numpy array [n, width]: constant bytes are
broadcast, keys, offsets and lengths are written as columns. No Python loop runs over steps or items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.views.base import Window
from rlds2reverb.wire.chunks import ChunkLayout
from rlds2reverb.wire.records import as_bytes, records
from rlds2reverb.wire.varint import KEY_BYTES, varint, varint_columns, varint_width

_SQUEEZE = b"\x10\x01"
_MOST_CODES = 1 << 62


@dataclass(frozen=True)
class ItemColumns:
    """What varies from item to item.

    Attributes:
      anchors: [n] int64.
      item_keys: [n] uint64 with the top bit set.
      priorities: [n] float64.
    """

    anchors: Array
    item_keys: Array
    priorities: Array


@dataclass(frozen=True, eq=False)
class ItemField:
    """One field of the items.

    Attributes:
      column: number of the chunk's tensor that it reads.
      windows: rows relative to the anchor, joined in this order.
      anchors: [n] int64 of its own, or None for those of the items.
    """

    column: int
    windows: tuple[Window, ...]
    anchors: Array | None = None

    @property
    def spans(self) -> list[_Span]:
        """Its windows, each told apart from equal windows at other anchors."""
        return [
            _Span(window.start, window.stop, 0 if self.anchors is None else id(self.anchors)) for window in self.windows
        ]


class _Span(NamedTuple):
    """Rows [start, stop) relative to the anchors of that identity; 0 for the items' own."""

    start: int
    stop: int
    anchors: int


def encode_items(
    table: str, fields: Sequence[ItemField], items: ItemColumns, layout: ChunkLayout, tensors: int
) -> Array:
    """[n] object array of bytes: every item as an `items` field (2) of an InsertStreamRequest.

    Args:
      table: its name.
      fields: in the order of the table's signature.
      items: what varies.
      layout: where the rows lie.
      tensors: how many a chunk has.
    """
    out = np.empty(len(items.anchors), object)
    key_varints = varint_columns(items.item_keys, KEY_BYTES)
    priorities = items.priorities.astype("<f8")[:, None].view(np.uint8)  # [n, 8]
    anchors = _anchors_of_spans(fields, items.anchors)
    for chosen, chunk_counts in _groups_of_equal_size(anchors, layout):
        slices = {
            span: _encode_slices(span, count, anchors[span][chosen], layout, tensors)
            for span, count in chunk_counts.items()
        }
        columns = _encode_fields(fields, slices, tensors)
        block = records(len(chosen), _item_parts(table, key_varints[chosen], priorities[chosen], columns))
        out[chosen] = as_bytes(block)
    return out


def row_span(fields: Sequence[ItemField], anchors: Array) -> tuple[Array, Array]:
    """[n] first and [n] last row that each item refers to."""
    spans = _anchors_of_spans(fields, anchors)
    firsts = [own + span.start for span, own in spans.items()]
    lasts = [own + span.stop - 1 for span, own in spans.items()]
    return np.minimum.reduce(firsts), np.maximum.reduce(lasts)


def chunk_span(fields: Sequence[ItemField], anchors: Array, layout: ChunkLayout) -> tuple[Array, Array]:
    """[n] first and [n] last chunk number that each item refers to."""
    first, last = row_span(fields, anchors)
    return first // layout.rows_per_chunk, last // layout.rows_per_chunk


def _anchors_of_spans(fields: Sequence[ItemField], anchors: Array) -> dict[_Span, Array]:
    """Every distinct span, and the [n] rows that it is relative to."""
    return {span: anchors if field.anchors is None else field.anchors for field in fields for span in field.spans}


def _groups_of_equal_size(
    anchors: Mapping[_Span, Array], layout: ChunkLayout
) -> Iterator[tuple[Array, dict[_Span, int]]]:
    """Positions of items, and for these the number of chunks that each distinct span touches."""
    k = layout.rows_per_chunk
    counts = np.stack(
        [(own + span.stop - 1) // k - (own + span.start) // k + 1 for span, own in anchors.items()], axis=-1
    )  # [n, spans]
    code, codes = np.zeros(len(counts), np.int64), 1  # every code is below `codes`
    for column in counts.T:
        base = int(column.max(initial=0)) + 1
        if codes * base > _MOST_CODES:  # many windows: number what there is anew, so that no code wraps around
            code, codes = np.unique(code, return_inverse=True)[1], len(counts)
        code, codes = code * base + column, codes * base
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    for group, position in enumerate(first):
        yield np.nonzero(inverse == group)[0], dict(zip(anchors, counts[position].tolist()))


def _item_parts(table: str, key_varints: Array, priorities: Array, columns: Array) -> list[bytes | Array]:
    """The parts of n items, side by side."""
    name = table.encode()
    named = b"\x12" + varint(len(name)) + name + b"\x29"
    flat = b"\x42" + varint(columns.shape[1])
    size = 1 + KEY_BYTES + len(named) + priorities.shape[1] + len(flat) + columns.shape[1]
    return [b"\x12" + varint(size) + b"\x08", key_varints, named, priorities, flat, columns]


def _encode_fields(fields: Sequence[ItemField], slices: Mapping[_Span, Array], tensors: int) -> Array:
    """[n, width] uint8: the columns of n items; neighbours with the same windows are written together."""
    runs = []
    for (spans, squeeze), run in groupby(fields, lambda field: (tuple(field.spans), field.windows[0].squeeze)):
        pieces = slices[spans[0]] if len(spans) == 1 else np.concatenate([slices[span] for span in spans], axis=1)
        runs.append(_encode_run(pieces, np.array([field.column for field in run]), tensors, squeeze))
    return runs[0] if len(runs) == 1 else np.concatenate(runs, axis=1)


def _encode_run(slices: Array, columns: Array, tensors: int, squeeze: bool) -> Array:
    """[n, width] uint8: fields of these columns, which have the same slices but for the column's index."""
    n, pieces, width = slices.shape
    index_width = varint_width(tensors - 1)
    tail = _SQUEEZE if squeeze else b""
    head = b"\x0a" + varint(pieces * width + len(tail))
    out = np.empty((n, len(columns), len(head) + pieces * width + len(tail)), np.uint8)
    out[..., : len(head)] = np.frombuffer(head, np.uint8)
    out[..., len(head) + pieces * width :] = np.frombuffer(tail, np.uint8)
    indices = varint_columns(columns, index_width)  # [fields, index_width]
    for piece in range(pieces):
        at = len(head) + piece * width
        out[..., at : at + width - index_width] = slices[:, None, piece, : width - index_width]
        out[..., at + width - index_width : at + width] = indices
    return out.reshape(n, -1)


def _encode_slices(span: _Span, count: int, anchors: Array, layout: ChunkLayout, tensors: int) -> Array:
    """[n, count, width] uint8: the chunk slices of one span, with room for the column's index."""
    k = layout.rows_per_chunk
    first_row = (anchors + span.start)[:, None]  # [n, 1]
    end_row = (anchors + span.stop)[:, None]
    chunk = first_row // k + np.arange(count)  # [n, count]
    begin = np.maximum(first_row, chunk * k)
    offset, length = begin - chunk * k, np.minimum(end_row, (chunk + 1) * k) - begin
    width, index_width = varint_width(k), varint_width(tensors - 1)
    body_size = 1 + KEY_BYTES + 2 * (1 + width) + 1 + index_width
    out = np.empty((len(anchors), count, 2 + body_size), np.uint8)
    out[..., :3] = (0x0A, body_size, 0x08)
    out[..., 3 : 3 + KEY_BYTES] = layout.key_varints[chunk]
    at = 3 + KEY_BYTES
    for tag, values in ((0x10, offset), (0x18, length)):
        out[..., at] = tag
        out[..., at + 1 : at + 1 + width] = varint_columns(values, width)
        at += 1 + width
    out[..., at] = 0x20
    return out
