"""The one data model: an episode is a set of columns with a leading time axis.

Row convention (RLDS alignment, stated here once): row t holds (o_t, a_t, r_t, d_t), where reward r_t
and discount d_t are what action a_t earned when taken at observation o_t. The last row holds the final
observation; its action, reward and discount carry no meaning. An episode of T transitions has T+1 rows.
Source: https://github.com/google-research/rlds, "Dataset format".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Array = npt.NDArray[Any]

OBSERVATION = "observation"
ACTION = "action"
REWARD = "reward"
DISCOUNT = "discount"
IS_FIRST = "is_first"
IS_LAST = "is_last"
IS_TERMINAL = "is_terminal"
FLAGS = (IS_FIRST, IS_LAST, IS_TERMINAL)
STEP_FIELDS = (OBSERVATION, ACTION, REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL)
"""The seven step fields of RLDS, in the order in which TF-Agents names them."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode as columns.

    Attributes:
      steps: column path -> array [T, ...]. Nested features have '/'-joined paths (`observation/image`).
        The arrays are made read-only; text columns have dtype object and hold `bytes`.
      metadata: episode-level features by path, each a numpy array or scalar.
      id: stable across runs (source fingerprint and index), or a digest of the content when none is given.

    Columns of unequal length are not refused here: validation reports them, so that a quarantine
    report can name them.

    Raises:
      TypeError: a column is not an array, has no time axis, or (without an id) holds objects that are no text.
    """

    steps: Mapping[str, Array]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    def __post_init__(self) -> None:
        columns = {path: _read_only(path, column) for path, column in self.steps.items()}
        object.__setattr__(self, "steps", MappingProxyType(columns))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))
        if not self.id:
            object.__setattr__(self, "id", f"content:{content_digest(columns)}")

    def __len__(self) -> int:
        """The number of rows T; of the first column where the lengths differ."""
        return len(next(iter(self.steps.values()))) if self.steps else 0

    def __repr__(self) -> str:
        columns = ", ".join(f"{p}: {c.dtype}{list(c.shape)}" for p, c in self.steps.items())
        return f"Episode({self.id!r}, {len(self)} steps, {columns})"

    @property
    def nbytes(self) -> int:
        """Bytes of all columns; of a text column, its text."""
        return sum(_column_bytes(column) for column in self.steps.values())

    def with_columns(self, **columns: Array) -> Episode:
        """A copy with these columns added or replaced; the id stays."""
        return self.with_steps({**self.steps, **columns})

    def with_steps(self, steps: Mapping[str, Array]) -> Episode:
        """A copy with other columns; the id and the metadata stay."""
        return replace(self, steps=steps)


def columns_under(steps: Mapping[str, Array], name: str) -> dict[str, Array]:
    """The column `name`, or all below it; their order is settled by the table's signature."""
    return {path: column for path, column in steps.items() if path == name or path.startswith(f"{name}/")}


def content_digest(columns: Mapping[str, Array]) -> str:
    """32 hex digits that depend on every path, dtype, shape and value of the columns.

    Raises:
      TypeError: a column holds objects that are neither bytes nor str.
    """
    digest = xxhash.xxh3_128()
    for path in sorted(columns):
        column = columns[path]
        digest.update(f"{path}|{column.dtype}|{column.shape}|".encode())
        if column.dtype == object:
            for value in column.ravel():
                text = _text_bytes(path, value)
                digest.update(len(text).to_bytes(8, "little"))
                digest.update(text)
        else:
            digest.update(byte_view(np.ascontiguousarray(column)))
    return digest.hexdigest()


def byte_view(column: Array) -> Any:
    """The bytes of a C-ordered array as a flat uint8 array, without a copy; Any, because it is used as a buffer."""
    return column.reshape(-1).view(np.uint8)


def _text_bytes(path: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f'column "{path}": expected text (bytes or str) in a column of objects, got {type(value).__name__}')


def _read_only(path: str, column: Array) -> Array:
    if not isinstance(column, np.ndarray):
        raise TypeError(f'column "{path}": expected a numpy array [T, ...], got {type(column).__name__}')
    if column.ndim == 0:
        raise TypeError(f'column "{path}": expected a leading time axis, got a scalar array')
    view = column.view()
    view.flags.writeable = False
    return view


def _column_bytes(column: Array) -> int:
    if column.dtype == object:
        return sum(len(text) for text in column.ravel())
    return column.nbytes
