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

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.views.base import Window
from rlds2reverb.wire.chunks import ChunkLayout
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

    def take(self, chosen: Array) -> ItemColumns:
        """The items at the positions `chosen`."""
        return ItemColumns(self.anchors[chosen], self.item_keys[chosen], self.priorities[chosen])


def encode_items(table: str, windows: Sequence[Window], items: ItemColumns, layout: ChunkLayout) -> Array:
    """[n] object array of bytes: every item as an `items` field (2) of an InsertStreamRequest."""
    out = np.empty(len(items.anchors), object)
    for chosen, chunk_counts in _groups_of_equal_size(windows, items.anchors, layout):
        block = _encode_group(table, windows, items.take(chosen), layout, chunk_counts)
        out[chosen] = block.view(f"V{block.shape[1]}").ravel().tolist()
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


def _encode_group(
    table: str,
    windows: Sequence[Window],
    items: ItemColumns,
    layout: ChunkLayout,
    chunk_counts: dict[Window, int],
) -> Array:
    slices = {
        window: _encode_slices(window, count, items.anchors, layout, len(windows))
        for window, count in chunk_counts.items()
    }
    heads = [_column_head(window, slices[window]) for window in windows]
    sizes = [len(head) + slices[w].shape[1] * slices[w].shape[2] + 2 * w.squeeze for w, head in zip(windows, heads)]
    prefix = _item_prefix(table, sum(sizes))
    block = np.empty((len(items.anchors), len(prefix) + sum(sizes)), np.uint8)  # [n, width]
    block[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    _write_key_and_priority(block, table, items, len(prefix), sum(sizes))
    indices = varint_columns(np.arange(len(windows)), varint_width(len(windows) - 1))
    at = len(prefix)
    for index, window, head, size in zip(indices, windows, heads, sizes):
        _write_column(block[:, at : at + size], index, head, slices[window], window.squeeze)
        at += size
    return block


def _item_prefix(table: str, columns_size: int) -> bytes:
    """Everything before the columns, with room for key and priority."""
    name = table.encode()
    body = b"\x08" + bytes(KEY_BYTES) + b"\x12" + varint(len(name)) + name + b"\x29" + bytes(8)
    body += b"\x42" + varint(columns_size)
    return b"\x12" + varint(len(body) + columns_size) + body


def _write_key_and_priority(block: Array, table: str, items: ItemColumns, prefix: int, columns_size: int) -> None:
    priority_at = prefix - len(varint(columns_size)) - 1 - 8
    key_at = priority_at - 1 - len(table.encode()) - len(varint(len(table.encode()))) - 1 - KEY_BYTES
    block[:, key_at : key_at + KEY_BYTES] = varint_columns(items.item_keys, KEY_BYTES)
    block[:, priority_at : priority_at + 8] = items.priorities.astype("<f8")[:, None].view(np.uint8)


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


def _column_head(window: Window, slices: Array) -> bytes:
    return b"\x0a" + varint(slices.shape[1] * slices.shape[2] + 2 * window.squeeze)


def _write_column(out: Array, index: Array, head: bytes, slices: Array, squeeze: bool) -> None:
    """Writes one column of every item; `slices` is reused, only its index bytes change."""
    slices[..., slices.shape[2] - len(index) :] = index
    end = len(head) + slices.shape[1] * slices.shape[2]
    out[:, : len(head)] = np.frombuffer(head, np.uint8)
    out[:, len(head) : end] = slices.reshape(len(slices), -1)
    if squeeze:
        out[:, end:] = np.frombuffer(_SQUEEZE, np.uint8)
