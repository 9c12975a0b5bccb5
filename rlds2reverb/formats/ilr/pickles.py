"""Pickled values: the values of one step, read as rows of columns and written; and whole files of arrays.

Pickles of arrays of one dtype and shape differ in the array's own bytes only. So once the first was read, those bytes are cut out
of the others without unpickling; a pickle that differs elsewhere is read by `formats.pickles`. Writing joins the same parts.

Pickles are written as numpy 1 writes them, protocol 4: `numpy.core.multiarray`, which every numpy reads, with or without an alias.
Source of the instructions: Lib/pickletools.py; of the arguments: `ndarray.__reduce__`.
"""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.npz_archive import most_unpacked, open_archive
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.recordings import BrokenEpisode, refuse_broken
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import shortened

PICKLES = ("pickle", "pkl", "pyd")
KINDS = (*PICKLES, "npy")  # kinds of members: the ending of a name after the key

_MOST_DEPTH = 8  # of dictionaries in a value

Row = tuple[bytes, ...]  # the bytes of every leaf of one step's value, in the order of `ValueReader.leaves`

_TEXT = ArraySpec((), np.dtype(object))


def load_value(data: bytes, kind: str, where: str) -> Any:
    """The value of a member; raises `SourceError` if it is damaged, or refused by `safe_loads`."""
    if kind in PICKLES:
        return safe_loads(data, where)
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, TypeError, MemoryError) as error:
        raise SourceError(f"{where}: cannot be read as a numpy array: {error}") from error


def leaves_of(value: Any, path: str = "", depth: int = 0) -> dict[str, Array | bytes | None]:
    """Path -> array, or text as `bytes`, of a value or nested dictionaries; None for what becomes no column.

    No column become values of other types, those deeper than `_MOST_DEPTH`, and two keys of one path, such as `a/b` and `a_b`, or 1 and "1".
    """
    if isinstance(value, Mapping) and depth < _MOST_DEPTH:
        leaves: dict[str, Array | bytes | None] = {}
        for key in sorted(value, key=str):
            below = str(key).replace("/", "_")
            further = leaves_of(value[key], f"{path}/{below}" if path else below, depth + 1)
            leaves |= {name: None if name in leaves else leaf for name, leaf in further.items()}
        return leaves
    if isinstance(value, str):
        return {path: value.encode("utf-8", "surrogatepass")}
    if isinstance(value, bytes):
        return {path: value}
    if (
        isinstance(value, (bool, float, np.ndarray, np.generic))
        or (isinstance(value, int) and abs(value) < 1 << 63)
        or (isinstance(value, (list, tuple)) and all(isinstance(part, (bool, int, float)) for part in value))
    ):
        array = np.asarray(value)
        return {path: array if array.dtype.kind in "biufc" else None}
    return {path: None}


def _spec_of(leaf: Array | bytes) -> ArraySpec:
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
        # Other bytes in their place must give an array of just these: then nothing else in the pickle depends on them.
        other = bytes(byte ^ 1 for byte in array.tobytes())
        try:
            again = np.asarray(safe_loads(start + other + end, ""))
        except SourceError:
            return None
        same = again.shape == array.shape and again.dtype == array.dtype and again.tobytes() == other
        return _Template(start, end, len(data)) if same else None


LeaveOut = Callable[[str], None]


def _forget(_path: str) -> None:
    """Of a flag, which is no column."""


class ValueReader:
    """How the values of one key are read, with their leaves, path -> spec. The first value decides for all."""

    def __init__(self, first: Any, template: _Template | None = None) -> None:
        self.leaves = {path: _spec_of(leaf) for path, leaf in leaves_of(first).items() if leaf is not None}
        self._template = template

    @staticmethod
    def of_pickle(data: bytes, kind: str, where: str) -> ValueReader:
        """Learns from one member."""
        value = load_value(data, kind, where)
        is_array = kind in PICKLES and isinstance(value, (np.ndarray, np.generic)) and value.dtype != object
        return ValueReader(value, _Template.of(data, np.asarray(value)) if is_array else None)

    def row(self, data: bytes, kind: str, key: str, where: str, leave_out: LeaveOut = _forget) -> Row:
        """The bytes of one value's leaves; raises `BrokenEpisode` if it is damaged or does not match the first.

        Args:
          leave_out: is told the path of each leaf that becomes no column.
        """
        if self._template is not None and (payload := self._template.payload(data)) is not None:
            return (payload,)
        try:
            leaves = leaves_of(load_value(data, kind, where))
        except SourceError as error:
            raise BrokenEpisode(key, str(error)) from error
        return self.row_of(leaves, key, where, leave_out)

    def row_of(self, leaves: Mapping[str, Array | bytes | None], key: str, where: str, leave_out: LeaveOut) -> Row:
        """The bytes of those leaves that the first value has; raises `BrokenEpisode` if one has another spec."""
        row = []
        for path in leaves.keys() - self.leaves.keys():
            leave_out(f"{key}/{path}" if path else key)
        for path, spec in self.leaves.items():
            leaf = leaves.get(path)
            if leaf is None or _spec_of(leaf) != spec:
                got = "nothing" if leaf is None else str(_spec_of(leaf))
                raise BrokenEpisode(
                    f"{key}/{path}" if path else key, f"{where}: expected {spec}, as most first steps have, found {got}"
                )
            row.append(leaf if isinstance(leaf, bytes) else leaf.tobytes())
        return tuple(row)

    def columns(self, rows: Sequence[Row]) -> dict[str, Array]:
        """Path -> [T, ...]."""
        columns: dict[str, Array] = {}
        for at, (path, spec) in enumerate(self.leaves.items()):
            values = [row[at] for row in rows]
            if spec.dtype == object:
                columns[path] = np.array(values, object)
            else:
                shape = (len(rows), *(size or 0 for size in spec.shape))
                columns[path] = np.ndarray(shape, spec.dtype, b"".join(values))
        return columns


