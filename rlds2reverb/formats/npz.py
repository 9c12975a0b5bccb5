"""NumPy's .npz files: a dataset in one file, or a file for each episode.

`npz:PATH[?OPTIONS]`, of one file, a folder, or a pattern such as `runs/*.npz`; see docs/formats/npz.md. `npz_archive` reads the arrays.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    STEP_FIELDS,
    Array,
    Notice,
    columns_below,
    is_under,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import (
    EVERY,
    SPEC_OPTIONS,
    Agreement,
    SpecFrom,
    agree,
    look_at,
    looks_at_once,
    spread,
)
from rlds2reverb.formats.features import Features, gathered, left_out_notices
from rlds2reverb.formats.npz_archive import MOST_ARRAYS, NpzArray, open_archive
from rlds2reverb.formats.paths import by_number
from rlds2reverb.formats.recordings import (
    BrokenEpisode,
    Recording,
    Recordings,
    parse_source_name,
    read_each,
    refuse_broken,
)
from rlds2reverb.formats.rows import (
    AFTER,
    LED_TO,
    NEXT,
    NEXT_OBSERVATION,
    ROW_OPTIONS,
    ROWS,
    TERMINALS,
    TIMEOUTS,
    Cuts,
    FlatRecordings,
    RowOptions,
    Rows,
    at_stops,
    cut,
    ended,
    ending_notice,
    find_dummy_actions,
    last_step_of,
    move_flagged,
    moved,
    observed_as,
    read_beginning,
    read_beginnings,
    step_specs,
    steps,
    tail_notice,
    truths,
    unread_of,
)
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, Nest, nested
from rlds2reverb.text import counted

_FIELDS = {  # name of an array, up to its first "/" -> field of a step
    "observations": OBSERVATION,
    "obs": OBSERVATION,
    "actions": ACTION,
    "rewards": REWARD,
    "discounts": DISCOUNT,
    "next_observations": NEXT_OBSERVATION,
    "next_obs": NEXT_OBSERVATION,
    **{field: field for field in (*STEP_FIELDS, NEXT_OBSERVATION)},
}

_EPISODE_ENDS = "episode_ends"
_STEP_TYPE = "step_type"
_LAST = 2
"""dm_env's `StepType.LAST`; FIRST is 0, MID is 1."""
_ENDINGS = {
    TERMINALS: TERMINALS,
    "terminations": TERMINALS,
    "terminated": TERMINALS,
    TIMEOUTS: TIMEOUTS,
    "truncations": TIMEOUTS,
    "truncated": TIMEOUTS,
    _EPISODE_ENDS: _EPISODE_ENDS,
    _STEP_TYPE: _STEP_TYPE,
}

T = TypeVar("T")

_OF_ONE_FILE = ("ends", "max_episode_steps", "tail")
_WILD = "*["


@dataclass(frozen=True)
class _NpzOptions(RowOptions):
    """The options; see docs/formats/npz.md."""

    spec_from: SpecFrom = EVERY


def open_npz(text: str) -> Source:
    """Opens the dataset named after "npz:".

    Raises:
      SourceError: there is no such file, it is damaged or has no steps, or an option makes no sense.
    """
    request = parse_source_name("npz", text, {**ROW_OPTIONS, **SPEC_OPTIONS})
    path, name, options = request.path, request.name, _NpzOptions(**request.options)
    if path.is_file():
        if "spec_from" in request.options:
            raise SourceError(f'"{name}": option spec_from is for files with an episode each; one file has one spec')
        return request.make_source(_flat_recordings(request.files.pin(path), name, options))
    for key in _OF_ONE_FILE:
        if key in request.options:
            raise SourceError(
                f'"{name}": option {key} is for one file with many episodes; here each file is an episode'
            )
    options.check_alignment(name)
    folder, pattern = (path, "*.npz") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir() or (folder != path and not any(sign in pattern for sign in _WILD)):
        raise SourceError(f"{name}: no such file or folder")
    try:
        folder = request.files.pin(folder, is_deep=False)
        paths = [file for file in folder.glob(pattern) if not file.is_dir() and file.suffix == ".npz"]
    except (ValueError, NotImplementedError, OSError) as error:
        raise SourceError(f"{name}: {error}") from error
    request.files.restrict(paths)
    return request.make_source(_EpisodeFiles(paths, name, options))


