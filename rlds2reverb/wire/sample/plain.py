"""The plain way from responses to batches: protobuf reads, and every item is put together by itself.

The compiled reader (`native`) is compared with it. It reads everything where that was not built. And it reads the samples that the
compiled reader finds unusual, or refuses them with a reason.

Source of the delta encoding of chunks: reverb/cc/support/trajectory_util, tensor_compression.cc; observed with 0.14: only the legacy
writer sets the flag, and it acts on tensors of whole numbers with at least two axes, the rows included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array, column_bytes
from rlds2reverb.errors import WireError
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.schema import message_class

MOST_ROWS = 1 << 28
"""Most rows of an item: a few bytes can request any number, by the same rows repeatedly, or by rows without values."""

MOST_BYTES, MOST_BYTES_PER_BYTE = 1 << 28, 1 << 12
"""Most bytes of an item: so many, and so many for each byte of the sample as it came, which brings all of its chunks. Snappy makes at most
64 bytes of one (21 in fact); and an item may repeat a row, as a window does that is padded. `native.c` has the same bounds."""

_CHUNK_BYTES = 500
"""What a decoded chunk takes beside its values."""

ItemInfo = tuple[int, float, int, float, int]
"""Key of a sample's item, probability, table size, priority, times sampled; see `batches.SampleInfo`."""


class Sample(NamedTuple):
    """One sample as it came."""

    info: ItemInfo
    trajectory: bytes  # FlatTrajectory
    chunks: list[Any]  # SampledChunk messages


def read(message: bytes) -> tuple[list[Sample], bytes]:
    """The samples of a response, and the response that the entries of an unfinished one at its end would make.

    Source: reverb_service.proto, SampleStreamResponse{entries(1){info(1), data(2) chunks, end_of_sequence(3)}}. Observed in 0.14: a large
    sample comes in several entries, which may be in several responses; only the first has `info`, only the last `end_of_sequence`.

    Raises:
      WireError: no such response, or entries that make no sample.
    """
    try:
        entries = message_class("SampleStreamResponse").FromString(message).entries
    except DecodeError as error:
        raise WireError(f"SampleStreamResponse: {len(message)} bytes that are no such message ({error})") from error
    samples: list[Sample] = []
    begun: list[Any] = []
    for entry in entries:
        if entry.HasField("info") and begun:
            raise WireError(f"sampled item {begun[0].info.item.key}: another one began before its end came")
        if not entry.HasField("info") and not begun:
            raise WireError("SampleStreamResponse: an entry without an item, and none began before")
        begun.append(entry)
        if entry.end_of_sequence:
            info = begun[0].info
            item = info.item
            of_item = (item.key, info.probability, info.table_size, item.priority, item.times_sampled)
            samples.append(Sample(of_item, item.flat_trajectory, [chunk for part in begun for chunk in part.data]))
            begun = []
    return samples, message_class("SampleStreamResponse")(entries=begun).SerializeToString()


def came_as(sample: Sample) -> int:
    """Bytes of a sample's chunks and trajectory as they came."""
    return len(sample.trajectory) + sum(len(chunk.data) for chunk in sample.chunks)


def most_bytes(sample: Sample) -> int:
    """Most bytes that the columns of a sample may have."""
    return MOST_BYTES + MOST_BYTES_PER_BYTE * came_as(sample)


class Chunks:
    """Decoded chunks by key, the newest up to a number of bytes: a chunk never changes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._chunks: dict[int, Chunk] = {}

    def values(self, sample: Sample) -> tuple[Array, ...]:
        """The columns of a sample.

        Raises:
          WireError: a chunk cannot be read, or the sample points to what is not there.
        """
        item = read_item(sample)
        keys = {piece.chunk_key for column in item.columns for piece in column.slices}
        # The server sends every chunk of an item again, each time.
        own: dict[int, Chunk] = {}
        for chunk in sample.chunks:
            key = chunk.chunk_key
            if key in keys and key not in own:
                own[key] = self._chunks.get(key) or self._decode(chunk)
        # Before the rows are copied: a small message may ask for more than there is memory.
        size = sum(
            piece.length * row_bytes(own[piece.chunk_key].tensors[piece.column])
            for column in item.columns
            for piece in column.slices
            if piece.chunk_key in own and 0 <= piece.column < len(own[piece.chunk_key].tensors)
        )
        if size > (most := most_bytes(sample)):
            raise WireError(
                f"sampled item {item.key}: {size:,} bytes, more than {most:,}, from {came_as(sample):,} bytes"
            )
        return codec.item_values(item, own)

    def _decode(self, message: Any) -> Chunk:
        chunk = Chunk(message.chunk_key, 0, 0, 0, decode_chunk(message))
        size = _bytes_of(chunk)
        while self._chunks and self._bytes + size > self._most_bytes:
            self._bytes -= _bytes_of(self._chunks.pop(next(iter(self._chunks))))
        if size <= self._most_bytes:
            self._chunks[chunk.key] = chunk
            self._bytes += size
        return chunk


def _bytes_of(chunk: Chunk) -> int:
    return _CHUNK_BYTES + sum(map(column_bytes, chunk.tensors))


def row_bytes(tensor: Array) -> int:
    """Bytes of a row, without those of texts."""
    return tensor.nbytes // len(tensor) if tensor.ndim and len(tensor) else 0


def read_item(sample: Sample) -> Item:
    """The item of a sample with its columns.

    Raises:
      WireError: its trajectory cannot be read, or has no columns, or more rows than `MOST_ROWS`.
    """
    try:
        trajectory = message_class("FlatTrajectory").FromString(sample.trajectory)
    except DecodeError as error:
        raise WireError(f"FlatTrajectory: {len(sample.trajectory)} bytes that are no such message ({error})") from error
    if not trajectory.columns:
        raise WireError("sampled item: its trajectory has no columns")
    columns = tuple(
        ItemColumn(tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices), column.squeeze)
        for column in trajectory.columns
    )
    rows = sum(max(0, piece.length) for column in columns for piece in column.slices)
    if rows > MOST_ROWS:
        raise WireError(f"sampled item {sample.info[0]}: {rows} rows, more than {MOST_ROWS}")
    return Item(sample.info[0], "", sample.info[3], columns)


def decode_chunk(chunk: Any) -> tuple[Array, ...]:
    """A SampledChunk message -> one array [rows, ...] per tensor.

    Raises:
      WireError: the tensors cannot be read.
    """
    try:
        data = message_class("ChunkTensors").FromString(chunk.data)
    except DecodeError as error:
        raise WireError(f"chunk {chunk.chunk_key}: {len(chunk.data)} bytes that are no tensors ({error})") from error
    decoded = (codec.decode_tensor(tensor) for tensor in data.tensors)
    if not chunk.delta_encoded:
        return tuple(decoded)
    return tuple(  # sums that wrap, row by row
        np.cumsum(tensor, axis=0, dtype=tensor.dtype) if tensor.dtype.kind in "iu" and tensor.ndim > 1 else tensor
        for tensor in decoded
    )
