"""Cuts of an episode -> chunks, items and requests of the insert stream.

| step | by |
| --- | --- |
| the cuts of an episode for all tables -> an `EncodedEpisode` | `EpisodeEncoder` |
| rows -> chunks | `encode_chunks` |
| anchors and fields -> items | `encode_items` |
| encoded episodes -> requests | `RequestBuilder` |
| names -> item keys | `keys` |
"""

from __future__ import annotations

import hashlib
import secrets
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import cramjam
import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Array, byte_view, place_of
from rlds2reverb.errors import ViewError, WireError
from rlds2reverb.varint import KEY_BYTES, bytes_field, int_field, varint, varint_columns, varint_width
from rlds2reverb.wire import tensors


@dataclass(frozen=True, eq=False)
class Part:
    """The items that some tables get of an episode.

    Attributes:
      tables: table names; every anchor gives one item per table, in this order.
      push_seed: 64 bits that item keys depend on; the same seed makes the same keys.
      key_name: names the episode in item keys.
      cut: with at least one anchor.
    """

    tables: Sequence[str]
    push_seed: int
    key_name: str
    cut: Cut


class EpisodeEncoder:
    """Encodes episodes, in one or more parts whose items share the stored rows.

    Chunk keys are new for every encoder: two pushes of the same episode may cut chunks differently, and the server
    would take a chunk with a known key for the one it has.

    Args:
      chunk_length: chunk length in rows, or None to choose it from the bytes of a row.
    """

    def __init__(self, chunk_length: int | None = None) -> None:
        self._chunk_length = chunk_length
        self._chunk_seed = secrets.randbits(64)
        self._chunks_made = 0
        self._episodes = 0

    def encode(self, episode_id: str, parts: Sequence[Part]) -> EncodedEpisode:
        """Encodes one episode; items of several parts are ordered by the last row that they need.

        Args:
          episode_id: what the sender calls the episode.
          parts: at least one; their cuts share one `rows` mapping.

        Raises:
          ViewError: a window of a cut reaches outside its rows.
          WireError: a column's dtype cannot be stored.
        """
        rows = parts[0].cut.rows
        assert all(part.cut.rows is rows for part in parts)  # the caller shares them
        fields = [item_fields(part.cut) for part in parts]
        layout = self._layout([part.cut for part in parts], fields)
        self._episodes += 1
        table_keys = [keys_of_items(part) for part in parts]
        encoded = [
            _encode_part(part.cut, keys_of_part, own, layout, len(rows))
            for part, keys_of_part, own in zip(parts, table_keys, fields)
        ]
        items, item_keys, first, last = _by_last_chunk(encoded)
        chunks = encode_chunks(rows, layout, self._wire_episode_id())
        return EncodedEpisode(
            episode_id, chunks, layout.key_varints, items, item_keys, first, last, dict(ChainMap(*table_keys))
        )

    def _layout(self, cuts: Sequence[Cut], fields: Sequence[Sequence[ItemField]]) -> ChunkLayout:
        """Chunks as short as the part with the shortest windows wants them: a sample carries whole chunks."""
        for cut, own in zip(cuts, fields):
            check_reach(cut, own)
        row_bytes, text_bytes = cuts[0].row_bytes, cuts[0].text_bytes
        rows = self._chunk_length or min(
            choose_chunk_length(row_bytes, _window_rows(own), text_bytes) for own in fields
        )
        layout = ChunkLayout.of(cuts[0].row_count, rows, self._chunk_seed, self._chunks_made)
        self._chunks_made += layout.count
        return layout

    def _wire_episode_id(self) -> int:
        return int(keys(self._chunk_seed ^ 1, np.array([self._episodes]))[0])


class _EncodedPart(NamedTuple):
    """[n * tables] items, their keys, and the first and last chunk that each needs."""

    items: Array
    item_keys: Array
    first_chunk: Array
    last_chunk: Array


