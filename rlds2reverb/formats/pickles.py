"""Pickles of unknown origin: numpy's arrays, scalars and dtypes are read, anything else is refused by its name.

A pickle is a program that may call any function. `pickle.Unpickler` runs it with `find_class` restricted to an allow-list: a few functions of
this module, which make numpy's values and check their arguments. Classes that a format allows by name become `Inert` objects, with the
pickled state and none of the code.

Even values alone can end the process: Python hashes a key of tuples within tuples by recursion in C, which has no limit (SIGSEGV) and
follows every reference, and keys of equal hashes make a dict's insertions quadratic. So a pickle's instructions are walked before it is
loaded (`_check_program`): on the walk, values are only what their hash costs.

A hostile pickle may take much memory; docs/datasets.md says how to read such data in a container.

Sources of the layouts: numpy/core/src/multiarray (`array_setstate`, `arraydescr_setstate`), Lib/copyreg.py, Lib/pickle.py.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
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
_MOST_SIZES = 64  # of a shape: numpy's own limit
_MOST_KEY_PARTS, _MOST_KEY_DEPTH = 64, 8  # of a tuple that is a key, every reference followed
_MOST_EQUAL_HASHES = 64
"""Keys of one dict or set that hash alike. Of numbers below 2**61 only -1 and -2 do, and hashes of texts have a seed that nobody knows."""
_MOST_PAIRS = 5_000_000
"""Pairs, within a dict or a set, of keys whose hashes are not known here, such as numpy's scalars: comparing so many takes a second."""


def safe_loads(data: bytes, where: str, inert: Collection[str] = frozenset()) -> Any:
    """The value of a pickle of any protocol. Arrays are read-only; bytes after the end are ignored, as by pickle.

    Args:
      data: the pickle.
      where: its name in messages.
      inert: "module.name" of classes whose objects, and of functions whose results, become `Inert`.

    Raises:
      SourceError: it is damaged, refers to anything but numpy's values and these classes, or to itself.
    """
    try:
        _check_program(data)
        return _finished(_Unpickler(data, frozenset(inert)).load())
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
        made = super().__new__(cls)
        made.arguments, made.state = (*arguments, keywords) if keywords else arguments, None
        return made

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"<{self.class_name}, not loaded>"


class _Refused(Exception):
    """A pickle requests something that is not allowed."""


_Token = Any
"""Of a value on the walk: the place of the instruction that pushes a number, a text, or a list; a tuple of tokens; or a `_Keys`, which stands for
a dict, a set, or any object."""


class _Keys:
    """The keys of a dict or a set that do not tell their own costs: hashes that anybody can choose, with their numbers, and unknown ones."""

    __slots__ = ("hashes", "objects")

    def __init__(self) -> None:
        self.hashes: dict[int, int] | None = None
        self.objects = 0

    def add(self, key: Any, has_objects: bool) -> int:
        """Adds a key, and returns the number of pairs of keys that may have to be compared for it; raises `_Refused` if too many hash alike."""
        if has_objects:
            self.objects += 1
            return self.objects - 1
        if self.hashes is None:
            self.hashes = {}
        number = hash(key)
        count = self.hashes[number] = self.hashes.get(number, 0) + 1
        if count > _MOST_EQUAL_HASHES:
            raise _Refused(f"the pickle has a dict or a set with more than {_MOST_EQUAL_HASHES} keys of one hash")
        return 0


