"""Anchors and fields -> items, each an `items` field of a request; a whole episode at once.

Source: schema.proto, PrioritizedItem: key(1), table(2), priority(5),
flat_trajectory(8){columns(1){chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.

Every varint in an item has a fixed width (see `protobuf`), so items whose windows touch equally many chunks have the same size. Each such
group is one array [n, width]: constant bytes are broadcast, keys, offsets and lengths are written as columns. No Python loop runs over
steps or items.

Episodes of one length differ only in their keys and priorities. So the second one of a kind makes a template (`_Template`), and later ones
are copies of it with other keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Array, place_of
from rlds2reverb.errors import ViewError
from rlds2reverb.protobuf import KEY_BYTES, varint, varint_columns, varint_width
from rlds2reverb.wire.insert.chunks import ChunkLayout
from rlds2reverb.wire.insert.records import as_bytes, records

_SQUEEZE = b"\x10\x01"
_MOST_CODES = 1 << 62
"""Codes of groups stay below int64's range."""

_MOST_PLANS, _MOST_ITEMS = 128, 4096
"""Plans that are kept, and most items of a cut that has one: a plan keeps the anchors of all of its items, in its key as well."""

_TEMPLATE_BYTES = 1 << 20
"""Most bytes of encoded items that a template is made of; it takes little more than they do."""


@dataclass(frozen=True)
class ItemBatch:
    """The values that differ between items."""

    anchors: Array  # [n] int64
    item_keys: Array  # [n] uint64 with the top bit set
    priorities: Array  # [n] float64


@dataclass(frozen=True, eq=False)
class ItemField:
    column: int  # number of the chunk's tensor that it reads
    windows: tuple[Window, ...]  # rows relative to the anchor, joined in this order
    anchors: Array | None = None  # [n] int64 of its own; None for the anchors of the items


class _Span(NamedTuple):
    """Rows [start, stop) relative to one of the arrays of anchors; number 0 is the items' own."""

    start: int
    stop: int
    anchors: int


def item_fields(cut: Cut) -> list[ItemField]:
    """The fields of a cut's items, by the numbers of the columns in its rows."""
    numbers = {path: number for number, path in enumerate(cut.rows)}
    return [ItemField(numbers[field.column], field.windows, field.anchors) for field in cut.fields.values()]


def checked_span(cut: Cut, fields: Sequence[ItemField], row_count: int | None = None) -> tuple[Array, Array]:
    """[n] first and [n] last row of each item.

    Args:
      row_count: of the rows; None for that of the cut.

    Raises:
      ViewError: the cut does not have all of these rows.
    """
    row_count = cut.row_count if row_count is None else row_count
    _, relative_to = _spans(fields, cut.anchors)
    first = np.minimum.reduce([own + span.start for span, own in relative_to.items()])
    last = np.maximum.reduce([own + span.stop - 1 for span, own in relative_to.items()])
    if first.min() < 0 or last.max() >= row_count:
        raise ViewError(
            f"items at anchors {cut.anchors.min()} to {cut.anchors.max()} hold rows {first.min()} to {last.max()}, "
            f"which reach outside the {row_count} rows"
        )
    return first, last


def encode_items(table: str, fields: Sequence[ItemField], items: ItemBatch, layout: ChunkLayout, tensors: int) -> Array:
    """[n] object array of bytes: every item as an `items` field (2) of an InsertStreamRequest.

    Args:
      fields: in the order of the table's signature.
      items: the values that differ.
      layout: of the rows.
      tensors: number of tensors in each chunk.
    """
    out = np.empty(len(items.anchors), object)
    key_varints, priorities = varint_columns(items.item_keys, KEY_BYTES), items.priorities.astype("<f8")
    blocks = _item_blocks(
        table, fields, items.anchors, key_varints, priorities[:, None].view(np.uint8), layout, tensors
    )
    for chosen, block in blocks:
        out[chosen] = as_bytes(block)
    return out


class ItemPlan:
    """What the cuts of many episodes have in common, where rows, fields and anchors are alike.

    Attributes:
      first_row, last_row: [n] int64, of each item.
    """

    def __init__(self, cut: Cut, row_count: int) -> None:
        self._fields, self._tensors = item_fields(cut), len(cut.rows)
        self.first_row, self.last_row = checked_span(cut, self._fields, row_count)
        self._templates: dict[tuple[str, int], _Template] = {}
        self._seen: set[tuple[str, int]] = set()  # kinds that a template can be made of

    def encode(self, table: str, items: ItemBatch, layout: ChunkLayout) -> Array:
        """As `encode_items`. The second episode of the kind makes a template, and later ones are filled into that."""
        # Not the first one already: where no other episode is of this kind, a template would be encoded for nothing.
        kind = (table, layout.chunk_length)
        if kind in self._seen:
            self._seen.remove(kind)
            self._templates[kind] = _Template.of(table, self._fields, items.anchors, layout, self._tensors)
        if kind in self._templates:
            key_varints = np.concatenate((varint_columns(items.item_keys, KEY_BYTES), layout.key_varints))
            return self._templates[kind].fill(key_varints, items.priorities)
        encoded = encode_items(table, self._fields, items, layout, self._tensors)
        if sum(map(len, encoded.tolist())) <= _TEMPLATE_BYTES:
            self._seen.add(kind)
        return encoded


