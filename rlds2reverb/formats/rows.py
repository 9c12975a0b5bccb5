"""Recorded steps as rows of RLDS (`episode`), and datasets of rows in which flags or numbers say where episodes end.

`steps` and `mark_rows` make RLDS' rows of an episode: T actions become T + 1 rows. `ended` does, of T recorded rows, whichever its format wants.

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
from dataclasses import dataclass, replace
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
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.options import Parse, at_least_one, one_of, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, read_each
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

BEFORE, AFTER = "before", "after"
MOVED = (
    "an observation is taken for what came after its row's action: it goes with the next action, and the first action, whose "
    "observation was not recorded, is left out. align=before reads rows as they stand"
)
"""What the notice `align` says of rows that `moved` makes."""

Columns = Mapping[str, Array]


_SCALARS = (REWARD, DISCOUNT)


def steps(
    observation: Columns,
    action: Columns,
    reward: Array | None,
    is_terminal: bool | None,
    other_columns: Columns | None = None,
    discount: Array | None = None,
) -> dict[str, Array]:
    """RLDS columns of T + 1 rows.

    Args:
      observation: path below `observation` ("" for a plain one) -> [T + 1, ...].
      action: path below `action` -> [T, ...].
      reward: [T], or None where the format has none; [T, 1] becomes [T], as of a discount.
      is_terminal: whether the episode ends in a terminal state; None where the format does not say.
      other_columns: path -> [T, ...] or [T + 1, ...], further columns; a row of zeros (or of empty text) is put behind the shorter ones.
      discount: [T] as recorded; by default the one described above.

    Raises:
      BrokenEpisode: columns do not go together, or one of `other_columns` has the name of a flag or of another column.
    """
    _check_no_flags(other_columns or {})
    rows = _rows(observation, action)
    columns = {_path(OBSERVATION, path): column for path, column in observation.items()}
    columns |= {_path(ACTION, path): _closed(_path(ACTION, path), column, rows) for path, column in action.items()}
    if reward is not None:
        columns[REWARD] = _closed(REWARD, scalars(reward), rows)
    for path, column in (other_columns or {}).items():
        if path in columns:
            raise BrokenEpisode(path, "two columns have this name")
        columns[path] = column if len(column) == rows else _closed(path, column, rows)
    if discount is not None:
        columns[DISCOUNT] = _closed(DISCOUNT, scalars(discount), rows)
    elif is_terminal is not None:
        columns[DISCOUNT] = terminal_discount(rows, is_terminal)
    return {**columns, **flags(rows, is_terminal)}


def last_step_of(where: str, paths: Collection[str], choice: str | None) -> str:
    """What becomes of episodes' ends: as wanted, or by default their last next observation where there is one for each observation.

    Args:
      where: what messages call the data.
      paths: of all columns recorded.
      wanted: `NEXT`, or one of `LAST_STEPS`; None for the default.

    Raises:
      SourceError: next observations are wanted, and there are none.
    """
    observed = {path[len(OBSERVATION) :] for path in paths if path.split("/")[0] == OBSERVATION}
    after = {path[len(NEXT_OBSERVATION) :] for path in paths if path.split("/")[0] == NEXT_OBSERVATION}
    missing = sorted(observed - after)
    if choice == NEXT and missing:
        raise SourceError(
            f"{where}: last_step=next: no next observation{missing[0] and f' of {missing[0][1:]}'}; choose repeat or mark"
        )
    return choice or (REPEAT if missing else NEXT)


def mark_rows(columns: Columns, is_terminal: bool | None) -> dict[str, Array]:
    """RLDS columns of as many rows as were recorded: the last recorded step is the last one.

    Args:
      columns: path (as of RLDS) -> [T, ...].
      is_terminal: as of `steps`.

    Raises:
      BrokenEpisode: columns differ in length; or one has the name of a flag.
    """
    _check_no_flags(columns)
    rows = max(map(len, columns.values()), default=0)
    for path, column in columns.items():
        if len(column) != rows:
            raise BrokenEpisode(path, f"has {len(column):,} rows; expected {rows:,} as the others")
    with_flags = {**columns, **flags(rows, is_terminal)}
    if is_terminal is not None:
        with_flags.setdefault(DISCOUNT, terminal_discount(rows, is_terminal))
    return with_flags


def ended(
    columns: Columns, last_step: str, is_terminal: bool | None, after: Callable[[str], Array] | None = None
) -> dict[str, Array]:
    """RLDS columns of T recorded rows.

    Args:
      columns: path (as of RLDS) -> [T, ...], without next observations.
      last_step: what becomes of the end: `NEXT`, or one of `LAST_STEPS`.
      is_terminal: as of `steps`.
      after: path below `observation` -> next observations, the last of which is that of the last row; for `NEXT`.

    Raises:
      BrokenEpisode: as `steps` and `mark_rows`; or there is no observation that could be the last.
    """
    if last_step == MARK:
        return mark_rows(columns, is_terminal)
    observation = {}
    for below, column in columns_below(columns, OBSERVATION).items():
        ahead = column if after is None or last_step != NEXT else after(below)
        if not len(ahead):
            raise BrokenEpisode(_path(OBSERVATION, below), "no rows")
        observation[below] = with_last(column, ahead[-1])
    other_columns = {
        path: column for path, column in columns.items() if path.split("/")[0] not in (OBSERVATION, ACTION)
    }
    reward, discount = other_columns.pop(REWARD, None), other_columns.pop(DISCOUNT, None)
    return steps(observation, columns_below(columns, ACTION), reward, is_terminal, other_columns, discount)


def moved(columns: Columns, is_terminal: bool | None, beside: Collection[str] = ()) -> dict[str, Array]:
    """RLDS columns of rows [T] whose observation came after their action: T rows, of T - 1 actions.

    The first action led to the first observation, and the observation before it was not recorded: it is left out, with its reward. In files that
    begin with the reset it is a filling of zeros.

    Args:
      columns: path (as of RLDS) -> [T, ...].
      is_terminal: as of `steps`.
      beside: first parts of the paths of further columns that were recorded with the observation.

    Raises:
      BrokenEpisode: as `steps`.
    """
    _check_no_flags(columns)
    behind = {
        path: column if path.partition("/")[0] in (OBSERVATION, *beside) else column[1:]
        for path, column in columns.items()
        if path.partition("/")[0] != NEXT_OBSERVATION
    }
    taken = (OBSERVATION, ACTION, REWARD, DISCOUNT)
    other_columns = {path: column for path, column in behind.items() if path.partition("/")[0] not in taken}
    observation, action = columns_below(behind, OBSERVATION), columns_below(behind, ACTION)
    return steps(observation, action, behind.get(REWARD), is_terminal, other_columns, behind.get(DISCOUNT))


def move_flagged(columns: Columns) -> dict[str, Array]:
    """As `moved`, for rows with RLDS' own flags: these belong to the observation, and stay as recorded."""
    without_flags = {path: column for path, column in columns.items() if path not in FLAGS}
    aligned = moved(without_flags, None)
    return {path: aligned[path] if path in without_flags else column for path, column in columns.items()}


