"""Numpy dtype <-> TensorFlow's DataType number, for every dtype that Reverb can store.

Source: types.proto of TensorFlow 2.15; the dtypes are those of Reverb 0.14's Python bindings, and bfloat16. The server keeps
bfloat16 and `reverb.TrajectoryDataset` returns it; `reverb.Client.sample` cannot make an array of it (probed).

| numpy | wire | back |
| --- | --- | --- |
| bool, (u)int8 to (u)int64, float16/32/64, complex64/128 | the number below, snappy bytes | the same |
| ml_dtypes.bfloat16 | 14, snappy bytes | ml_dtypes.bfloat16 |
| object of bytes or str, S, U | 7, lengths and bytes, not compressed | object of bytes |
| a big-endian dtype | swapped to little-endian | the little-endian dtype |
| datetime64, timedelta64, void, longdouble | refused: `WireError` | |
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError

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
