"""Recorded steps as rows of RLDS (`episode`), and datasets of rows in which flags or numbers say where episodes end.

`steps` and `marked` make RLDS' rows of an episode: T actions become T + 1 rows.

| the format has | rows |
| --- | --- |
| T + 1 observations | as they are; the last row's action and reward are zeros |
| T observations and the last next one | the same, with that one at the end |
| T observations | `last_step` says: "repeat" puts the last observation once more at the end, so that no action is lost; "mark" makes the last row the last step, whose action and reward then mean nothing |

The discount is 1, and 0 on a terminal last row and on the row before it, which is what a learner reads (see `conventions`).

`FlatRecordings` are the episodes of a dataset of rows: `Rows` is a column of all episodes, `cut` and `at_stops` find the ends (`Cuts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Notice,
    columns_below,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, each
from rlds2reverb.specs import ArraySpec, Nest, nested, value_spec
from rlds2reverb.text import counted

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
"""What the notice `last_step` says."""

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
    for path in columns:
        if path in FLAGS:  # these are made of the episode's end, and the recorded column would be lost
            raise BrokenEpisode(path, "the data have a column of this name, which is that of a flag made of the end")


def _path(field: str, path: str) -> str:
    return f"{field}/{path}" if path else field


def _rows(observation: Columns, action: Columns) -> int:
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
    """[rows] the discounts of an episode: 1, and 0 on a terminal last row and the row before it."""
    discount = np.ones(rows, np.float32)
    if is_terminal:
        discount[-2:] = 0
    return discount


def exactly(column: Array, dtype: np.dtype[Any]) -> Array | None:
    """The column in another dtype of numbers; None where a value would change, or one of the two dtypes is none of numbers.

    Args:
      column: [T, ...], whole numbers or floats; nan stays nan.
      dtype: the wanted one.
    """
    if column.dtype == dtype:
        return column
    if column.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        return None
    with np.errstate(all="ignore"):
        made = column.astype(dtype)
        back = made.astype(column.dtype)
    if not np.array_equal(back, column, equal_nan=column.dtype.kind == "f"):
        return None
    return made if _is_in_range(made, column.dtype) and _is_in_range(column, dtype) else None


def _is_in_range(column: Array, dtype: np.dtype[Any]) -> bool:
    """Whether whole numbers of this dtype reach as far; where they do not, a cast there and back may meet by chance."""
    if dtype.kind == "f":
        return True
    if column.dtype.kind == "f":
        bits = 8 * dtype.itemsize - (dtype.kind == "i")
        lowest = -(2.0**bits) if dtype.kind == "i" else 0.0
        wide = column.astype(np.float64)
        return bool(((wide >= lowest) & (wide < 2.0**bits)).all())
    if dtype.kind == "u":
        return bool((column >= 0).all())
    return column.dtype.kind == "i" or bool((column <= np.uint64(np.iinfo(dtype).max)).all())


def differing(one: Array, other: Array) -> Array:
    """[T] in which rows two columns [T, ...] differ; nan is like nan, and columns of other shapes differ in all rows."""
    if one.shape != other.shape:
        return np.ones(len(one), bool)
    unequal = np.asarray(one != other, bool)
    if one.dtype.kind in "fc" and other.dtype.kind in "fc":
        unequal &= ~(np.isnan(one) & np.isnan(other))
    return np.asarray(unequal.any(axis=tuple(range(1, one.ndim))))


_BLOCK_BYTES = 4 << 20
_TEXT_BYTES = 64
"""What a text is taken for, when a block's rows are counted."""


