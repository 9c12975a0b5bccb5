"""Pickled values: of one step, each for itself, read as rows of columns and written; and whole files of arrays.

Pickles of arrays of one dtype and shape are equal but for the array's own bytes. So once the first was read, those bytes are cut out
of the others without reading them as pickles; what differs anywhere else is read by `formats.pickles`. Writing joins them alike.

Pickles are written as numpy 1 writes them, protocol 4: `numpy.core.multiarray`, which every numpy reads, with or without an alias.
Source of the instructions: Lib/pickletools.py; of the arguments: `ndarray.__reduce__`.
"""

from __future__ import annotations

import gzip
import io
import pickletools
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.npz import most_unpacked, opened
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import shortened

PICKLES = ("pickle", "pkl", "pyd")
KINDS = (*PICKLES, "npy")
"""How a member's value may be written: the ending of its name after the key."""

Row = tuple[bytes, ...]
"""The bytes of every leaf of one step's value, in the order of `Values.leaves`."""

_TEXT = ArraySpec((), np.dtype(object))


def loaded(data: bytes, kind: str, where: str, inert: Collection[str] = frozenset()) -> Any:
    """A value, as it was written.

    Raises:
      SourceError: damaged, or refused by `safe_pickle`.
    """
    if kind in PICKLES:
        return safe_loads(data, where, inert)
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, TypeError, MemoryError) as error:
        raise SourceError(f"{where}: cannot be read as a numpy array: {error}") from error


def leaves_of(value: Any, path: str = "", depth: int = 0) -> dict[str, Array | bytes]:
    """Path -> array, or text as `bytes`, of a value or of the dictionaries that it is; what is neither is left out."""
    if isinstance(value, Mapping):
        found: dict[str, Array | bytes] = {}
        for key in sorted(value, key=str) if depth < 8 else ():
            below = str(key).replace("/", "_")
            found |= leaves_of(value[key], f"{path}/{below}" if path else below, depth + 1)
        return found
    leaf = _leaf(value)
    return {} if leaf is None else {path: leaf}


def _leaf(value: Any) -> Array | bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    if (
        isinstance(value, (bool, float, np.ndarray, np.generic))
        or (isinstance(value, int) and abs(value) < 1 << 63)
        or (isinstance(value, (list, tuple)) and all(isinstance(one, (bool, int, float)) for one in value))
    ):
        array = np.asarray(value)
    else:
        return None
    return array if array.dtype.kind in "biufc" else None


def spec_of(leaf: Array | bytes) -> ArraySpec:
    """What a leaf is."""
    return _TEXT if isinstance(leaf, bytes) else ArraySpec(leaf.shape, leaf.dtype)


@dataclass(frozen=True)
class _Template:
    """The pickle of an array without the array's bytes."""

    start: bytes
    end: bytes
    size: int

    def payload(self, data: bytes) -> bytes | None:
        """The array's bytes; None if the pickle does not match the template."""
        at = len(self.start)
        if len(data) != self.size or not data.startswith(self.start) or not data.endswith(self.end):
            return None
        return data[at : self.size - len(self.end)]

    @staticmethod
    def of(data: bytes, array: Array) -> _Template | None:
        """The template of a pickle that holds the array; None unless the array's bytes are in it exactly once."""
        places = [
            place + 1 + {"SHORT_BINBYTES": 1, "BINBYTES": 4, "BINBYTES8": 8}[code.name]
            for code, argument, place in pickletools.genops(data)
            if code.name in ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8")
            and argument == array.tobytes()
            and place is not None
        ]
        if len(places) != 1 or not array.nbytes:
            return None
        start, end = data[: places[0]], data[places[0] + array.nbytes :]
        other = bytes(byte ^ 1 for byte in array.tobytes())
        try:
            again = np.asarray(safe_loads(start + other + end, ""))
        except SourceError:
            return None
        same = again.shape == array.shape and again.dtype == array.dtype and again.tobytes() == other
        return _Template(start, end, len(data)) if same else None


