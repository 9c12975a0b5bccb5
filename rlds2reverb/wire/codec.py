"""Values <-> bytes: tensors and dtypes, signatures, and one `encode_x` or `decode_x` per message of Reverb's service.

Sources: tensor.proto, types.proto and struct.proto of TensorFlow 2.15, and `CompressTensorAsProto` of Reverb. Any bytes give a value or a
`WireError`. Episodes are encoded by `wire.insert`; this module reads what that writes, and everything the server answers.

Numbers are the row-major bytes in snappy's raw block format; text is TensorFlow's own string content (all lengths as varints, then all
bytes). The dtypes are those of Reverb 0.14's Python bindings, and bfloat16: the server keeps it and `reverb.TrajectoryDataset` returns
it; `reverb.Client.sample` cannot make an array of it (probed).

| numpy | wire | back |
| --- | --- | --- |
| bool, (u)int8 to (u)int64, float16/32/64, complex64/128 | a number of `NUMPY_DTYPES`, snappy bytes | the same |
| ml_dtypes.bfloat16 | 14, snappy bytes | ml_dtypes.bfloat16 |
| object of bytes or str, S, U | 7, lengths and bytes, not compressed | object of bytes |
| a big-endian dtype | swapped to little-endian | the little-endian dtype |
| datetime64, timedelta64, void, longdouble | refused: `WireError` | |

A signature is a StructuredValue, here a nest of `ArraySpec`; namedtuples come back as one cached class per name and field list.
The view that a table is for (`ArraySpec.view`) is the name of the first axis of a leaf (`TensorShapeProto.Dim.name`). Reverb and its
checkpoints keep that, and TensorFlow does not read it: a spec with such an axis equals one without, as TF-Agents' own
`push_rlds_to_reverb` demands. A leaf without axes has the view in its own name, in characters that TensorFlow takes there.

>>> names_on_wire(ArraySpec((None, 4), np.dtype(np.float32), view="n_step:n=3"))
('', 'n_step:n=3')
>>> names_on_wire(ArraySpec((), np.dtype(np.int64), view="n_step:n=3"))
('items_of.n_5fstep_3an_3d3', '')
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import cramjam
import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array, byte_view
from rlds2reverb.errors import WireError
from rlds2reverb.protobuf import KEY_BYTES, bytes_field, int_field, read_varint, varint, varint_columns
from rlds2reverb.specs import ArraySpec, Nest, named_tuple_type
from rlds2reverb.wire.messages import (
    Chunk,
    InsertRequest,
    Item,
    ItemColumn,
    RateLimiter,
    SampleRequest,
    ServerInfo,
    Slice,
    TableInfo,
    WorkerTime,
)
from rlds2reverb.wire.schema import message_class

MAX_TENSOR_BYTES = 1 << 31
"""Largest tensor that a decoder takes: protobuf's own limit for one message is 2 GiB."""

MAX_EXPANSION = 22
"""Most bytes out of one byte of a snappy block: its densest element copies 64 bytes and takes 3."""


def tensor_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A TensorProto's dtype and shape, to be followed by its content (field 4)."""
    sizes = b""
    for size in shape:  # a loop is faster than a join for the few axes of a tensor
        sizes += bytes_field(2, int_field(1, size))
    return int_field(1, wire_number(dtype)) + bytes_field(2, sizes)


def literal_prefix(size: int) -> bytes:
    """The head of a snappy block that stores `size` bytes (at least 1) as they are.

    Source: snappy's format_description: the size as a varint, then one literal element whose tag holds
    size-1 up to 59, or says in how many bytes (1 to 4) size-1 follows.
    """
    last = size - 1
    if last < 60:
        return varint(size) + bytes([last << 2])
    width = (last.bit_length() + 7) // 8
    return varint(size) + bytes([(59 + width) << 2]) + last.to_bytes(width, "little")


def content_bytes(rows: Array) -> bytes:
    """A tensor's content: snappy block of the bytes, or TensorFlow's string content. Copies."""
    if rows.dtype == object:
        return b"".join(string_parts(rows))
    return bytes(cramjam.snappy.compress_raw(byte_view(rows)))


def string_parts(rows: Array) -> list[bytes]:
    """TensorFlow's content of a string tensor in parts: every length as a varint, then every text, not copied.

    Raises:
      WireError: an element is neither bytes nor str, or has no UTF-8 form.
    """
    texts = [as_bytes(text) for text in rows.ravel()]
    return [b"".join(varint(len(text)) for text in texts), *texts]


