"""NumPy's archives of unknown origin: their arrays as columns of rows, read in parts; no code of a pickle is run.

Sizes in headers are compared with the archive before memory is allocated. numpy's own `NpzFile` would load each array whole, and allocate what
its header claims.
Source of the layout: numpy/lib/_format_impl.py ("NPY format"); a .npz file is a zip archive of .npy files.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import line_of, shortened

MOST_ARRAYS = 10_000
_ERRORS = (  # raised by zipfile and numpy for a damaged file
    OSError, EOFError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError, OverflowError,
    SyntaxError, RecursionError, TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

_FORMAT: Any = np.lib.format
_MOST_BYTES = 1 << 32
_FREE_BYTES = 1 << 30
_MOST_EXPANSION = 200
"""Largest ratio of unpacked to stored bytes above `_FREE_BYTES`. Deflate reaches 1,032 with zeros only; frames of games reach 50."""
_AT_ONCE = 1 << 20
_MOST_HEADER = 10_000
_NPY = ".npy"
_SAFE_KEY = re.compile(r"[^/\0]+(/[^/\0]+)*")


class NpzArray:
    """An array of an open archive, as a column of rows (`rows.Rows`). Raises `BrokenEpisode` if it is damaged, or holds neither numbers nor texts."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> None:
        self._archive, self._info = archive, info
        self.key = info.filename.removesuffix(_NPY)
        self.where = f"{where}: {self.key}"
        self._file: IO[bytes] | None = None
        self._loaded: Array | None = None
        try:
            with self._reading():
                self._open()
        except BrokenEpisode:
            self.close()
            raise

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape[1:], self._dtype if self._dtype.kind in "biufc" else np.dtype(object))

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all; text as `bytes`. Raises `BrokenEpisode` if they cannot be read, or there is one value."""
        if not self.shape:
            raise self._broken("expected rows, found one value")
        stop = len(self) if stop is None else max(0, min(stop, len(self)))
        start = min(start, stop)
        with self._reading():
            # A pickle, and a matrix stored column by column, have no rows in one piece.
            if self._dtype.hasobject or (self._is_fortran and len(self.shape) > 1):
                return self._read_whole()[start:stop]
            data = self._read_bytes(self._offset + start * self._row_bytes, (stop - start) * self._row_bytes)
            return self._shape_values(data, (stop - start, *self.shape[1:]))

    def value(self) -> Any:
        """The scalar of an array without dimensions; text as `bytes`."""
        with self._reading():
            return self._read_whole().reshape(())[()]

    def array(self) -> Array:
        """All values in numpy's own form; objects as they were pickled."""
        try:
            with self._reading():
                if not self._dtype.hasobject:
                    return self._read_whole()
                return self._unpickle(self._read_bytes(self._offset, self._info.file_size - self._offset))
        except SourceError as error:
            raise BrokenEpisode(self.key, str(error)) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns the errors of a damaged array into `BrokenEpisode`."""
        try:
            yield
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error

    def _open(self) -> None:
        """Reads the header, and compares the sizes in it with the archive's."""
        self._file = self._archive.open(self._info)
        version = _FORMAT.read_magic(self._file)
        readers = {(1, 0): _FORMAT.read_array_header_1_0, (2, 0): _FORMAT.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"a .npy of version {version}; expected 1.0 or 2.0")
        self.shape, self._is_fortran, self._dtype = readers[version](self._file, max_header_size=_MOST_HEADER)
        self._offset = self._file.tell()
        if self._dtype.kind not in "biufcSUO" or self._dtype.names:
            raise self._broken(f"holds values of dtype {self._dtype}; expected numbers or texts")
        if any(size < 0 for size in self.shape):
            raise self._broken(f"has the shape {self.shape}")
        self._row_bytes = math.prod(self.shape[1:]) * self._dtype.itemsize
        stored, there = self._info.compress_size, self._info.file_size - self._offset
        size = there if self._dtype.hasobject else math.prod(self.shape) * self._dtype.itemsize
        if size != there:
            raise self._broken(f"has {there:,} bytes of values; expected {size:,}, as its shape {self.shape} says")
        if size > most_unpacked(stored):
            raise self._broken(f"unpacks {stored:,} bytes to {size:,}; at most {most_unpacked(stored):,} are read")

    def _read_whole(self) -> Array:
        """All values, in the order of rows. They are kept, because they cannot be read in parts."""
        if self._loaded is None:
            data = self._read_bytes(self._offset, self._info.file_size - self._offset)
            if self._dtype.hasobject:
                self._loaded = _encode_texts(self._unpickle(data))
            elif self._is_fortran:
                self._loaded = self._shape_values(data, self.shape[::-1]).transpose()
            else:
                self._loaded = self._shape_values(data, self.shape)
        return self._loaded

    def _unpickle(self, data: memoryview) -> Array:
        array = safe_loads(bytes(data), self.where)
        if not isinstance(array, np.ndarray) or array.shape != self.shape:
            raise ValueError(f"a pickle of something else than an array of shape {self.shape}")
        return array

    def _shape_values(self, data: memoryview, shape: tuple[int, ...]) -> Array:
        values = np.frombuffer(data, self._dtype).reshape(shape) if self._row_bytes else np.zeros(shape, self._dtype)
        return values if values.dtype.kind in "biufc" else _encode_texts(values)

    def _read_bytes(self, offset: int, size: int) -> memoryview:
        """Reads bytes in parts, so that a truncated file does not allocate memory for the missing rest."""
        if size > _MOST_BYTES:
            raise ValueError(f"{size:,} bytes to read at once; at most {_MOST_BYTES:,} are read")
        if self._file is None or self._file.closed:
            self._file = self._archive.open(self._info)
        self._file.seek(offset)
        room = np.empty(size, np.uint8).data
        for at in range(0, size, _AT_ONCE):
            part = self._file.read(min(_AT_ONCE, size - at))
            room[at : at + len(part)] = part
            if len(part) < min(_AT_ONCE, size - at):
                raise EOFError(f"{at + len(part):,} bytes; expected {size:,}")
        return room.toreadonly()

    def _broken(self, why: str) -> BrokenEpisode:
        return BrokenEpisode(self.key, f"{self.where}: {why}")


