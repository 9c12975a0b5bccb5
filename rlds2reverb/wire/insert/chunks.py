"""Rows of episodes -> chunks, each a `chunks` field of a request.

A chunk has `chunk_length` rows of one episode, all columns together. Reverb's own writer makes one chunk for each column; one for all of
them means fewer objects for the server to hold, and items that repeat one chunk key in all columns. A sample carries the chunks that its
item touches, whole, so the length weighs what the server holds against what learners read (`choose_chunk_length`).

A column is stored compressed by snappy, or as a literal: the same format with nothing compressed, which costs a copy. Short chunks of
literals that have equally many rows differ only in their bytes at fixed places, so an array of records holds all of them
(`_encode_alike`); other chunks are joined one by one (`_encode_chunk`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import cramjam
import numpy as np

from rlds2reverb.episode import Array, byte_view
from rlds2reverb.errors import WireError
from rlds2reverb.protobuf import KEY_BYTES, bytes_field, int_field, varint, varint_columns, varint_width
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert.keys import keys
from rlds2reverb.wire.insert.records import as_bytes, records, width_of

CHUNK_BYTES = 4096
"""Aim for chunks of this size: a sample carries whole chunks, so larger ones slow sampling down."""

MAX_ROWS = 32
"""Most rows of a chunk for short windows; see docs/benchmarks.md, "Chunk length"."""

PAIR_BYTES = 1 << 14
"""Rows up to this size are stored two by two, where windows hold two: a chunk costs the server some 700 bytes per column."""

FILE_BYTES = 1 << 11
"""Text of at least so many bytes per row is taken for files, such as encoded images."""

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

MOST_CHUNK_BYTES = (1 << 31) - (1 << 26)
"""Most bytes of a chunk, decoded: a message of protobuf ends at 2 GiB, which leaves room for heads and for the items that come in the same
one. Reverb also writes a chunk as one record of a checkpoint, and sends it whole with each sample."""

SAMPLE_BYTES = 1 << 15


@dataclass(frozen=True)
class ChunkLayout:
    """The chunks of one episode, or of many whose rows follow each other. A chunk holds rows of one episode.

    Items count rows by chunks: row r is in chunk r // `chunk_length`, so numbers are left out behind the last, shorter chunk of an
    episode. That keeps the arithmetic of items free of episodes.
    """

    chunk_length: int  # rows of every chunk but the last of an episode, which may have fewer
    lengths: Array  # [episodes] rows of each
    episode_ids: Array  # [episodes] uint64, on the wire
    owner: Array  # [n] the episode of each chunk
    key_varints: Array  # [n, 10] uint8, the chunk keys as varints

    @property
    def count(self) -> int:
        return len(self.key_varints)

    @staticmethod
    def of(
        lengths: Sequence[int],
        chunk_length: int,
        seed: int,
        first_counter: int = 0,
        episode_ids: Array = np.ones(1, np.uint64),
    ) -> ChunkLayout:
        """A layout whose chunk keys are the hashes of `first_counter`, `first_counter` + 1, ..."""
        rows = np.array(lengths, np.int64)
        owner = np.repeat(np.arange(len(rows)), -(-rows // chunk_length))
        chunk_keys = keys(seed, np.arange(first_counter, first_counter + len(owner)))
        return ChunkLayout(chunk_length, rows, episode_ids, owner, varint_columns(chunk_keys, KEY_BYTES))

    @property
    def starts(self) -> Array:
        """[episodes] number of the first row of each, as items count rows."""
        counts = -(-self.lengths // self.chunk_length)
        starts: Array = (np.cumsum(counts) - counts) * self.chunk_length
        return starts

    @property
    def stop(self) -> int:
        """Behind the last row, as items count rows."""
        return int(self.starts[-1] + self.lengths[-1])

    def bounds(self) -> tuple[Array, Array]:
        """[n] first row of each chunk, as its episode counts rows, and [n] the row behind its last one."""
        begin = np.arange(self.count) * self.chunk_length - self.starts[self.owner]
        return begin, np.minimum(begin + self.chunk_length, self.lengths[self.owner])

    def first_rows(self) -> Array:
        """[n] first row of each chunk in the columns."""
        rows: Array = self.bounds()[0] + (np.cumsum(self.lengths) - self.lengths)[self.owner]
        return rows


def choose_chunk_length(row_bytes: int, window_rows: int, text_bytes: int = 0) -> int:
    """A chunk length from the bytes of a row, the part of them that is text, and the rows of the longest window."""
    row_bytes = max(1, row_bytes)
    if window_rows > MAX_ROWS:
        return max(1, min(window_rows, LONG_CHUNK_BYTES // row_bytes))
    aim = FILE_CHUNK_BYTES if text_bytes >= FILE_BYTES else CHUNK_BYTES
    least = 2 if window_rows > 1 and row_bytes <= PAIR_BYTES else 1
    return max(least, window_rows // WINDOW_SHARE, min(MAX_ROWS, aim // row_bytes))


def encode_chunks(columns: Mapping[str, Array], layout: ChunkLayout) -> list[bytes]:
    """Every chunk as a `chunks` field (1) of an InsertStreamRequest.

    Source: schema.proto, ChunkData: chunk_key(1), sequence_range(2), data(5), data_tensors_len(6),
    data_uncompressed_size(7). `end` of the range is inclusive.
    """
    encoders = [_ColumnEncoder.of(path, column, layout) for path, column in columns.items()]
    are_small = sum(encoder.row_bytes for encoder in encoders) * layout.chunk_length <= VECTORISED_BYTES
    begin, stop = layout.bounds()
    at = layout.first_rows()
    if are_small and all(encoder.is_literal for encoder in encoders):
        fields = np.empty(layout.count, object)
        for rows in np.unique(stop - begin).tolist():
            chosen = np.flatnonzero(stop - begin == rows)
            fields[chosen] = _encode_alike(encoders, layout, chosen, begin[chosen], at[chosen], rows)
        alike: list[bytes] = fields.tolist()
        return alike
    chunks = enumerate(zip(at.tolist(), begin.tolist(), stop.tolist()))
    return [_encode_chunk(encoders, layout, number, *rows_of_chunk) for number, rows_of_chunk in chunks]


def _encode_alike(
    encoders: Sequence[_ColumnEncoder], layout: ChunkLayout, chosen: Array, begin: Array, at: Array, rows: int
) -> list[bytes]:
    """The chosen chunks, which have equally many rows, stored as they are: one array of records.

    Args:
      begin: [chosen] first row of each in its episode.
      at: [chosen] first row of each in the columns.
    """
    kinds = tuple((encoder.column.dtype, encoder.column.shape[1:], encoder.row_bytes) for encoder in encoders)
    width = varint_width(int(layout.lengths.max()))
    record = _ChunkRecord.of(kinds, rows, width)
    # Row numbers are padded to the width of the largest one: a parser takes longer varints, and the record keeps its size.
    block = np.empty((len(chosen), len(record.constant)), np.uint8)
    block[:] = record.constant
    block[:, record.key] = layout.key_varints[chosen]
    block[:, record.episode] = varint_columns(layout.episode_ids[layout.owner[chosen]], KEY_BYTES)
    block[:, record.first] = varint_columns(begin, width)
    block[:, record.last] = varint_columns(begin + rows - 1, width)
    # Chunks without a gap between them are one reshape of the rows; else rows are gathered, which copies them once more.
    first, stop = int(at[0]), int(at[-1]) + rows
    places = None if stop - first == rows * len(chosen) else at[:, None] + np.arange(rows)
    for encoder, place in zip(encoders, record.columns):
        raw: Array = byte_view(encoder.column).reshape(-1, encoder.row_bytes)
        block[:, place] = (raw[first:stop] if places is None else raw[places]).reshape(len(chosen), -1)
    return as_bytes(block)


class _ChunkRecord(NamedTuple):
    """The bytes that all chunks with equally many rows share, and the places of what differs: keys, numbers of rows, and the rows."""

    constant: Array  # [bytes] uint8
    key: slice
    episode: slice
    first: slice
    last: slice
    columns: list[slice]

    @staticmethod
    @lru_cache(256)  # one for each number of rows that chunks of a dataset have, and each width of row numbers
    def of(kinds: tuple[tuple[np.dtype[Any], tuple[int, ...], int], ...], rows: int, width: int) -> _ChunkRecord:
        """The record for columns with these dtypes, shapes and bytes of a row; numbers of rows are varints of `width` bytes."""
        data: list[bytes | Array] = []
        for dtype, shape, row_bytes in kinds:
            size = rows * row_bytes
            data += [_head(dtype, (rows, *shape), codec.literal_prefix(size), size), np.zeros((1, size), np.uint8)]
        unfilled, number = np.zeros((1, KEY_BYTES), np.uint8), np.zeros((1, width), np.uint8)
        body: list[bytes | Array] = [
            b"\x08",
            unfilled,
            b"\x12" + varint(1 + KEY_BYTES + 2 * (1 + width)) + b"\x08",
            unfilled,
            b"\x10",
            number,
            b"\x18",
            number,
            b"\x2a" + varint(sum(map(width_of, data))),
            *data,
            int_field(6, len(kinds)) + int_field(7, rows * sum(row_bytes for *_, row_bytes in kinds)),
        ]
        parts = [b"\x0a" + varint(sum(map(width_of, body))), *body]
        ends = np.cumsum([width_of(part) for part in parts]).tolist()
        places = [slice(begin, end) for begin, end in zip([0, *ends], ends)]
        first_column = 10  # of the parts: the first head of a tensor
        columns = places[first_column + 1 : first_column + 2 * len(kinds) : 2]
        return _ChunkRecord(records(1, parts)[0], places[2], places[4], places[6], places[8], columns)


def _encode_chunk(
    encoders: Sequence[_ColumnEncoder], layout: ChunkLayout, chunk: int, at: int, begin: int, stop: int
) -> bytes:
    """One `chunks` field, of the rows [begin, stop) of an episode, which are in the columns from `at` on; they are copied once, by the join."""
    start, end = at, at + stop - begin
    raw_bytes = sum(encoder.raw_bytes(start, end) for encoder in encoders)
    if raw_bytes > MOST_CHUNK_BYTES:
        raise WireError(
            f"steps {begin} to {stop - 1}: a chunk of {raw_bytes:,} decoded bytes, of which a message of Reverb holds at most {MOST_CHUNK_BYTES:,}; "
            f"{_how_to_shrink(stop - begin)}"
        )
    fields: list[Any] = []
    for encoder in encoders:
        fields += encoder.field(start, end)
    data_size = sum(map(len, fields))
    episode_id = int(layout.episode_ids[layout.owner[chunk]])
    row_range = bytes_field(2, int_field(1, episode_id) + int_field(2, begin) + int_field(3, stop - 1))
    head = b"\x08" + layout.key_varints[chunk].tobytes() + row_range + b"\x2a" + varint(data_size)
    tail = int_field(6, len(encoders)) + int_field(7, raw_bytes)
    return b"".join((b"\x0a", varint(len(head) + data_size + len(tail)), head, *fields, tail))


def _how_to_shrink(rows: int) -> str:
    leave_out = "leave out columns, or store images encoded"
    return f"set a smaller chunk_length (--chunk-length) than {rows}, or {leave_out}" if rows > 1 else leave_out


class _ColumnEncoder:
    """Turns row ranges of one column into `tensors` fields (1) of ChunkData.Data."""

    def __init__(self, column: Array, compress: bool) -> None:
        self.column = column
        self._compress = compress
        self.row_bytes = 0 if column.dtype == object else column.nbytes // max(1, len(column))

    @staticmethod
    def of(path: str, column: Array, layout: ChunkLayout) -> _ColumnEncoder:
        try:
            codec.wire_number(column.dtype)
        except WireError as error:
            raise WireError(f'column "{path}": {error}') from error
        column = codec.as_wire_array(column)
        return _ColumnEncoder(column, _worth_compressing(column, layout.chunk_length))

    @property
    def is_literal(self) -> bool:
        return not self._compress and bool(self.row_bytes)

    def field(self, start: int, end: int) -> tuple[Any, ...]:
        """The field for rows [start, end) in parts: head and content; literal rows and text are not copied."""
        rows, shape = self.column[start:end], (end - start, *self.column.shape[1:])
        if rows.dtype == object:
            parts = codec.string_parts(rows)
            return _head(rows.dtype, shape, b"", sum(map(len, parts))), *parts
        if not self.is_literal:
            content = codec.content_bytes(rows)
            return _head(rows.dtype, shape, b"", len(content)), content
        return _head(rows.dtype, shape, codec.literal_prefix(rows.nbytes), rows.nbytes), memoryview(byte_view(rows))

    def raw_bytes(self, start: int, end: int) -> int:
        """Uncompressed bytes of rows [start, end)."""
        if self.column.dtype == object:
            return sum(len(codec.as_bytes(text)) for text in self.column[start:end].ravel())
        return (end - start) * self.row_bytes


def _head(dtype: np.dtype[Any], shape: tuple[int, ...], prefix: bytes, size: int) -> bytes:
    """Everything before `size` bytes of content that follow `prefix`."""
    tensor = codec.tensor_header(dtype, shape) + b"\x22" + varint(len(prefix) + size) + prefix
    return b"\x0a" + varint(len(tensor) + size) + tensor


def _worth_compressing(column: Array, chunk_length: int) -> bool:
    # Decided once for a column of an episode, or of episodes encoded together, by its first bytes: compressing every chunk to see would cost what it is to save.
    if column.dtype == object or not len(column):
        return False
    chunk_bytes = column.nbytes // len(column) * min(chunk_length, len(column))
    if chunk_bytes < COMPRESS_FROM_BYTES:
        return False
    sample = byte_view(column)[: min(SAMPLE_BYTES, chunk_bytes)]
    return len(cramjam.snappy.compress_raw(sample)) < COMPRESSIBLE * len(sample)