class ItemPlans:
    """A plan for each kind of cut: equal rows, fields and anchors. All are dropped when there are too many, which needs no bookkeeping."""

    def __init__(self) -> None:
        self._plans: dict[Any, ItemPlan] = {}

    def of(self, cut: Cut, row_count: int) -> ItemPlan:
        """Raises `ViewError` for a cut whose items need rows from `row_count` on."""
        if len(cut.anchors) > _MOST_ITEMS:
            return ItemPlan(cut, row_count)
        fields = tuple(
            (field.column, field.windows, None if field.anchors is None else field.anchors.tobytes())
            for field in cut.fields.values()
        )
        kind = (row_count, cut.anchors.tobytes(), tuple(cut.rows), fields)
        if (plan := self._plans.get(kind)) is None:
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[kind] = ItemPlan(cut, row_count)
        return plan


class _Template(NamedTuple):
    """The items of an episode, but for the bytes that differ between episodes: keys and priorities."""

    constant: Array  # [bytes] uint8, all items, group by group
    groups: list[_Alike]

    @staticmethod
    def of(table: str, fields: Sequence[ItemField], anchors: Array, layout: ChunkLayout, tensors: int) -> _Template:
        """Encodes numbers instead of bytes: 256 and more stand for the bytes of keys, the items' first, and of priorities."""
        count, bytes_of_keys = len(anchors), KEY_BYTES * (len(anchors) + layout.count)
        of_keys, priorities = np.split(256 + np.arange(bytes_of_keys + 8 * count, dtype=np.int32), [bytes_of_keys])
        of_items, of_chunks = np.split(of_keys.reshape(-1, KEY_BYTES), [count])
        blocks = _item_blocks(
            table, fields, anchors, of_items, priorities.reshape(-1, 8), replace(layout, key_varints=of_chunks), tensors
        )
        constants, groups = list[Array](), list[_Alike]()
        for chosen, block in blocks:
            # In the result, constant bytes are below 256; all others are numbers of bytes of keys or priorities.
            constants.append(block.astype(np.uint8).ravel())
            (filled,) = np.nonzero(block[0] >= 256)  # in all of them alike
            numbers, is_key = block[0, filled] - 256, block[0, filled] < 256 + bytes_of_keys
            places: dict[bytes, tuple[Array, list[int]]] = {}
            for place in filled[is_key & (numbers % KEY_BYTES == 0)].tolist():
                key_numbers = (block[:, place] - 256) // KEY_BYTES
                places.setdefault(key_numbers.tobytes(), (key_numbers, []))[1].append(place)
            groups.append(_Alike(chosen, block.shape[1], list(places.values()), int(filled[~is_key][0])))
        return _Template(np.concatenate(constants), groups)

    def fill(self, key_varints: Array, priorities: Array) -> Array:
        """[n] object array of bytes.

        Args:
          key_varints: [n + chunks, 10] uint8, of the items, then of the chunks.
        """
        block, units = self.constant.copy(), key_varints.view(f"V{KEY_BYTES}").ravel()
        out = np.empty(len(priorities), object)
        at = 0
        for chosen, width, keys_at, priority_at in self.groups:
            count = len(chosen)
            for numbers, places in keys_at:
                keys_there = units[numbers]
                for place in places:  # a view of one key in every item: bytes `place` to `place` + 10, `width` apart
                    np.ndarray(count, units.dtype, block.data, at + place, (width,))[:] = keys_there
            np.ndarray(count, "<f8", block.data, at + priority_at, (width,))[:] = priorities[chosen]
            out[chosen] = as_bytes(block[at : at + count * width].reshape(count, width))
            at += count * width
        return out


class _Alike(NamedTuple):
    """Items of one size, in which keys lie at the same places."""

    chosen: Array  # [n] which items
    width: int  # bytes of each
    keys_at: list[tuple[Array, list[int]]]  # [n] numbers of keys, and the places in an item where that key lies
    priority_at: int