FIRST_ROWS = 2
"""Rows of an episode that `find_dummy_actions` needs."""
_NEARLY_ALL = 0.9
_FEW_EPISODES = {"f": 2, "i": 4, "u": 4}
"""By the kind of an action's dtype, the episodes that it takes: among a few actions that are numbered, the first is often number 0."""


def find_dummy_actions(episodes: Sequence[Columns], has_step_types: bool = False) -> tuple[Notice, ...]:
    """An advice where rows seem to hold the action and the reward that led to their observation, as dm_env's time steps do.

    DrQ-v2, V-D4RL and ExORL store such rows: the first of an episode is the reset, with an action and a reward of zeros. An episode that begins with
    an idle action has more of them, so the second row counts, too.
    Source: replay_buffer.py of DrQ-v2 (commit 7ad7e05), `_sample`: the action of row i goes with the observation of row i - 1.

    Args:
      episodes: the first `FIRST_ROWS` rows of actions and rewards of some episodes.
      has_step_types: whether a column `step_type` is there.
    """
    long_enough = [
        columns
        for columns in episodes
        if columns_below(columns, ACTION) and min(map(len, columns.values()), default=0) >= FIRST_ROWS
    ]
    dummies = sum(map(_begins_with_dummy, long_enough))
    kinds = {column.dtype.kind for columns in long_enough for column in columns_below(columns, ACTION).values()}
    fewest = max((_FEW_EPISODES.get(kind, _FEW_EPISODES["u"]) for kind in kinds), default=1)
    if len(long_enough) >= fewest and dummies >= _NEARLY_ALL * len(long_enough):
        sign = (
            f"the first action and reward are zeros in {dummies:,} of {counted(len(long_enough), 'episode')} looked at"
        )
    elif has_step_types:
        sign = "a column step_type stands there"
    else:
        return ()
    text = (
        f"{sign}, as DrQ-v2, V-D4RL and ExORL store them: if a row's action and reward led to its observation, add align=after; "
        "align=before says that they follow it"
    )
    return (Notice("observations_after", text, max(dummies, 1)),)