class _KeyParts:
    """Makes what hashes as a key does, of at most so many parts; raises `_Refused` for a larger one."""

    def __init__(self, scalar: Callable[[Any], Any]) -> None:
        self._scalar, self._left, self.has_objects = scalar, _MOST_KEY_PARTS, False

    def value(self, key: Any, depth: int = 0) -> Any:
        if isinstance(key, tuple):
            if depth == _MOST_KEY_DEPTH:
                raise _Refused(_TOO_LARGE_A_KEY)
            return tuple([self.value(part, depth + 1) for part in key]) if key else self._counted(())
        return self._counted(key)

    def _counted(self, key: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _Refused(_TOO_LARGE_A_KEY)
        if isinstance(key, (_Keys, tuple)):
            self.has_objects |= isinstance(key, _Keys)
            return ()
        return self._scalar(key)


def _check_keys(keys: Iterable[Any]) -> None:
    """Checks keys that are there, as `_check_program` does those to come."""

    def scalar(key: Any) -> Any:
        parts.has_objects |= type(key) not in (int, float, bool, str, bytes, type(None))
        return id(key) if isinstance(key, (str, bytes)) else 0 if parts.has_objects else key

    held, pairs = _Keys(), 0
    for key in keys:
        parts = _KeyParts(scalar)
        pairs += held.add(parts.value(key), parts.has_objects)
    if pairs > _MOST_PAIRS:
        raise _Refused(_TOO_MANY_PAIRS)


(
    _FIXED, _SIZED, _GET, _MEMOIZE, _TUPLE, _PUT, _OBJECT, _MARK, _ITEMS, _ITEM, _DROP, _DROP_MARK, _SKIP, _LINES, _NAMED,
    _TUPLE_FROM_MARK, _LIST_FROM_MARK, _KEYS_FROM_MARK, _OBJECT_FROM_MARK, _TEXT_GET, _TEXT_PUT, _POP, _DUPLICATE, _END, _OUTSIDE,
) = range(1, 26)  # fmt: skip
_STEPS: dict[str, tuple[int, int]] = {  # instruction of `pickletools` -> what it does, and with how many bytes or values
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST"), (_FIXED, 0)),
    "BININT1": (_FIXED, 1), "BININT2": (_FIXED, 2), "BININT": (_FIXED, 4), "BINFLOAT": (_FIXED, 8),
    **dict.fromkeys(("SHORT_BINSTRING", "SHORT_BINBYTES", "SHORT_BINUNICODE", "LONG1"), (_SIZED, 1)),
    **dict.fromkeys(("BINSTRING", "BINBYTES", "BINUNICODE", "LONG4"), (_SIZED, 4)),
    **dict.fromkeys(("BINUNICODE8", "BINBYTES8", "BYTEARRAY8"), (_SIZED, 8)),
    **dict.fromkeys(("INT", "LONG", "FLOAT", "STRING", "UNICODE"), (_LINES, 1)),
    "EMPTY_TUPLE": (_TUPLE, 0), "TUPLE1": (_TUPLE, 1), "TUPLE2": (_TUPLE, 2), "TUPLE3": (_TUPLE, 3),
    "EMPTY_DICT": (_OBJECT, 0), "EMPTY_SET": (_OBJECT, 0), "STACK_GLOBAL": (_OBJECT, 2), "REDUCE": (_OBJECT, 2),
    "NEWOBJ": (_OBJECT, 2), "NEWOBJ_EX": (_OBJECT, 3), "GLOBAL": (_NAMED, 0),
    "OBJ": (_OBJECT_FROM_MARK, 0), "INST": (_OBJECT_FROM_MARK, 2),
    "TUPLE": (_TUPLE_FROM_MARK, 0), "LIST": (_LIST_FROM_MARK, 0), "DICT": (_KEYS_FROM_MARK, 2), "FROZENSET": (_KEYS_FROM_MARK, 1),
    "SETITEM": (_ITEM, 0), "SETITEMS": (_ITEMS, 2), "ADDITEMS": (_ITEMS, 1), "MARK": (_MARK, 0),
    "APPEND": (_DROP, 0), "BUILD": (_DROP, 0), "APPENDS": (_DROP_MARK, 0), "POP_MARK": (_DROP_MARK, 0),
    "BINGET": (_GET, 1), "LONG_BINGET": (_GET, 4), "GET": (_TEXT_GET, 0), "MEMOIZE": (_MEMOIZE, 0),
    "BINPUT": (_PUT, 1), "LONG_BINPUT": (_PUT, 4), "PUT": (_TEXT_PUT, 0), "POP": (_POP, 0), "DUP": (_DUPLICATE, 0),
    "PROTO": (_SKIP, 1), "FRAME": (_SKIP, 8), "STOP": (_END, 0), "PERSID": (_OUTSIDE, 0), "BINPERSID": (_OUTSIDE, 0),
}  # fmt: skip
_NAMES = {ord(instruction.code): instruction.name for instruction in pickletools.opcodes}
_CODES = {name: code for code, name in _NAMES.items()}
_DOES = [(0, 0)] * 256
for _name, _step in _STEPS.items():
    _DOES[_CODES[_name]] = _step
_IS_CHEAP = bytearray(
    256
)  # of the instruction that pushes a key: a text, bytes, or a whole number below `_HASH_MODULUS`; or what no dict takes
for _name in [
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "EMPTY_LIST",
    "LIST",
    "BININT1",
    "BININT2",
    "BININT",
    "SHORT_BINSTRING",
    "SHORT_BINBYTES",
    "SHORT_BINUNICODE",
    "BINSTRING",
    "BINBYTES",
    "BINUNICODE",
    "BINUNICODE8",
    "BINBYTES8",
    "BYTEARRAY8",
    "STRING",
    "UNICODE",
]:
    _IS_CHEAP[_CODES[_name]] = True
_TOO_LARGE_A_KEY = (
    f"the pickle has a key of more than {_MOST_KEY_PARTS} values, or of tuples more than {_MOST_KEY_DEPTH} deep"
)
_TOO_MANY_PAIRS = "the pickle has dicts or sets with too many keys that are objects"


def _check_program(data: bytes) -> None:
    """Walks a pickle up to its end, with Lib/pickle.py's stack, marks and memo, and tokens in place of values.

    Raises `_Refused` for keys that take long to hash or to tell from one another, and one of `_ERRORS` for what is no pickle.
    """
    does, size = _DOES, len(data)
    fixed, sized, get, memoize, tuples, put = _FIXED, _SIZED, _GET, _MEMOIZE, _TUPLE, _PUT
    at = pairs = 0
    stack: list[_Token] = []
    below: list[list[_Token]] = []  # the stacks under the marks
    memo: dict[int, _Token] = {}

    def add(keys: Sequence[_Token]) -> None:
        nonlocal pairs
        held = stack[-1]
        for key in keys:
            if type(key) is int and _IS_CHEAP[data[key]]:
                continue
            parts = _KeyParts(lambda place: _scalar_at(data, place))
            value = parts.value(key)
            if isinstance(held, _Keys):
                pairs += held.add(value, parts.has_objects)
        if pairs > _MOST_PAIRS:
            raise _Refused(_TOO_MANY_PAIRS)

    while True:  # the most frequent instructions first
        place = at
        what, count = does[data[at]]
        at += 1
        if what == fixed:
            stack.append(place)
            at += count
        elif what == memoize:
            memo[len(memo)] = stack[-1]
        elif what == get:
            stack.append(memo[data[at] if count == 1 else int.from_bytes(data[at : at + count], "little")])
            at += count
        elif what == sized:
            at += count + (data[at] if count == 1 else int.from_bytes(data[at : at + count], "little"))
            if at > size:
                raise pickle.UnpicklingError("pickle data was truncated")
            stack.append(place)
        elif what == tuples:
            stack[len(stack) - count :] = [_tuple_of(stack, count)]
        elif what == put:
            number = int.from_bytes(data[at : at + count], "little")
            _check_place(number, size)
            memo[number] = stack[-1]
            at += count
        elif what == _OBJECT:
            del stack[_start_of(stack, count) :]
            stack.append(_Keys())
        elif what == _MARK:
            below.append(stack)
            stack = []
        elif what == _ITEMS:
            items, stack = stack, below.pop()
            add(items[::count])
        elif what == _ITEM:
            key = stack[-2]
            del stack[-2:]
            add((key,))
        elif what == _DROP:
            stack.pop()
        elif what == _DROP_MARK:
            stack = below.pop()
        elif what == _SKIP:
            at += count
        elif what == _LINES:
            at = _after_lines(data, at, 1)
            stack.append(place)
        elif what == _NAMED:
            at = _after_lines(data, at, 2)
            stack.append(_Keys())
        elif what == _TUPLE_FROM_MARK:
            items, stack = stack, below.pop()
            stack.append(tuple(items))
        elif what == _LIST_FROM_MARK:
            stack = below.pop()
            stack.append(place)
        elif what == _KEYS_FROM_MARK:
            items, stack = stack, below.pop()
            stack.append(_Keys())
            add(items[::count])
        elif what == _OBJECT_FROM_MARK:
            stack = below.pop()
            stack.append(_Keys())
            at = _after_lines(data, at, count)
        elif what in (_TEXT_GET, _TEXT_PUT):
            number, at = int(data[at : data.index(b"\n", at)]), _after_lines(data, at, 1)
            _check_place(number, size)
            if what == _TEXT_GET:
                stack.append(memo[number])
            else:
                memo[number] = stack[-1]
        elif what == _POP:  # of a mark where it is on top
            if stack:
                stack.pop()
            else:
                stack = below.pop()
        elif what == _DUPLICATE:
            stack.append(stack[-1])
        elif what == _END:
            return
        elif what == _OUTSIDE:
            raise _Refused("the pickle refers to something outside of it")
        else:  # extensions of other libraries, buffers beside the pickle, and what is no instruction
            raise pickle.UnpicklingError(f"byte {place:,} is {data[place]:#04x}, no instruction that is read")


def _start_of(stack: list[_Token], count: int) -> int:
    """Where the topmost values begin; raises `UnpicklingError` if there are fewer."""
    if len(stack) < count:
        raise pickle.UnpicklingError("unexpected MARK found, or too few values")
    return len(stack) - count


def _tuple_of(stack: list[_Token], count: int) -> tuple[_Token, ...]:
    return tuple(stack[_start_of(stack, count) :])


def _after_lines(data: bytes, at: int, count: int) -> int:
    for _ in range(count):
        at = data.index(b"\n", at) + 1
    return at


def _check_place(number: int, size: int) -> None:
    """Python makes room for all places of the memo below one that is used."""
    if not 0 <= number <= size:
        raise _Refused(f"the pickle numbers a value {number:,}, and has {size:,} bytes")


def _scalar_at(data: bytes, place: int) -> Any:
    """The number of an instruction; the place of another, which stands for a text of its own."""
    what, count = _DOES[data[place]]
    name = _NAMES[data[place]]
    end = place + 1 + count
    if name in ("LONG1", "LONG4"):
        end += int.from_bytes(data[place + 1 : end], "little")
    elif what == _LINES:
        end = _after_lines(data, place, 1)
    if name not in _NUMBER_CODES:
        return f"at {place}"
    return next(pickletools.genops(data[place:end]))[1]


_NUMBER_CODES = (
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT1", "BININT2", "BININT", "BINFLOAT", "INT", "LONG", "FLOAT", "LONG1"),
    "LONG4",
)


class _Unpickler(pickle.Unpickler):
    """Python's unpickler, which finds only `_ALLOWED` and the classes that the format names."""

    def __init__(self, data: bytes, inert: frozenset[str]) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._inert = inert
        self._classes: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str) -> Any:
        wanted = f"{_OLD_MODULES.get(module, module)}.{name}"
        if wanted in _ALLOWED:
            return _ALLOWED[wanted]
        if wanted not in self._inert:
            raise _Refused(
                f'the pickle refers to "{shortened(wanted)}"; only arrays and numbers of numpy are loaded, for anything else '
                "may run code. Write the data anew without it"
            )
        if wanted not in self._classes:
            self._classes[wanted] = type(name, (Inert,), {"class_name": wanted})
        return self._classes[wanted]

    def persistent_load(self, _: Any) -> Any:
        raise _Refused("the pickle refers to something outside of it")


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
            if not all(isinstance(name, str) for name in names):
                raise TypeError("fields of a dtype whose names are no texts")
            formats, offsets = [_dtype_of(fields[name][0]) for name in names], [fields[name][1] for name in names]
            if any(one.hasobject for one in formats):
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
        kind = shortened(repr(name)) if isinstance(name, str) else type(name).__name__
        raise _Refused(f"the pickle has an array of {kind}; only numbers, texts and objects are read")
    made: np.dtype[Any] = np.dtype(name)
    if made.itemsize > _MOST_ITEM_BYTES:
        raise ValueError("an item of more than a GiB")
    return _Dtype(made)