def _flat_recordings(path: Path, name: str, options: RowOptions) -> FlatRecordings:
    with refuse_broken(), open_archive(path) as arrays:
        keys = _sort_keys(str(path), arrays)
        flags = [key for kind, key in keys.ends.items() if kind != _EPISODE_ENDS]
        lengths = {key: len(arrays[key]) if arrays[key].shape else None for key in (*keys.columns.values(), *flags)}
        first, rows = next(iter(lengths.items()))
        for key, length in lengths.items():
            if length is None or length != rows:
                has = "no" if length is None else f"{length:,}"
                raise SourceError(f"{path}: {key} has {has} rows; expected {rows or 0:,}, as {first} has")
        cuts = _find_ends(str(path), arrays, keys, rows or 0, options)
        values = {key: arrays[key].value() for key in keys.others if not arrays[key].shape}
        columns_of = {column: arrays[key] for column, key in keys.columns.items()}
        specs = {column: array.spec for column, array in columns_of.items()}
        beginnings = read_beginnings(columns_of, cuts, spread(np.flatnonzero(cuts.stops > cuts.starts).tolist()))
    options.check_alignment(name)
    last_step = ROWS if keys.is_of_rlds else last_step_of(name, keys.columns, options.last_step)
    last_step = LED_TO if options.align == AFTER else last_step
    if last_step != NEXT:
        specs = _without_next(specs)
    notices = [] if last_step == ROWS else [ending_notice(last_step)]
    if options.align is None:
        notices += find_dummy_actions(beginnings, _STEP_TYPE in keys.ends)
    if not keys.ends and not keys.is_of_rlds and options.max_episode_steps is None:
        text = "no flags and no episode_ends: the whole file is one episode; or set max_episode_steps=N"
        notices.append(Notice("no_ends", text))
    elif cuts.tail_rows:
        notices.append(tail_notice(cuts, options.tail))
    notices += _left_out_notices([*keys.unused, *(key for key in keys.others if key not in values)])

    @contextmanager
    def columns(paths: Collection[str]) -> Iterator[Mapping[str, Rows]]:
        names = {column: keys.columns[column] for column in paths}
        with open_archive(path, set(names.values()).__contains__) as arrays:
            yield {column: arrays[key] for column, key in names.items()}

    return FlatRecordings(name, last_step, specs, values, cuts, columns, tuple(notices))


@dataclass(frozen=True, eq=False)
class _FileLook:
    """What one file has, by its headers.

    Attributes:
      specs: path -> spec of a row of the episode's columns, and of next observations if there are any.
      last_step: how its last row is made; None where it is recorded.
      left_out: keys of arrays that make no column.
      has_values: whether there are arrays without dimensions.
      beginning: the first rows of actions and rewards.
      has_step_types: whether there is an array `step_type`.
    """

    specs: Mapping[str, ArraySpec]
    last_step: str | None
    left_out: tuple[str, ...]
    has_values: bool
    beginning: Mapping[str, Array]
    has_step_types: bool