_MOST_BYTES = 8 << 30  # of a file, unpacked


def start_of(path: Path) -> bytes:
    """The first bytes of a file; raises `SourceError` if it cannot be read."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file.read(8)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error


def unpickle_file(path: Path, inert: Collection[str] = frozenset()) -> Any:
    """The value of a pickle, which may be compressed by gzip; raises as `safe_loads`, and if it cannot be read."""
    is_packed = start_of(path).startswith(b"\x1f\x8b")
    try:
        most = min(_MOST_BYTES, most_unpacked(check_regular(path).st_size))
        with gzip.open(for_library(path)) if is_packed else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SourceError(f"{path}: cannot be read: {shortened(str(error))}") from error
    if len(data) > most:
        raise SourceError(
            f"{path}: unpacks to more than {most:,} bytes, which are read as a whole; split it, or write it without compression"
        )
    return safe_loads(data, path.name, inert)


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file by name, arrays of objects included; raises `SourceError` if it cannot be read."""
    with refuse_broken(), open_archive(path) as arrays:
        return {key: array.array() for key, array in arrays.items()}


_PROTO, _STOP = b"\x80\x04", b"."
_MARK, _TUPLE, _REDUCE, _BUILD = b"(", b"t", b"R", b"b"
_DICT, _SET_ITEMS, _LIST, _APPENDS, _STACK_GLOBAL = b"}", b"u", b"]", b"e", b"\x93"


@dataclass(frozen=True)
class Named:
    """A class or a function by name; with arguments, the result of calling it."""

    module: str
    name: str
    arguments: tuple[Any, ...] | None = None


def pickle_value(value: Any) -> bytes:
    """The pickle of plain values, arrays, dtypes and `Named`."""
    return close_pickle(part_of(value))


def row_pickles(rows: Iterable[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[bytes]:
    """The pickles of arrays, or of numpy's scalars where the shape is empty, of these bytes."""
    start, end = around(dtype, shape)
    start, end = _PROTO + start, end + _STOP
    return [start + row + end for row in rows]


def around(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """The parts of a pickle before and after an array's bytes."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not shape:
        scalar = part_of(Named("numpy.core.multiarray", "scalar"))
        return scalar + _MARK + part_of(dtype) + _size_code(count), _TUPLE + _REDUCE
    empty = Named("numpy.core.multiarray", "_reconstruct", (Named("numpy", "ndarray"), (0,), b"b"))
    state = _MARK + part_of(1) + part_of(shape) + part_of(dtype) + part_of(False) + _size_code(count)
    return part_of(empty) + state, _TUPLE + _BUILD


def dictionary_around() -> tuple[bytes, bytes]:
    """The parts of a pickle before and after a dictionary's keys and values, one after the other."""
    return _DICT + _MARK, _SET_ITEMS


def list_around() -> tuple[bytes, bytes]:
    """The parts of a pickle before and after a list's entries."""
    return _LIST + _MARK, _APPENDS


def objects_around(count: int) -> tuple[bytes, bytes]:
    """The whole pickle of an array of so many objects [count], before and after these, as an npy file has it."""
    empty = Named("numpy.core.multiarray", "_reconstruct", (Named("numpy", "ndarray"), (0,), b"b"))
    dtype = part_of(Named("numpy", "dtype", ("O8", False, True))) + part_of((3, "|", None, None, None, -1, -1, 63))
    state = _MARK + part_of(1) + part_of((count,)) + dtype + _BUILD + part_of(False)
    start, end = list_around()
    return _PROTO + part_of(empty) + state + start, end + _TUPLE + _BUILD + _STOP


def join_parts(parts: Mapping[str, Any]) -> bytes:
    """The part of a pickle that makes a dictionary of parts, or of dictionaries of parts."""
    items = (part_of(key) + (join_parts(part) if isinstance(part, Mapping) else part) for key, part in parts.items())
    return _DICT + _MARK + b"".join(items) + _SET_ITEMS


def close_pickle(part: bytes) -> bytes:
    """A pickle of one part."""
    return _PROTO + part + _STOP


def part_of(value: Any) -> bytes:
    """The part of a pickle that makes a value."""
    if isinstance(value, Named):
        thing = part_of(value.module) + part_of(value.name) + _STACK_GLOBAL
        return thing if value.arguments is None else thing + part_of(value.arguments) + _REDUCE
    if isinstance(value, np.dtype):
        dtype = Named("numpy", "dtype", (value.str[1:], False, True))
        return part_of(dtype) + part_of((3, value.str[0], None, None, None, -1, -1, 0)) + _BUILD
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        start, end = around(array.dtype, array.shape)
        return start + array.tobytes() + end
    if isinstance(value, Mapping):
        return join_parts({key: part_of(item) for key, item in value.items()})
    if value is None or isinstance(value, (bool, int, float, bytes, str)):
        return pickle.dumps(value, 3)[2:-1]  # without the protocol and the end; frames begin with protocol 4
    if isinstance(value, tuple):
        return _MARK + b"".join(map(part_of, value)) + _TUPLE
    if isinstance(value, list):
        return _LIST + _MARK + b"".join(map(part_of, value)) + _APPENDS
    raise TypeError(f"{type(value).__name__}: not pickled here")


def _size_code(count: int) -> bytes:
    if count < 1 << 8:
        return b"C" + bytes((count,))
    return b"B" + struct.pack("<I", count) if count < 1 << 32 else b"\x8e" + struct.pack("<Q", count)
