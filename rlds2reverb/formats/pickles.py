"""Pickles of unknown origin: numpy's arrays, scalars and dtypes are read, anything else is refused by its name.

A pickle is a program that may call any function. `pickle.Unpickler` runs it with `find_class` restricted to an allow-list: a few functions of
this module, which make numpy's values and check their arguments. Classes that a format allows by name become `Inert` objects, with the
pickled state and none of the code.

A hostile pickle may take much memory; docs/datasets.md says how to read such data in a container.

Sources of the layouts: numpy/core/src/multiarray (`array_setstate`, `arraydescr_setstate`), Lib/copyreg.py, Lib/pickle.py.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.text import shortened

_ERRORS = (  # raised by the unpickler, and functions that it calls, for a damaged pickle
    pickle.UnpicklingError, EOFError, ImportError, ArithmeticError, AttributeError, LookupError, MemoryError,
    RecursionError, SystemError, TypeError, ValueError, struct.error,
)  # fmt: skip
_MOST_DEPTH = 64
_MOST_VALUES = 20_000_000
_DTYPE = re.compile(r"[|<>=]?([biufc?O]|[SUV])\d{0,9}")
_MOST_ITEM_BYTES = 1 << 30
_MOST_ROWS = 1 << 40


def safe_loads(data: bytes, where: str, inert: Collection[str] = frozenset(), has_references: bool = False) -> Any:
    """The value of a pickle of any protocol. Arrays are read-only; bytes after the end are ignored, as by pickle.

    Args:
      data: the pickle.
      where: its name in messages.
      inert: "module.name" of classes whose objects, and of functions whose results, become `Inert`.
      has_references: whether it may refer to things outside of it, each an `Inert` `PERSISTENT` then; torch's refer to their storages.

    Raises:
      SourceError: it is damaged, refers to anything but numpy's values and these classes, or to itself.
    """
    try:
        return _finish(_Unpickler(data, frozenset(inert), has_references).load())
    except _Refused as refused:
        raise SourceError(f"{where}: refused: {refused}") from refused
    except _ERRORS as error:
        text = shortened(" ".join(str(error).split()))
        raise SourceError(f"{where}: a damaged pickle: {type(error).__name__}: {text}") from error


class Inert:
    """An object of a class that is not loaded: "module.name", the arguments of its construction, and the state set afterwards."""

    class_name = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **keywords: Any) -> Inert:
        instance = super().__new__(cls)
        instance.arguments, instance.state = (*arguments, keywords) if keywords else arguments, None
        return instance

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"<{self.class_name}, not loaded>"


PERSISTENT = "persistent"


class _Reference(Inert):
    """What a pickle refers to by a name that its format gives a meaning."""

    class_name = PERSISTENT


class _Refused(Exception):
    """A pickle requests something that is not allowed."""


class _Unpickler(pickle.Unpickler):
    """Python's unpickler, which finds only `_ALLOWED` and the classes that the format names."""

    def __init__(self, data: bytes, inert: frozenset[str], has_references: bool) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._inert, self._has_references = inert, has_references
        self._classes: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{_OLD_MODULES.get(module, module)}.{name}"
        if full_name in _ALLOWED:
            return _ALLOWED[full_name]
        if full_name not in self._inert:
            raise _Refused(
                f'the pickle refers to "{shortened(full_name)}"; only arrays and numbers of numpy are loaded, for anything else '
                "may run code. Write the data anew without it"
            )
        if full_name not in self._classes:
            self._classes[full_name] = type(name, (Inert,), {"class_name": full_name})
        return self._classes[full_name]

    def persistent_load(self, reference: Any) -> Any:
        if not self._has_references:
            raise _Refused("the pickle refers to something outside of it")
        return _Reference(reference)