def as_bytes(text: Any) -> bytes:
    """The bytes of a text; raises as `string_parts`."""
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise WireError(f"text column: {text!r} has no UTF-8 form ({error.reason})") from error
    raise WireError(f"text column: expected bytes or str, got {type(text).__name__}")


def decode_tensor(proto: Any) -> Array:
    """A Tensor message of `wire.schema` -> array of its dtype and shape (text: object of bytes)."""
    dtype = numpy_dtype(proto.dtype)
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if any(size < 0 for size in shape):
        raise WireError(f"tensor shape {shape}: a stored tensor has no free sizes")
    if proto.dtype == STRING:
        values = _decode_strings(proto.tensor_content, shape)
    else:
        expected = math.prod(shape) * dtype.itemsize
        if expected > MAX_TENSOR_BYTES:
            raise WireError(f"tensor {dtype}{list(shape)}: {expected} bytes, more than {MAX_TENSOR_BYTES}")
        values = np.frombuffer(decompress(proto.tensor_content, expected), np.uint8).view(dtype)
    try:
        return values.reshape(shape)
    except ValueError as error:  # more axes than numpy has, or huge sizes beside an empty one
        raise WireError(f"tensor of shape {list(shape)}: {error}") from error


def decompress(block: bytes, expected_bytes: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size != expected_bytes:
            raise WireError(f"tensor content: snappy block of {size} bytes, the shape and dtype need {expected_bytes}")
        if size > MAX_EXPANSION * len(block):  # before memory is allocated for it
            raise WireError(f"tensor content: {len(block)} bytes of snappy cannot hold the {size} bytes they promise")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise WireError(f"tensor content: not a snappy block ({error})") from error


def _decode_strings(content: bytes, shape: tuple[int, ...]) -> Array:
    """[texts] object of bytes, not yet in its shape."""
    count = math.prod(shape)
    if count > len(content):
        raise WireError(f"string tensor {list(shape)}: {count} texts cannot be in {len(content)} bytes")
    # Checked against the content above: a text takes at least the byte of its length, so `count` is bounded before anything is made.
    lengths, at = [], 0
    for _ in range(count):
        try:
            length, at = read_varint(content, at)
        except ValueError as error:
            raise WireError(f"string tensor: a length that does not end: {error}") from error
        lengths.append(length)
    if at + sum(lengths) != len(content):
        raise WireError(f"string tensor: lengths say {at + sum(lengths)} bytes, content has {len(content)}")
    out = np.empty(count, object)
    for index, length in enumerate(lengths):
        out[index] = content[at : at + length]
        at += length
    return out


STRING = 7
"""DT_STRING."""

_NUMBERS: dict[int, Any] = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    5: np.int16,
    6: np.int8,
    STRING: np.object_,
    8: np.complex64,
    9: np.int64,
    10: np.bool_,
    14: ml_dtypes.bfloat16,
    17: np.uint16,
    18: np.complex128,
    19: np.float16,
    22: np.uint32,
    23: np.uint64,
}
NUMPY_DTYPES: dict[int, np.dtype[Any]] = {number: np.dtype(kind) for number, kind in _NUMBERS.items()}
"""DataType number -> numpy dtype; object for text."""

_BY_DTYPE = {dtype: number for number, dtype in NUMPY_DTYPES.items()}


def wire_number(dtype: np.dtype[Any]) -> int:
    if dtype.kind in "SU":
        return STRING
    # The table has little-endian dtypes; a big-endian one is another key, and its values are swapped (`as_wire_array`).
    number = _BY_DTYPE.get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)
    if number is None:
        dtypes = ", ".join(str(stored) for stored in NUMPY_DTYPES.values())
        raise WireError(f"dtype {dtype}: Reverb cannot store it; convert the column to one of {dtypes}")
    return number


def numpy_dtype(number: int) -> np.dtype[Any]:
    if number not in NUMPY_DTYPES:
        raise WireError(f"tensor dtype number {number}: expected one of {sorted(NUMPY_DTYPES)}")
    return NUMPY_DTYPES[number]


def as_wire_array(column: Array) -> Array:
    """The column as it is stored: C order, little-endian, text as object. Copies only if it must."""
    if column.dtype.kind in "SU":
        return column.astype(object)
    if column.dtype.byteorder == ">":
        column = column.astype(column.dtype.newbyteorder("<"))
    return column if column.flags.c_contiguous else np.ascontiguousarray(column)


