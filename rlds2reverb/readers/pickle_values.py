"""What a pickle may make: numpy's values and a few of Python's, each by a function that believes nothing it is told.

Sources of the layouts: numpy/core/src/multiarray (`array_setstate`, `arraydescr_setstate`), Lib/copyreg.py, Lib/pickle.py.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wording import shortened


class Refused(Exception):
    """A pickle asks for something that is not done for it."""


class Inert:
    """What a pickle says of an object of a class that is not loaded.

    Attributes:
      class_name: "module.name", as the pickle has it.
      arguments: what it was made with.
      state: what was set on it afterwards; None for nothing.
    """

    class_name = ""

    def __init__(self, arguments: tuple[Any, ...] = ()) -> None:
        self.arguments, self.state = arguments, None

    arguments: tuple[Any, ...]
    state: Any

    def __repr__(self) -> str:
        return f"<{self.class_name}, not loaded>"


@dataclass(frozen=True, eq=False)
class Function:
    """Something that a pickle may call, and nothing else with it."""

    name: str
    call: Callable[..., Any]


@dataclass(eq=False)
class Unfinished(ABC):
    """An array or a dtype whose state is still to come.

    Attributes:
      places: where the memo has it.
    """

    places: list[int] = field(default_factory=list)

    @abstractmethod
    def finished(self, state: Any) -> Any:
        """The value, once its state is there."""


class EmptyArray(Unfinished):
    """An array before its contents are known, as numpy pickles it."""

    def finished(self, state: Any) -> Array:
        """The array of a `__setstate__`: ([version,] shape, dtype, is_fortran, contents)."""
        shape, kind, is_fortran, contents = state[-4:]
        return _array(contents, dtype_of(kind), shape, "F" if is_fortran else "C")


@dataclass(eq=False)
class Dtype(Unfinished):
    """A dtype. Its byte order, and the fields of a structured one, are its state."""

    value: np.dtype[Any] = np.dtype(bool)

    def finished(self, state: Any) -> np.dtype[Any]:
        """The dtype of a `__setstate__`: (version, order, dtype and shape of its parts, names, fields, size, ...)."""
        _, order, part, names, fields, size, *_ = state
        if part is not None:
            return np.dtype((dtype_of(part[0]), part[1]))
        if names:
            return _structured(names, [fields[name] for name in names], size)
        return np.dtype(order + self.value.str[1:]) if order in ("<", ">", "=") else self.value


def _structured(names: Any, fields: list[Any], size: Any) -> np.dtype[Any]:
    formats = [dtype_of(one[0]) for one in fields]
    if any(one.hasobject for one in formats):
        raise Refused("the pickle has structured arrays of objects")
    offsets = [one[1] for one in fields]
    return np.dtype({"names": list(names), "formats": formats, "offsets": offsets, "itemsize": size})


_DTYPE = re.compile(r"[|<>=]?([biufc?O]|[SUV])\d{0,9}")
_LARGEST_ITEM = 1 << 30
_LARGEST_SIZE = 1 << 40


def named_dtype(name: Any, *_: Any) -> Dtype:
    """What `numpy.dtype("u1", False, True)` stands for."""
    if isinstance(name, bytes):
        name = name.decode("ascii")
    if isinstance(name, type) and issubclass(name, np.generic):
        return Dtype(value=np.dtype(name))
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise Refused(f"the pickle has an array of {shortened(repr(name))}; only numbers, texts and objects are read")
    made: np.dtype[Any] = np.dtype(name)
    if made.itemsize > _LARGEST_ITEM:
        raise ValueError("an item of more than a GiB")
    return Dtype(value=made)


def dtype_of(found: Any) -> np.dtype[Any]:
    """The dtype that stands there; an error where none does."""
    found = found.value if isinstance(found, Dtype) else found
    if not isinstance(found, np.dtype):
        raise TypeError(f"expected a dtype, found {type(found).__name__}")
    return found


def empty_array(kind: Any, shape: Any, _code: Any) -> EmptyArray:
    """What `numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")` stands for."""
    if kind is not NDARRAY:
        raise Refused("the pickle has an array of a class of its own")
    return EmptyArray()


def _array(contents: Any, dtype: np.dtype[Any], shape: Any, order: Any) -> Array:
    """An array over these bytes; of these objects for a dtype of objects."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(size, int) and 0 <= size < _LARGEST_SIZE for size in shape):
        raise ValueError(f"an array of shape {shortened(str(shape))}")
    if dtype.hasobject:
        return _objects(contents, shape, order)
    if isinstance(contents, str):
        contents = contents.encode("latin1")
    if not isinstance(contents, (bytes, bytearray)) or len(contents) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {shortened(str(shape))} and {dtype} without the bytes for it")
    if dtype.itemsize == 0 and math.prod(shape):
        raise ValueError("an array of values without bytes")
    return np.ndarray(shape, dtype, bytes(contents), order="F" if order == "F" else "C")