def _dtype_of(found: Any) -> np.dtype[Any]:
    if not isinstance(found, _Dtype):
        raise TypeError(f"expected a dtype, found {type(found).__name__}")
    return found.made


def _empty_array(kind: Any, *_: Any) -> _Array:
    """`numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")`."""
    if kind is not _NDARRAY:
        raise _Refused("the pickle has an array of a class of its own")
    return _Array()


def _array(contents: Any, dtype: np.dtype[Any], shape: Any, order: Any) -> Array:
    """An array over these bytes; of these objects for a dtype of objects."""
    shape, order = (shape,) if isinstance(shape, int) else tuple(shape), "F" if order == "F" else "C"
    if len(shape) > _MOST_SIZES or not all(isinstance(size, int) and 0 <= size < _MOST_ROWS for size in shape):
        raise ValueError(f"an array whose shape is not of at most {_MOST_SIZES} sizes below 2**40")
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
    made = _Array()
    made.made = _array(buffer, _dtype_of(kind), shape, order)
    return made


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
    _check_keys(values)
    return set(values)


def _ordered_dict(items: Any = ()) -> OrderedDict[Any, Any]:
    if not isinstance(items, dict):
        items = [(key, value) for key, value in items]
        _check_keys(key for key, _ in items)
    return OrderedDict(items)


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
    "collections.OrderedDict": _ordered_dict,
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


