"""Pickles as numpy 1 writes them, protocol 4: `numpy.core.multiarray`, which every numpy reads, with or without an alias.

The pickle of an array is the same for all arrays of a dtype and shape but for the array's bytes, so it is made by joining.
Source of the instructions: Lib/pickletools.py; of the arguments: `ndarray.__reduce__`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_PROTO, _STOP = b"\x80\x04", b"."
_MARK, _TUPLE, _REDUCE, _BUILD, _NONE = b"(", b"t", b"R", b"b", b"N"
_DICT, _SET_ITEMS, _LIST, _APPENDS, _STACK_GLOBAL = b"}", b"u", b"]", b"e", b"\x93"
_TRUE, _FALSE = b"\x88", b"\x89"


@dataclass(frozen=True)
class Named:
    """A class or a function by name, or what a call of it gives.

    Attributes:
      module, name: of it.
      arguments: of the call; None for the thing itself.
    """

    module: str
    name: str
    arguments: tuple[Any, ...] | None = None


def pickled(value: Any) -> bytes:
    """The pickle of plain values, arrays, dtypes and `Named`."""
    return _PROTO + _of(value) + _STOP


def row_pickles(rows: Iterable[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[bytes]:
    """The pickles of arrays, or of numpy's scalars where the shape is empty, of these bytes."""
    start, end = around(dtype, shape)
    start, end = _PROTO + start, end + _STOP
    return [start + row + end for row in rows]


def around(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What stands before and behind an array's bytes."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not shape:
        return _of(Named("numpy.core.multiarray", "scalar")) + _MARK + _of(dtype) + _sized(count), _TUPLE + _REDUCE
    empty = Named("numpy.core.multiarray", "_reconstruct", (Named("numpy", "ndarray"), (0,), b"b"))
    return _of(empty) + _MARK + _of(1) + _of(shape) + _of(dtype) + _FALSE + _sized(count), _TUPLE + _BUILD


def joined(parts: Mapping[str, Any]) -> bytes:
    """The pickle's part that makes a dictionary; values are `bytes` that make one each, or dictionaries of such."""
    items = (_of(key) + (joined(part) if isinstance(part, Mapping) else part) for key, part in parts.items())
    return _DICT + _MARK + b"".join(items) + _SET_ITEMS


def whole(part: bytes) -> bytes:
    """The pickle of what a part makes."""
    return _PROTO + part + _STOP


def part_of(value: Any) -> bytes:
    """The part of a pickle that makes a value."""
    return _of(value)


def _of(value: Any) -> bytes:
    if isinstance(value, Named):
        thing = _of(value.module) + _of(value.name) + _STACK_GLOBAL
        return thing if value.arguments is None else thing + _of(value.arguments) + _REDUCE
    if isinstance(value, np.dtype):
        return _dtype(value)
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        start, end = around(array.dtype, array.shape)
        return start + array.tobytes() + end
    if isinstance(value, Mapping):
        return joined({key: _of(one) for key, one in value.items()})
    return _plain(value)


def _plain(value: Any) -> bytes:
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return _sized(len(value)) + value
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return (b"\x8c" + bytes((len(data),)) if len(data) < 256 else b"X" + struct.pack("<I", len(data))) + data
    if isinstance(value, tuple):
        return _MARK + b"".join(map(_of, value)) + _TUPLE
    if isinstance(value, list):
        return _LIST + _MARK + b"".join(map(_of, value)) + _APPENDS
    raise TypeError(f"{type(value).__name__}: not pickled here")


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes((value,))
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes((len(data),)) + data


def _sized(count: int) -> bytes:
    """The instruction for so many bytes, which follow."""
    if count < 1 << 8:
        return b"C" + bytes((count,))
    return b"B" + struct.pack("<I", count) if count < 1 << 32 else b"\x8e" + struct.pack("<Q", count)


def _dtype(dtype: np.dtype[Any]) -> bytes:
    order, code = dtype.str[0], dtype.str[1:]
    made = Named("numpy", "dtype", (code, False, True))
    return _of(made) + _of((3, order, None, None, None, -1, -1, 0)) + _BUILD