def _objects(contents: Any, shape: tuple[int, ...], order: Any) -> Array:
    if not isinstance(contents, list) or len(contents) != math.prod(shape):
        raise ValueError(f"an array of shape {shortened(str(shape))} without as many objects")
    flat = np.empty(len(contents), object)
    for number, one in enumerate(contents):
        flat[number] = one
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _scalar(kind: Any, value: Any = b"") -> Any:
    dtype = dtype_of(kind)
    if isinstance(value, str):
        value = value.encode("latin1")
    if dtype.hasobject or not isinstance(value, bytes) or len(value) != dtype.itemsize:
        raise ValueError("a numpy scalar that is none")
    return np.frombuffer(value, dtype)[0] if value else dtype.type()


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """How bytes are written before protocol 3."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes that are none")
    return text.encode("latin1")


def _from_buffer(buffer: Any, kind: Any, shape: Any, order: Any) -> Array:
    """How protocol 5 writes arrays."""
    return _array(buffer, dtype_of(kind), shape, order)


def _bytes(*nothing: Any) -> bytes:
    """How no bytes are written before protocol 3."""
    if nothing:
        raise Refused("the pickle calls bytes")
    return b""


def _bytearray(value: Any = b"", encoding: Any = "latin1") -> bytearray:
    return bytearray(value if isinstance(value, (bytes, bytearray)) else _encoded(value, encoding))


def _complex(real: Any, imaginary: Any = 0.0) -> complex:
    return complex(*(one if isinstance(one, (int, float)) else math.nan for one in (real, imaginary)))


def _set(values: Any = ()) -> set[Any]:
    if not isinstance(values, (list, tuple)):
        raise TypeError("a set of something that is no list")
    return set(map(Hashes().take, values))


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    taken = Hashes()
    return OrderedDict((taken.take(key), value) for key, value in items)


_MODULUS = (1 << 61) - 1
"""Python's hash of a number is the number modulo this, so that whoever writes a pickle chooses it; that of a text is drawn at random."""
_MOST_ALIKE = 100
_MOST_PARTS = 100
_LONGEST_KEY = 1 << 16


class Hashes:
    """The hashes of the keys of one dictionary, or of the members of one set.

    Keys of one hash are compared with each other: n of them cost n * n. Two numbers of a dataset that have one hash are rare.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def take(self, key: Any) -> Any:
        """The key, when it is a text, a number, or a short tuple of these.

        Raises:
          Refused: it is of another kind, too long, or one of too many that have its hash.
        """
        if has_own_hash(key):
            return key
        value = hash(key)
        self._counts[value] = self._counts.get(value, 0) + 1
        if self._counts[value] > _MOST_ALIKE:
            raise Refused(
                f"the pickle has a dictionary or a set with more than {_MOST_ALIKE} keys of the same hash, as no dataset has by chance"
            )
        return key


def has_own_hash(key: Any) -> bool:
    """Whether hardly any other key has this one's hash; False for those of which a pickle can make many.

    Raises:
      Refused: its hash may take long, or may call something.
    """
    if isinstance(key, (str, bytes)):
        if len(key) > _LONGEST_KEY:
            raise Refused(f"the pickle has a key of {len(key):,} characters; expected at most {_LONGEST_KEY:,}")
        return True
    if type(key) in (int, bool) and -_MODULUS < key < _MODULUS:
        return True
    _check_parts(key)
    return False


def _check_parts(key: Any) -> None:
    left, parts = [key], 0
    while left:
        one, parts = left.pop(), parts + 1
        if type(one) is tuple and parts + len(left) + len(one) <= _MOST_PARTS:
            left.extend(one)
        elif isinstance(one, (str, bytes)) and len(one) <= _LONGEST_KEY // _MOST_PARTS:
            continue
        elif not isinstance(one, (int, float, type(None), np.bool_, np.number)):
            raise Refused(
                f"the pickle has a dictionary or a set with {type(one).__name__} as a key, or in one; expected a text, a number, or a short tuple of these"
            )


def _not_called(*_: Any) -> None:
    raise Refused("the pickle calls what only stands for a class")


NDARRAY = Function("numpy.ndarray", _not_called)
OBJECT = Function("builtins.object", _not_called)
RECONSTRUCTOR = Function("copyreg._reconstructor", _not_called)
"""How protocols 0 and 1 make an object of a class."""

_CORES = ("numpy.core", "numpy._core")
_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.dtype": named_dtype,
    "collections.OrderedDict": _ordered,
    "_codecs.encode": _encoded,
    "builtins.bytes": _bytes,
    "builtins.complex": _complex,
    "builtins.bytearray": _bytearray,
    "builtins.set": _set,
    "builtins.frozenset": lambda values=(): frozenset(_set(values)),
    **{f"{core}.multiarray._reconstruct": empty_array for core in _CORES},
    **{f"{core}.multiarray.scalar": _scalar for core in _CORES},
    **{f"{core}.numeric._frombuffer": _from_buffer for core in _CORES},
}
_SCALARS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
KNOWN: dict[str, Any] = {
    **{name: Function(name, call) for name, call in _CALLS.items()},
    **{f"numpy.{name}": getattr(np, name) for name in (*_SCALARS, "bool_")},
    "numpy.bool": np.bool_,
    "numpy.ndarray": NDARRAY,
    "builtins.object": OBJECT,
    "copyreg._reconstructor": RECONSTRUCTOR,
}
"""What every pickle may refer to, by name."""
