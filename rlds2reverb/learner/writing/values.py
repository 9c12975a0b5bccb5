"""What one value of a step may be: the spec that it shows, and the value as its column takes it.

| value | column |
| --- | --- |
| a numpy array or scalar, or what turns into one (`__array__`: tensors on the CPU) | its dtype and shape, which stay the same |
| a Python `bool` | bool |
| a Python `int` | the dtype of the column, integer or float; int64 where nothing else is known |
| a Python `float` | the float dtype of the column, rounded to it; float32 where nothing else is known |
| `numpy.float64`, which is a Python `float` | the same; float64 where nothing else is known |
| `str`, `bytes`, arrays of them | text |

"Known" is what the tables' signatures or the option `spec` say, or the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError, WireError
from rlds2reverb.specs import ArraySpec, column_spec, same_dtype
from rlds2reverb.wire.dtypes import wire_number

DType = np.dtype[Any]

_TEXT = np.dtype(object)
_FLOATS = tuple(np.dtype(kind) for kind in ("f4", "f8", "f2"))
_INTEGERS = tuple(np.dtype(kind) for kind in ("i8", "i4", "u1", "i2", "i1", "u2", "u4", "u8"))


def spec_of_value(path: str, value: Any) -> tuple[ArraySpec, Sequence[DType]]:
    """The spec of a column that begins with this value, and the dtypes that it might have as well.

    Raises:
      ConfigError: the value is nothing that a column holds.
    """
    if isinstance(value, (str, bytes)):
        return ArraySpec((), _TEXT), ()
    if isinstance(value, bool):
        return ArraySpec((), np.dtype(bool)), ()
    if isinstance(value, int):
        return ArraySpec((), _INTEGERS[0]), (*_INTEGERS, *_FLOATS)
    if isinstance(value, float):
        return ArraySpec((), _FLOATS[0] if type(value) is float else np.dtype(np.float64)), _FLOATS
    spec = column_spec(_as_array(path, value)[None])
    try:
        wire_number(spec.dtype)
    except WireError as error:
        raise ConfigError(f'step: column "{path}": {error}') from None
    return ArraySpec(spec.shape, np.dtype(spec.dtype.type)), ()  # in the byte order of the machine


def value_for(path: str, value: Any, spec: ArraySpec) -> Any:
    """The value as it is put into a column of this spec.

    Raises:
      ConfigError: its dtype or shape is another one, or the number does not fit; says which column.
    """
    if spec.shape == () and isinstance(value, (float, int)) and not isinstance(value, bool):
        if spec.dtype.kind == "f" or spec.dtype.name == "bfloat16":
            return value if isinstance(value, float) else _as_float(path, value)
        if isinstance(value, int) and spec.dtype.kind in "iu":
            return _checked_integer(path, int(value), spec)
    if spec.dtype.kind == "O":
        return _text(path, value, spec)
    found = spec_of_value(path, value)[0]
    if found.shape != spec.shape or not same_dtype(found.dtype, spec.dtype):
        raise _differs(path, found, spec)
    return value if isinstance(value, bool) else _as_array(path, value)


def _as_float(path: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(
            f'step: column "{path}": the number is larger than any float. Nothing of this step was taken'
        ) from None


def _checked_integer(path: str, value: int, spec: ArraySpec) -> int:
    bounds = np.iinfo(spec.dtype)
    if not bounds.min <= value <= bounds.max:
        raise ConfigError(
            f'step: column "{path}" is {spec}, which holds {bounds.min} to {bounds.max}; got {value}. Nothing of this step was taken'
        )
    return value


def _text(path: str, value: Any, spec: ArraySpec) -> Any:
    if spec.shape == () and isinstance(value, (str, bytes)):
        return value.encode() if isinstance(value, str) else bytes(value)
    found = spec_of_value(path, value)[0]
    if found.shape != spec.shape or found.dtype != spec.dtype:
        raise _differs(path, found, spec)
    array = _as_array(path, value)
    texts = np.empty(array.size, object)
    for number, text in enumerate(array.ravel().tolist()):
        if not isinstance(text, (str, bytes)):
            raise ConfigError(f'step: column "{path}": expected text (bytes or str), got {type(text).__name__}')
        texts[number] = text.encode() if isinstance(text, str) else text
    return texts.reshape(array.shape) if spec.shape else texts[0]


def _as_array(path: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigError(f'step: column "{path}": a masked array; fill it, or record the mask in a column of its own')
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        return np.asarray(value)
    if isinstance(value, complex):
        return np.asarray(value)
    raise ConfigError(
        f'step: column "{path}": expected a number, text or a numpy array, got {type(value).__name__}. Nothing of this step was taken'
    )


def _differs(path: str, found: ArraySpec, wanted: ArraySpec) -> ConfigError:
    return ConfigError(f'step: column "{path}": expected {wanted}, got {found}. Nothing of this step was taken')
