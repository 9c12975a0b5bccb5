"""Arrays <-> TensorProto, and numpy dtypes <-> TensorFlow's numbers, as Reverb stores them.

Source: tensor.proto of TensorFlow 2.15 and `CompressTensorAsProto` of Reverb: numbers are the row-major
bytes in snappy's raw block format; text is TensorFlow's own string content (all lengths as varints, then all
bytes), not compressed.
"""

from __future__ import annotations

import math
from typing import Any

import cramjam
import ml_dtypes
import numpy as np

from rlds2reverb.episode import Array, byte_view
from rlds2reverb.errors import WireError
from rlds2reverb.varint import bytes_field, int_field, read_varint, varint

MAX_TENSOR_BYTES = 1 << 31
"""Largest tensor that a decoder takes: protobuf's own limit for one message is 2 GiB."""

MAX_EXPANSION = 22
"""Most bytes out of one byte of a snappy block: its densest element copies 64 bytes and takes 3."""


def shape_bytes(shape: tuple[int, ...]) -> bytes:
    """A TensorShapeProto."""
    return b"".join(bytes_field(2, int_field(1, size)) for size in shape)


def tensor_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A TensorProto's dtype and shape, to be followed by its content (field 4)."""
    return int_field(1, wire_number(dtype)) + bytes_field(2, shape_bytes(shape))


def literal_prefix(size: int) -> bytes:
    """What precedes `size` bytes (at least 1) to make them a snappy block that stores them as they are.

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
        return string_content(rows)
    return bytes(cramjam.snappy.compress_raw(byte_view(rows)))


def string_content(rows: Array) -> bytes:
    """TensorFlow's content of a string tensor: every length as a varint, then every text.

    Raises:
      WireError: an element is neither bytes nor str, or has no UTF-8 form.
    """
    return b"".join(string_parts(rows))


def string_parts(rows: Array) -> list[bytes]:
    """What `string_content` joins; the texts are not copied. Raises as that does."""
    texts = [as_bytes(text) for text in rows.ravel()]
    return [b"".join(varint(len(text)) for text in texts), *texts]


def as_bytes(text: Any) -> bytes:
    """The bytes of a text; raises as `string_content` does."""
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise WireError(f"text column: {text!r} has no UTF-8 form ({error.reason})") from error
    raise WireError(f"text column: expected bytes or str, got {type(text).__name__}")


def decode_tensor(proto: Any) -> Array:
    """A Tensor message of `wire.schema` -> array of its dtype and shape (text: object of bytes).

    Raises:
      WireError: unknown dtype, a bad shape, or content of another size than the shape says.
    """
    dtype = numpy_dtype(proto.dtype)
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if any(size < 0 for size in shape):
        raise WireError(f"tensor shape {shape}: a stored tensor has no free sizes")
    if proto.dtype == STRING:
        return _decode_strings(proto.tensor_content, shape)
    expected = math.prod(shape) * dtype.itemsize
    if expected > MAX_TENSOR_BYTES:
        raise WireError(f"tensor {dtype}{list(shape)}: {expected} bytes, more than {MAX_TENSOR_BYTES}")
    raw = decompress(proto.tensor_content, expected)
    return _shaped(np.frombuffer(raw, np.uint8).view(dtype), shape)


def _shaped(values: Array, shape: tuple[int, ...]) -> Array:
    """The values in a shape of that size; numpy refuses more axes than it has, and huge sizes beside an empty one."""
    try:
        return values.reshape(shape)
    except ValueError as error:
        raise WireError(f"tensor of shape {list(shape)}: {error}") from error


def decompress(block: bytes, expected_bytes: int) -> bytes:
    """A snappy block -> its bytes.

    Raises:
      WireError: not a snappy block, or one of another size than `expected_bytes`.
    """
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size != expected_bytes:
            raise WireError(f"tensor content: snappy block of {size} bytes, the shape and dtype need {expected_bytes}")
        if size > MAX_EXPANSION * len(block):  # before room is made for it
            raise WireError(f"tensor content: {len(block)} bytes of snappy cannot hold the {size} bytes they promise")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise WireError(f"tensor content: not a snappy block ({error})") from error


def _decode_strings(content: bytes, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if count > len(content):
        raise WireError(f"string tensor {list(shape)}: {count} texts cannot be in {len(content)} bytes")
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
    return _shaped(out, shape)


# Numpy dtype <-> TensorFlow's DataType number, for every dtype that Reverb can store.
#
# Source: types.proto of TensorFlow 2.15; the dtypes are those of Reverb 0.14's Python bindings, and bfloat16. The server keeps
# bfloat16 and `reverb.TrajectoryDataset` returns it; `reverb.Client.sample` cannot make an array of it (probed).
#
# | numpy | wire | back |
# | --- | --- | --- |
# | bool, (u)int8 to (u)int64, float16/32/64, complex64/128 | the number below, snappy bytes | the same |
# | ml_dtypes.bfloat16 | 14, snappy bytes | ml_dtypes.bfloat16 |
# | object of bytes or str, S, U | 7, lengths and bytes, not compressed | object of bytes |
# | a big-endian dtype | swapped to little-endian | the little-endian dtype |
# | datetime64, timedelta64, void, longdouble | refused: `WireError` | |

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
    """The DataType number of a numpy dtype.

    Raises:
      WireError: Reverb has no such dtype.
    """
    if dtype.kind in "SU":
        return STRING
    number = _BY_DTYPE.get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)
    if number is None:
        known = ", ".join(str(known) for known in NUMPY_DTYPES.values())
        raise WireError(f"dtype {dtype}: Reverb cannot store it; convert the column to one of {known}")
    return number


def numpy_dtype(number: int) -> np.dtype[Any]:
    """The numpy dtype of a DataType number.

    Raises:
      WireError: the number is none of those Reverb stores.
    """
    if number not in NUMPY_DTYPES:
        raise WireError(f"tensor dtype number {number}: expected one of {sorted(NUMPY_DTYPES)}")
    return NUMPY_DTYPES[number]


def as_wire_array(column: Array) -> Array:
    """The column as the wire wants it: C order, little-endian, text as object. Copies only if it must."""
    if column.dtype.kind in "SU":
        return column.astype(object)
    if column.dtype.byteorder == ">":
        column = column.astype(column.dtype.newbyteorder("<"))
    return column if column.flags.c_contiguous else np.ascontiguousarray(column)