class _Function:
    """A function that a pickle may call. The pickle cannot set its attributes."""

    __slots__ = ("_call", "name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name, self._call = name, call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, _: Any) -> None:
        raise _Refused(f"the pickle sets the state of {self.name}")


class _Array:
    """An array. numpy pickles an empty one, and its contents as its state."""

    made: Array | None = None

    def __setstate__(self, state: Any) -> None:
        shape, kind, is_fortran, contents = state[-4:]  # after the version, if there is one
        self.made = _array(contents, _dtype_of(kind), shape, "F" if is_fortran else "C")


class _Dtype:
    """A dtype; its byte order, and the fields of a structured one, are its state."""

    def __init__(self, made: np.dtype[Any]) -> None:
        self.made = made

    def __setstate__(self, state: Any) -> None:
        _, order, part, names, fields, size, *_ = state
        if part is not None:
            self.made = np.dtype((_dtype_of(part[0]), part[1]))
        elif names:
            formats, offsets = [_dtype_of(fields[name][0]) for name in names], [fields[name][1] for name in names]
            if any(item.hasobject for item in formats):
                raise _Refused("the pickle has structured arrays of objects")
            self.made = np.dtype({"names": list(names), "formats": formats, "offsets": offsets, "itemsize": size})
        elif order in ("<", ">", "="):
            self.made = np.dtype(order + self.made.str[1:])


def _named_dtype(name: Any, *_: Any) -> _Dtype:
    """`numpy.dtype("u1", False, True)`."""
    if isinstance(name, bytes):
        name = name.decode("ascii")
    if isinstance(name, type) and issubclass(name, np.generic):
        return _Dtype(np.dtype(name))
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise _Refused(f"the pickle has an array of {shortened(repr(name))}; only numbers, texts and objects are read")
    dtype: np.dtype[Any] = np.dtype(name)
    if dtype.itemsize > _MOST_ITEM_BYTES:
        raise ValueError("an item of more than a GiB")
    return _Dtype(dtype)


def _dtype_of(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _Dtype):
        raise TypeError(f"expected a dtype, found {type(dtype).__name__}")
    return dtype.made


def _empty_array(kind: Any, *_: Any) -> _Array:
    """`numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")`."""
    if kind is not _NDARRAY:
        raise _Refused("the pickle has an array of a class of its own")
    return _Array()


def _array(contents: Any, dtype: np.dtype[Any], shape: Any, order: Any) -> Array:
    """An array over these bytes; of these objects for a dtype of objects."""
    shape, order = (shape,) if isinstance(shape, int) else tuple(shape), "F" if order == "F" else "C"
    if not all(isinstance(size, int) and 0 <= size < _MOST_ROWS for size in shape):
        raise ValueError(f"an array of shape {shortened(str(shape))}")
    if dtype.hasobject:
        if not isinstance(contents, list) or len(contents) != math.prod(shape):
            raise ValueError(f"an array of shape {shortened(str(shape))} without as many objects")
        return np.fromiter(contents, object, len(contents)).reshape(shape, order=order)
    if isinstance(contents, str):
        contents = contents.encode("latin1")
    if not isinstance(contents, (bytes, bytearray)) or len(contents) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {shortened(str(shape))} and {dtype} without the bytes for it")
    if dtype.itemsize == 0 and math.prod(shape):
        raise ValueError("an array of values without bytes")
    return np.ndarray(shape, dtype, bytes(contents), order=order)


def _from_buffer(buffer: Any, kind: Any, shape: Any, order: Any) -> _Array:
    """An array in protocol 5."""
    array = _Array()
    array.made = _array(buffer, _dtype_of(kind), shape, order)
    return array


def _scalar(kind: Any, value: Any = b"") -> Any:
    dtype = _dtype_of(kind)
    if isinstance(value, str):
        value = value.encode("latin1")
    if dtype.hasobject or not isinstance(value, bytes) or len(value) != dtype.itemsize:
        raise ValueError("bytes that are no numpy scalar")
    return np.frombuffer(value, dtype)[0] if value else dtype.type()


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes before protocol 3."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("a text that stands for no bytes")
    return text.encode("latin1")


def _bytes(*nothing: Any) -> bytes:
    """Empty bytes before protocol 3."""
    if nothing:
        raise _Refused("the pickle calls bytes")
    return b""


def _bytearray(value: Any = b"", encoding: Any = "latin1") -> bytearray:
    return bytearray(value if isinstance(value, (bytes, bytearray)) else _encoded(value, encoding))


def _set(values: Any = ()) -> set[Any]:
    if not isinstance(values, (list, tuple)):
        raise TypeError("a set made of no list")
    return set(values)


def _object_of(kind: Any, *_: Any) -> Inert:
    """`copyreg._reconstructor`, which makes objects in protocols 0 and 1."""
    if not (isinstance(kind, type) and issubclass(kind, Inert)):
        raise _Refused(f"the pickle makes an object of {getattr(kind, 'name', type(kind).__name__)}")
    return kind()


def _not_called(*_: Any) -> None:
    raise _Refused("the pickle calls what only stands for a class")


_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_CORES = ("numpy.core", "numpy._core")
_NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": _not_called,
    "numpy.dtype": _named_dtype,
    "collections.OrderedDict": lambda items=(): OrderedDict(items),
    "copyreg._reconstructor": _object_of,
    "_codecs.encode": _encoded,
    "builtins.object": _not_called,
    "builtins.bytes": _bytes,
    "builtins.complex": lambda real, imaginary=0.0: complex(real, imaginary),
    "builtins.bytearray": _bytearray,
    "builtins.set": _set,
    "builtins.frozenset": lambda values=(): frozenset(_set(values)),
    **{f"{core}.multiarray._reconstruct": _empty_array for core in _CORES},
    **{f"{core}.multiarray.scalar": _scalar for core in _CORES},
    **{f"{core}.numeric._frombuffer": _from_buffer for core in _CORES},
}
_ALLOWED: dict[str, Any] = {  # the names that every pickle may refer to
    **{name: _Function(name, call) for name, call in _CALLS.items()},
    **{f"numpy.{name}": getattr(np, name) for name in (*_NUMBERS, "bool_")},
    "numpy.bool": np.bool_,
}
_NDARRAY = _ALLOWED["numpy.ndarray"]