_MAX_DEPTH = 64
"""Nesting that a signature may have; protobuf itself stops at 100 messages."""

_KINDS = {
    "bounded_tensor_spec_value", "dict_value", "list_value", "named_tuple_value", "tensor_spec_value", "tuple_value",
}  # fmt: skip
_OF_VIEW = "items_of."
_ESCAPED = re.compile(r"(?:[A-Za-z0-9.]|_[0-9a-f]{2})*", re.ASCII)


def decode_signature(proto: Any, depth: int = 0) -> Nest:
    """A StructuredValue message -> nest of `ArraySpec`."""
    if depth > _MAX_DEPTH:
        raise WireError(f"signature nested deeper than {_MAX_DEPTH} levels")
    present = [field.name for field, _ in proto.ListFields()]
    if len(present) != 1 or present[0] not in _KINDS:
        raise WireError(f"signature value with {present or 'nothing'} in it: expected one of {sorted(_KINDS)}")
    kind, value = present[0], getattr(proto, present[0])
    if kind == "tensor_spec_value":
        return _decode_spec(value)
    if kind == "bounded_tensor_spec_value":
        return replace(_decode_spec(value), minimum=_bound(value.minimum), maximum=_bound(value.maximum))
    entries = value.fields if kind == "dict_value" else value.values
    is_named = kind in ("dict_value", "named_tuple_value")
    children = []  # no comprehension, so that a deep signature takes one frame a level
    for entry in entries:
        children.append(decode_signature(entry.value if is_named else entry, depth + 1))  # noqa: PERF401
    if kind == "list_value":
        return children
    if kind == "tuple_value":
        return tuple(children)
    names = tuple(entry.key for entry in entries)
    if kind == "dict_value":
        return dict(zip(names, children))
    try:
        return named_tuple_type(value.name, names)(*children)
    except (ValueError, SyntaxError) as error:  # SyntaxError: names that are one to Python's parser
        raise WireError(f'signature namedtuple "{value.name}" with fields {names}: {error}') from error


def encode_signature(nest: Nest) -> Any:
    """A nest of `ArraySpec` -> StructuredValue message."""
    value = message_class("StructuredValue")()
    if isinstance(nest, ArraySpec):
        _encode_leaf(value, nest)
    elif isinstance(nest, Mapping):
        value.dict_value.SetInParent()  # an empty dict is a value, too
        for key in sorted(nest):  # as dm-tree flattens it: the columns of items stand in this order
            value.dict_value.fields.add(key=key, value=encode_signature(nest[key]))
    elif hasattr(nest, "_fields"):
        value.named_tuple_value.name = type(nest).__name__
        for key, child in zip(nest._fields, nest):
            value.named_tuple_value.values.add(key=key, value=encode_signature(child))
    else:
        target = value.tuple_value if isinstance(nest, tuple) else value.list_value
        target.SetInParent()
        target.values.extend(encode_signature(child) for child in nest)
    return value


def names_on_wire(spec: ArraySpec) -> tuple[str, str]:
    """The name of a leaf, and of its first axis; "" for none. They say which view the table is for."""
    if not spec.view or spec.shape or spec.name:
        return spec.name, spec.view if spec.shape else ""
    escaped = re.sub(rb"[^A-Za-z0-9.]", lambda match: b"_%02x" % ord(match[0]), spec.view.encode())
    return _OF_VIEW + escaped.decode(), ""