def item_fields(cut: Cut) -> list[ItemField]:
    """The fields of a cut's items, by the numbers of the columns in its rows."""
    numbers = {path: number for number, path in enumerate(cut.rows)}
    return [ItemField(numbers[field.column], field.windows, field.anchors) for field in cut.fields.values()]


def keys_of_items(part: Part) -> dict[str, Array]:
    """Table -> [n] uint64 keys of its items."""
    return {table: keys(seed(f"{part.push_seed:x}", table, part.key_name), part.cut.steps) for table in part.tables}


def _encode_part(
    cut: Cut, item_keys: Mapping[str, Array], fields: Sequence[ItemField], layout: ChunkLayout, tensors: int
) -> _EncodedPart:
    items = [
        encode_items(table, fields, ItemBatch(cut.anchors, table_keys, cut.priorities), layout, tensors)
        for table, table_keys in item_keys.items()
    ]
    first, last = (np.repeat(chunk, len(item_keys)) for chunk in chunk_span(fields, cut.anchors, layout))
    return _EncodedPart(_interleave(items), _interleave(list(item_keys.values())), first, last)


def _by_last_chunk(parts: Sequence[_EncodedPart]) -> _EncodedPart:
    """All items in one order, each part's own order kept, so that few chunks are held for later items."""
    if len(parts) == 1:
        return parts[0]
    needed = np.concatenate([np.maximum.accumulate(part.last_chunk) for part in parts])
    order = np.argsort(needed, kind="stable")
    return _EncodedPart(*(np.concatenate(columns)[order] for columns in zip(*parts)))


def check_reach(cut: Cut, fields: Sequence[ItemField]) -> None:
    """Refuses items of rows that a cut does not have.

    Raises:
      ViewError: says which rows.
    """
    first, last = row_span(fields, cut.anchors)
    if first.min() < 0 or last.max() >= cut.row_count:
        raise ViewError(
            f"items at anchors {cut.anchors.min()} to {cut.anchors.max()} hold rows {first.min()} to {last.max()}, "
            f"which reach outside the {cut.row_count} rows"
        )


def _window_rows(fields: Sequence[ItemField]) -> int:
    """Rows from the first to the last that an item reads. Fields with anchors of their own count each for itself."""
    own = [field.windows for field in fields if field.anchors is not None]
    shared = tuple(window for field in fields if field.anchors is None for window in field.windows)
    extents = [max(w.stop for w in windows) - min(w.start for w in windows) for windows in (shared, *own) if windows]
    return max(extents)


def _interleave(columns: list[Array]) -> Array:
    """[n] per table -> [n * tables], anchor by anchor."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).reshape(-1)


# Rows -> chunks: every `chunk_length` rows, all columns together, one ChunkData.
#
# Reverb's own writer makes one chunk per column. One chunk for all columns means fewer objects for the server to hold and to look
# up, and it is what makes the items share one chunk key across columns.

CHUNK_BYTES = 4096
"""Aim for chunks of this size: a sample carries whole chunks, so larger ones slow sampling down."""

MAX_ROWS = 32
"""Most rows of a chunk for short windows; see docs/benchmarks.md, "Chunk length"."""

PAIR_BYTES = 1 << 14
"""Rows up to this size are stored two by two, where windows hold two: a chunk costs the server some 700 bytes per column."""

FILE_BYTES = 1 << 11
"""Text from this many bytes per row on is taken for files, such as encoded images."""

FILE_CHUNK_BYTES = 96 << 10
"""Aim for chunks of this size where rows hold files: decoding one costs a learner far more than carrying some others."""

WINDOW_SHARE = 4
"""A chunk holds at least a quarter of a window: finer ones add slices, and save little of what a sample carries."""

LONG_CHUNK_BYTES = 1 << 18
"""Aim for chunks of this size when windows are longer than `MAX_ROWS`: such an item reads its chunks nearly whole."""

COMPRESS_FROM_BYTES = 512
"""A column's chunk smaller than this is stored as a snappy literal: compressing saves less than it costs."""

