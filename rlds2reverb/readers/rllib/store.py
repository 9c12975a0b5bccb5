"""What files of every kind share: settings, what was wrong with them, and the columns kept of late."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.rllib.batches import TERMINATED
from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found, Place
from rlds2reverb.readers.rllib.names import Names
from rlds2reverb.readers.rllib.values import Leaves

_CACHE_BYTES = 64 << 20
_KEPT_BYTES = 64 << 20
"""Of numbers; as text, they are two to three times as long."""
_OBJECT_BYTES, _TEXT_BYTES = 500, 33
"""Of what Python has around an array and its places in dicts, and around a text."""
_NAMED = 3


@dataclass(frozen=True)
class Settings:
    """How files are read.

    Attributes:
      names: what the dataset calls RLlib's columns.
      floats: the dtype of numbers of JSON with a point.
      done_means: `TERMINATED` or `TRUNCATED`, where there are `dones` only.
    """

    names: Names = field(default_factory=Names)
    floats: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))
    done_means: int = TERMINATED

    def cache(self) -> Cache:
        """A new one, for one reader."""
        return Cache(_CACHE_BYTES)

    def kept(self) -> Kept:
        """A new one, for one scan."""
        return Kept(_KEPT_BYTES)


Stamp = tuple[int, ...]
Wanted = Callable[[str], bool]
"""RLlib's name of a column -> whether it may be asked for."""


class Reader(Protocol):
    """Columns by place."""

    def column(self, place: Place, name: str) -> Leaves:
        """All rows of a column of a part; raises `BrokenEpisode`."""

    def close(self) -> None:
        """Gives up the files."""


class Stamps:
    """What files were when they were first looked at."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._of_paths = {file.path: _stamp(file.path) for file in files}

    def check(self) -> None:
        """Raises `SourceError` when one of them is another by now."""
        for path, stamp in self._of_paths.items():
            if _stamp(path) != stamp:
                raise SourceError(f"{path}: was written anew after it was first looked at; open the source again")


class Store(Protocol):
    """Files of one kind."""

    troubles: Troubles
    stamps: Stamps

    def scan(self, wanted: Wanted, /) -> Iterator[Found]:
        """All parts, in the order of the files; columns that are wanted later may be kept."""

    def reader(self, wanted: frozenset[str]) -> Reader:
        """A reader of these columns."""


@dataclass
class Troubles:
    """Records that were left out."""

    empty: int = 0
    corrupt: int = 0
    named: list[str] = field(default_factory=list)
    repeated: int = 0

    def add(self, where: str, why: str) -> None:
        """Counts one that is corrupt; the first few are named."""
        self.corrupt += 1
        if len(self.named) < _NAMED:
            self.named.append(f"{where}: {why}")


class Cache:
    """Columns of the records that were read last, of so many bytes at most; always of one."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._kept: OrderedDict[Any, tuple[dict[Any, Any], int]] = OrderedDict()

    def get(self, key: Any) -> dict[Any, Any] | None:
        """The columns of a record; None when they are not here."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: Any, columns: dict[Any, Any]) -> None:
        """Keeps them, and drops the oldest ones."""
        size = _size(columns)
        self._kept[key] = columns, size
        self._bytes += size
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]


class Kept:
    """Columns of the first records, which the scan converted, so that they are parsed once. Of so many bytes at most."""

    def __init__(self, most_bytes: int) -> None:
        self._room, self.is_full = most_bytes, False
        self._stamps: dict[int, Stamp] = {}
        self._records: dict[tuple[int, int], dict[Any, Any]] = {}

    def begin(self, number: int, path: Path) -> None:
        """Before a file is scanned: notes what it is like."""
        if not self.is_full:
            self._stamps[number] = _stamp(path)

    def put(self, key: tuple[int, int], columns: dict[Any, Any]) -> None:
        """Keeps the columns of a record, by the number of its file and its place there; what does not fit is the end of it."""
        size = _size(columns)
        if size > self._room:
            self.is_full = True
        if not self.is_full:
            self._room -= size
            self._records[key] = columns

    def is_of(self, number: int, path: Path) -> bool:
        """Whether a file is still the one that was scanned."""
        return number in self._stamps and self._stamps[number] == _stamp(path) != ()

    def get(self, key: tuple[int, int]) -> dict[Any, Any] | None:
        """The columns of a record; None when they are not here."""
        return self._records.get(key)


def _stamp(path: Path) -> Stamp:
    """What changes when a file is written anew; () for one that is not there."""
    try:
        told = path.stat()
    except OSError:
        return ()
    return told.st_ino, told.st_size, told.st_mtime_ns


def _size(columns: dict[Any, Any]) -> int:
    """Bytes of a record's columns, those of the objects around the values among them."""
    return _OBJECT_BYTES + sum(_bytes(leaves) for leaves in columns.values())


def _bytes(leaves: Any) -> int:
    if not isinstance(leaves, dict):
        return 2 * _OBJECT_BYTES
    return sum(
        _OBJECT_BYTES
        + column.nbytes
        + (sum(_TEXT_BYTES + len(text) for text in column.ravel()) if column.dtype == object else 0)
        for column in leaves.values()
    )