def _begins_with_dummy(columns: Columns) -> bool:
    actions = list(columns_below(columns, ACTION).values())
    led_to = [*actions, *([columns[REWARD]] if REWARD in columns else [])]
    return not any(column[0].any() for column in led_to) and any(column[1].any() for column in actions)


def flags(rows: int, is_terminal: bool | None) -> dict[str, Array]:
    """is_first, is_last and, where it is known, is_terminal, of an episode of so many rows."""
    names = (IS_FIRST, IS_LAST) if is_terminal is None else (IS_FIRST, IS_LAST, IS_TERMINAL)
    flag_columns: dict[str, Array] = {name: np.zeros(rows, bool) for name in names}
    flag_columns[IS_FIRST][:1] = flag_columns[IS_LAST][-1:] = True
    if is_terminal:
        flag_columns[IS_TERMINAL][-1:] = True
    return flag_columns


def step_specs(recorded: Mapping[str, ArraySpec], has_terminal: bool = True) -> dict[str, ArraySpec]:
    """The specs of the columns that `steps` makes.

    Args:
      recorded: path -> spec of a row, of the columns that were recorded.
      has_terminal: whether the format says which ends are terminal.
    """
    flag = ArraySpec((), np.dtype(bool))
    recorded = {**recorded, **{path: _scalar(recorded[path]) for path in _SCALARS if path in recorded}}
    if not has_terminal:
        return {**recorded, IS_FIRST: flag, IS_LAST: flag}
    return {DISCOUNT: ArraySpec((), np.dtype(np.float32)), **recorded, **dict.fromkeys(FLAGS, flag)}


def scalars(column: Array) -> Array:
    """[T, 1] -> [T]; any other column as it is.

    Buffers keep a reward and a discount of a step as an array of one number, to join them with others; a step of RLDS has a number.
    """
    return column[:, 0] if column.shape[1:] == (1,) else column


def _scalar(spec: ArraySpec) -> ArraySpec:
    return replace(spec, shape=()) if spec.shape == (1,) else spec


def with_last(column: Array, last: Any) -> Array:
    """[T, ...] and one more row -> [T + 1, ...]. Raises `BrokenEpisode` if the row is not like those of the column."""
    row = np.empty((1, *column.shape[1:]), column.dtype)
    last = np.asarray(last, object if column.dtype == object else None)
    if last.shape != row.shape[1:] or last.dtype != column.dtype:
        expected = f"{column.dtype}{list(row.shape[1:])}, as the other observations"
        raise BrokenEpisode(OBSERVATION, f"the last one is {last.dtype}{list(last.shape)}; expected {expected}")
    row[0, ...] = last  # with `row[0]` alone, a text would stay inside the array that holds it
    return np.concatenate([column, row])


_OTHER_ACTIONS = ("actions",)  # openpi's name of it, which a transform may make `action`