class _EpisodeFiles(Recordings):
    """Episodes in files of their own, in the order of their names; numbers in these count as numbers."""

    def __init__(self, paths: Sequence[Path], name: str, options: _NpzOptions) -> None:
        self.name, self._options = name, options
        self._paths = sorted(paths, key=lambda path: by_number(path.name))
        if not self._paths:
            raise SourceError(f"{name}: no .npz files there")
        self._chosen: Sequence[int] | None = None
        self._strange: Counter[str] = Counter()
        """Columns outside the spec -> number of files read so far that have them."""
        self._unread: frozenset[str] = frozenset()
        self._counting: frozenset[str] = frozenset()
        """Columns that are not read, but whose lengths are needed: whether a file has one more observation than actions."""
        self._are_read: dict[str, bool] = {}
        """Answers of `_is_read`: files have the same few columns, and to find out anew is 4 % of reading a short episode."""

    def choose(self, numbers: Sequence[int] | None) -> None:
        self._chosen = numbers
        _ = self._agreement

    @property
    def count(self) -> int:
        return len(self._paths)

    @cached_property
    def _looks(self) -> Mapping[int, _FileLook]:
        return look_at(
            range(self.count) if self._chosen is None else self._chosen,
            lambda number: _look(self._paths[number], self._options),
            self.name,
            self._options.spec_from,
            looks_at_once(self._paths[0]),
            count=self.count,
        )

    @cached_property
    def _agreement(self) -> Agreement:
        return agree({number: look.specs for number, look in self._looks.items()}, self._options.spec_from)

    @cached_property
    def _specs(self) -> Mapping[str, ArraySpec]:
        return {path: spec for path, spec in self._agreement.specs.items() if not is_under(path, NEXT_OBSERVATION)}

    @property
    def notices(self) -> tuple[Notice, ...]:
        looks = self._looks.values()
        endings = dict.fromkeys(look.last_step for look in looks if look.last_step is not None)
        left_out = dict.fromkeys(key for look in looks for key in look.left_out)
        # Only where the features have been read: notices alone open no file.
        features = self._features.left_out if "_features" in vars(self) else ()
        reported = {notice.path for notice in self._agreement.notices}
        dummies: tuple[Notice, ...] = ()
        if self._options.align is None:
            beginnings = [look.beginning for look in looks]
            dummies = find_dummy_actions(beginnings, any(look.has_step_types for look in looks))
        return (
            *map(ending_notice, endings),
            *dummies,
            *_left_out_notices(list(left_out)),
            *self._agreement.notices,
            *(
                Notice("left_out", f"{counted(count, 'file')} read so far have it; left out", count, path)
                for path, count in sorted(self._strange.items())
                if path not in reported
            ),
            *left_out_notices(features),
        )

    def spec(self) -> Nest:
        return nested(self._specs, self.name)

    def metadata_spec(self) -> Nest:
        return dict(self._features.spec) if self._has_values else {}

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        return self._features.of_each[number]

    def without(self, paths: Collection[str]) -> _EpisodeFiles:
        fewer = copy.copy(self)
        fewer._unread = unread_of(paths, self._specs)
        fields = ([path for path in self._specs if is_under(path, field)] for field in (OBSERVATION, ACTION))
        fewer._counting = frozenset(min(of) for of in fields if of and fewer._unread.issuperset(of))
        fewer._are_read = {}
        return fewer

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        return read_each(self._read_one, numbers, lambda number: self._paths[number].stem, self._common)

    def _read_one(self, number: int) -> Recording:
        path = self._paths[number]
        names: dict[str, None] = {}

        def is_wanted(key: str) -> bool:
            names[key] = None
            path = _path_of(key)
            return key in _ENDINGS or path == DISCOUNT or self._is_read(path) or path in self._counting

        try:
            with open_archive(path, is_wanted) as arrays:
                keys = _sort_keys(str(path), names)
                recorded = {column: arrays[key].rows() for column, key in keys.columns.items() if self._is_read(column)}
                self._strange.update(
                    column
                    for column in keys.columns
                    if column not in recorded and observed_as(column) not in self._unread
                )
                columns = self._make_rows(path, keys, recorded, arrays)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        missing = [column for column in self._specs if column not in columns and column not in self._unread]
        if missing:
            raise BrokenEpisode(missing[0], f"{path}: lacks what other files have: {', '.join(missing)}")
        kept = {column: values for column, values in columns.items() if column in self._specs}
        return Recording(kept, self._common(number), path.stem)

    def _is_read(self, path: str) -> bool:
        is_read = self._are_read.get(path)
        if is_read is None:
            is_kept = path in self._specs or is_under(path, NEXT_OBSERVATION)
            is_read = is_kept and observed_as(path) not in self._unread
            if len(self._are_read) < MOST_ARRAYS:
                self._are_read[path] = is_read
        return is_read

    @cached_property
    def _has_values(self) -> bool:
        """Whether files have metadata. If none of those looked at has any, not all have one in common, and no file need be opened for it."""
        return any(look.has_values for look in self._looks.values())

    def _common(self, number: int) -> Mapping[str, Any]:
        return self._features.common(number) if self._has_values else {}

    @cached_property
    def _features(self) -> Features:
        return gathered(map(_values, self._paths))

    def _make_rows(
        self, path: Path, keys: _NpzKeys, columns: dict[str, Array], arrays: Mapping[str, NpzArray]
    ) -> dict[str, Array]:
        if keys.is_of_rlds:
            recorded = _without_next(columns)
            return move_flagged(recorded) if self._options.align == AFTER else recorded
        observation, action = columns_below(columns, OBSERVATION), columns_below(columns, ACTION)
        lengths = {
            column: len(arrays[key]) for column, key in keys.columns.items() if key in arrays and arrays[key].shape
        }
        rows = max((length for column, length in lengths.items() if is_under(column, ACTION)), default=0)
        if not rows:
            raise BrokenEpisode("", f"{path}: no steps")
        is_terminal = _ends_terminal(path, arrays, keys, rows)
        if {length for column, length in lengths.items() if is_under(column, OBSERVATION)} == {rows + 1}:
            if self._options.align == AFTER:
                raise BrokenEpisode(
                    OBSERVATION, f"{path}: has an observation before its first action; read it with align=before"
                )
            return steps(observation, action, columns.get(REWARD), is_terminal, discount=columns.get(DISCOUNT))
        if self._options.align == AFTER:
            return moved(columns, is_terminal)
        last_step = last_step_of(str(path), columns, self._options.last_step)
        after = columns_below(columns, NEXT_OBSERVATION)
        return ended(_without_next(columns), last_step, is_terminal, after.__getitem__)


