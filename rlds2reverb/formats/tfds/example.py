"""The lists of a `tf.train.Example`, and the arrays that they hold, with numpy and protobuf alone.

An Example is a map of keys to lists of 64-bit integers, of 32-bit floats, or of byte strings. Lists of numbers are normally packed:
floats one after another are the array itself, integers are varints, which numpy decodes a list at a time. Lists that are not packed, or
in several pieces, are equally legal; protobuf reads those. The messages are declared so that protobuf copies the numbers' bytes and makes
no Python object of each.

Source: example.proto and feature.proto of TensorFlow 2.15; https://protobuf.dev/programming-guides/encoding; example_parser.py of TFDS 4.9.10.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.features import ZLIB, Shape, TensorFeature
from rlds2reverb.protobuf import KEY_BYTES, message_classes, unpacked_varints

_MESSAGES = {
    # feature.proto. A map on the wire is a repeated entry; of two entries with one key, the last counts. Lists of numbers
    # are messages, kept as their bytes.
    "BytesList": ("repeated bytes value = 1",),
    "Feature": ("BytesList bytes_list = 1", "repeated bytes float_list = 2", "repeated bytes int64_list = 3"),
    "Entry": ("bytes key = 1", "Feature value = 2"),
    "Features": ("repeated Entry feature = 1",),
    "Example": ("Features features = 1",),
    # The lists, for those that are not packed in one piece.
    "FloatList": ("repeated float value = 1",),
    "Int64List": ("repeated int64 value = 1",),
}
_CLASSES = message_classes("rlds2reverb.example", _MESSAGES)
_EXAMPLE, _FLOATS, _INTEGERS = (_CLASSES[name] for name in ("Example", "FloatList", "Int64List"))

_PACKED = 0x0A  # field 1, length-delimited

_FEW_BYTES = 512
"""Protobuf reads a list of at most so many bytes, such as a single number, faster than numpy."""

_FLOAT32 = np.dtype("<f4")

Lists = dict[bytes, Any]
"""Key -> the message of its list; see `floats`, `integers` and `texts`, which raise `SourceError` for another kind of list, or a damaged one."""


def read_lists(record: bytes, where: str) -> Lists:
    """The lists of a serialized `tf.train.Example` by key, not decoded yet. Raises `SourceError` if the bytes are no such message."""
    try:
        entries = _EXAMPLE.FromString(record).features.feature
    except DecodeError as error:
        raise SourceError(f"{where}: not a tf.train.Example; the file is damaged, or of another kind") from error
    return {entry.key: entry.value for entry in entries}


def is_empty(feature: Any) -> bool:
    """Whether a feature has no list of any kind; TensorFlow takes such a feature for a missing one."""
    return not (feature.float_list or feature.int64_list or feature.HasField("bytes_list"))


def floats(feature: Any, where: str) -> Array:
    """[n] float32, owned and aligned."""
    data, start = _find_list(feature, feature.float_list, "floats", where)
    if start is None or (len(data) - start) % 4:
        return np.array(list(_parse_list(_FLOATS, data, where)), np.float32)
    return np.frombuffer(data, _FLOAT32, offset=start).astype(np.float32)


def integers(feature: Any, where: str) -> Array:
    """[n] int64, or uint8 where all are below 128."""
    data, start = _find_list(feature, feature.int64_list, "integers", where)
    if start is None or (len(data) <= _FEW_BYTES and not data.isascii()):
        return np.array(list(_parse_list(_INTEGERS, data, where)), np.int64)
    return varints(data[start:], where)


def texts(feature: Any, where: str) -> list[bytes]:
    """The byte strings of a list."""
    values = list(feature.bytes_list.value)
    if not values and not feature.HasField("bytes_list") and not is_empty(feature):
        raise _another_kind(feature, "byte strings", where)
    return values


def varints(encoded: bytes, where: str) -> Array:
    """Varints one after another -> their values [n]: int64, or uint8 where all are below 128."""
    if encoded.isascii():  # each is one byte
        return np.frombuffer(encoded, np.uint8)
    values = unpacked_varints(encoded)
    if values is None:
        raise SourceError(
            f"{where}: a list of integers ends within a number, or has one of more than ten bytes; the file is damaged"
        )
    return values


def _find_list(feature: Any, lists: Any, kind: str, where: str) -> tuple[bytes, int | None]:
    """The message of a list, its pieces joined; and where its numbers begin, None if they are not packed in one piece."""
    if not lists and not is_empty(feature):
        raise _another_kind(feature, kind, where)
    data = lists[0] if len(lists) == 1 else b"".join(lists)
    if not data:
        return data, 0
    length = shift = 0  # read here, for a call of `read_varint` costs more than a short list
    for at in range(1, min(len(data), KEY_BYTES)) if data[0] == _PACKED else ():
        length |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return data, at + 1 if length == len(data) - at - 1 else None
        shift += 7
    return data, None


def _parse_list(message: Any, data: bytes, where: str) -> Any:
    try:
        return message.FromString(data).value
    except DecodeError as error:
        raise SourceError(f"{where}: its list is damaged; the file is damaged, or of another kind") from error


def _another_kind(feature: Any, expected: str, where: str) -> SourceError:
    kinds = {
        "floats": feature.float_list,
        "integers": feature.int64_list,
        "byte strings": feature.HasField("bytes_list"),
    }
    kind = next((kind for kind, is_there in kinds.items() if is_there), "no list")
    return SourceError(f"{where}: expected a list of {expected}, found {kind}: features.json does not fit the files")


# Lists -> arrays [n, *shape] of a tensor feature: n items, one after another in the list.
#
# | dtype | stored as | note |
# | --- | --- | --- |
# | bool, integers | 64-bit integers | uint64 by its bits; smaller ones are cut to their size, as TensorFlow does |
# | float16, float32, float64 | 32-bit floats | float64 comes back as it was rounded |
# | bytes | bytes | |
# | any number with encoding `bytes` | the array's bytes, little-endian, one byte string per item | |
# | any number with encoding `zlib` | zlib of that | not decompressed further than the shape allows |

_MOST_BYTES = 1 << 31
"""Most bytes of one item, decompressed."""
_MOST_MISSING_BYTES = 1 << 28
"""Most bytes of an item that stands for a missing one: the file holds no bytes in proportion to its size."""
_BEST_RATIO = 1040
"""zlib makes data at most 1,032 times smaller; and a few bytes are its head and its end."""


def plain_items(tensor: TensorFeature, feature: Any, where: str) -> Array:
    """Items whose values stand in the list as they are (encoding "none"): [n, *shape]; of a shape with a free size, one item."""
    dtype, shape, size = tensor.dtype, tensor.shape, tensor.size
    values: Array
    if dtype.kind == "f":
        values = floats(feature, where)
        if dtype != values.dtype:
            with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
                values = values.astype(dtype)
    elif dtype.kind == "O":
        values = np.array(texts(feature, where), object)
    else:
        values = integers(feature, where).astype(dtype)  # to bool: whether it is another number than 0
    if not shape:
        return values
    count = _count_items(len(values), size, f"{where}: has {len(values):,} values", shape)
    if None in shape:
        return values.reshape(1, *(count if size is None else size for size in shape))
    return values.reshape(count, *shape)


def _count_items(length: int, size: int, what: str, shape: Shape) -> int:
    """The number of items of a size in a length; 0 where both are 0."""
    if length % size if size else length:
        raise SourceError(f"{what}; expected a multiple of {size:,}, for the shape {shape}")
    return length // size if size else 0


def missing_item(tensor: TensorFeature, where: str) -> Array:
    """What TFDS reads where an optional feature is missing: the least value of the dtype, False, or an empty text; [1, *shape]."""
    shape, dtype = (1, *tensor.least_shape), tensor.dtype
    if math.prod(shape) * dtype.itemsize > _MOST_MISSING_BYTES:
        raise SourceError(
            f"{where}: is missing, and what stands for it, of the shape {tensor.shape}, would have more than "
            f"{_MOST_MISSING_BYTES:,} bytes"
        )
    if dtype.kind == "O":
        return np.full(shape, b"", object)
    if dtype.kind == "b":
        return np.zeros(shape, bool)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # of float64, a list of 32-bit floats holds -inf
            return np.full(shape, np.finfo(dtype).min).astype(np.float32).astype(dtype)
    return np.full(shape, np.iinfo(dtype).min, dtype)


def encoded_items(tensor: TensorFeature, values: Sequence[bytes], shapes: Array | None, where: str) -> Array:
    """Items that are byte strings (encoding "bytes" or "zlib"), all of one shape: [n, *shape]; with shapes [n, dimensions] where it `is_dynamic`."""
    dtype = tensor.dtype
    if not values:
        return np.zeros((0, *tensor.least_shape), dtype)
    shape = tensor.shape if shapes is None else _common_shape(tensor, shapes, len(values), where)
    is_packed = tensor.encoding == ZLIB
    if None in shape:
        if is_packed:  # all items have one shape, so none is decompressed further than the first
            first = _decompress(values[0], _MOST_BYTES, where)
            values = [first, *(_decompress(value, len(first), where) for value in values[1:])]
            is_packed = False
        known_bytes = tensor.size * dtype.itemsize
        free = _count_items(len(values[0]), known_bytes, f"{where}: has {len(values[0]):,} bytes", shape)
        shape = tuple(free if size is None else size for size in shape)
    size = math.prod(size or 0 for size in shape) * dtype.itemsize
    if is_packed:
        if len(values) * size > _BEST_RATIO * (sum(map(len, values)) + len(values)):
            raise SourceError(f"{where}: too short for items of {size:,} bytes; the file is damaged")
        values = [_decompress(value, size, where) for value in values]
    for value in values:
        if len(value) != size:
            raise SourceError(
                f"{where}: an item of {len(value):,} bytes; expected {size:,}, as its shape and the other items have"
            )
    data = b"".join(values)
    items: Array = np.frombuffer(data, np.uint8) != 0 if dtype.kind == "b" else np.frombuffer(data, dtype)
    return items.reshape(len(values), *(size or 0 for size in shape))


def _common_shape(tensor: TensorFeature, shapes: Array, count: int, where: str) -> tuple[int, ...]:
    """The shape of all items; a dynamic one is stored with every item."""
    if len(shapes) != count:
        raise SourceError(f"{where}: has {count:,} values and {len(shapes):,} shapes")
    first = tuple(int(size) for size in shapes[0])
    if (shapes != shapes[0]).any():
        other = next(tuple(int(size) for size in shape) for shape in shapes if tuple(shape) != first)
        raise SourceError(f"{where}: items of different shapes, {first} and {other}; all of an episode must have one")
    if any(size < 0 or declared not in (None, size) for size, declared in zip(first, tensor.shape)):
        raise SourceError(f"{where}: an item of the shape {first}; expected {tensor.shape}")
    if math.prod(size or 1 for size in first) * tensor.dtype.itemsize > _MOST_BYTES:  # also where another size is 0
        raise SourceError(f"{where}: an item of the shape {first}, of more than {_MOST_BYTES:,} bytes")
    return first


def _decompress(value: bytes, most: int, where: str) -> bytes:
    """Decompresses at most `most` + 1 bytes."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(value, most + 1)
    except zlib.error as error:
        raise SourceError(f"{where}: cannot be decompressed: {error}") from error
    if len(data) > most or not stream.eof:
        raise SourceError(f"{where}: an item that is cut, or of more than {most:,} bytes when decompressed")
    return data
