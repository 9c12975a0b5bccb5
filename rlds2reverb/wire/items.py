"""Anchors and windows -> items, a whole episode at once.

Source: schema.proto, PrioritizedItem: key(1), table(2), priority(5), flat_trajectory(8){columns(1)
{chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.

Items whose windows touch the same number of chunks have the same size in bytes, because every varint in them
has a fixed width (`wire.varint`). Each such group is one numpy array [n, width]: constant bytes are
broadcast, keys, offsets and lengths are written as columns. No Python loop runs over steps or items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

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


def encode_items(table: str, windows: Sequence[Window], items: ItemColumns, layout: ChunkLayout) -> Array:
    """[n] object array of bytes: every item as an `items` field (2) of an InsertStreamRequest."""
    out = np.empty(len(items.anchors), object)
    key_varints = varint_columns(items.item_keys, KEY_BYTES)
    priorities = items.priorities.astype("<f8")[:, None].view(np.uint8)  # [n, 8]
    for chosen, chunk_counts in _groups_of_equal_size(windows, items.anchors, layout):
        columns = _encode_columns(windows, items.anchors[chosen], layout, chunk_counts)
        block = records(len(chosen), _item_parts(table, key_varints[chosen], priorities[chosen], columns))
        out[chosen] = as_bytes(block)
    return out


def chunk_span(windows: Sequence[Window], anchors: Array, layout: ChunkLayout) -> tuple[Array, Array]:
    """[n] first and [n] last chunk number that each item refers to."""
    lowest = min(window.start for window in windows)
    highest = max(window.stop for window in windows)
    k = layout.rows_per_chunk
    return (anchors + lowest) // k, (anchors + highest - 1) // k


def _groups_of_equal_size(
    windows: Sequence[Window], anchors: Array, layout: ChunkLayout
) -> Iterator[tuple[Array, dict[Window, int]]]:
    """Positions of items, and for these the number of chunks that each distinct window touches."""
    distinct = list(dict.fromkeys(windows))
    k = layout.rows_per_chunk
    counts = np.stack(
        [(anchors + w.stop - 1) // k - (anchors + w.start) // k + 1 for w in distinct], axis=-1
    )  # [n, n_distinct]
    code, codes = np.zeros(len(anchors), np.int64), 1  # every code is below `codes`
    for column in counts.T:
        base = int(column.max(initial=0)) + 1
        if codes * base > _MOST_CODES:  # many windows: number what there is anew, so that no code wraps around
            code, codes = np.unique(code, return_inverse=True)[1], len(anchors)
        code, codes = code * base + column, codes * base
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    for group, position in enumerate(first):
        yield np.nonzero(inverse == group)[0], dict(zip(distinct, counts[position].tolist()))


def _item_parts(table: str, key_varints: Array, priorities: Array, columns: Array) -> list[bytes | Array]:
    """The parts of n items, side by side."""
    name = table.encode()
    named = b"\x12" + varint(len(name)) + name + b"\x29"
    flat = b"\x42" + varint(columns.shape[1])
    size = 1 + KEY_BYTES + len(named) + priorities.shape[1] + len(flat) + columns.shape[1]
    return [b"\x12" + varint(size) + b"\x08", key_varints, named, priorities, flat, columns]


def _encode_columns(
    windows: Sequence[Window], anchors: Array, layout: ChunkLayout, chunk_counts: dict[Window, int]
) -> Array:
    """[n, width] uint8: the columns of n items; neighbours with the same window are written together."""
    slices = {
        window: _encode_slices(window, count, anchors, layout, len(windows)) for window, count in chunk_counts.items()
    }
    runs = []
    first = 0
    for window, run in groupby(windows):
        count = len(list(run))
        runs.append(_encode_run(slices[window], first, count, len(windows), window.squeeze))
        first += count
    return runs[0] if len(runs) == 1 else np.concatenate(runs, axis=1)


def _encode_run(slices: Array, first: int, count: int, columns: int, squeeze: bool) -> Array:
    """[n, width] uint8: `count` columns from number `first` on, which have the same slices but for the column's index."""
    n, pieces, width = slices.shape
    index_width = varint_width(columns - 1)
    tail = _SQUEEZE if squeeze else b""
    head = b"\x0a" + varint(pieces * width + len(tail))
    out = np.empty((n, count, len(head) + pieces * width + len(tail)), np.uint8)
    out[..., : len(head)] = np.frombuffer(head, np.uint8)
    out[..., len(head) + pieces * width :] = np.frombuffer(tail, np.uint8)
    indices = varint_columns(np.arange(first, first + count), index_width)  # [count, index_width]
    for piece in range(pieces):
        at = len(head) + piece * width
        out[..., at : at + width - index_width] = slices[:, None, piece, : width - index_width]
        out[..., at + width - index_width : at + width] = indices
    return out.reshape(n, -1)


def _encode_slices(window: Window, count: int, anchors: Array, layout: ChunkLayout, columns: int) -> Array:
    """[n, count, width] uint8: the chunk slices of one window, with room for the column's index."""
    k = layout.rows_per_chunk
    first_row = (anchors + window.start)[:, None]  # [n, 1]
    end_row = (anchors + window.stop)[:, None]
    chunk = first_row // k + np.arange(count)  # [n, count]
    begin = np.maximum(first_row, chunk * k)
    offset, length = begin - chunk * k, np.minimum(end_row, (chunk + 1) * k) - begin
    width, index_width = varint_width(k), varint_width(columns - 1)
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
