"""Columns that grow, each a file of raw bytes: C order, little-endian, no header."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.destinations.growing_files import at_end, put
from rlds2reverb.episodes import Array, byte_view


@dataclass(frozen=True)
class Growing:
    """A column.

    Attributes:
      dtype, row: of a row.
      has_ends: whether every episode adds one row more than it has steps.
    """

    dtype: np.dtype[Any]
    row: tuple[int, ...]
    has_ends: bool = False

    @property
    def row_bytes(self) -> int:
        """Of a row."""
        return int(np.prod(self.row, dtype=np.int64)) * self.dtype.itemsize

    def rows(self, episodes: int, steps: int) -> int:
        """Of so many episodes with so many steps."""
        return steps + episodes if self.has_ends else steps


class Spool:
    """The files of all columns, and of the episodes' lengths.

    Args:
      folder: where.
      files: name of a file in it -> its column.
      episodes, steps: of an earlier run; what came after them is cut off.

    Raises:
      OSError: a file has fewer of them, or the disk.
    """

    def __init__(self, folder: Path, files: Mapping[str, Growing], episodes: int = 0, steps: int = 0) -> None:
        self.episodes, self.steps, self._columns = episodes, steps, dict(files)
        self._open: dict[str, Any] = {}
        with ExitStack() as opened:  # a full disk keeps none of them open
            for name, column in self._columns.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._open[name] = opened.enter_context(at_end(path, column.rows(episodes, steps) * column.row_bytes))
            self._files = opened.pop_all()

    def append(self, values: Mapping[str, Array], steps: int) -> None:
        """Takes an episode: file -> its rows."""
        for name, column in self._columns.items():
            ordered = np.ascontiguousarray(values[name], column.dtype.newbyteorder("<"))
            self._open[name].write(byte_view(ordered))
        self.episodes += 1
        self.steps += steps

    def sync(self) -> None:
        """Puts all on disk."""
        for file in self._open.values():
            put(file)

    def close(self) -> None:
        """Lets go of the files."""
        self._files.close()
