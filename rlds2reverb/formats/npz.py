"""NumPy's .npz files: a dataset in one file, or a file for each episode.

`npz:PATH[?OPTIONS]`, of one file, a folder, or a pattern such as `runs/*.npz`; see docs/formats/npz.md. Arrays are read by rows, no code of a
pickle is run, and sizes in headers are compared with the archive before memory is allocated.

Source of the layout: numpy/lib/_format_impl.py ("NPY format"); a .npz file is a zip archive of .npy files.
"""

from __future__ import annotations

import copy
import math
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, TypeVar

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
from rlds2reverb.files import check_regular
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
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.features import Features, gathered, left_out_notices
from rlds2reverb.formats.paths import by_number
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked, each
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
from rlds2reverb.text import counted, line_of, shortened

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

_ERRORS = (  # raised by zipfile and numpy for a damaged file
    OSError, EOFError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError, OverflowError,
    SyntaxError, RecursionError, TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

_FORMAT: Any = np.lib.format
_MOST_BYTES = 1 << 32
_FREE_BYTES = 1 << 30
_MOST_EXPANSION = 200
"""Largest ratio of unpacked to stored bytes above `_FREE_BYTES`. Deflate reaches 1,032 with zeros only; frames of games reach 50."""
_AT_ONCE = 1 << 20
_MOST_MEMBERS = 10_000
_MOST_HEADER = 10_000
_NPY = ".npy"
_SAFE_KEY = re.compile(r"[^/\0]+(/[^/\0]+)*")

T = TypeVar("T")

_OF_ONE_FILE = ("ends", "max_episode_steps", "tail")
_WILD = "*["


@dataclass(frozen=True)
class _FileOptions(RowOptions):
    """The options; see docs/formats/npz.md."""

    spec_from: SpecFrom = EVERY


def open_npz(text: str) -> Source:
    """Opens the dataset named after "npz:".

    Raises:
      SourceError: there is no such file, it is damaged or has no steps, or an option makes no sense.
    """
    wanted = asked("npz", text, {**ROW_OPTIONS, **SPEC_OPTIONS})
    path, name, options = wanted.path, wanted.name, _FileOptions(**wanted.options)
    if path.is_file():
        if "spec_from" in wanted.options:
            raise SourceError(f'"{name}": option spec_from is for files with an episode each; one file has one spec')
        return wanted.source_of(_flat_recordings(wanted.files.pin(path), name, options))
    for key in _OF_ONE_FILE:
        if key in wanted.options:
            raise SourceError(
                f'"{name}": option {key} is for one file with many episodes; here each file is an episode'
            )
    options.check_alignment(name)
    folder, pattern = (path, "*.npz") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir() or (folder != path and not any(sign in pattern for sign in _WILD)):
        raise SourceError(f"{name}: no such file or folder")
    try:
        folder = wanted.files.pin(folder, is_deep=False)
        found = [one for one in folder.glob(pattern) if not one.is_dir() and one.suffix == ".npz"]
    except (ValueError, NotImplementedError, OSError) as error:
        raise SourceError(f"{name}: {error}") from error
    wanted.files.restrict(found)
    return wanted.source_of(_EpisodeFiles(found, name, options))


def _flat_recordings(path: Path, name: str, options: RowOptions) -> FlatRecordings:
    try:
        with opened(path) as members:
            keys = _keys_of(str(path), members)
            flags = [key for kind, key in keys.ends.items() if kind != _EPISODE_ENDS]
            lengths = {
                key: len(members[key]) if members[key].shape else None for key in (*keys.columns.values(), *flags)
            }
            first, rows = next(iter(lengths.items()))
            for key, length in lengths.items():
                if length is None or length != rows:
                    has = "no" if length is None else f"{length:,}"
                    raise SourceError(f"{path}: {key} has {has} rows; expected {rows or 0:,}, as {first} has")
            cuts = _cuts(str(path), members, keys, rows or 0, options)
            values = {key: members[key].value() for key in keys.others if not members[key].shape}
            specs = {one: members[key].spec for one, key in keys.columns.items()}
            led_to = {one: members[key] for one, key in keys.columns.items()}
            beginnings = read_beginnings(led_to, cuts, spread(np.flatnonzero(cuts.stops > cuts.starts).tolist()))
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken
    options.check_alignment(name)
    last_step = ROWS if keys.is_of_rlds else last_step_of(name, keys.columns, options.last_step)
    last_step = LED_TO if options.align == AFTER else last_step
    if last_step != NEXT:
        specs = {one: spec for one, spec in specs.items() if one.split("/")[0] != NEXT_OBSERVATION}
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
        names = {one: keys.columns[one] for one in paths}
        with opened(path, set(names.values()).__contains__) as members:
            yield {one: members[key] for one, key in names.items()}

    return FlatRecordings(name, last_step, specs, values, cuts, columns, tuple(notices))


@dataclass(frozen=True, eq=False)
class _Look:
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

    def __init__(self, paths: Sequence[Path], name: str, options: _FileOptions) -> None:
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
    def _looks(self) -> Mapping[int, _Look]:
        numbers = range(self.count) if self._chosen is None else self._chosen
        at_once = looks_at_once(self._paths[0])
        return look_at(
            numbers,
            lambda number: _look(self._paths[number], self._options),
            self.name,
            self._options.spec_from,
            at_once,
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
        features = self._features.left_out if "_features" in vars(self) else ()
        told = {notice.path for notice in self._agreement.notices}
        strange = ((path, count) for path, count in sorted(self._strange.items()) if path not in told)
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
                for path, count in strange
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
        return each(self, numbers, lambda number: self._paths[number].stem, self._common)

    def one(self, number: int) -> Recording:
        path = self._paths[number]
        names: dict[str, None] = {}

        def is_wanted(key: str) -> bool:
            names[key] = None
            path = _path_of(key)
            return key in _ENDINGS or path == DISCOUNT or self._is_read(path) or path in self._counting

        try:
            with opened(path, is_wanted) as members:
                keys = _keys_of(str(path), names)
                columns = {one: members[key].rows() for one, key in keys.columns.items() if self._is_read(one)}
                unread = (one for one in keys.columns if one not in columns and observed_as(one) not in self._unread)
                self._strange.update(unread)
                made = self._made(path, keys, columns, members)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        missing = [one for one in self._specs if one not in made and one not in self._unread]
        if missing:
            raise BrokenEpisode(missing[0], f"{path}: lacks what other files have: {', '.join(missing)}")
        return Recording(
            {one: column for one, column in made.items() if one in self._specs}, self._common(number), path.stem
        )

    def _is_read(self, path: str) -> bool:
        is_read = self._are_read.get(path)
        if is_read is None:
            is_kept = path in self._specs or is_under(path, NEXT_OBSERVATION)
            is_read = is_kept and observed_as(path) not in self._unread
            if len(self._are_read) < _MOST_MEMBERS:
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

    def _made(
        self, path: Path, keys: _Keys, columns: dict[str, Array], members: Mapping[str, Member]
    ) -> dict[str, Array]:
        if keys.is_of_rlds:
            recorded = _without_next(columns)
            return move_flagged(recorded) if self._options.align == AFTER else recorded
        observation, action = columns_below(columns, OBSERVATION), columns_below(columns, ACTION)
        lengths = {one: len(members[key]) for one, key in keys.columns.items() if key in members and members[key].shape}
        rows = max((length for one, length in lengths.items() if is_under(one, ACTION)), default=0)
        if not rows:
            raise BrokenEpisode("", f"{path}: no steps")
        is_terminal = _ends_terminal(path, members, keys, rows)
        if {length for one, length in lengths.items() if is_under(one, OBSERVATION)} == {rows + 1}:
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


def _look(path: Path, options: RowOptions) -> _Look:
    """Reads headers only. Raises `SourceError` or `BrokenEpisode` if the file cannot be read as an episode."""
    with opened(path) as members:
        keys = _keys_of(str(path), members)
        found = {one: members[key] for one, key in keys.columns.items()}
        if no_rows := next((member for member in found.values() if not member.shape), None):
            raise BrokenEpisode(no_rows.key, f"{no_rows.where}: expected rows, found one value")
        recorded = {one: member.spec for one, member in found.items()}
        left_out = (*keys.unused, *(key for key in keys.others if members[key].shape))
        has_values = any(not member.shape for member in members.values())
        beginning = read_beginning(found)

    def look(specs: Mapping[str, ArraySpec], last_step: str | None) -> _Look:
        return _Look(specs, last_step, left_out, has_values, beginning, _STEP_TYPE in keys.ends)

    if keys.is_of_rlds:
        return look(_without_next(recorded), LED_TO if options.align == AFTER else None)
    specs = step_specs(recorded, keys.tells_terminal)
    lengths = {is_of: {len(found[one]) for one in found if is_under(one, is_of)} for is_of in (OBSERVATION, ACTION)}
    if {length - 1 for length in lengths[OBSERVATION]} == lengths[ACTION]:
        beginning = {}
        return look(_without_next(specs), None)
    if options.align == AFTER:
        return look(_without_next(specs), LED_TO)
    return look(specs, last_step_of(str(path), recorded, options.last_step))


def _without_next(columns: Mapping[str, T]) -> dict[str, T]:
    return {path: column for path, column in columns.items() if not is_under(path, NEXT_OBSERVATION)}


def _values(path: Path) -> dict[str, Any] | None:
    try:
        with opened(path, _is_other) as members:
            return {key: one.value() for key, one in members.items() if not one.shape}
    except (SourceError, BrokenEpisode):
        return None


@dataclass(frozen=True)
class _Keys:
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
    first, slash, rest = key.partition("/")
    return f"{_FIELDS.get(first)}{slash}{rest}"


def _keys_of(where: str, there: Mapping[str, object]) -> _Keys:
    """The meanings of the arrays of a file, from their names. Raises `SourceError` if two are the same column, or one is missing."""
    columns: dict[str, str] = {}
    ends: dict[str, str] = {}
    others = []
    for key in there:
        made, path = (ends, _ENDINGS[key]) if key in _ENDINGS else (columns, _path_of(key))
        if _is_other(key):
            others.append(key)
        elif path in made:
            raise SourceError(f"{where}: {made[path]} and {key} are both {path}; leave one of them out")
        else:
            made[path] = key
    missing = [name for name in (OBSERVATION, ACTION) if not any(path.split("/")[0] == name for path in columns)]
    if missing:
        raise SourceError(
            f"{where}: no {' and no '.join(missing)}; it has: {', '.join(there) or 'nothing'}. Expected names such as {', '.join(STEP_FIELDS[:3])}, or observations, actions, rewards"
        )
    keys = _Keys(columns, ends, tuple(others))
    if IS_TERMINAL in columns and not keys.is_of_rlds:
        raise SourceError(
            f"{where}: {columns[IS_TERMINAL]} without is_first or is_last: whether it belongs to a step or to the state after it is unknown. "
            "Call flags of steps terminals; or add is_last, for rows as RLDS has them"
        )
    return keys


def _cuts(where: str, members: Mapping[str, Member], keys: _Keys, rows: int, options: RowOptions) -> Cuts:
    """The ends of episodes: from the numbers of `episode_ends`, RLDS' flags, or flags like D4RL's; without any, one episode."""
    no = np.zeros(rows, bool)
    terminals = _truths(members[keys.ends[TERMINALS]]) if TERMINALS in keys.ends else no
    if _EPISODE_ENDS in keys.ends:
        return at_stops(_stops(where, members[keys.ends[_EPISODE_ENDS]], rows), terminals, options.tail)
    if keys.is_of_rlds:
        terminals = _truths(members[keys.columns[IS_TERMINAL]]) if IS_TERMINAL in keys.columns else no
        if IS_LAST in keys.columns:
            stops = np.flatnonzero(_truths(members[keys.columns[IS_LAST]])) + 1
        else:
            starts = np.flatnonzero(_truths(members[keys.columns[IS_FIRST]]))
            stops = np.append(starts[starts > 0], rows) if rows else starts
        return at_stops(stops, terminals, options.tail)
    timeouts = _truths(members[keys.ends[TIMEOUTS]]) if TIMEOUTS in keys.ends else None
    if _STEP_TYPE in keys.ends and TERMINALS not in keys.ends and timeouts is None:
        timeouts = _are_last(members[keys.ends[_STEP_TYPE]])
        if keys.tells_terminal:
            terminals = timeouts & _are_zero(members[keys.columns[DISCOUNT]])
    return cut(terminals, timeouts, options.ends, options.max_episode_steps, options.tail)


def _ends_terminal(path: Path, members: Mapping[str, Member], keys: _Keys, steps: int) -> bool | None:
    """Whether a file of one episode ends in a terminal state; None if that is not recorded. Raises if it holds more than one."""
    is_terminal = None
    for kind in (TERMINALS, TIMEOUTS):
        if kind in keys.ends:
            member = members[keys.ends[kind]]
            flags = _truths(member)
            if len(flags) != steps:
                raise BrokenEpisode(
                    member.key, f"{member.where}: has {len(flags):,} rows; expected {steps:,}, one for each action"
                )
            _check_whole(path, member, np.flatnonzero(flags[:-1]))
            is_terminal = bool(flags[-1]) if kind == TERMINALS else is_terminal
    if _STEP_TYPE in keys.ends:
        member = members[keys.ends[_STEP_TYPE]]
        are_last = _are_last(member)
        _check_whole(path, member, np.flatnonzero(are_last[:-1]))
        if is_terminal is None and keys.tells_terminal:
            is_terminal = bool(are_last[-1:].any() and _are_zero(members[keys.columns[DISCOUNT]])[-1:].any())
    if _EPISODE_ENDS in keys.ends:
        stops = _stops(str(path), members[keys.ends[_EPISODE_ENDS]], steps)
        _check_whole(path, members[keys.ends[_EPISODE_ENDS]], stops[(stops > 0) & (stops < steps)] - 1)
    return is_terminal


def _check_whole(path: Path, member: Member, before: Array) -> None:
    if len(before):
        raise BrokenEpisode(
            member.key,
            f"{member.where}: an episode ends at step {int(before[0]):,}, before the last one; here a file is one episode. "
            f"One with several is read by itself: npz:{path}",
        )


def _stops(where: str, member: Member, rows: int) -> Array:
    stops = member.rows() if len(member.shape) == 1 else np.zeros(0)
    if (
        stops.dtype.kind not in "iu"
        or (len(stops) and (int(stops[0]) < 0 or int(stops[-1]) > rows))
        or np.any(stops[1:] < stops[:-1])
    ):
        raise SourceError(
            f"{where}: {member.key}: expected ascending whole numbers up to {rows:,}, the row after each episode's last"
        )
    return stops.astype(np.int64)


def _truths(member: Member) -> Array:
    return truths(member.rows(), member.key, member.where)


def _are_last(member: Member) -> Array:
    """[rows] bool of dm_env's step types."""
    types = member.rows()
    if types.dtype.kind not in "iu" or types.size != len(types) or not np.isin(types, range(_LAST + 1)).all():
        raise BrokenEpisode(
            member.key, f"{member.where}: expected dm_env's step types, a number from 0 to 2 for each row"
        )
    return np.asarray(types.reshape(-1) == _LAST)


def _are_zero(member: Member) -> Array:
    """[rows] bool."""
    values = member.rows()
    return np.asarray(values.reshape(len(values), -1).max(axis=1, initial=0) == 0)


def _left_out_notices(left_out: Sequence[str]) -> tuple[Notice, ...]:
    if not left_out:
        return ()
    return (Notice("left_out", f"arrays that make no column: {', '.join(left_out[:8])}", len(left_out)),)


class Member:
    """An array of an open archive, as a column of rows. Raises `BrokenEpisode` if it is damaged, or holds neither numbers nor texts."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> None:
        self._archive, self._info = archive, info
        self.key = info.filename.removesuffix(_NPY)
        self.where = f"{where}: {self.key}"
        self._file: IO[bytes] | None = None
        self._loaded: Array | None = None
        try:
            with self._reading():
                self._open()
        except BrokenEpisode:
            self.close()
            raise

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape[1:], self._dtype if self._dtype.kind in "biufc" else np.dtype(object))

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all; text as `bytes`. Raises `BrokenEpisode` if they cannot be read, or there is one value."""
        if not self.shape:
            raise self._broken("expected rows, found one value")
        stop = len(self) if stop is None else max(0, min(stop, len(self)))
        start = min(start, stop)
        with self._reading():
            if self._dtype.hasobject or (self._is_fortran and len(self.shape) > 1):
                return self._whole()[start:stop]
            data = self._bytes(self._offset + start * self._row_bytes, (stop - start) * self._row_bytes)
            return self._shaped(data, (stop - start, *self.shape[1:]))

    def value(self) -> Any:
        """The scalar of an array without dimensions; text as `bytes`."""
        with self._reading():
            return self._whole().reshape(())[()]

    def array(self) -> Array:
        """All values in numpy's own form; objects as they were pickled."""
        try:
            with self._reading():
                if not self._dtype.hasobject:
                    return self._whole()
                return self._pickled(self._bytes(self._offset, self._info.file_size - self._offset))
        except SourceError as error:
            raise BrokenEpisode(self.key, str(error)) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns the errors of a damaged array into `BrokenEpisode`."""
        try:
            yield
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error

    def _open(self) -> None:
        """Reads the header, and compares the sizes in it with the archive's."""
        self._file = self._archive.open(self._info)
        version = _FORMAT.read_magic(self._file)
        readers = {(1, 0): _FORMAT.read_array_header_1_0, (2, 0): _FORMAT.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"a .npy of version {version}; expected 1.0 or 2.0")
        self.shape, self._is_fortran, self._dtype = readers[version](self._file, max_header_size=_MOST_HEADER)
        self._offset = self._file.tell()
        if self._dtype.kind not in "biufcSUO" or self._dtype.names:
            raise self._broken(f"holds values of dtype {self._dtype}; expected numbers or texts")
        if any(size < 0 for size in self.shape):
            raise self._broken(f"has the shape {self.shape}")
        self._row_bytes = math.prod(self.shape[1:]) * self._dtype.itemsize
        stored, there = self._info.compress_size, self._info.file_size - self._offset
        size = there if self._dtype.hasobject else math.prod(self.shape) * self._dtype.itemsize
        if size != there:
            raise self._broken(f"has {there:,} bytes of values; expected {size:,}, as its shape {self.shape} says")
        if size > most_unpacked(stored):
            raise self._broken(f"unpacks {stored:,} bytes to {size:,}; at most {most_unpacked(stored):,} are read")

    def _whole(self) -> Array:
        """All values, in the order of rows. They are kept, because they cannot be read in parts."""
        if self._loaded is None:
            data = self._bytes(self._offset, self._info.file_size - self._offset)
            if self._dtype.hasobject:
                self._loaded = _texts(self._pickled(data))
            elif self._is_fortran:
                self._loaded = self._shaped(data, self.shape[::-1]).transpose()
            else:
                self._loaded = self._shaped(data, self.shape)
        return self._loaded

    def _pickled(self, data: memoryview) -> Array:
        made = safe_loads(bytes(data), self.where)
        if not isinstance(made, np.ndarray) or made.shape != self.shape:
            raise ValueError(f"a pickle of something else than an array of shape {self.shape}")
        return made

    def _shaped(self, data: memoryview, shape: tuple[int, ...]) -> Array:
        values = np.frombuffer(data, self._dtype).reshape(shape) if self._row_bytes else np.zeros(shape, self._dtype)
        return values if values.dtype.kind in "biufc" else _texts(values)

    def _bytes(self, offset: int, size: int) -> memoryview:
        """Reads bytes in parts, so that a truncated file does not allocate memory for the missing rest."""
        if size > _MOST_BYTES:
            raise ValueError(f"{size:,} bytes to read at once; at most {_MOST_BYTES:,} are read")
        if self._file is None or self._file.closed:
            self._file = self._archive.open(self._info)
        self._file.seek(offset)
        room = np.empty(size, np.uint8).data
        for at in range(0, size, _AT_ONCE):
            part = self._file.read(min(_AT_ONCE, size - at))
            room[at : at + len(part)] = part
            if len(part) < min(_AT_ONCE, size - at):
                raise EOFError(f"{at + len(part):,} bytes; expected {size:,}")
        return room.toreadonly()

    def _broken(self, why: str) -> BrokenEpisode:
        return BrokenEpisode(self.key, f"{self.where}: {why}")


@contextmanager
def opened(path: Path, is_wanted: Callable[[str], bool] = bool) -> Iterator[dict[str, Member]]:
    """The arrays of an archive by key; all, or those of the wanted keys. Raises `SourceError`, or `BrokenEpisode` for an array."""
    with _archive(path) as archive, ExitStack() as members:
        infos = [one for one in _infos(path, archive) if is_wanted(one.filename.removesuffix(_NPY))]
        made = (members.enter_context(closing(Member(archive, info, str(path)))) for info in infos)
        yield {one.key: one for one in made}


def most_unpacked(stored: int) -> int:
    """The most bytes that a file of `stored` bytes may unpack to."""
    return max(_FREE_BYTES, _MOST_EXPANSION * stored)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        check_regular(path)
        with zipfile.ZipFile(for_library(path)) as archive:
            yield archive
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read as .npz: {line_of(error)}") from error


def _infos(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The arrays of an archive, if their names and sizes are acceptable."""
    infos = archive.infolist()
    if len(infos) > _MOST_MEMBERS:
        raise SourceError(f"{path}: {len(infos):,} arrays; expected at most {_MOST_MEMBERS:,}")
    size = sum(info.file_size for info in infos)
    stored = (
        0 if archive.fp is None else archive.fp.seek(0, os.SEEK_END)
    )  # of what is read, and faster than to ask for the path
    if size > most_unpacked(stored):
        raise SourceError(
            f"{path}: unpacks {stored:,} bytes to {size:,}; at most {most_unpacked(stored):,} are read. Write the arrays without compression (numpy.savez)"
        )
    for info in infos:
        if not info.filename.endswith(_NPY) or not _SAFE_KEY.fullmatch(info.filename):
            raise SourceError(f"{path}: {shortened(info.filename)!r} is no array; expected what numpy.savez writes")
    if len({info.filename for info in infos}) < len(infos):
        raise SourceError(f"{path}: two arrays have the same name")
    return infos


def _texts(values: Array) -> Array:
    flat = [one.encode() if isinstance(one, str) else one for one in values.ravel().tolist()]
    for one in flat:
        if not isinstance(one, bytes):
            raise TypeError(f"an object of type {type(one).__name__}; expected numbers or texts")
    return np.array(flat, object).reshape(values.shape)