@contextmanager
def open_archive(path: Path, is_wanted: Callable[[str], bool] = bool) -> Iterator[dict[str, NpzArray]]:
    """The arrays of an archive by key; all, or those of the wanted keys. Raises `SourceError`, or `BrokenEpisode` for an array."""
    try:
        with ExitStack() as stack:
            check_regular(path)
            archive = stack.enter_context(zipfile.ZipFile(for_library(path)))
            infos = [info for info in _check_infos(path, archive) if is_wanted(info.filename.removesuffix(_NPY))]
            arrays = (stack.enter_context(closing(NpzArray(archive, info, str(path)))) for info in infos)
            yield {array.key: array for array in arrays}
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read as .npz: {line_of(error)}") from error


def most_unpacked(stored: int) -> int:
    """The most bytes that a file of `stored` bytes may unpack to."""
    return max(_FREE_BYTES, _MOST_EXPANSION * stored)


def _check_infos(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The arrays of an archive, if their names and sizes are acceptable."""
    infos = archive.infolist()
    if len(infos) > MOST_ARRAYS:
        raise SourceError(f"{path}: {len(infos):,} arrays; expected at most {MOST_ARRAYS:,}")
    size = sum(info.file_size for info in infos)
    # By the open file: it is what is read, and asking for the path costs more.
    stored = 0 if archive.fp is None else archive.fp.seek(0, os.SEEK_END)
    if size > most_unpacked(stored):
        raise SourceError(
            f"{path}: unpacks {stored:,} bytes to {size:,}; at most {most_unpacked(stored):,} are read. Write the arrays without compression (numpy.savez)"
        )
    for info in infos:
        if not info.filename.endswith(_NPY) or not _SAFE_KEY.fullmatch(info.filename):
            raise SourceError(f"{path}: {shortened(info.filename)!r} is no array; expected what numpy.savez writes")
    if len({info.filename for info in infos}) < len(infos):
        raise SourceError(f"{path}: two arrays have the same name")
    return infos


def _encode_texts(values: Array) -> Array:
    flat = [value.encode() if isinstance(value, str) else value for value in values.ravel().tolist()]
    for value in flat:
        if not isinstance(value, bytes):
            raise TypeError(f"an object of type {type(value).__name__}; expected numbers or texts")
    return np.array(flat, object).reshape(values.shape)
