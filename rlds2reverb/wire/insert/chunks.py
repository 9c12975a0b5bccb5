"""Rows -> chunks: every `chunk_length` rows, all columns together, one ChunkData.

Reverb's own writer makes one chunk per column. One chunk for all columns means fewer objects for the server to hold and to look
up, and it is what makes the items of `wire.insert.items` share one chunk key across columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
import numpy as np

from rlds2reverb.episodes import Array, byte_view
from rlds2reverb.errors import WireError
from rlds2reverb.wire import dtypes, tensors
from rlds2reverb.wire.keys import keys
from rlds2reverb.wire.records import as_bytes, records, width_of
from rlds2reverb.wire.varint import KEY_BYTES, bytes_field, int_field, varint, varint_columns, varint_width

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
            dtypes.wire_number(column.dtype)
        except WireError as error:
            raise WireError(f'column "{path}": {error}') from error
        column = dtypes.as_wire_array(column)
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
