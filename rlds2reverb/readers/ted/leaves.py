"""Leaves of TensorDicts: values in files of raw bytes, mapped for reading, or in memory."""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.ted.dtypes import DTYPES
from rlds2reverb.wording import shortened

MOST_NESTED = 32
"""Sizes of a shape; levels of a nest."""


class Leaf(Protocol):
    """The values of one key."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all of them."""

    @property
    def values(self) -> Array:
        """All of them, mapped or in memory. Bool is given as uint8, for any byte but 0 is true."""


Stamp = tuple[int, int]
"""Size in bytes, and the time of the last change in nanoseconds."""


@dataclass(frozen=True)
class FileLeaf:
    """A leaf in a file of its own."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stamp: Stamp

    @cached_property
    def values(self) -> Array:
        """The file, mapped for reading."""
        held = np.dtype(np.uint8) if self.dtype == bool else self.dtype
        if not math.prod(self.shape):
            return np.empty(self.shape, held)
        try:
            return np.memmap(self.path, held, "r", shape=self.shape).view(np.ndarray)
        except (OSError, ValueError) as error:
            raise SourceError(f"{self.path}: cannot be read: {error}") from error


@dataclass(frozen=True)
class HeldLeaf:
    """A leaf in memory."""

    values: Array
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        return self.values.shape


def sized_leaf(path: Path, dtype: Any, shape: Any) -> FileLeaf:
    """A leaf whose file has the bytes that its dtype and shape make.

    Raises:
      SourceError: it has others, or dtype and shape make no sense.
    """
    known = dtype_of(path, dtype)
    sizes = shape_of(path, shape)
    expected, stamp = math.prod(sizes) * known.itemsize, stamp_of(path)
    if expected != stamp[0]:
        raise SourceError(f"{path}: has {stamp[0]:,} bytes; expected {expected:,} for {dtype} {list(sizes)}")
    return FileLeaf(path, known, sizes, stamp)


@contextmanager
def unchanged(leaves: Iterable[Leaf]) -> Iterator[None]:
    """For as long as leaves are read.

    Raises:
      SourceError: a file of them was written anew since it was first looked at; before, or in the end.
    """
    files = [leaf for leaf in leaves if isinstance(leaf, FileLeaf)]
    _check_stamps(files)
    yield
    _check_stamps(files)


def _check_stamps(files: Iterable[FileLeaf]) -> None:
    for one in files:
        if stamp_of(one.path) != one.stamp:
            raise SourceError(f"{one.path}: was written anew after it was first looked at; open the source again")


def stamp_of(path: Path) -> Stamp:
    """That of a regular file.

    Raises:
      SourceError: it is missing, or no regular file.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{path}: not a regular file")
    return found.st_size, found.st_mtime_ns


def dtype_of(path: Path, name: Any) -> np.dtype[Any]:
    """Numpy's dtype of a torch one.

    Raises:
      SourceError: there is none.
    """
    if not isinstance(name, str) or name not in DTYPES:
        raise SourceError(f"{path}: dtype {shortened(repr(name))}: expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def shape_of(path: Path, sizes: Any) -> tuple[int, ...]:
    """A shape as JSON has it.

    Raises:
      SourceError: it is none.
    """
    if not isinstance(sizes, list) or len(sizes) > MOST_NESTED:
        raise SourceError(f"{path}: shape {shortened(repr(sizes))}: expected a list of sizes")
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 62:
            raise SourceError(f"{path}: shape {shortened(repr(sizes))}: expected sizes of at least 0")
    return tuple(sizes)
