"""Pickles and npz files of unknown origin, as a whole in memory, which is what their writers meant."""

from __future__ import annotations

import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.safe_pickle import safe_loads
from rlds2reverb.wording import shortened

MOST_BYTES = 8 << 30
"""Most bytes of a file, unpacked."""

_ERRORS = (OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What gzip, zipfile and numpy raise over a damaged file."""


def start_of(path: Path) -> bytes:
    """The first bytes of a file.

    Raises:
      SourceError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(8)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error


def unpickled(path: Path, inert: Collection[str] = frozenset()) -> Any:
    """What a pickle holds, compressed by gzip or not.

    Raises:
      SourceError: it cannot be read; or as `safe_loads`.
    """
    is_packed = start_of(path).startswith(b"\x1f\x8b")
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except _ERRORS as error:
        raise SourceError(f"{path}: cannot be read: {shortened(str(error))}") from error
    if len(data) > MOST_BYTES:
        raise SourceError(f"{path}: unpacks to more than {MOST_BYTES:,} bytes, which are read as a whole; split it")
    return safe_loads(data, path.name, inert)


def npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file, by name; those of objects by `safe_loads`.

    Raises:
      SourceError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            members = packed.infolist()
            if sum(member.file_size for member in members) > MOST_BYTES:
                raise SourceError(
                    f"{path}: unpacks to more than {MOST_BYTES:,} bytes, which are read as a whole; split it"
                )
            return {
                member.filename.removesuffix(".npy"): _npy(packed.read(member), f"{path.name}: {member.filename}")
                for member in members
            }
    except _ERRORS as error:
        raise SourceError(f"{path}: cannot be read as npz: {shortened(str(error))}") from error


def _npy(data: bytes, where: str) -> Array:
    """Source of the layout: numpy/lib/format.py."""
    file = io.BytesIO(data)
    shape, is_fortran, dtype = _header(file, where)
    order, rest = "F" if is_fortran else "C", data[file.tell() :]
    if dtype.hasobject:
        found = safe_loads(rest, where)
        if not isinstance(found, np.ndarray) or dtype != object:
            raise SourceError(f"{where}: expected an array of objects")
        return found
    if len(rest) != math.prod(shape) * dtype.itemsize or not dtype.itemsize:
        raise SourceError(
            f"{where}: {len(rest):,} bytes for an array of {dtype} and shape {shape}; the file was cut off"
        )
    return np.ndarray(shape, dtype, rest, order="F" if order == "F" else "C")


def _header(file: BinaryIO, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    layout: Any = np.lib.format
    try:
        version = layout.read_magic(file)
        read = layout.read_array_header_1_0 if version == (1, 0) else layout.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except (*_ERRORS, SyntaxError, TypeError, RecursionError, MemoryError, TokenError) as error:
        raise SourceError(f"{where}: not a numpy array: {shortened(str(error))}") from error
    return tuple(shape), bool(is_fortran), dtype
