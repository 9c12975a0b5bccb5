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

from rlds2reverb.cuts import Window
from rlds2reverb.episodes import Array, place_of
from rlds2reverb.wire.insert.chunks import ChunkLayout
from rlds2reverb.wire.records import as_bytes, records
from rlds2reverb.wire.varint import KEY_BYTES, varint, varint_columns, varint_width

_SQUEEZE = b"\x10\x01"
_MOST_CODES = 1 << 62


@dataclass(frozen=True)
class ItemBatch:
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
      anchors: [n] int64 of its own; None for the anchors of the items.
    """

    column: int
    windows: tuple[Window, ...]
    anchors: Array | None = None


class _Span(NamedTuple):
    """Rows [start, stop) relative to the anchors of that number: 0 are the items' own."""

    start: int
    stop: int
    anchors: int


def encode_items(table: str, fields: Sequence[ItemField], items: ItemBatch, layout: ChunkLayout, tensors: int) -> Array:
    """[n] object array of bytes: every item as an `items` field (2) of an InsertStreamRequest.

    Args:
      table: its name.
      fields: in the order of the table's signature.
      items: what varies.
      layout: where the rows lie.
      tensors: how many each chunk has.
    """
    out = np.empty(len(items.anchors), object)
    key_varints = varint_columns(items.item_keys, KEY_BYTES)
    priorities = items.priorities.astype("<f8")[:, None].view(np.uint8)  # [n, 8]
    spans, anchors = _spans(fields, items.anchors)
    for chosen, chunk_counts in _groups_of_equal_size(anchors, layout):
        slices = {
            span: _encode_slices(span, count, anchors[span][chosen], layout, tensors)
            for span, count in chunk_counts.items()
        }
        columns = _encode_fields(fields, spans, slices, tensors)
        block = records(len(chosen), _item_parts(table, key_varints[chosen], priorities[chosen], columns))
        out[chosen] = as_bytes(block)
    return out


def row_span(fields: Sequence[ItemField], anchors: Array) -> tuple[Array, Array]:
    """[n] first and [n] last row that each item refers to."""
    _, relative_to = _spans(fields, anchors)
    firsts = [own + span.start for span, own in relative_to.items()]
    lasts = [own + span.stop - 1 for span, own in relative_to.items()]
    return np.minimum.reduce(firsts), np.maximum.reduce(lasts)


def chunk_span(fields: Sequence[ItemField], anchors: Array, layout: ChunkLayout) -> tuple[Array, Array]:
    """[n] first and [n] last chunk number that each item refers to."""
    first, last = row_span(fields, anchors)
    return first // layout.chunk_length, last // layout.chunk_length


def _spans(fields: Sequence[ItemField], anchors: Array) -> tuple[list[tuple[_Span, ...]], dict[_Span, Array]]:
    """The spans of every field; and for every distinct one the [n] rows that it is relative to."""
    numbered = [anchors]
    spans = []
    for field in fields:
        number = place_of(anchors if field.anchors is None else field.anchors, numbered)
        spans.append(tuple(_Span(window.start, window.stop, number) for window in field.windows))
    return spans, {span: numbered[span.anchors] for own in spans for span in own}


def _groups_of_equal_size(
    anchors: Mapping[_Span, Array], layout: ChunkLayout
) -> Iterator[tuple[Array, dict[_Span, int]]]:
    """Positions of items, and for these the number of chunks that each distinct span touches."""
    k = layout.chunk_length
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


def _encode_fields(
    fields: Sequence[ItemField], spans: Sequence[tuple[_Span, ...]], slices: Mapping[_Span, Array], tensors: int
) -> Array:
    """[n, width] uint8: the columns of n items; neighbours with the same windows are written together."""
    runs = []
    alike = groupby(zip(fields, spans), lambda pair: (pair[1], pair[0].windows[0].squeeze))
    for (own, squeeze), run in alike:
        pieces = slices[own[0]] if len(own) == 1 else np.concatenate([slices[span] for span in own], axis=1)
        runs.append(_encode_run(pieces, np.array([field.column for field, _ in run]), tensors, squeeze))
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
    k = layout.chunk_length
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