def _look(path: Path, options: RowOptions) -> _FileLook:
    """Reads headers only. Raises `SourceError` or `BrokenEpisode` if the file cannot be read as an episode."""
    with open_archive(path) as arrays:
        keys = _sort_keys(str(path), arrays)
        columns = {column: arrays[key] for column, key in keys.columns.items()}
        if no_rows := next((array for array in columns.values() if not array.shape), None):
            raise BrokenEpisode(no_rows.key, f"{no_rows.where}: expected rows, found one value")
        recorded = {column: array.spec for column, array in columns.items()}
        left_out = (*keys.unused, *(key for key in keys.others if arrays[key].shape))
        has_values = any(not array.shape for array in arrays.values())
        beginning = read_beginning(columns)

    def look(specs: Mapping[str, ArraySpec], last_step: str | None) -> _FileLook:
        return _FileLook(specs, last_step, left_out, has_values, beginning, _STEP_TYPE in keys.ends)

    if keys.is_of_rlds:
        return look(_without_next(recorded), LED_TO if options.align == AFTER else None)
    specs = step_specs(recorded, keys.tells_terminal)
    lengths = {
        field: {len(array) for column, array in columns.items() if is_under(column, field)}
        for field in (OBSERVATION, ACTION)
    }
    if {length - 1 for length in lengths[OBSERVATION]} == lengths[ACTION]:
        beginning = {}  # the reset has an observation of its own, so the first action follows one
        return look(_without_next(specs), None)
    if options.align == AFTER:
        return look(_without_next(specs), LED_TO)
    return look(specs, last_step_of(str(path), recorded, options.last_step))


def _without_next(columns: Mapping[str, T]) -> dict[str, T]:
    return {path: column for path, column in columns.items() if not is_under(path, NEXT_OBSERVATION)}


