"""Messages <-> bytes: one `encode_x` or `decode_x` per message of Reverb's service.

The hot way in has encoders of its own (`wire.insert`), which write whole episodes; this module
reads what they write, and everything the server answers. Any bytes give a value or a `WireError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.varint import KEY_BYTES, bytes_field, varint, varint_columns
from rlds2reverb.wire import tensors
from rlds2reverb.wire.messages import (
    Chunk,
    InsertRequest,
    Item,
    ItemColumn,
    RateLimiter,
    ServerInfo,
    Slice,
    TableInfo,
    WorkerTime,
)
from rlds2reverb.wire.schema import message_class
from rlds2reverb.wire.signature import decode_signature

_UPDATE = (2 << 3 | 2, 1 + KEY_BYTES + 1 + 8, 1 << 3)
"""Of an update of a priority: its tag and length, and the tag of the key in it."""

_PRIORITY = 2 << 3 | 1
"""The tag of its priority, eight bytes."""


def _parse(name: str, data: bytes) -> Any:
    try:
        return message_class(name).FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf without its C library
        raise WireError(f"{name}: {len(data)} bytes that are no such message ({error})") from error


def encode_server_info_request() -> bytes:
    """ServerInfoRequest has no fields that this package sets."""
    return b""


def decode_server_info(data: bytes) -> ServerInfo:
    """ServerInfoResponse: tables_state_id(1), table_info(2).

    Raises:
      WireError: not such a message, or a signature that cannot be understood.
    """
    proto = _parse("ServerInfoResponse", data)
    tables = {}
    for table in proto.table_info:
        tables[table.name] = _table_info(table)
    return ServerInfo(proto.tables_state_id.high << 64 | proto.tables_state_id.low, tables)


def _table_info(proto: Any) -> TableInfo:
    limiter = proto.rate_limiter_info
    return TableInfo(
        name=proto.name,
        sampler=_distribution(proto.sampler_options),
        remover=_distribution(proto.remover_options),
        max_size=proto.max_size,
        current_size=proto.current_size,
        max_times_sampled=proto.max_times_sampled,
        rate_limiter=RateLimiter(
            limiter.samples_per_insert,
            limiter.min_diff,
            limiter.max_diff,
            limiter.min_size_to_sample,
            limiter.insert_stats.completed,
            limiter.sample_stats.completed,
        ),
        signature=decode_signature(proto.signature) if proto.HasField("signature") else None,
        episodes=proto.num_episodes,
        deleted_episodes=proto.num_deleted_episodes,
        unique_samples=proto.num_unique_samples,
        worker=_worker_time(proto.table_worker_time),
    )


def _worker_time(proto: Any) -> WorkerTime:
    return WorkerTime(
        running=proto.running_ms / 1000,
        sampling=proto.sampling_ms / 1000,
        inserting=proto.inserting_ms / 1000,
        sleeping=proto.sleeping_ms / 1000,
        waiting_for_samples=proto.waiting_for_sampling_ms / 1000,
        waiting_for_inserts=proto.waiting_for_inserts_ms / 1000,
    )


def _distribution(proto: Any) -> str:
    """KeyDistributionOptions, a oneof of schema.proto, as the word a config uses."""
    if proto.HasField("prioritized"):
        return f"prioritized({proto.prioritized.priority_exponent:g})"
    if proto.HasField("heap"):
        return "min_heap" if proto.heap.min_heap else "max_heap"
    return next((name for name in ("fifo", "uniform", "lifo") if getattr(proto, name)), "unknown")


def encode_checkpoint_request() -> bytes:
    """CheckpointRequest: no fields."""
    return b""


def decode_checkpoint_path(data: bytes) -> str:
    """CheckpointResponse: checkpoint_path(1).

    Raises:
      WireError: not such a message.
    """
    return str(_parse("CheckpointResponse", data).checkpoint_path)


def encode_delete_items_request(table: str, item_keys: Array) -> bytes:
    """MutatePrioritiesRequest: table(1), delete_keys(3, packed) of [n] uint64 keys; the answer has no fields."""
    request: bytes = message_class("MutatePrioritiesRequest")(
        table=table, delete_keys=item_keys.tolist()
    ).SerializeToString()
    return request


def encode_update_priorities_request(table: str, item_keys: Array, priorities: Array) -> bytes:
    """MutatePrioritiesRequest: table(1), updates(2){key(1), priority(2)} of [n] uint64 keys and [n] float64 priorities.

    Keys are varints of ten bytes, so that all updates have one size and numpy fills them.
    """
    updates = np.empty((len(item_keys), len(_UPDATE) + KEY_BYTES + 1 + 8), np.uint8)
    updates[:, : len(_UPDATE)] = _UPDATE
    updates[:, len(_UPDATE) : -9] = varint_columns(item_keys, KEY_BYTES)
    updates[:, -9] = _PRIORITY
    updates[:, -8:] = np.ascontiguousarray(priorities, "<f8")[:, None].view(np.uint8)
    return bytes_field(1, table.encode()) + updates.tobytes()


def encode_reset_request(table: str) -> bytes:
    """ResetRequest: table(1); the answer has no fields."""
    request: bytes = message_class("ResetRequest")(table=table).SerializeToString()
    return request


def encode_confirmed_keys(item_keys: Sequence[int]) -> bytes:
    """[n] 64-bit keys -> InsertStreamResponse: keys(1, packed)."""
    response: bytes = message_class("InsertStreamResponse")(keys=item_keys).SerializeToString()
    return response


def decode_confirmed_keys(data: bytes) -> Array:
    """InsertStreamResponse: keys(1, packed) -> [n] uint64.

    The usual response, ten-byte varints only, is read by numpy; any other goes through protobuf.
    """
    if data[:1] == b"\x0a":
        start = 2
        while start < len(data) and data[start - 1] & 0x80:
            start += 1
        size = max(0, len(data) - start)
        if size % KEY_BYTES == 0 and data[1:start] == varint(size):
            rows = np.frombuffer(data, np.uint8)[start:].reshape(-1, KEY_BYTES)
            if _are_key_varints(rows):
                return _key_varints_to_uint64(rows)
    return np.array(_parse("InsertStreamResponse", data).keys, np.uint64)


def _are_key_varints(rows: Array) -> bool:
    return bool(np.all(rows[:, :-1] & 0x80) and np.all(rows[:, -1] == 1))


def _key_varints_to_uint64(rows: Array) -> Array:
    shifts = np.arange(KEY_BYTES, dtype=np.uint64) * np.uint64(7)
    keys: Array = np.bitwise_or.reduce((rows & 0x7F).astype(np.uint64) << shifts, axis=1)
    return keys


def decode_insert_request(data: bytes) -> InsertRequest:
    """InsertStreamRequest: chunks(1), items(2), keep_chunk_keys(3).

    Raises:
      WireError: not such a message, or a chunk whose tensors cannot be read.
    """
    proto = _parse("InsertStreamRequest", data)
    return InsertRequest(
        tuple(_chunk(chunk) for chunk in proto.chunks),
        tuple(_item(item) for item in proto.items),
        tuple(proto.keep_chunk_keys),
    )


def _chunk(proto: Any) -> Chunk:
    if proto.delta_encoded:
        raise WireError(f"chunk {proto.chunk_key}: delta encoding is not supported (Reverb's writers leave it off)")
    arrays = tuple(tensors.decode_tensor(tensor) for tensor in proto.data.tensors)
    rows = proto.sequence_range
    return Chunk(proto.chunk_key, rows.episode_id, rows.start, rows.end + 1, arrays)


def _item(proto: Any) -> Item:
    columns = tuple(
        ItemColumn(tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices), column.squeeze)
        for column in proto.flat_trajectory.columns
    )
    return Item(proto.key, proto.table, proto.priority, columns)


def item_values(item: Item, chunks: dict[int, Chunk]) -> tuple[Array, ...]:
    """What a sampler would return for the item: one array per column.

    Raises:
      WireError: a slice points to a chunk, a column or rows that are not there, or slices do not fit together.
    """
    return tuple(_column_value(item, column, chunks) for column in item.columns)


def _column_value(item: Item, column: ItemColumn, chunks: dict[int, Chunk]) -> Array:
    parts = []
    for piece in column.slices:
        chunk = chunks.get(piece.chunk_key)
        if chunk is None or not 0 <= piece.column < len(chunk.tensors):
            raise WireError(f"item {item.key}: {piece} points to a chunk or column that is not there")
        rows = chunk.tensors[piece.column]
        count = len(rows) if rows.ndim else 0
        if piece.offset < 0 or piece.length < 1 or piece.offset + piece.length > count:
            raise WireError(f"item {item.key}: {piece} points outside the chunk's {count} rows")
        parts.append(rows[piece.offset : piece.offset + piece.length])
    if not parts:
        raise WireError(f"item {item.key}: a column without slices")
    if len(kinds := {(part.dtype, part.shape[1:]) for part in parts}) > 1:
        raise WireError(f"item {item.key}: a column in pieces of unequal dtype or shape: {sorted(map(str, kinds))}")
    joined: Array = np.concatenate(parts)
    if column.squeeze and len(joined) != 1:
        raise WireError(f"item {item.key}: a squeezed column of {len(joined)} rows, expected 1")
    return joined.reshape(joined.shape[1:]) if column.squeeze else joined
