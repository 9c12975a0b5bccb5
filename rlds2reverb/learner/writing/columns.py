"""An episode in the making: one array per column, with room for more rows than there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.writing.layout import Layout
from rlds2reverb.learner.writing.values import value_for
from rlds2reverb.specs import ArraySpec

_FIRST_ROOM = 128


class _Column:
    """The rows of one column.

    Attributes:
      path, spec: of the column.
      array: [room, ...].
      plain_dtype: that of values which are taken as they are; None for text.
      scalar: the type of such values that are numpy scalars; None where there are none.
    """

    __slots__ = ("array", "path", "plain_dtype", "scalar", "spec")

    def __init__(self, path: str, spec: ArraySpec, room: int) -> None:
        self.path, self.spec = path, spec
        self.plain_dtype = None if spec.dtype.kind == "O" else np.dtype(spec.dtype.type)
        self.scalar = None if self.plain_dtype is None or spec.shape else self.plain_dtype.type
        self.array: Array = np.empty((room, *_sizes(spec)), spec.dtype.type)

    def take(self, value: Any) -> Any:
        """The value as it is put into `array`; raises as `value_for` does."""
        if self.scalar is not None and type(value) is self.scalar:
            return value
        return value_for(self.path, value, self.spec)

    def grow(self, room: int) -> None:
        """Makes room."""
        grown = np.empty((room, *_sizes(self.spec)), self.spec.dtype.type)
        grown[: len(self.array)] = self.array
        self.array = grown


class Columns:
    """The rows of one episode. Values are copied in.

    Args:
      layout: how steps are nested.
      specs: path -> spec of every column of the layout, of fixed shapes.
      most_bytes: most bytes of all arrays.
      room: rows to begin with; 0 for a few.

    Attributes:
      rows: so far.
    """

    def __init__(self, layout: Layout, specs: Mapping[str, ArraySpec], most_bytes: int, room: int = 0) -> None:
        self.rows = 0
        self._layout, self._specs = layout, specs
        row_bytes = sum(spec.dtype.itemsize * int(np.prod(_sizes(spec))) for spec in specs.values())
        self._most_bytes, self._most_rows = most_bytes, max(2, most_bytes // max(1, row_bytes))
        self._room = min(room or _FIRST_ROOM, self._most_rows)
        self._columns = [_Column(path, specs[path], self._room) for path in layout.paths]
        self._set_fast()

    @property
    def room(self) -> int:
        """Rows for which there is memory."""
        return self._room

    def append(self, step: Any) -> None:
        """Takes a step.

        Raises:
          ConfigError: it is not as the others are, or the episode is too long; the columns are as before.
        """
        row = self.rows
        if row == self._room:
            self._grow()
        values = self._layout.values(step)
        for value, (array, dtype, shape, column) in zip(values, self._fast):
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
                array[row] = value
            else:
                array[row] = column.take(value)
        self.rows = row + 1

    def append_values(self, values: Mapping[str, Any]) -> None:
        """Takes values by path; the columns without one get 0, False or empty text. Raises as `append` does."""
        if self.rows == self._room:
            self._grow()
        for column in self._columns:
            given = column.path in values
            column.array[self.rows] = column.take(values[column.path]) if given else _nothing(column.spec)
        self.rows += 1

    def last(self, path: str) -> Any:
        """The last row of a column."""
        return next(column.array[self.rows - 1] for column in self._columns if column.path == path)

    def finished(self) -> dict[str, Array]:
        """Path -> [rows, ...]. The arrays are given away: no other step may come."""
        is_wasteful = self.rows * 2 < self._room
        return {
            column.path: column.array[: self.rows].copy() if is_wasteful else column.array[: self.rows]
            for column in self._columns
        }

    def _grow(self) -> None:
        if self.rows >= self._most_rows:
            raise ConfigError(
                f"episode: {self.rows:,} steps fill the {self._most_bytes:,} bytes that an unfinished episode may take; end it "
                "(end_episode), let long ones be cut (max_steps=...), or allow more (most_episode_bytes=...). Nothing of this step was taken"
            )
        self._room = min(2 * self._room, self._most_rows)
        for column in self._columns:
            column.grow(self._room)
        self._set_fast()

    def _set_fast(self) -> None:
        """What `append` looks at: text has no dtype that a value could have, so that each is taken by itself."""
        self._fast = [(one.array, one.plain_dtype, _sizes(one.spec), one) for one in self._columns]


def _sizes(spec: ArraySpec) -> tuple[int, ...]:
    """The shape; every size of a step's value is fixed."""
    return tuple(size for size in spec.shape if size is not None)


def _nothing(spec: ArraySpec) -> Any:
    return b"" if spec.dtype.kind == "O" else 0
