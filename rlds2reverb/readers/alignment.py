"""From what a format records of a step to RLDS' rows (`episodes`): T actions become T + 1 rows.

| the format has | rows |
| --- | --- |
| T + 1 observations | as they are; the last row's action and reward are zeros |
| T observations and the last next one | the same, with that one at the end |
| T observations | `last_step` says: "repeat" puts the last observation once more at the end, so that no action is lost; "mark" makes the last row the last step, whose action and reward then mean nothing |

The discount is 1, and 0 on a terminal last row and on the row before it: what a learner reads (see `conventions`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode

REPEAT, MARK = "repeat", "mark"
LAST_STEPS = (REPEAT, MARK)
NEXT = "next"
NEXT_OBSERVATION = "next_observation"
"""Where readers put what was recorded as the observation after an action, before it becomes the last row."""

ENDINGS = {
    NEXT: "the last row of an episode has the last of the next observations, and no action",
    REPEAT: "the last row of an episode repeats the last observation, and has no action; last_step=mark leaves it out",
    MARK: "the last recorded step of an episode is its last row, whose action and reward learners do not see",
}
"""What is said of each."""

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
      BrokenEpisode: columns do not go together, or one of `others` has the name of a flag or of another column.
    """
    _refuse_flags(others or {})
    rows = _rows(observation, action)
    columns = {_path(OBSERVATION, path): column for path, column in observation.items()}
    columns |= {_path(ACTION, path): _closed(_path(ACTION, path), column, rows) for path, column in action.items()}
    if reward is not None:
        columns[REWARD] = _closed(REWARD, reward, rows)
    for path, column in (others or {}).items():
        if path in columns:
            raise BrokenEpisode(path, "two columns have this name")
        columns[path] = column if len(column) == rows else _closed(path, column, rows)
    if discount is not None:
        columns[DISCOUNT] = _closed(DISCOUNT, discount, rows)
    elif is_terminal is not None:
        columns[DISCOUNT] = terminal_discount(rows, is_terminal)
    return {**columns, **flags(rows, is_terminal)}


def last_step_of(where: str, paths: Collection[str], wanted: str | None) -> str:
    """What becomes of episodes' ends: as wanted, or by default their last next observation where there is one for each observation.

    Args:
      where: what messages call the data.
      paths: of all columns recorded.
      wanted: `NEXT`, or of `LAST_STEPS`; None for the default.

    Raises:
      SourceError: next observations are wanted, and there are none.
    """
    observed = {path[len(OBSERVATION) :] for path in paths if path.split("/")[0] == OBSERVATION}
    after = {path[len(NEXT_OBSERVATION) :] for path in paths if path.split("/")[0] == NEXT_OBSERVATION}
    missing = sorted(observed - after)
    if wanted == NEXT and missing:
        raise SourceError(
            f"{where}: last_step=next: no next observation{missing[0] and f' of {missing[0][1:]}'}; choose repeat or mark"
        )
    return wanted or (REPEAT if missing else NEXT)


def marked(columns: Columns, is_terminal: bool | None) -> dict[str, Array]:
    """RLDS columns of as many rows as there are: the last step recorded is the last one.

    Args:
      columns: path (as of RLDS) -> [T, ...].
      is_terminal: as of `steps`.

    Raises:
      BrokenEpisode: columns differ in length, names one and both lengths; or one has the name of a flag.
    """
    _refuse_flags(columns)
    rows = max(map(len, columns.values()), default=0)
    for path, column in columns.items():
        if len(column) != rows:
            raise BrokenEpisode(path, f"has {len(column):,} rows; expected {rows:,} as the others")
    made = {**columns, **flags(rows, is_terminal)}
    if is_terminal is not None:
        made.setdefault(DISCOUNT, terminal_discount(rows, is_terminal))
    return made


def flags(rows: int, is_terminal: bool | None) -> dict[str, Array]:
    """is_first, is_last and, where it is known, is_terminal, of an episode of so many rows."""
    names = (IS_FIRST, IS_LAST) if is_terminal is None else (IS_FIRST, IS_LAST, IS_TERMINAL)
    made: dict[str, Array] = {name: np.zeros(rows, bool) for name in names}
    made[IS_FIRST][:1] = made[IS_LAST][-1:] = True
    if is_terminal:
        made[IS_TERMINAL][-1:] = True
    return made


def with_last(column: Array, last: Any) -> Array:
    """[T, ...] and one more row -> [T + 1, ...].

    Raises:
      BrokenEpisode: the row is not like those of the column.
    """
    row = np.empty((1, *column.shape[1:]), column.dtype)
    if column.dtype != object:
        last = np.asarray(last)
        if last.shape != row.shape[1:] or last.dtype != column.dtype:
            expected = f"{column.dtype}{list(row.shape[1:])}, as the other observations"
            raise BrokenEpisode(OBSERVATION, f"the last one is {last.dtype}{list(last.shape)}; expected {expected}")
    row[0] = last
    return np.concatenate([column, row])


def zero_row(column: Array) -> Array:
    """One row [1, ...] of zeros, or of empty texts, like those of a column."""
    row = np.zeros((1, *column.shape[1:]), column.dtype)
    if column.dtype == object:
        row[...] = b""
    return row


def _refuse_flags(columns: Columns) -> None:
    """Flags are made of an episode's end; a recorded column of their names would be lost."""
    for path in columns:
        if path in FLAGS:
            raise BrokenEpisode(path, "the data have a column of this name, which is that of a flag made of the end")


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