_LEAVES = frozenset({int, float, str, bytes, bool, type(None), complex, bytearray})
_TOO_DEEP = f"the pickle has more than {_MOST_DEPTH} containers within one another"


def _finish(value: Any) -> Any:
    """The value with real arrays and dtypes, as a tree; raises `_Refused` if it refers to itself, is too deep, or too large."""
    tree, size, _ = _tree(value, 0, {})
    if size > _MOST_VALUES:
        raise _Refused(f"the pickle has more than {_MOST_VALUES:,} values when every reference is followed")
    return tree


def _tree(value: Any, depth: int, seen: dict[int, tuple[Any, int, int] | None]) -> tuple[Any, int, int]:
    """The finished value, its number of values (each reference counts), and the depth of containers in it."""
    if type(value) in _LEAVES or isinstance(value, (np.generic, type)):
        return value, 1, 0
    if id(value) in seen:
        entry = seen[id(value)]
        if entry is None:
            raise _Refused("the pickle has something that holds itself")
        finished, size, height = entry
    else:
        seen[id(value)] = None
        size, height = 1, 0

        def child(item: Any) -> Any:
            nonlocal size, height
            if type(item) in _LEAVES:
                size += 1
                return item
            finished, more, below = _tree(item, depth + 1, seen)
            size, height = size + more, max(height, below)
            return finished

        if depth >= _MOST_DEPTH:
            raise _Refused(_TOO_DEEP)
        finished = _rebuild(value, child)
        height += 1
        seen[id(value)] = finished, size, height
    if depth + height > _MOST_DEPTH:
        raise _Refused(_TOO_DEEP)
    return finished, size, height


def _rebuild(value: Any, child: Callable[[Any], Any]) -> Any:
    """The container with finished children."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind(map(child, value))
    if kind in (dict, OrderedDict):
        items = kind((child(key), child(item)) for key, item in value.items())
        if kind is OrderedDict and "_metadata" in vars(value):  # what torch's state dicts say of themselves
            vars(items)["_metadata"] = child(vars(value)["_metadata"])
        return items
    if isinstance(value, Inert):
        value.arguments, value.state = child(value.arguments), child(value.state)
        return value
    if isinstance(value, _Dtype):
        return value.made
    if not isinstance(value, _Array) or value.made is None:
        raise _Refused(f"the pickle has {getattr(value, 'name', 'an array without contents')} as a value")
    array = value.made
    if array.dtype == object:
        array = np.fromiter(map(child, array.ravel()), object, array.size).reshape(array.shape)
    array.flags.writeable = False
    return array


def stable_repr(value: Any) -> str:
    """As `repr`, with the values of sets in the order of their texts: Python's own order of texts differs from process to process."""
    try:
        return _stable_repr(value)
    except RecursionError:  # a nest without end, which `repr` ends by itself
        return repr(value)


def _stable_repr(value: Any) -> str:
    kind = type(value)
    if kind in (set, frozenset) and value:
        inner = f"{{{', '.join(sorted(map(_stable_repr, value)))}}}"
        return inner if kind is set else f"frozenset({inner})"
    if kind is dict:
        return f"{{{', '.join(f'{_stable_repr(key)}: {_stable_repr(part)}' for key, part in value.items())}}}"
    if kind is list:
        return f"[{', '.join(map(_stable_repr, value))}]"
    if kind is tuple:
        return f"({', '.join(map(_stable_repr, value))}{',' * (len(value) == 1)})"
    return repr(value)
