"""Lists of an Example -> arrays [n, *shape] of a tensor feature: n items, one after another in the list.

| dtype | stored as | note |
| --- | --- | --- |
| bool, integers | 64-bit integers | uint64 by its bits; others are cut to their size, as TensorFlow does |
| float16, float32, float64 | 32-bit floats | float64 comes back as it was rounded |
| bytes | bytes | |
| any number with encoding `bytes` | the array's bytes, little-endian, one byte string per item | |
| any number with encoding `zlib` | zlib of that | not decompressed further than the shape allows |

Source: example_serializer.py, example_parser.py and tensor_feature.py of TFDS 4.9.10.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.tfds_files.example import floats, integers, texts
from rlds2reverb.tfds_files.features import ZLIB, TensorFeature

_MOST_BYTES = 1 << 31
"""Most bytes of one item, decompressed."""
_MOST_MISSING_BYTES = 1 << 28
"""Most bytes of an item that stands for a missing one: no byte of the file answers for its size."""
_BEST_RATIO = 1040
"""zlib makes data at most 1,032 times smaller; and a few bytes are its head and its end."""


def plain_items(tensor: TensorFeature, feature: Any, where: str) -> Array:
    """Items whose values stand in the list as they are: [n, *shape]; of a shape with a free size, one item.

    Args:
      tensor: what is expected, encoding "none".
      feature: the message with the list.
      where: what messages call it.

    Raises:
      SourceError: another kind of list, or one that is no number of items.
    """
    values = _values(tensor.dtype, feature, where)
    if not tensor.shape:
        return values
    size = tensor.size
    if len(values) % size if size else len(values):
        raise SourceError(
            f"{where}: has {len(values):,} values; expected a multiple of {size:,}, for the shape {tensor.shape}"
        )
    count = len(values) // size if size else 0
    if None in tensor.shape:
        return values.reshape(1, *(count if one is None else one for one in tensor.shape))
    return values.reshape(count, *tensor.shape)


def missing_item(tensor: TensorFeature, where: str) -> Array:
    """What TFDS reads where an optional feature is missing: the least value of the dtype, False, or an empty text; [1, *shape].

    Raises:
      SourceError: it would have more than 256 MiB.
    """
    shape, dtype = (1, *(size or 0 for size in tensor.shape)), tensor.dtype
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
    """Items that are byte strings: [n, *shape]. All have one shape.

    Args:
      tensor: what is expected, encoding "bytes" or "zlib".
      values: one byte string per item.
      shapes: [n, dimensions], where the tensor `is_dynamic`; else None.
      where: what messages call it.

    Raises:
      SourceError: a byte string of another size, that cannot be decompressed; or items of different shapes.
    """
    if not values:
        return np.zeros((0, *(size or 0 for size in tensor.shape)), tensor.dtype)
    shape = tensor.shape if shapes is None else _common_shape(tensor, shapes, len(values), where)
    if None in shape:
        values = _unpacked_alike(tensor, values, where)
        shape = _divided(tensor, len(values[0]), where)
        data = _joined(values, math.prod(filter(None, shape)) * tensor.dtype.itemsize if 0 not in shape else 0, where)
    else:
        data = _data(tensor, values, math.prod(size or 0 for size in shape) * tensor.dtype.itemsize, where)
    return _as_dtype(data, tensor.dtype).reshape(len(values), *(size or 0 for size in shape))


def _values(dtype: np.dtype[Any], feature: Any, where: str) -> Array:
    """A list of an Example as the dtype; [n]."""
    kind = dtype.kind
    if kind == "f":
        return _as_float(floats(feature, where), dtype)
    if kind == "O":
        return np.array(texts(feature, where), object)
    return integers(feature, where).astype(dtype)  # to bool: whether it is another number than 0


def _as_float(values: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == values.dtype:
        return values
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
        return values.astype(dtype)


def _common_shape(tensor: TensorFeature, shapes: Array, count: int, where: str) -> tuple[int, ...]:
    """The shape of all items; a dynamic one is stored with every item."""
    if len(shapes) != count:
        raise SourceError(f"{where}: has {count:,} values and {len(shapes):,} shapes")
    first = tuple(int(size) for size in shapes[0])
    if (shapes != shapes[0]).any():
        other = next(tuple(int(size) for size in one) for one in shapes if tuple(one) != first)
        raise SourceError(f"{where}: items of different shapes, {first} and {other}; all of an episode must have one")
    if any(size < 0 or wanted not in (None, size) for size, wanted in zip(first, tensor.shape)):
        raise SourceError(f"{where}: an item of the shape {first}; expected {tensor.shape}")
    if math.prod(size or 1 for size in first) * tensor.dtype.itemsize > _MOST_BYTES:  # a size of 0 makes room for none
        raise SourceError(f"{where}: an item of the shape {first}, of more than {_MOST_BYTES:,} bytes")
    return first


def _divided(tensor: TensorFeature, length: int, where: str) -> tuple[int, ...]:
    """The shape of an item of so many bytes, where one size is free."""
    size = tensor.size * tensor.dtype.itemsize
    if length % size if size else length:
        raise SourceError(
            f"{where}: has {length:,} bytes; expected a multiple of {size:,}, for the shape {tensor.shape}"
        )
    return tuple((length // size if size else 0) if one is None else one for one in tensor.shape)


def _data(tensor: TensorFeature, values: Sequence[bytes], size: int, where: str) -> Any:
    """The bytes of all items, each of `size` bytes."""
    if tensor.encoding != ZLIB:
        return _joined(values, size, where)
    if len(values) * size > _BEST_RATIO * (sum(map(len, values)) + len(values)):
        raise SourceError(f"{where}: too short for items of {size:,} bytes; the file is damaged")
    try:
        out = np.empty((len(values), size), np.uint8)
    except MemoryError as error:
        raise SourceError(f"{where}: no memory for {len(values):,} items of {size:,} bytes") from error
    for row, value in zip(out, values):
        row[:] = np.frombuffer(_sized(_unpacked(tensor, value, size, where), size, where), np.uint8)
    return out


def _joined(values: Sequence[bytes], size: int, where: str) -> bytes:
    for value in values:
        _sized(value, size, where)
    return b"".join(values)


def _sized(value: bytes, size: int, where: str) -> bytes:
    if len(value) != size:
        raise SourceError(
            f"{where}: an item of {len(value):,} bytes; expected {size:,}, as its shape and the others have"
        )
    return value


def _unpacked_alike(tensor: TensorFeature, values: Sequence[bytes], where: str) -> list[bytes]:
    """Items of a shape with a free size. All have one shape, so none is decompressed further than the first."""
    first = _unpacked(tensor, values[0], _MOST_BYTES, where)
    return [first, *(_unpacked(tensor, value, len(first), where) for value in values[1:])]


def _unpacked(tensor: TensorFeature, value: bytes, most: int, where: str) -> bytes:
    """An item's bytes; at most one more than `most` are decompressed."""
    if tensor.encoding != ZLIB:
        return value
    try:
        stream = zlib.decompressobj()
        found = stream.decompress(value, most + 1)
    except zlib.error as error:
        raise SourceError(f"{where}: cannot be decompressed: {error}") from error
    if len(found) > most or not stream.eof:
        raise SourceError(f"{where}: an item that is cut, or of more than {most:,} bytes when decompressed")
    return found


def _as_dtype(data: Any, dtype: np.dtype[Any]) -> Array:
    if dtype.kind != "b":
        return np.frombuffer(data, dtype)
    values: Array = np.frombuffer(data, np.uint8) != 0
    return values