def _view_in_name(name: str) -> str:
    """The view in the name of a leaf without axes; "" for any other name."""
    escaped = name.removeprefix(_OF_VIEW)
    if escaped == name or _ESCAPED.fullmatch(escaped) is None:
        return ""
    plain = re.sub(rb"_([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), escaped.encode())
    return plain.decode(errors="backslashreplace")


def _encode_leaf(value: Any, spec: ArraySpec) -> None:
    is_bounded = spec.minimum is not None and spec.maximum is not None and spec.dtype.kind != "O"
    target = value.bounded_tensor_spec_value if is_bounded else value.tensor_spec_value
    target.name, axis = names_on_wire(spec)
    target.dtype = wire_number(spec.dtype)
    target.shape.SetInParent()
    for size in spec.shape:
        target.shape.dim.add(size=-1 if size is None else size)
    if axis:
        target.shape.dim[0].name = axis
    if is_bounded:
        _encode_bound(target.minimum, spec.minimum)
        _encode_bound(target.maximum, spec.maximum)


def _encode_bound(target: Any, bound: Any) -> None:
    values = as_wire_array(np.asarray(bound))
    target.dtype = wire_number(values.dtype)
    target.tensor_shape.SetInParent()
    for size in values.shape:
        target.tensor_shape.dim.add(size=size)
    # Not compressed: TensorFlow's own code reads signatures; only the tensors of chunks are in Reverb's form.
    target.tensor_content = values.tobytes()


def _decode_spec(proto: Any) -> ArraySpec:
    if proto.shape.unknown_rank:
        raise WireError(f'signature leaf "{proto.name}": unknown rank; give the table a spec with a shape')
    shape = tuple(None if dim.size < 0 else dim.size for dim in proto.shape.dim)
    view = proto.shape.dim[0].name if shape else _view_in_name(proto.name)
    name = "" if view and not shape else proto.name
    return ArraySpec(shape, numpy_dtype(proto.dtype), name, view=view)


_BOUND_FIELDS: dict[str, Any] = {
    "float_val": np.float64,
    "double_val": np.float64,
    "int_val": np.int64,
    "int64_val": np.int64,
    "bool_val": np.bool_,
    "uint32_val": np.uint64,
    "uint64_val": np.uint64,
}


def _bound(proto: Any) -> Array:
    """A bound: raw bytes (not compressed here) or TensorFlow's short form, where one value fills the shape."""
    dtype = numpy_dtype(proto.dtype)
    if proto.tensor_content and proto.dtype != STRING:
        if len(proto.tensor_content) % dtype.itemsize:
            raise WireError(f"signature bound: {len(proto.tensor_content)} bytes are no whole number of {dtype}")
        return np.frombuffer(proto.tensor_content, dtype)
    if proto.half_val and dtype.itemsize == 2:  # float16 and bfloat16 as bits, in an int32 each
        return np.array(proto.half_val, np.int64).astype(np.uint16).view(dtype)
    for name, kind in _BOUND_FIELDS.items():
        if values := getattr(proto, name):
            return np.array(values, kind)
    return np.empty(0, dtype)


_UPDATE = (2 << 3 | 2, 1 + KEY_BYTES + 1 + 8, 1 << 3)
"""How an update of a priority begins: its tag and length, and the tag of its key."""

_PRIORITY = 2 << 3 | 1
"""The tag of an update's priority, eight bytes."""


def _parse(name: str, data: bytes) -> Any:
    try:
        return message_class(name).FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf without its C library
        raise WireError(f"{name}: {len(data)} bytes that are no such message ({error})") from error


def decode_server_info(data: bytes) -> ServerInfo:
    """ServerInfoResponse: tables_state_id(1), table_info(2)."""
    proto = _parse("ServerInfoResponse", data)
    state_id = proto.tables_state_id.high << 64 | proto.tables_state_id.low
    return ServerInfo.of(state_id, map(_table_info, proto.table_info))


def _table_info(proto: Any) -> TableInfo:
    limiter, worker = proto.rate_limiter_info, proto.table_worker_time
    return TableInfo(
        name=proto.name,
        sampler=distribution_text(proto.sampler_options),
        remover=distribution_text(proto.remover_options),
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
        worker=WorkerTime(
            running=worker.running_ms / 1000,
            sampling=worker.sampling_ms / 1000,
            inserting=worker.inserting_ms / 1000,
            sleeping=worker.sleeping_ms / 1000,
            waiting_for_samples=worker.waiting_for_sampling_ms / 1000,
            waiting_for_inserts=worker.waiting_for_inserts_ms / 1000,
        ),
    )


def distribution_text(proto: Any) -> str:
    """KeyDistributionOptions, a oneof of schema.proto, as the word of a config."""
    if proto.HasField("prioritized"):
        return f"prioritized({proto.prioritized.priority_exponent:g})"
    if proto.HasField("heap"):
        return "min_heap" if proto.heap.min_heap else "max_heap"
    return next((name for name in ("fifo", "uniform", "lifo") if getattr(proto, name)), "unknown")


def decode_checkpoint_path(data: bytes) -> str:
    """CheckpointResponse: checkpoint_path(1)."""
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


def encode_sample_request(request: SampleRequest) -> bytes:
    """SampleStreamRequest: table(1), num_samples(2), rate_limiter_timeout(3); only a timeout above 0 is one (observed in 0.14)."""
    message = message_class("SampleStreamRequest")(table=request.table, num_samples=request.samples)
    if request.timeout_seconds is not None:
        message.rate_limiter_timeout.milliseconds = max(1, math.ceil(1000 * request.timeout_seconds))
    data: bytes = message.SerializeToString()
    return data


def encode_confirmed_keys(item_keys: Sequence[int]) -> bytes:
    """[n] 64-bit keys -> InsertStreamResponse: keys(1, packed)."""
    response: bytes = message_class("InsertStreamResponse")(keys=item_keys).SerializeToString()
    return response


def decode_confirmed_keys(data: bytes) -> Array:
    """InsertStreamResponse: keys(1, packed) -> [n] uint64.

    The usual response, ten-byte varints only, is read by numpy; any other goes through protobuf.
    """
    # A learner's and a push's hot path: a response confirms up to a thousand keys, and protobuf makes a Python integer of each.
    if data[:1] == b"\x0a":
        start = 2
        while start < len(data) and data[start - 1] & 0x80:
            start += 1
        size = max(0, len(data) - start)
        if size % KEY_BYTES == 0 and data[1:start] == varint(size):
            rows = np.frombuffer(data, np.uint8)[start:].reshape(-1, KEY_BYTES)
            # Nine bytes that continue, and a last one of 1: a varint of ten bytes below 2^64 with the top bit set.
            if np.all(rows[:, :-1] & 0x80) and np.all(rows[:, -1] == 1):
                shifts = np.arange(KEY_BYTES, dtype=np.uint64) * np.uint64(7)
                keys: Array = np.bitwise_or.reduce((rows & 0x7F).astype(np.uint64) << shifts, axis=1)
                return keys
    return np.array(_parse("InsertStreamResponse", data).keys, np.uint64)


def decode_insert_request(data: bytes) -> InsertRequest:
    """InsertStreamRequest: chunks(1), items(2), keep_chunk_keys(3)."""
    proto = _parse("InsertStreamRequest", data)
    return InsertRequest(
        tuple(_chunk(chunk) for chunk in proto.chunks),
        tuple(_item(item) for item in proto.items),
        tuple(proto.keep_chunk_keys),
    )


def _chunk(proto: Any) -> Chunk:
    if proto.delta_encoded:
        # Only Reverb's legacy writer sets it; what is sampled is read with it (`sample.plain`).
        raise WireError(f"chunk {proto.chunk_key}: delta encoding is not supported (Reverb's writers leave it off)")
    arrays = tuple(decode_tensor(tensor) for tensor in proto.data.tensors)
    rows = proto.sequence_range
    return Chunk(proto.chunk_key, rows.episode_id, rows.start, rows.end + 1, arrays)


def _item(proto: Any) -> Item:
    columns = tuple(
        ItemColumn(tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices), column.squeeze)
        for column in proto.flat_trajectory.columns
    )
    return Item(proto.key, proto.table, proto.priority, columns)