def _values(path: Path) -> dict[str, Any] | None:
    try:
        with open_archive(path, _is_other) as arrays:
            return {key: array.value() for key, array in arrays.items() if not array.shape}
    except (SourceError, BrokenEpisode):
        return None


@dataclass(frozen=True)
class _NpzKeys:
    """The meanings of the arrays of a file: path of a column -> key, kind of end -> key, and all other keys."""

    columns: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @property
    def is_of_rlds(self) -> bool:
        """Whether rows are RLDS rows, with flags."""
        return IS_FIRST in self.columns or IS_LAST in self.columns

    @property
    def tells_terminal(self) -> bool:
        """Whether the file says that an episode's end is terminal: by a flag, or as dm_env does, by a discount of 0 of the last step."""
        return TERMINALS in self.ends or (_STEP_TYPE in self.ends and DISCOUNT in self.columns)

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys of steps that RLDS rows cannot hold: other flags, and next observations."""
        if not self.is_of_rlds:
            return ()
        following = [key for path, key in self.columns.items() if is_under(path, NEXT_OBSERVATION)]
        return (*(key for kind, key in self.ends.items() if kind != _EPISODE_ENDS), *following)


def _is_other(key: str) -> bool:
    """Whether an array of this name is neither a column nor marks the ends of episodes."""
    return key not in _ENDINGS and key.partition("/")[0] not in _FIELDS


@lru_cache(maxsize=1024)
def _path_of(key: str) -> str:
    """The path of the column that an array of this name is, unless `_is_other`."""
    first, slash, below = key.partition("/")
    return f"{_FIELDS.get(first)}{slash}{below}"


def _sort_keys(where: str, there: Mapping[str, object]) -> _NpzKeys:
    """The meanings of the arrays of a file, from their names. Raises `SourceError` if two are the same column, or one is missing."""
    columns: dict[str, str] = {}
    ends: dict[str, str] = {}
    others = []
    for key in there:
        meanings, path = (ends, _ENDINGS[key]) if key in _ENDINGS else (columns, _path_of(key))
        if _is_other(key):
            others.append(key)
        elif path in meanings:
            raise SourceError(f"{where}: {meanings[path]} and {key} are both {path}; leave one of them out")
        else:
            meanings[path] = key
    missing = [name for name in (OBSERVATION, ACTION) if not any(is_under(path, name) for path in columns)]
    if missing:
        raise SourceError(
            f"{where}: no {' and no '.join(missing)}; it has: {', '.join(there) or 'nothing'}. Expected names such as {', '.join(STEP_FIELDS[:3])}, or observations, actions, rewards"
        )
    keys = _NpzKeys(columns, ends, tuple(others))
    if IS_TERMINAL in columns and not keys.is_of_rlds:
        raise SourceError(
            f"{where}: {columns[IS_TERMINAL]} without is_first or is_last: whether it belongs to a step or to the state after it is unknown. "
            "Call flags of steps terminals; or add is_last, for rows as RLDS has them"
        )
    return keys


def _find_ends(where: str, arrays: Mapping[str, NpzArray], keys: _NpzKeys, rows: int, options: RowOptions) -> Cuts:
    """The ends of episodes: from the numbers of `episode_ends`, RLDS' flags, or flags like D4RL's; without any, one episode."""
    no = np.zeros(rows, bool)
    terminals = _truths(arrays[keys.ends[TERMINALS]]) if TERMINALS in keys.ends else no
    if _EPISODE_ENDS in keys.ends:
        return at_stops(_stops(where, arrays[keys.ends[_EPISODE_ENDS]], rows), terminals, options.tail)
    if keys.is_of_rlds:
        terminals = _truths(arrays[keys.columns[IS_TERMINAL]]) if IS_TERMINAL in keys.columns else no
        if IS_LAST in keys.columns:
            stops = np.flatnonzero(_truths(arrays[keys.columns[IS_LAST]])) + 1
        else:
            starts = np.flatnonzero(_truths(arrays[keys.columns[IS_FIRST]]))
            stops = np.append(starts[starts > 0], rows) if rows else starts
        return at_stops(stops, terminals, options.tail)
    timeouts = _truths(arrays[keys.ends[TIMEOUTS]]) if TIMEOUTS in keys.ends else None
    if _STEP_TYPE in keys.ends and TERMINALS not in keys.ends and timeouts is None:
        timeouts = _are_last(arrays[keys.ends[_STEP_TYPE]])
        if keys.tells_terminal:
            terminals = timeouts & _are_zero(arrays[keys.columns[DISCOUNT]])
    return cut(terminals, timeouts, options.ends, options.max_episode_steps, options.tail)


def _ends_terminal(path: Path, arrays: Mapping[str, NpzArray], keys: _NpzKeys, steps: int) -> bool | None:
    """Whether a file of one episode ends in a terminal state; None if that is not recorded. Raises if it holds more than one."""
    is_terminal = None
    for kind in (TERMINALS, TIMEOUTS):
        if kind in keys.ends:
            array = arrays[keys.ends[kind]]
            flags = _truths(array)
            if len(flags) != steps:
                raise BrokenEpisode(
                    array.key, f"{array.where}: has {len(flags):,} rows; expected {steps:,}, one for each action"
                )
            _check_whole(path, array, np.flatnonzero(flags[:-1]))
            is_terminal = bool(flags[-1]) if kind == TERMINALS else is_terminal
    if _STEP_TYPE in keys.ends:
        array = arrays[keys.ends[_STEP_TYPE]]
        are_last = _are_last(array)
        _check_whole(path, array, np.flatnonzero(are_last[:-1]))
        if is_terminal is None and keys.tells_terminal:
            is_terminal = bool(are_last[-1:].any() and _are_zero(arrays[keys.columns[DISCOUNT]])[-1:].any())
    if _EPISODE_ENDS in keys.ends:
        stops = _stops(str(path), arrays[keys.ends[_EPISODE_ENDS]], steps)
        _check_whole(path, arrays[keys.ends[_EPISODE_ENDS]], stops[(stops > 0) & (stops < steps)] - 1)
    return is_terminal


def _check_whole(path: Path, array: NpzArray, before: Array) -> None:
    if len(before):
        raise BrokenEpisode(
            array.key,
            f"{array.where}: an episode ends at step {int(before[0]):,}, before the last one; here a file is one episode. "
            f"One with several is read by itself: npz:{path}",
        )


def _stops(where: str, array: NpzArray, rows: int) -> Array:
    stops = array.rows() if len(array.shape) == 1 else np.zeros(0)
    is_outside = len(stops) and (int(stops[0]) < 0 or int(stops[-1]) > rows)
    if stops.dtype.kind not in "iu" or is_outside or np.any(stops[1:] < stops[:-1]):
        raise SourceError(
            f"{where}: {array.key}: expected ascending whole numbers up to {rows:,}, the row after each episode's last"
        )
    return stops.astype(np.int64)


def _truths(array: NpzArray) -> Array:
    return truths(array.rows(), array.key, array.where)


def _are_last(array: NpzArray) -> Array:
    """[rows] bool of dm_env's step types."""
    types = array.rows()
    if types.dtype.kind not in "iu" or types.size != len(types) or not np.isin(types, range(_LAST + 1)).all():
        raise BrokenEpisode(
            array.key, f"{array.where}: expected dm_env's step types, a number from 0 to 2 for each row"
        )
    return np.asarray(types.reshape(-1) == _LAST)


def _are_zero(array: NpzArray) -> Array:
    """[rows] bool."""
    values = array.rows()
    return np.asarray(values.reshape(len(values), -1).max(axis=1, initial=0) == 0)


def _left_out_notices(left_out: Sequence[str]) -> tuple[Notice, ...]:
    if not left_out:
        return ()
    return (Notice("left_out", f"arrays that make no column: {', '.join(left_out[:8])}", len(left_out)),)