def _item_blocks(
    table: str,
    fields: Sequence[ItemField],
    anchors: Array,
    item_keys: Array,
    priorities: Array,
    layout: ChunkLayout,
    tensors: int,
) -> Iterator[tuple[Array, Array]]:
    """Positions of items of one size, and [n, width] those items, of the dtype of the keys ([n, 10]) and priorities ([n, 8])."""
    spans, relative_to = _spans(fields, anchors)
    name = table.encode()
    named = b"\x12" + varint(len(name)) + name + b"\x29"  # table(2), and the tag of priority(5)
    for chosen, chunk_counts in _groups_of_equal_size(relative_to, layout):
        slices = {
            span: _encode_slices(span, count, relative_to[span][chosen], layout, tensors)
            for span, count in chunk_counts.items()
        }
        columns = _encode_fields(fields, spans, slices, tensors)
        flat = b"\x42" + varint(columns.shape[1])
        size = 1 + KEY_BYTES + len(named) + 8 + len(flat) + columns.shape[1]
        head = b"\x12" + varint(size) + b"\x08"
        yield chosen, records(len(chosen), [head, item_keys[chosen], named, priorities[chosen], flat, columns])


def _spans(fields: Sequence[ItemField], anchors: Array) -> tuple[list[tuple[_Span, ...]], dict[_Span, Array]]:
    """The spans of every field; and the [n] rows that each distinct span is relative to."""
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
    # One number for each row of counts: `unique` of 4,000 numbers is ten times as fast as `unique` of as many rows of three.
    code, codes = np.zeros(len(counts), np.int64), 1  # every code is below `codes`
    for column in counts.T:
        base = int(column.max(initial=0)) + 1
        if codes * base > _MOST_CODES:  # many windows: number the codes anew, so that none wraps around
            code, codes = np.unique(code, return_inverse=True)[1], len(counts)
        code, codes = code * base + column, codes * base
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    for group, position in enumerate(first):
        yield np.nonzero(inverse == group)[0], dict(zip(anchors, counts[position].tolist()))


def _encode_fields(
    fields: Sequence[ItemField], spans: Sequence[tuple[_Span, ...]], slices: Mapping[_Span, Array], tensors: int
) -> Array:
    """[n, width] uint8: the columns of n items; neighbours with the same windows are written together."""
    runs = []
    # Columns keep the signature's order on the wire, so only neighbours can share a run.
    alike = groupby(zip(fields, spans), lambda pair: (pair[1], pair[0].windows[0].squeeze))
    for (own, squeeze), run in alike:
        pieces = slices[own[0]] if len(own) == 1 else np.concatenate([slices[span] for span in own], axis=1)
        runs.append(_encode_run(pieces, np.array([field.column for field, _ in run]), tensors, squeeze))
    return runs[0] if len(runs) == 1 else np.concatenate(runs, axis=1)


def _encode_run(slices: Array, columns: Array, tensors: int, squeeze: bool) -> Array:
    """[n, width] uint8: fields whose slices differ only in the column's index."""
    n, pieces, width = slices.shape
    index_width = varint_width(tensors - 1)
    tail = _SQUEEZE if squeeze else b""
    head = b"\x0a" + varint(pieces * width + len(tail))  # columns(1)
    out = np.empty((n, len(columns), len(head) + pieces * width + len(tail)), slices.dtype)
    out[..., : len(head)] = np.frombuffer(head, np.uint8)
    out[..., len(head) + pieces * width :] = np.frombuffer(tail, np.uint8)
    indices = varint_columns(columns, index_width)  # [fields, index_width]
    for piece in range(pieces):
        at = len(head) + piece * width
        out[..., at : at + width - index_width] = slices[:, None, piece, : width - index_width]
        out[..., at + width - index_width : at + width] = indices
    return out.reshape(n, -1)


def _encode_slices(span: _Span, count: int, anchors: Array, layout: ChunkLayout, tensors: int) -> Array:
    """[n, count, width] uint8: the chunk slices of one span, with space for the column's index."""
    k = layout.chunk_length
    first_row = (anchors + span.start)[:, None]  # [n, 1]
    end_row = (anchors + span.stop)[:, None]
    chunk = first_row // k + np.arange(count)  # [n, count]
    begin = np.maximum(first_row, chunk * k)
    offset, length = begin - chunk * k, np.minimum(end_row, (chunk + 1) * k) - begin
    width, index_width = varint_width(k), varint_width(tensors - 1)
    body_size = 1 + KEY_BYTES + 2 * (1 + width) + 1 + index_width
    out = np.empty((len(anchors), count, 2 + body_size), layout.key_varints.dtype)
    # chunk_slices(1), its size, chunk_key(1); then offset(2), length(3) and index(4).
    out[..., :3] = (0x0A, body_size, 0x08)
    out[..., 3 : 3 + KEY_BYTES] = layout.key_varints[chunk]
    at = 3 + KEY_BYTES
    for tag, values in ((0x10, offset), (0x18, length)):
        out[..., at] = tag
        out[..., at + 1 : at + 1 + width] = varint_columns(values, width)
        at += 1 + width
    out[..., at] = 0x20
    return out