def _finished(value: Any) -> Any:
    """The value with real arrays and dtypes, as a tree; raises `_Refused` if it refers to itself, is too deep, or too large."""
    made, size, _ = _tree(value, 0, {})
    if size > _MOST_VALUES:
        raise _Refused(f"the pickle has more than {_MOST_VALUES:,} values when every reference is followed")
    return made


def _tree(value: Any, depth: int, known: dict[int, tuple[Any, int, int] | None]) -> tuple[Any, int, int]:
    """The finished value, its number of values (each reference counts), and the depth of containers in it."""
    if type(value) in _LEAVES or isinstance(value, (np.generic, type)):
        return value, 1, 0
    if id(value) in known:
        found = known[id(value)]
        if found is None:
            raise _Refused("the pickle has something that holds itself")
        made, size, height = found
    else:
        known[id(value)] = None
        size, height = 1, 0

        def child(one: Any) -> Any:
            nonlocal size, height
            if type(one) in _LEAVES:
                size += 1
                return one
            made, more, below = _tree(one, depth + 1, known)
            size, height = size + more, max(height, below)
            return made

        if depth >= _MOST_DEPTH:
            raise _Refused(_TOO_DEEP)
        made = _rebuilt(value, child)
        height += 1
        known[id(value)] = made, size, height
    if depth + height > _MOST_DEPTH:
        raise _Refused(_TOO_DEEP)
    return made, size, height


def _rebuilt(value: Any, child: Callable[[Any], Any]) -> Any:
    """The container with finished children."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind(map(child, value))
    if kind in (dict, OrderedDict):
        return kind((child(key), child(one)) for key, one in value.items())
    if isinstance(value, Inert):
        value.arguments, value.state = child(value.arguments), child(value.state)
        return value
    if isinstance(value, _Dtype):
        return value.made
    if not isinstance(value, _Array) or value.made is None:
        raise _Refused(f"the pickle has {getattr(value, 'name', 'an array without contents')} as a value")
    made = value.made
    if made.dtype == object:
        made = np.fromiter(map(child, made.ravel()), object, made.size).reshape(made.shape)
    made.flags.writeable = False
    return made


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