class Rows(Protocol):
    """A column of all episodes."""

    @property
    def spec(self) -> ArraySpec:
        """That of a row."""

    def __len__(self) -> int: ...

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all. Raises `BrokenEpisode` when they cannot be read."""


class _Blocks:
    """Reads columns together; a block ahead where episodes come one after the other.

    Args:
      columns: path -> column; all of one length.
    """

    def __init__(self, columns: Mapping[str, Rows]) -> None:
        self._columns = columns
        self._most_rows = _BLOCK_BYTES // max(1, sum(_row_bytes(column.spec) for column in columns.values()))
        self._start = self._stop = self._next = self._ahead = 0
        self._block: dict[str, Array] = {}

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """These rows of every column; views of the block that they are in.

        Raises:
          BrokenEpisode: one of the columns cannot be read there; names it.
        """
        if not self._start <= start <= stop <= self._stop:
            self._read(start, stop)
        self._next = stop
        return {path: column[start - self._start : stop - self._start] for path, column in self._block.items()}

    def _read(self, start: int, stop: int) -> None:
        """Reads a block: twice the rows of the one before, as long as episodes follow one another."""
        self._ahead = min(max(2 * self._ahead, 2 * (stop - start)), self._most_rows) if start == self._next else 0
        try:
            self._take(start, max(stop, start + self._ahead))
        except BrokenEpisode:
            self._take(start, stop)

    def _take(self, start: int, stop: int) -> None:
        self._start = self._stop = 0
        self._block = {path: column.rows(start, stop) for path, column in self._columns.items()}
        self._start, self._stop = start, min((start + len(one) for one in self._block.values()), default=start)


def _row_bytes(spec: ArraySpec) -> int:
    values = int(np.prod([size or 1 for size in spec.shape], dtype=object))
    return values * (_TEXT_BYTES if spec.dtype.kind == "O" else spec.dtype.itemsize)


EITHER, TERMINALS, TIMEOUTS = "either", "terminals", "timeouts"
ENDS = (EITHER, TERMINALS, TIMEOUTS)


@dataclass(frozen=True, eq=False)
class Cuts:
    """Where episodes begin and end among rows.

    Attributes:
      starts, stops: [episodes], the first row of each, and the one after its last.
      terminal: [episodes], whether the last step of each is a terminal one.
      tail_rows: rows after the last end, which make an episode of their own at the end or were left out.
    """

    starts: Array
    stops: Array
    terminal: Array
    tail_rows: int = 0

    def __len__(self) -> int:
        return len(self.stops)


def cut(
    terminals: Array, timeouts: Array | None, ends: str = EITHER, most_steps: int | None = None, keeps_tail: bool = True
) -> Cuts:
    """The episodes that flags make.

    Args:
      terminals: [rows] bool.
      timeouts: [rows] bool; None where there are none.
      ends: which of the two end episodes; of `ENDS`.
      most_steps: an episode also ends after so many.
      keeps_tail: whether rows after the last end are an episode.

    >>> made = cut(np.array([0, 1, 0, 0, 0], bool), np.array([0, 0, 0, 1, 0], bool))
    >>> made.stops.tolist(), made.terminal.tolist(), made.tail_rows
    ([2, 4, 5], [True, False, False], 1)
    """
    flags = np.zeros(len(terminals), bool)
    if ends != TIMEOUTS:
        flags |= terminals
    if timeouts is not None and ends != TERMINALS:
        flags |= timeouts
    stops = np.flatnonzero(flags) + 1
    if most_steps is not None:
        stops = _with_limit(stops, len(flags), most_steps)
    return at_stops(stops, terminals, keeps_tail)


def at_stops(stops: Array, terminals: Array, keeps_tail: bool = True) -> Cuts:
    """The episodes that end before these rows, ascending; those of no rows are episodes, too."""
    rows = len(terminals)
    tail = rows - int(stops[-1]) if len(stops) else rows
    if tail and keeps_tail:
        stops = np.append(stops, rows)
    starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)[: len(stops)]
    last = np.maximum(stops - 1, 0)
    terminal = terminals[last] & (stops > starts) if rows else np.zeros(len(stops), bool)
    return Cuts(starts, stops, terminal, tail)


def _with_limit(stops: Array, rows: int, most: int) -> Array:
    """Further ends after every `most` rows of an episode; none in the rest after the last end that is shorter."""
    bounds = np.concatenate([[0], stops, [rows]])
    counts = np.maximum(0, (np.diff(bounds) - 1) // most)
    counts[-1] = (bounds[-1] - bounds[-2]) // most
    firsts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(firsts, counts) + 1
    return np.union1d(stops, np.repeat(bounds[:-1], counts) + within * most)


def tail_notice(cuts: Cuts, keeps_tail: bool) -> Notice:
    """What became of the rows after the last end."""
    became = "an episode without an end" if keeps_tail else "left out"
    text = f"{counted(cuts.tail_rows, 'row')} after the last end: {became} (tail=keep or drop)"
    return Notice("unfinished_tail", text, cuts.tail_rows)


ROWS = "rows"
"""The `last_step` of rows that are RLDS' own."""
_FEW_ROWS = 256
"""Of so short an episode all next observations are read with those of its neighbours; of a longer one the last only."""