COMPRESSIBLE = 0.9
"""A column is compressed if its first `SAMPLE_BYTES` shrink below this share."""

VECTORISED_BYTES = 1 << 14
"""Chunks up to this size are written by the array; larger ones are joined one by one."""

SAMPLE_BYTES = 1 << 15


@dataclass(frozen=True)
class ChunkLayout:
    """Where the rows of one episode lie.

    Attributes:
      rows: rows stored.
      chunk_length: rows of every chunk but the last, which may have fewer.
      key_varints: [n_chunks, 10] uint8, the chunk keys as varints.
    """

    rows: int
    chunk_length: int
    key_varints: Array

    @property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.key_varints)

    @staticmethod
    def of(rows: int, chunk_length: int, seed: int, first_counter: int = 0) -> ChunkLayout:
        """A layout whose chunk keys are the hashes of `first_counter`, `first_counter` + 1, ..."""
        count = -(-rows // chunk_length)
        chunk_keys = keys(seed, np.arange(first_counter, first_counter + count))
        return ChunkLayout(rows, chunk_length, varint_columns(chunk_keys, KEY_BYTES))

    def bounds(self, chunk: int) -> tuple[int, int]:
        """First row and end row of a chunk."""
        start = chunk * self.chunk_length
        return start, min(self.rows, start + self.chunk_length)


def choose_chunk_length(row_bytes: int, window_rows: int, text_bytes: int = 0) -> int:
    """A chunk length from the bytes of a row, how many of them are text, and the rows of the longest window."""
    row_bytes = max(1, row_bytes)
    if window_rows > MAX_ROWS:
        return max(1, min(window_rows, LONG_CHUNK_BYTES // row_bytes))
    aim = FILE_CHUNK_BYTES if text_bytes >= FILE_BYTES else CHUNK_BYTES
    least = 2 if window_rows > 1 and row_bytes <= PAIR_BYTES else 1
    return max(least, window_rows // WINDOW_SHARE, min(MAX_ROWS, aim // row_bytes))


def encode_chunks(columns: Mapping[str, Array], layout: ChunkLayout, episode_id: int) -> list[bytes]:
    """Every chunk as a `chunks` field (1) of an InsertStreamRequest.

    Source: schema.proto, ChunkData: chunk_key(1), sequence_range(2), data(5), data_tensors_len(6),
    data_uncompressed_size(7). `end` of the range is inclusive.

    Raises:
      WireError: a column's dtype cannot be stored (named by its path).
    """
    encoders = [_ColumnEncoder.of(path, column, layout) for path, column in columns.items()]
    chunks = _encode_small_chunks(encoders, layout, episode_id)
    return chunks + [_encode_chunk(encoders, layout, chunk, episode_id) for chunk in range(len(chunks), layout.count)]


def _encode_small_chunks(encoders: Sequence[_ColumnEncoder], layout: ChunkLayout, episode_id: int) -> list[bytes]:
    """All chunks with the full number of rows at once, if every column is stored as it is and they are small; else [].

    Such chunks differ in their keys, row numbers and rows only, so they are one array of records: numpy writes the rows of a
    column into all chunks in one go, where a large chunk is better joined from its parts.
    """
    rows, count = layout.chunk_length, layout.rows // layout.chunk_length
    if not _are_small_literals(encoders, rows):
        return []
    data: list[bytes | Array] = []
    for encoder in encoders:
        data += encoder.literal_fields(rows, count)
    data_size = sum(map(width_of, data))
    starts, width = np.arange(count) * rows, varint_width(layout.rows)
    range_head = b"\x08" + varint(episode_id) + b"\x10"
    body: list[bytes | Array] = [
        b"\x08",
        layout.key_varints[:count],
        b"\x12" + varint(len(range_head) + 2 * width + 1) + range_head,
        varint_columns(starts, width),
        b"\x18",
        varint_columns(starts + rows - 1, width),
        b"\x2a" + varint(data_size),
        *data,
        _chunk_tail(encoders, 0, rows),
    ]
    size = sum(map(width_of, body))
    return as_bytes(records(count, [b"\x0a" + varint(size), *body]))


def _are_small_literals(encoders: Sequence[_ColumnEncoder], rows: int) -> bool:
    """Whether every column is stored as it is, and a chunk of so many rows is small."""
    are_literal = all(encoder.is_literal for encoder in encoders)
    return are_literal and sum(encoder.raw_bytes(0, rows) for encoder in encoders) <= VECTORISED_BYTES


def _encode_chunk(encoders: Sequence[_ColumnEncoder], layout: ChunkLayout, chunk: int, episode_id: int) -> bytes:
    """One `chunks` field; the rows are copied once, by the join."""
    start, end = layout.bounds(chunk)
    fields = [part for encoder in encoders for part in encoder.field(start, end)]
    data_size = sum(map(len, fields))
    head = b"\x08" + layout.key_varints[chunk].tobytes() + _sequence_range(episode_id, start, end)
    head += b"\x2a" + varint(data_size)
    tail = _chunk_tail(encoders, start, end)
    return b"".join((b"\x0a", varint(len(head) + data_size + len(tail)), head, *fields, tail))


def _chunk_tail(encoders: Sequence[_ColumnEncoder], start: int, end: int) -> bytes:
    """data_tensors_len and data_uncompressed_size."""
    return int_field(6, len(encoders)) + int_field(7, sum(encoder.raw_bytes(start, end) for encoder in encoders))


def _sequence_range(episode_id: int, start: int, end: int) -> bytes:
    return bytes_field(2, int_field(1, episode_id) + int_field(2, start) + int_field(3, end - 1))


class _ColumnEncoder:
    """Turns row ranges of one column into `tensors` fields (1) of ChunkData.Data."""

    def __init__(self, column: Array, compress: bool) -> None:
        self._column = column
        self._compress = compress
        self._row_bytes = 0 if column.dtype == object else column.nbytes // max(1, len(column))
        self._raw = None if column.dtype == object else memoryview(byte_view(column))
        self._heads: dict[int, bytes] = {}

    @staticmethod
    def of(path: str, column: Array, layout: ChunkLayout) -> _ColumnEncoder:
        try:
            tensors.wire_number(column.dtype)
        except WireError as error:
            raise WireError(f'column "{path}": {error}') from error
        column = tensors.as_wire_array(column)
        return _ColumnEncoder(column, _worth_compressing(column, layout.chunk_length))

    @property
    def is_literal(self) -> bool:
        """Whether the rows are stored as they are."""
        return self._raw is not None and not self._compress and bool(self._row_bytes)

    def literal_fields(self, rows: int, count: int) -> tuple[bytes, Array]:
        """What precedes `rows` literal rows, and [count, bytes] uint8, those of `count` consecutive chunks."""
        raw: Array = byte_view(self._column)[: count * rows * self._row_bytes]
        return self._literal_head(rows), raw.reshape(count, rows * self._row_bytes)

    def field(self, start: int, end: int) -> tuple[Any, ...]:
        """The field for rows [start, end) in parts: what precedes the content, and the content; literal rows and text are not copied."""
        if self._raw is None:
            parts = tensors.string_parts(self._column[start:end])
            return self._head(end - start, b"", sum(map(len, parts))), *parts
        if not self.is_literal:
            content = tensors.content_bytes(self._column[start:end])
            return self._head(end - start, b"", len(content)), content
        return self._literal_head(end - start), self._raw[start * self._row_bytes : end * self._row_bytes]

    def raw_bytes(self, start: int, end: int) -> int:
        """Uncompressed bytes of rows [start, end)."""
        if self._raw is None:
            return sum(len(tensors.as_bytes(text)) for text in self._column[start:end].ravel())
        return (end - start) * self._row_bytes

    def _literal_head(self, rows: int) -> bytes:
        """Everything before the raw rows; depends on their number only."""
        if rows not in self._heads:
            size = rows * self._row_bytes
            self._heads[rows] = self._head(rows, tensors.literal_prefix(size), size)
        return self._heads[rows]

    def _head(self, rows: int, prefix: bytes, size: int) -> bytes:
        """Everything before `size` bytes of content that follow `prefix`."""
        tensor = tensors.tensor_header(self._column.dtype, (rows, *self._column.shape[1:]))
        tensor += b"\x22" + varint(len(prefix) + size) + prefix
        return b"\x0a" + varint(len(tensor) + size) + tensor


def _worth_compressing(column: Array, chunk_length: int) -> bool:
    if column.dtype == object or not len(column):
        return False
    chunk_bytes = column.nbytes // len(column) * min(chunk_length, len(column))
    if chunk_bytes < COMPRESS_FROM_BYTES:
        return False
    sample = byte_view(column)[: min(SAMPLE_BYTES, chunk_bytes)]
    return len(cramjam.snappy.compress_raw(sample)) < COMPRESSIBLE * len(sample)


# Anchors and fields -> items, a whole episode at once.
#
# Source: schema.proto, PrioritizedItem: key(1), table(2), priority(5), flat_trajectory(8){columns(1)
# {chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.
#
# Items whose windows touch the same numbers of chunks have the same size in bytes, because every varint in them
# has a fixed width (see `varint`). Each such group is one numpy array [n, width]: constant bytes are
# broadcast, keys, offsets and lengths are written as columns. No Python loop runs over steps or items.

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
    for one in fields:
        number = place_of(anchors if one.anchors is None else one.anchors, numbered)
        spans.append(tuple(_Span(window.start, window.stop, number) for window in one.windows))
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


# Encoded episodes -> requests of the insert stream, none too large, none too small.
#
# A request carries chunks (1), items (2) and the keys of chunks to keep for later items (3). After a request with
# items the server forgets every chunk that is not kept. Short episodes share a request; long ones are spread over
# several, and every request knows the chunks from earlier ones that it needs (`prelude`), so that it can be sent
# again on a new stream. Measured: requests of 256 to 1,024 items beat smaller ones.

_ZERO = np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class EncodedEpisode:
    """One episode, encoded but not yet cut into requests.

    Attributes:
      episode_id: what the sender calls the episode; comes back when all its items are confirmed.
      chunks: every chunk as a `chunks` field.
      chunk_key_varints: [n_chunks, 10] uint8.
      items: [n] object array of bytes, every item as an `items` field, in the order of insertion.
      item_keys: [n] uint64.
      first_chunk, last_chunk: [n] the chunks that an item refers to.
      table_keys: table -> the keys of its items, in the order of insertion.
    """

    episode_id: str
    chunks: list[bytes]
    chunk_key_varints: Array
    items: Array
    item_keys: Array
    first_chunk: Array
    last_chunk: Array
    table_keys: Mapping[str, Array] = field(default_factory=dict)

    def only(self, item_keys: Array) -> EncodedEpisode:
        """The episode with these of its items alone, and with no chunk after the last that they refer to."""
        chosen = np.isin(self.item_keys, item_keys)
        end = int(self.last_chunk[chosen].max(initial=-1)) + 1
        return replace(
            self,
            chunks=self.chunks[:end],
            chunk_key_varints=self.chunk_key_varints[:end],
            items=self.items[chosen],
            item_keys=self.item_keys[chosen],
            first_chunk=self.first_chunk[chosen],
            last_chunk=self.last_chunk[chosen],
            table_keys={table: keys[np.isin(keys, item_keys)] for table, keys in self.table_keys.items()},
        )


@dataclass(frozen=True)
class RequestLimits:
    """When a request is full.

    Attributes:
      items: most items.
      bytes: most bytes of chunks and items. Only a single item that needs more makes a larger request: of messages with
        at most so many bytes of chunks each, or with one chunk.
    """

    items: int = 1024
    bytes: int = 2 << 20


@dataclass(frozen=True, eq=False)
class Request:
    """Some items with all they need.

    Attributes:
      messages: one or more messages, to be sent in this order; only the last has items.
      earlier_chunks: chunks from earlier requests that the items, or later ones of the episode, refer to.
      message_bytes: most bytes of a message of these.
      item_keys: [n] uint64, in the order in which the server confirms them.
      finishes: id and number of items, over all tables, of every episode whose last item is in this request.
    """

    messages: tuple[bytes, ...]
    earlier_chunks: tuple[bytes, ...]
    message_bytes: int
    item_keys: Array
    finishes: tuple[tuple[str, int], ...]

    @property
    def prelude(self) -> tuple[bytes, ...]:
        """Messages with the earlier chunks, sent first on a stream that has not carried those requests.

        Joined only when asked for: in a long episode each request has them, and they may be the whole episode so far.
        """
        return tuple(_grouped(self.earlier_chunks, self.message_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the messages, without the prelude."""
        return sum(len(message) for message in self.messages)


@dataclass
class _Draft:
    leading: list[bytes] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    earlier_chunks: tuple[bytes, ...] = ()
    keys: list[Array] = field(default_factory=list)
    keep: bytes = b""
    finishes: list[tuple[str, int]] = field(default_factory=list)
    items: int = 0
    bytes: int = 0


class RequestBuilder:
    """Cuts encoded episodes into requests; keeps the last, unfilled one until `flush`.

    Attributes:
      limits: when a request is full; may be changed at any time.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self._draft = _Draft()

    def add(self, episode: EncodedEpisode) -> Iterator[Request]:
        """The requests that became full with this episode; consume it wholly before the next call."""
        at = _Cursor(episode)
        while at.item < len(episode.items):
            room = max(0, self.limits.items - self._draft.items)
            stop = at.items_that_fit(room, self.limits.bytes - self._draft.bytes)
            if stop == at.item and self._draft.items:
                yield from self.flush()
                continue
            self._append(at, max(stop, at.item + 1))
            if self._draft.items >= self.limits.items or self._draft.bytes >= self.limits.bytes:
                yield from self.flush()

    def flush(self) -> Iterator[Request]:
        """The request in the making, if it has any items."""
        draft, self._draft = self._draft, _Draft()
        if draft.items:
            body = b"".join((*draft.parts, draft.keep))
            yield Request(
                (*draft.leading, body),
                draft.earlier_chunks,
                self.limits.bytes,
                np.concatenate(draft.keys),
                tuple(draft.finishes),
            )

    def _append(self, at: _Cursor, stop: int) -> None:
        draft, episode = self._draft, at.episode
        if not draft.items:
            draft.earlier_chunks = at.earlier_chunks()
        groups = _grouped(at.new_chunks(stop), self.limits.bytes)
        draft.leading += groups[:-1]
        draft.parts += groups[-1:]
        draft.parts += episode.items[at.item : stop].tolist()
        draft.keys.append(episode.item_keys[at.item : stop])
        draft.bytes += at.advance(stop)
        draft.items += len(draft.keys[-1])
        draft.keep = at.keep()
        if at.item == len(episode.items):
            draft.finishes.append((episode.episode_id, len(episode.items)))


class _Cursor:
    """How far one episode has been put into requests."""

    def __init__(self, episode: EncodedEpisode) -> None:
        self.episode = episode
        self.item = 0
        self._chunk = 0
        sizes = np.fromiter(map(len, episode.items.tolist()), np.int64, len(episode.items))
        self._item_bytes: Array = np.concatenate((_ZERO, np.cumsum(sizes)))
        self._chunk_bytes: Array = np.concatenate((_ZERO, np.cumsum([len(chunk) for chunk in episode.chunks])))
        # Chunks needed up to and including each item, and by each item or any later one.
        self._needed_end = np.maximum.accumulate(episode.last_chunk) + 1
        self._needed_from = np.minimum.accumulate(episode.first_chunk[::-1])[::-1]

    def items_that_fit(self, items: int, size: int) -> int:
        """End of the longest run of items, from the next one, within these limits; may be empty."""
        end = min(len(self.episode.items), self.item + items)
        cost = (
            self._item_bytes[self.item + 1 : end + 1]
            - self._item_bytes[self.item]
            + self._chunk_bytes[np.maximum(self._needed_end[self.item : end], self._chunk)]
            - self._chunk_bytes[self._chunk]
        )
        return self.item + int(np.searchsorted(cost, size, side="right"))

    def earlier_chunks(self) -> tuple[bytes, ...]:
        """The chunks of earlier requests that the next item, or a later one, refers to."""
        return tuple(self.episode.chunks[self._needed_from[self.item] : self._chunk])

    def new_chunks(self, stop: int) -> list[bytes]:
        """The chunks that must be sent for items up to `stop` and were not yet."""
        end = max(self._chunk, int(self._needed_end[stop - 1]))
        return self.episode.chunks[self._chunk : end]

    def advance(self, stop: int) -> int:
        """Moves on to item `stop`; the bytes passed."""
        end = max(self._chunk, int(self._needed_end[stop - 1]))
        size = self._item_bytes[stop] - self._item_bytes[self.item]
        size += self._chunk_bytes[end] - self._chunk_bytes[self._chunk]
        self.item, self._chunk = stop, end
        return int(size)

    def keep(self) -> bytes:
        """The keep_chunk_keys field (3, packed): chunks sent that items to come refer to."""
        if self.item == len(self.episode.items):
            return b""
        first = self._needed_from[self.item]
        kept = self.episode.chunk_key_varints[first : self._chunk]
        return bytes_field(3, kept.tobytes()) if len(kept) else b""


def _grouped(chunks: Sequence[bytes], message_bytes: int) -> list[bytes]:
    """Chunk fields joined to messages of at most `message_bytes`, but at least one chunk each."""
    groups: list[list[bytes]] = []
    size = 0
    for chunk in chunks:
        if not groups or size + len(chunk) > message_bytes:
            groups.append([])
            size = 0
        groups[-1].append(chunk)
        size += len(chunk)
    return [b"".join(group) for group in groups]


# Records of one width as numpy arrays: constant bytes and columns side by side, then one `bytes` per record.


def records(count: int, parts: Sequence[bytes | Array]) -> Array:
    """[count, width] uint8 of parts side by side: `bytes` are the same in every record, arrays are [count, n] uint8."""
    widths = list(map(width_of, parts))
    out = np.empty((count, sum(widths)), np.uint8)
    at = 0
    for part, width in zip(parts, widths):
        out[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def width_of(part: bytes | Array) -> int:
    """Bytes that a part takes up in every record."""
    return len(part) if isinstance(part, bytes) else part.shape[1]


def as_bytes(block: Array) -> list[bytes]:
    """[n, width] uint8, C-ordered -> one `bytes` per row; copies once."""
    rows: list[bytes] = block.view(f"V{block.shape[1]}").ravel().tolist()
    return rows


# Item and chunk keys: 64-bit hashes with the top bit set.
#
# Item keys are a function of (push, episode, table, step): the same push sent again makes the same keys,
# and Reverb assigns rather than duplicates when a key exists. The top bit makes every key a ten-byte varint
# (`varint.KEY_BYTES`); 63 bits are left, so 10 million items share a key with probability 5e-6.

TOP_BIT = np.uint64(1 << 63)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed(*parts: str) -> int:
    """64 bits that depend on every part and on where one part ends."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "little")


def keys(seed_value: int, counters: Array) -> Array:
    """[n] counters -> [n] uint64 keys; within one seed, distinct counters give distinct 64-bit states.

    The mixing function is SplitMix64 (Steele, Lea, Flood 2014), a bijection on 64 bits.
    """
    with np.errstate(over="ignore"):
        state = np.uint64(seed_value) + counters.astype(np.uint64) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state | TOP_BIT