def row_behind(path: str, column: Array) -> Array:
    """The row [1, ...] that follows the last action of a column [T, ...]: zeros, or empty text, of what an action earned; else the last value."""
    field = path.split("/")[0].split(".")[0]
    is_of_action = field in (ACTION, *_OTHER_ACTIONS, REWARD, "next")
    return zero_row(column) if is_of_action else column[-1:]


def with_row_behind(columns: Columns) -> dict[str, Array]:
    """Columns [T, ...] that end with an action -> [T + 1, ...]: the last observation stands there twice, so that no action is lost."""
    longer: dict[str, Array] = {}
    for path, column in columns.items():
        longer[path] = closed = np.empty((len(column) + 1, *column.shape[1:]), column.dtype)
        closed[:-1], closed[-1:] = column, row_behind(path, column)
    return longer


def zero_row(column: Array) -> Array:
    """One row [1, ...] of zeros, or of empty texts, like those of a column."""
    row = np.zeros((1, *column.shape[1:]), column.dtype)
    if column.dtype == object:
        row[...] = b""
    return row


def _check_no_flags(columns: Columns) -> None:
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
    """A column of numbers [T, ...] in another dtype; None where a value would change, or one of the two dtypes is none of numbers. nan stays nan."""
    if column.dtype == dtype:
        return column
    if column.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        return None
    with np.errstate(all="ignore"):
        converted = column.astype(dtype)
        back = converted.astype(column.dtype)
    if not np.array_equal(back, column, equal_nan=column.dtype.kind == "f"):
        return None
    return converted if _fits_range(converted, column.dtype) and _fits_range(column, dtype) else None


def _fits_range(column: Array, dtype: np.dtype[Any]) -> bool:
    """Whether all numbers are in the range of a dtype of whole numbers; beyond it, a cast there and back may give the same by chance."""
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


def differing(column: Array, other: Array) -> Array:
    """[T] the rows in which two columns [T, ...] differ; nan equals nan, and columns of other shapes differ in all rows."""
    if column.shape != other.shape:
        return np.ones(len(column), bool)
    unequal = np.asarray(column != other, bool)
    if column.dtype.kind in "fc" and other.dtype.kind in "fc":
        unequal &= ~(np.isnan(column) & np.isnan(other))
    return np.asarray(unequal.any(axis=tuple(range(1, column.ndim))))


_BLOCK_BYTES = 4 << 20
_TEXT_BYTES = 64
"""Assumed size of a text."""


def values_in(spec: ArraySpec) -> int:
    """The number of values of a row, where free sizes count once."""
    return int(np.prod([size or 1 for size in spec.shape], dtype=object))