Opened = Callable[[], AbstractContextManager[Mapping[str, Rows]]]
"""Opens the columns for one pass over them: path (as of RLDS; `next_observation` beside them) -> column."""


@dataclass(frozen=True)
class Description:
    """What is known of a dataset of rows.

    Attributes:
      name: for messages.
      last_step: what becomes of an episode's end: `NEXT`, or of `LAST_STEPS`; `ROWS` for rows that are RLDS' own.
      specs: path -> spec of a row.
      metadata: of every episode.
      notices: of the data.
    """

    name: str
    last_step: str
    specs: Mapping[str, ArraySpec]
    metadata: Mapping[str, Any]
    notices: tuple[Notice, ...]


class FlatRecordings(Recordings):
    """Episodes of a dataset of rows; messages name each by its first row and the one after its last."""

    notices: tuple[Notice, ...] = ()

    def __init__(self, about: Description, cuts: Cuts, opened: Opened) -> None:
        self._about, self._cuts, self._opened = about, cuts, opened
        self.name, self.notices = about.name, about.notices

    @property
    def count(self) -> int:
        """How many episodes the ends make."""
        return len(self._cuts)

    def length_of(self, number: int) -> int:
        """Its rows, and the one that is added."""
        rows = int(self._cuts.stops[number] - self._cuts.starts[number])
        return rows + (rows > 0 and self._about.last_step not in (ROWS, MARK))

    def spec(self) -> Nest:
        """The columns', discount and the flags."""
        flag, number = ArraySpec((), np.dtype(bool)), ArraySpec((), np.dtype(np.float32))
        if self._about.last_step == ROWS:
            return nested(self._about.specs, self.name)
        kept = {path: one for path, one in self._about.specs.items() if not _is_next(path)}
        return nested({DISCOUNT: number, **kept, **dict.fromkeys(("is_first", IS_LAST, IS_TERMINAL), flag)}, self.name)

    def metadata_spec(self) -> Nest:
        """That of what is known of every episode."""
        return {key: value_spec(value) for key, value in self._about.metadata.items()}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        if not numbers:
            return
        with self._opened() as columns:
            passing = _Pass(self._about, self._cuts, columns)
            yield from each(passing, numbers, passing.name_of, lambda _: self._about.metadata)


class _Pass:
    """One pass over the episodes: blocks of rows are read once for many short ones."""

    def __init__(self, about: Description, cuts: Cuts, columns: Mapping[str, Rows]) -> None:
        self._about, self._cuts = about, cuts
        self._blocks = _Blocks({path: column for path, column in columns.items() if not _is_next(path)})
        self._next = _Blocks({path: column for path, column in columns.items() if _is_next(path)})

    def one(self, number: int) -> Recording:
        start, stop = int(self._cuts.starts[number]), int(self._cuts.stops[number])
        if start == stop:
            raise BrokenEpisode("", f"no steps: it ends at row {stop:,}, as the one before it")
        columns = self._blocks.rows(start, stop)
        made = self._made(columns, (start, stop), bool(self._cuts.terminal[number]))
        return Recording(made, self._about.metadata, self.name_of(number))

    def name_of(self, number: int) -> str:
        start, stop = int(self._cuts.starts[number]), int(self._cuts.stops[number])
        return f"{start}-{stop}" if start < stop else f"{start}-{stop}~{number}"  # several may be empty at the same row

    def _made(self, columns: dict[str, Array], rows: tuple[int, int], is_terminal: bool) -> dict[str, Array]:
        if self._about.last_step == ROWS:
            return columns
        if self._about.last_step == MARK:
            return marked(columns, is_terminal)
        observation = columns_below(columns, OBSERVATION)
        last = {path: column[-1] for path, column in observation.items()}
        if self._about.last_step == NEXT:
            start, stop = rows
            after = self._next.rows(stop - 1 if stop - start > _FEW_ROWS else start, stop)
            last = {path: one[-1] for path, one in columns_below(after, NEXT_OBSERVATION).items()}
        fields = {path: column for path, column in columns.items() if path.split("/")[0] not in (OBSERVATION, ACTION)}
        reward, discount = fields.pop(REWARD, None), fields.pop(DISCOUNT, None)
        closed = {path: with_last(column, last[path]) for path, column in observation.items()}
        return steps(closed, columns_below(columns, ACTION), reward, is_terminal, fields, discount)


def _is_next(path: str) -> bool:
    return path.split("/")[0] == NEXT_OBSERVATION