def item_values(item: Item, chunks: dict[int, Chunk]) -> tuple[Array, ...]:
    """The values of an item as a sampler returns them: one array per column."""
    return tuple(_column_value(item, column, chunks) for column in item.columns)


def _column_value(item: Item, column: ItemColumn, chunks: dict[int, Chunk]) -> Array:
    parts = []
    for piece in column.slices:
        chunk = chunks.get(piece.chunk_key)
        if chunk is None or not 0 <= piece.column < len(chunk.tensors):
            raise WireError(f"item {item.key}: {piece} points to a chunk or column that is not there")
        tensor = chunk.tensors[piece.column]
        count = len(tensor) if tensor.ndim else 0
        if piece.offset < 0 or piece.length < 1 or piece.offset + piece.length > count:
            raise WireError(f"item {item.key}: {piece} points outside the chunk's {count} rows")
        parts.append(tensor[piece.offset : piece.offset + piece.length])
    if not parts:
        raise WireError(f"item {item.key}: a column without slices")
    if len(kinds := {(part.dtype, part.shape[1:]) for part in parts}) > 1:
        raise WireError(f"item {item.key}: a column in pieces of unequal dtype or shape: {sorted(map(str, kinds))}")
    rows: Array = np.concatenate(parts)
    if column.squeeze and len(rows) != 1:
        raise WireError(f"item {item.key}: a squeezed column of {len(rows)} rows, expected 1")
    return rows.reshape(rows.shape[1:]) if column.squeeze else rows