class Rows(Protocol):
    """A column of all episodes."""

    @property
    def spec(self) -> ArraySpec: ...

    def __len__(self) -> int: ...

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all. Raises `BrokenEpisode` when they cannot be read."""


class _Blocks:
    """Reads columns of one length together; a block ahead where episodes follow one another."""

    def __init__(self, columns: Mapping[str, Rows]) -> None:
        self._columns = columns
        row_bytes = 0
        for column in columns.values():
            values = values_in(column.spec)
            row_bytes += values * (_TEXT_BYTES if column.spec.dtype.kind == "O" else column.spec.dtype.itemsize)
        self._most_rows = _BLOCK_BYTES // max(1, row_bytes)
        self._start = self._stop = self._next = self._ahead = 0
        self._block: dict[str, Array] = {}

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """These rows of every column; views of their block. Raises `BrokenEpisode`, which names the column."""
        if not self._start <= start <= stop <= self._stop:
            # A block has twice the rows of the one before, as long as episodes follow one another.
            self._ahead = min(max(2 * self._ahead, 2 * (stop - start)), self._most_rows) if start == self._next else 0
            try:
                self._read_block(start, max(stop, start + self._ahead))
            except BrokenEpisode:
                self._read_block(start, stop)
        self._next = stop
        return {path: column[start - self._start : stop - self._start] for path, column in self._block.items()}

    def _read_block(self, start: int, stop: int) -> None:
        self._start = self._stop = 0
        self._block = {path: column.rows(start, stop) for path, column in self._columns.items()}
        self._start, self._stop = start, min((start + len(rows) for rows in self._block.values()), default=start)


EITHER, TERMINALS, TIMEOUTS = "either", "terminals", "timeouts"
ENDS = (EITHER, TERMINALS, TIMEOUTS)
ROW_OPTIONS: dict[str, Parse] = {
    "ends": words(*ENDS),
    "max_episode_steps": at_least_one,
    "last_step": words(REPEAT, MARK, NEXT),
    "tail": one_of(keep=True, drop=False),
    "align": words(BEFORE, AFTER),
}


@dataclass(frozen=True)
class RowOptions:
    """The options of a dataset of rows, `ROW_OPTIONS`; see docs/formats/npz.md."""

    ends: str = EITHER
    max_episode_steps: int | None = None
    last_step: str | None = None
    tail: bool = True
    align: str | None = None

    def check_alignment(self, name: str) -> None:
        """Raises `SourceError` for a last step where rows need none."""
        if self.align == AFTER and self.last_step is not None:
            raise SourceError(
                f"{name}: last_step goes with align=before: after the last action there is an observation"
            )


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
      ends: which of the two end episodes; one of `ENDS`.
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


def truths(values: Array, path: str, where: str) -> Array:
    """[rows] bool of flags of any dtype, [rows] or [rows, 1]; raises `BrokenEpisode` for other values."""
    expected = f"{where}: expected a flag of 0 or 1 for each row"
    if values.dtype.kind not in "biuf" or values.size != len(values):
        raise BrokenEpisode(path, f"{expected}, found {values.dtype}{list(values.shape)}")
    flags = values.reshape(-1)
    are_flags = np.isin(flags, (0, 1))
    if not are_flags.all():
        raise BrokenEpisode(path, f"{expected}; row {int(np.argmin(are_flags)):,} is neither")
    return np.asarray(flags != 0)


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
    became = "an episode without an end" if keeps_tail else "left out"
    text = f"{counted(cuts.tail_rows, 'row')} after the last end: {became} (tail=keep or drop)"
    return Notice("unfinished_tail", text, cuts.tail_rows)


ROWS, LED_TO = "rows", "led_to"
"""The `last_step` of rows that are RLDS' own, and of rows that `moved` makes such."""
_FEW_ROWS = 256
"""All next observations of an episode of at most so many rows are read, with those of its neighbours; of a longer one only the last."""

Opened = Callable[[Collection[str]], AbstractContextManager[Mapping[str, Rows]]]
"""Opens the columns of these paths for one pass over them: path (as of RLDS; `next_observation` beside them) -> column."""


@dataclass(frozen=True, eq=False)
class FlatRecordings(Recordings):
    """Episodes of a dataset of rows; messages name each by its first row and the one after its last.

    Attributes:
      name: for messages.
      last_step: what becomes of an episode's end: `NEXT`, or one of `LAST_STEPS`; `ROWS` for rows that are RLDS' own, `LED_TO` for `moved` ones.
      specs: path -> spec of a row.
      metadata: of every episode.
      cuts: where episodes begin and end.
      opened: opens the columns.
      notices: of the data.
      unread: paths of columns that are not read.
    """

    name: str
    last_step: str
    specs: Mapping[str, ArraySpec]
    metadata: Mapping[str, Any]
    cuts: Cuts
    opened: Opened
    notices: tuple[Notice, ...] = ()
    unread: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        return len(self.cuts)

    def without(self, paths: Collection[str]) -> FlatRecordings:
        return replace(self, unread=unread_of(paths, self.specs))

    def length_of(self, number: int) -> int:
        """Its rows, and the one that is added."""
        rows = int(self.cuts.stops[number] - self.cuts.starts[number])
        return rows + (rows > 0 and self.last_step not in (ROWS, LED_TO, MARK))

    def spec(self) -> Nest:
        if self.last_step == ROWS or any(path in FLAGS for path in self.specs):
            return nested(self.specs, self.name)
        return nested(step_specs({path: spec for path, spec in self.specs.items() if not _is_next(path)}), self.name)

    def metadata_spec(self) -> Nest:
        return {key: value_spec(value) for key, value in self.metadata.items()}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        if not numbers:
            return
        with self.opened([path for path in self.specs if observed_as(path) not in self.unread]) as columns:
            passing = _Pass(self, columns)
            yield from read_each(passing.one, numbers, passing.name_of, lambda _: self.metadata)


