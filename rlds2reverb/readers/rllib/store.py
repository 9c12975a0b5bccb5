"""What files of every kind share: settings, what was wrong with them, and the columns kept of late."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rlds2reverb.readers.rllib.batches import TERMINATED
from rlds2reverb.readers.rllib.index import Found, Place
from rlds2reverb.readers.rllib.names import Names
from rlds2reverb.readers.rllib.values import Leaves

_CACHE_BYTES = 128 << 20
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


class Reader(Protocol):
    """Columns by place."""

    def column(self, place: Place, name: str) -> Leaves:
        """All rows of a column of a part; raises `BrokenEpisode`."""

    def close(self) -> None:
        """Gives up the files."""


class Store(Protocol):
    """Files of one kind."""

    troubles: Troubles

    @property
    def fingerprint(self) -> str:
        """Names their content, once they are scanned."""

    def scan(self) -> Iterator[Found]:
        """All parts, in the order of the files."""

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
        size = sum(_bytes(leaves) for leaves in columns.values())
        self._kept[key] = columns, size
        self._bytes += size
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]


def _bytes(leaves: Any) -> int:
    if not isinstance(leaves, dict):
        return 1000
    return sum(
        column.nbytes + (sum(map(len, column.ravel())) if column.dtype == object else 0) for column in leaves.values()
    )