class Values:
    """How the values of one key are read. The first value decides, so it has to be representative of all.

    Attributes:
      leaves: path within the value -> its spec.
    """

    def __init__(self, first: Any, template: _Template | None = None) -> None:
        self.leaves = {path: spec_of(leaf) for path, leaf in leaves_of(first).items()}
        self._template = template

    @staticmethod
    def of_pickle(data: bytes, kind: str, where: str) -> Values:
        """Learns from one member.

        Raises:
          SourceError: it cannot be read.
        """
        value = loaded(data, kind, where)
        is_array = kind in PICKLES and isinstance(value, (np.ndarray, np.generic)) and value.dtype != object
        return Values(value, _Template.of(data, np.asarray(value)) if is_array else None)

    def row(self, data: bytes, kind: str, key: str, where: str) -> Row:
        """The bytes of one value's leaves.

        Raises:
          BrokenEpisode: it cannot be read, or is of another shape or dtype than the first.
        """
        if self._template is not None and (payload := self._template.payload(data)) is not None:
            return (payload,)
        try:
            found = leaves_of(loaded(data, kind, where))
        except SourceError as error:
            raise BrokenEpisode(key, str(error)) from error
        return self.row_of(found, key, where)

    def row_of(self, found: Mapping[str, Array | bytes], key: str, where: str) -> Row:
        """The bytes of these leaves, when they are those of the first value; others than its are not looked at."""
        row = []
        for path, spec in self.leaves.items():
            leaf = found.get(path)
            if leaf is None or spec_of(leaf) != spec:
                got = "nothing" if leaf is None else str(spec_of(leaf))
                raise BrokenEpisode(
                    f"{key}/{path}" if path else key, f"{where}: expected {spec}, as the first step has, found {got}"
                )
            row.append(leaf if isinstance(leaf, bytes) else leaf.tobytes())
        return tuple(row)

    def columns(self, rows: Sequence[Row]) -> dict[str, Array]:
        """Path -> [T, ...]."""
        return {path: _column(spec, [row[at] for row in rows]) for at, (path, spec) in enumerate(self.leaves.items())}


def _column(spec: ArraySpec, rows: list[bytes]) -> Array:
    if spec.dtype == object:
        column = np.empty(len(rows), object)
        column[:] = rows
        return column
    shape = tuple(size or 0 for size in spec.shape)
    return np.ndarray((len(rows), *shape), spec.dtype, b"".join(rows))


MOST_BYTES = 8 << 30
"""Most bytes of a file, unpacked."""


def start_of(path: Path) -> bytes:
    """The first bytes of a file.

    Raises:
      SourceError: it cannot be read.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file.read(8)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error


def unpickled(path: Path, inert: Collection[str] = frozenset()) -> Any:
    """The value of a pickle, which may be compressed by gzip.

    Raises:
      SourceError: it cannot be read; or as `safe_loads`.
    """
    is_packed = start_of(path).startswith(b"\x1f\x8b")
    try:
        most = min(MOST_BYTES, most_unpacked(check_regular(path).st_size))
        with gzip.open(path) if is_packed else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SourceError(f"{path}: cannot be read: {shortened(str(error))}") from error
    if len(data) > most:
        raise SourceError(
            f"{path}: unpacks to more than {most:,} bytes, which are read as a whole; split it, or write it without compression"
        )
    return safe_loads(data, path.name, inert)


def npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file, by name; those of objects by `safe_loads`.

    Raises:
      SourceError: it cannot be read.
    """
    try:
        with opened(path) as held:
            return {key: member.array() for key, member in held.items()}
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken


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
    """The parts of a pickle before and after an array's bytes."""
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
    """The instruction for `count` bytes, which follow."""
    if count < 1 << 8:
        return b"C" + bytes((count,))
    return b"B" + struct.pack("<I", count) if count < 1 << 32 else b"\x8e" + struct.pack("<Q", count)


def _dtype(dtype: np.dtype[Any]) -> bytes:
    order, code = dtype.str[0], dtype.str[1:]
    made = Named("numpy", "dtype", (code, False, True))
    return _of(made) + _of((3, order, None, None, None, -1, -1, 0)) + _BUILD