def ending_notice(last_step: str) -> Notice:
    """The note of how the last rows of episodes are made."""
    return note("align", MOVED) if last_step == LED_TO else note("last_step", ENDINGS[last_step])


def read_beginning(columns: Mapping[str, Rows], start: int = 0, stop: int | None = None) -> Columns:
    """The first rows of an episode's actions and rewards, for `find_dummy_actions`; {} where they cannot be read, for they may be left out."""
    end = start + FIRST_ROWS if stop is None else min(start + FIRST_ROWS, stop)
    try:
        return {
            path: column.rows(start, end)
            for path, column in columns.items()
            if path.split("/")[0] in (ACTION, REWARD) and column.spec.dtype.kind in "biuf"
        }
    except (BrokenEpisode, SourceError):
        return {}


def read_beginnings(columns: Mapping[str, Rows], cuts: Cuts, places: Sequence[int]) -> list[Columns]:
    """As `read_beginning`, of these episodes."""
    return [read_beginning(columns, int(cuts.starts[place]), int(cuts.stops[place])) for place in places]


class _Pass:
    """One pass over the episodes: blocks of rows are read once for many short ones."""

    def __init__(self, of: FlatRecordings, columns: Mapping[str, Rows]) -> None:
        self._of, self._cuts = of, of.cuts
        self._blocks = _Blocks({path: column for path, column in columns.items() if not _is_next(path)})
        self._next = _Blocks({path: column for path, column in columns.items() if _is_next(path)})

    def one(self, number: int) -> Recording:
        start, stop = int(self._cuts.starts[number]), int(self._cuts.stops[number])
        if start == stop:
            raise BrokenEpisode("", f"no steps: it ends at row {stop:,}, as the one before it")
        columns = self._blocks.rows(start, stop)
        if self._of.last_step == LED_TO:
            has_flags = any(path in FLAGS for path in columns)
            columns = move_flagged(columns) if has_flags else moved(columns, bool(self._cuts.terminal[number]))
        elif self._of.last_step != ROWS:
            after: Columns = {}
            if self._of.last_step == NEXT:
                after = self._next.rows(stop - 1 if stop - start > _FEW_ROWS else start, stop)
                after = columns_below(after, NEXT_OBSERVATION)
            columns = ended(columns, self._of.last_step, bool(self._cuts.terminal[number]), after.__getitem__)
        return Recording(columns, self._of.metadata, self.name_of(number))

    def name_of(self, number: int) -> str:
        start, stop = int(self._cuts.starts[number]), int(self._cuts.stops[number])
        return f"{start}-{stop}" if start < stop else f"{start}-{stop}~{number}"  # several may be empty at the same row


def _is_next(path: str) -> bool:
    return path.split("/")[0] == NEXT_OBSERVATION


def observed_as(path: str) -> str:
    """The path of the observation whose next ones a column holds; of any other column its own."""
    return f"{OBSERVATION}{path[len(NEXT_OBSERVATION) :]}" if _is_next(path) else path


def unread_of(paths: Collection[str], specs: Mapping[str, ArraySpec]) -> frozenset[str]:
    """Which of the columns that are left out need not be read: all, unless no observation and no action remains, which count an episode's rows.

    The smallest of these is read then.
    """
    counting = [path for path in specs if path.split("/")[0] in (OBSERVATION, ACTION)]
    if counting and set(counting) <= set(paths):
        return frozenset(paths) - {min(counting, key=lambda path: specs[path].dtype.itemsize * values_in(specs[path]))}
    return frozenset(paths)
