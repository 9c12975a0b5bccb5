"""Arrays in a .npz file, read by rows and without pickle's programs; sizes are held against the archive before memory is asked for."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.readers.pickles import safe_loads
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wording import line_of, shortened

_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    NotImplementedError,
    MemoryError,
    OverflowError,
    SyntaxError,
    RecursionError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile and numpy raise over a damaged file."""

_FORMAT: Any = np.lib.format
_MOST_BYTES = 1 << 32
_MOST_EXPANSION = 200
_FREE_BYTES = 1 << 30
"""How many times as large as what is stored values may be, where they are more than a GiB. Deflate's best is 1,032, of zeros alone; frames of
games come to 50."""
_AT_ONCE = 1 << 20
_MOST_MEMBERS = 10_000
_MOST_HEADER = 10_000
_NPY = ".npy"
_SAFE_KEY = re.compile(r"[^/\0]+(/[^/\0]+)*")


class Member:
    """An array of an archive, as a column of rows.

    Args:
      archive: open.
      info: of the member.
      where: what messages call the archive.

    Raises:
      BrokenEpisode: it cannot be read, or holds neither numbers nor texts.
    """

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> None:
        self._archive, self._info = archive, info
        self.key = info.filename.removesuffix(_NPY)
        self.where = f"{where}: {self.key}"
        self._file: IO[bytes] | None = None
        self._loaded: Array | None = None
        try:
            self.shape, self._is_fortran, self._dtype = self._header()
            self._check()
        except _ERRORS as error:
            self.close()
            raise self._broken(f"cannot be read: {line_of(error)}") from error
        except BrokenEpisode:
            self.close()
            raise

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def spec(self) -> ArraySpec:
        """That of a row."""
        return ArraySpec(self.shape[1:], self._dtype if self._dtype.kind in "biufc" else np.dtype(object))

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all; text as `bytes`.

        Raises:
          BrokenEpisode: they cannot be read, or there is one value without rows.
        """
        if not self.shape:
            raise self._broken("expected rows, found one value")
        stop = len(self) if stop is None else max(0, min(stop, len(self)))
        start = min(start, stop)
        try:
            return self._rows(start, stop)
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error

    def value(self) -> Any:
        """An array of no dimension, as a scalar; text as `bytes`."""
        try:
            return self._whole().reshape(())[()]
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error

    def array(self) -> Array:
        """All values as numpy has them; objects as they were pickled."""
        try:
            if not self._dtype.hasobject:
                return self._whole()
            return self._pickled(self._bytes(self._offset, self._info.file_size - self._offset))
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error
        except SourceError as error:
            raise BrokenEpisode(self.key, str(error)) from error

    def close(self) -> None:
        """Ends reading."""
        if self._file is not None:
            self._file.close()

    def _header(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        self._file = self._archive.open(self._info)
        version = _FORMAT.read_magic(self._file)
        readers = {(1, 0): _FORMAT.read_array_header_1_0, (2, 0): _FORMAT.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"a .npy of version {version}; expected 1.0 or 2.0")
        shape, is_fortran, dtype = readers[version](self._file, max_header_size=_MOST_HEADER)
        self._offset = self._file.tell()
        return shape, is_fortran, dtype

    def _check(self) -> None:
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

    def _rows(self, start: int, stop: int) -> Array:
        if self._dtype.hasobject or (self._is_fortran and len(self.shape) > 1):
            return self._whole()[start:stop]
        size = (stop - start) * self._row_bytes
        return self._shaped(self._bytes(self._offset + start * self._row_bytes, size), (stop - start, *self.shape[1:]))

    def _whole(self) -> Array:
        """All values, in the order of rows; kept, for they cannot be read by parts."""
        if self._loaded is None:
            data = self._bytes(self._offset, self._info.file_size - self._offset)
            if self._dtype.hasobject:
                self._loaded = _texts(self._pickled(data))
            elif self._is_fortran:
                self._loaded = self._shaped(data, self.shape[::-1]).transpose()
            else:
                self._loaded = self._shaped(data, self.shape)
        return self._loaded

    def _pickled(self, data: memoryview) -> Array:
        made = safe_loads(bytes(data), self.where)
        if not isinstance(made, np.ndarray) or made.shape != self.shape:
            raise ValueError(f"a pickle of something else than an array of shape {self.shape}")
        return made

    def _shaped(self, data: memoryview, shape: tuple[int, ...]) -> Array:
        values = np.frombuffer(data, self._dtype).reshape(shape) if self._row_bytes else np.zeros(shape, self._dtype)
        return values if values.dtype.kind in "biufc" else _texts(values)

    def _bytes(self, offset: int, size: int) -> memoryview:
        """Some bytes, in memory once. Memory that no data come for is not used."""
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
def opened(path: Path, only: Collection[str] | None = None) -> Iterator[dict[str, Member]]:
    """The arrays of an archive, by key; those of some keys, or all.

    Raises:
      SourceError: it is missing or no archive, or a key makes no sense.
      BrokenEpisode: one of its arrays cannot be read.
    """
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive, ExitStack() as members:
            infos = [one for one in _infos(path, archive) if only is None or one.filename.removesuffix(_NPY) in only]
            made = (members.enter_context(closing(Member(archive, info, str(path)))) for info in infos)
            yield {one.key: one for one in made}
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read as .npz: {line_of(error)}") from error


def keys_in(path: Path) -> list[str]:
    """The keys of all arrays, without a look at them; raises as `checksums`."""
    return [name.removesuffix(_NPY) for name, _, _ in checksums(path)]


def checksums(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and CRC-32 of every array, as the archive has them.

    Raises:
      SourceError: it is missing, or no archive.
    """
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            return [(one.filename, one.file_size, one.CRC) for one in _infos(path, archive)]
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read as .npz: {line_of(error)}") from error


def most_unpacked(stored: int) -> int:
    """How many bytes so many may unpack to."""
    return max(_FREE_BYTES, _MOST_EXPANSION * stored)


def _infos(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MOST_MEMBERS:
        raise SourceError(f"{path}: {len(infos):,} arrays; expected at most {_MOST_MEMBERS:,}")
    size, stored = sum(info.file_size for info in infos), path.stat().st_size
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


def _texts(values: Array) -> Array:
    """Texts of any dtype as `bytes`."""
    flat = [one.encode() if isinstance(one, str) else one for one in values.ravel().tolist()]
    for one in flat:
        if not isinstance(one, bytes):
            raise TypeError(f"an object of type {type(one).__name__}; expected numbers or texts")
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(values.shape)
