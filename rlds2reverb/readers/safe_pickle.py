"""Pickles of unknown origin: numpy's arrays, scalars and dtypes come out, anything else is refused by its name.

A pickle is a program that may call any function. Here it may call the few that numpy's own values are made with, and classes that
a format allows by name. Those become `Inert` objects: what was pickled of them, and no code of theirs.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.wording import shortened


class Inert:
    """What a pickle says of an object of a class that is not loaded.

    Attributes:
      class_name: "module.name", as the pickle has it.
      arguments: what it was made with.
      state: what was set on it afterwards; None for nothing.
    """

    class_name = ""

    def __new__(cls, *arguments: Any) -> Inert:
        made = super().__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    arguments: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


def safe_loads(data: bytes, where: str, inert: Mapping[str, str] | frozenset[str] = frozenset()) -> Any:
    """What a pickle holds.

    Args:
      data: the pickle.
      where: what messages call it.
      inert: "module.name" of classes whose objects become `Inert`.

    Raises:
      SourceError: it is damaged, or refers to anything but numpy's values and these classes; says what.
    """
    try:
        return _Unpickler(io.BytesIO(data), where, frozenset(inert)).load()
    except SourceError:
        raise
    except Exception as error:  # what a damaged pickle raises has no end: any operation may fail in any way
        raise SourceError(
            f"{where}: a damaged pickle: {type(error).__name__}: {shortened(' '.join(str(error).split()))}"
        ) from error


def _scalar(dtype: Any, value: Any = b"") -> Any:
    """Numpy's scalar, without those that hold a pickle of their own."""
    if (
        not isinstance(dtype, np.dtype)
        or dtype.hasobject
        or not isinstance(value, bytes)
        or len(value) != dtype.itemsize
    ):
        raise ValueError("a numpy scalar that is none")
    return np.frombuffer(value, dtype)[0]


def _array(kind: Any, shape: Any, _typecode: Any) -> Any:
    """The empty array that numpy makes first, and fills by `__setstate__`."""
    if kind is not np.ndarray or shape not in ((0,), 0):
        raise ValueError("a numpy array that does not begin empty")
    return np.ndarray.__new__(np.ndarray, (0,), np.dtype("b"))


def _codecs_encode(text: Any, encoding: Any) -> bytes:
    """How protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise ValueError("bytes that are none")
    return text.encode("latin1")


def _frombuffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """How protocol 5 writes arrays."""
    if not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise ValueError("an array of objects")
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


_NUMPY_CORES = ("numpy.core", "numpy._core")
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _codecs_encode,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    **{(f"{core}.multiarray", "_reconstruct"): _array for core in _NUMPY_CORES},
    **{(f"{core}.multiarray", "scalar"): _scalar for core in _NUMPY_CORES},
    **{(f"{core}.numeric", "_frombuffer"): _frombuffer for core in _NUMPY_CORES},
    **{("numpy", name): getattr(np, name) for name in ("float32", "float64", "int32", "int64", "uint8", "bool_")},
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, where: str, inert: frozenset[str]) -> None:
        super().__init__(file)
        self._where, self._inert = where, inert

    def find_class(self, module: str, name: str) -> Any:
        """What the pickle may call."""
        module = {"__builtin__": "builtins"}.get(module, module)
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if f"{module}.{name}" in self._inert:
            return type(name, (Inert,), {"class_name": f"{module}.{name}"})
        raise SourceError(
            f'{self._where}: refused: the pickle refers to "{shortened(f"{module}.{name}")}"; only arrays and numbers of numpy are '
            "loaded, for anything else may run code. Write the data anew without it"
        )

    def persistent_load(self, pid: Any) -> Any:
        """Refuses what lies outside the pickle."""
        raise SourceError(f"{self._where}: refused: the pickle refers to something outside of it")
