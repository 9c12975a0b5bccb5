"""From what a format records of a step to RLDS' rows (`episodes`): T actions become T + 1 rows.

| the format has | rows |
| --- | --- |
| T + 1 observations | as they are; the last row's action and reward are zeros |
| T observations and the last next one | the same, with that one at the end |
| T observations | `last_step` says: "repeat" puts the last observation once more at the end, so that no action is lost; "mark" makes the last row the last step, whose action and reward then mean nothing |

The discount is 1, and 0 on a terminal last row and on the row before it: what a learner reads (see `conventions`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD, Array
from rlds2reverb.readers.recordings import BrokenEpisode

REPEAT, MARK = "repeat", "mark"
LAST_STEPS = (REPEAT, MARK)

Columns = Mapping[str, Array]


def steps(
    observation: Columns,
    action: Columns,
    reward: Array | None,
    is_terminal: bool | None,
    others: Columns | None = None,
    discount: Array | None = None,
) -> dict[str, Array]:
    """RLDS columns of T + 1 rows.

    Args:
      observation: path below `observation` ("" for a plain one) -> [T + 1, ...].
      action: path below `action` -> [T, ...].
      reward: [T], or None where the format has none.
      is_terminal: whether the episode ends in a terminal state; None where the format does not tell.
      others: path -> [T, ...] or [T + 1, ...], further columns; a row of zeros (or of empty text) is put behind the shorter ones.
      discount: [T] as recorded; without it the one above.

    Raises:
      BrokenEpisode: columns do not go together; names one and both lengths.
    """
    rows = _rows(observation, action)
    columns = {_path(OBSERVATION, path): column for path, column in observation.items()}
    columns |= {_path(ACTION, path): _closed(_path(ACTION, path), column, rows) for path, column in action.items()}
    if reward is not None:
        columns[REWARD] = _closed(REWARD, reward, rows)
    for path, column in (others or {}).items():
        columns[path] = column if len(column) == rows else _closed(path, column, rows)
    if discount is not None:
        columns[DISCOUNT] = _closed(DISCOUNT, discount, rows)
    elif is_terminal is not None:
        columns[DISCOUNT] = terminal_discount(rows, is_terminal)
    return {**columns, **flags(rows, is_terminal)}


def marked(columns: Columns, is_terminal: bool | None) -> dict[str, Array]:
    """RLDS columns of as many rows as there are: the last step recorded is the last one.

    Args:
      columns: path (as of RLDS) -> [T, ...].
      is_terminal: as of `steps`.

    Raises:
      BrokenEpisode: columns differ in length; names one and both lengths.
    """
    rows = max(map(len, columns.values()), default=0)
    for path, column in columns.items():
        if len(column) != rows:
            raise BrokenEpisode(path, f"has {len(column):,} rows; expected {rows:,} as the others")
    made = {**columns, **flags(rows, is_terminal)}
    if is_terminal is not None:
        made.setdefault(DISCOUNT, _discount(rows, is_terminal))
    return made


def flags(rows: int, is_terminal: bool | None) -> dict[str, Array]:
    """is_first, is_last and, where it is known, is_terminal, of an episode of so many rows."""
    at = np.arange(rows)
    made: dict[str, Array] = {IS_FIRST: at == 0, IS_LAST: at == rows - 1}
    if is_terminal is not None:
        made[IS_TERMINAL] = made[IS_LAST] & is_terminal
    return made


def with_last(column: Array, last: Array) -> Array:
    """[T, ...] and one more row -> [T + 1, ...]."""
    return np.concatenate([column, last[None]])


def zero_row(column: Array) -> Array:
    """One row [1, ...] of zeros, or of empty texts, like those of a column."""
    row = np.zeros((1, *column.shape[1:]), column.dtype)
    if column.dtype == object:
        row[...] = b""
    return row


def _path(field: str, path: str) -> str:
    return f"{field}/{path}" if path else field


def _rows(observation: Columns, action: Columns) -> int:
    """T + 1, as the observations have it."""
    lengths = {path: len(column) for path, column in observation.items()}
    rows = max(lengths.values(), default=1 + max(map(len, action.values()), default=0))
    for path, length in lengths.items():
        if length != rows:
            raise BrokenEpisode(
                _path(OBSERVATION, path), f"has {length:,} rows; expected {rows:,} as the other observations"
            )
    return rows


def _closed(path: str, column: Array, rows: int) -> Array:
    if len(column) != rows - 1:
        raise BrokenEpisode(path, f"has {len(column):,} rows; expected {rows - 1:,}, one fewer than observations")
    return np.concatenate([column, zero_row(column)])


def terminal_discount(rows: int, is_terminal: bool) -> Array:
    """The discount above, of an episode of so many rows."""
    discount = np.ones(rows, np.float32)
    if is_terminal:
        discount[-2:] = 0
    return discount
