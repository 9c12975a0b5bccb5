"""NumPy's .npz files: a dataset in one file, or a file for each episode.

`npz:PATH[?OPTIONS]`, of one file, a folder, or a pattern such as `runs/*.npz`; see docs/formats/npz.md. Arrays are read by rows, nothing of a
pickle is run, and sizes in headers are held against the archive before memory is asked for.

Source of the layout: numpy/lib/_format_impl.py ("NPY format"); a .npz file is a zip archive of .npy files.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

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
    STEP_FIELDS,
    Array,
    Notice,
    columns_below,
    is_under,
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.features import Features, gathered, left_out_notices
from rlds2reverb.formats.options import Parse, at_least_one, one_of, words
from rlds2reverb.formats.paths import by_number, stays_in
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked, each
from rlds2reverb.formats.rows import (
    EITHER,
    ENDINGS,
    ENDS,
    MARK,
    NEXT,
    NEXT_OBSERVATION,
    REPEAT,
    ROWS,
    TERMINALS,
    TIMEOUTS,
    Cuts,
    Description,
    FlatRecordings,
    Rows,
    at_stops,
    cut,
    last_step_of,
    marked,
    steps,
    tail_notice,
    with_last,
)
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, Nest, column_spec, nested
from rlds2reverb.text import line_of, shortened

_FIELDS = {
    "observations": OBSERVATION,
    "obs": OBSERVATION,
    OBSERVATION: OBSERVATION,
    "actions": ACTION,
    ACTION: ACTION,
    "rewards": REWARD,
    REWARD: REWARD,
    "discounts": DISCOUNT,
    DISCOUNT: DISCOUNT,
    "next_observations": NEXT_OBSERVATION,
    "next_obs": NEXT_OBSERVATION,
    NEXT_OBSERVATION: NEXT_OBSERVATION,
    **{flag: flag for flag in FLAGS},
}
"""Name of an array, up to its first "/" -> field of a step."""

_EPISODE_ENDS = "episode_ends"
_ENDINGS = {
    TERMINALS: TERMINALS,
    "terminations": TERMINALS,
    "terminated": TERMINALS,
    TIMEOUTS: TIMEOUTS,
    "truncations": TIMEOUTS,
    "truncated": TIMEOUTS,
    _EPISODE_ENDS: _EPISODE_ENDS,
}

_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    NotImplementedError,
    MemoryError,
    OverflowError,
    SyntaxError,
    RecursionError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile and numpy raise over a damaged file."""

_FORMAT: Any = np.lib.format
_MOST_BYTES = 1 << 32
_MOST_EXPANSION = 200
_FREE_BYTES = 1 << 30
"""How many times as large as what is stored values may be, where they are more than a GiB. Deflate's best is 1,032, of zeros alone; frames of
games come to 50."""
_AT_ONCE = 1 << 20
_MOST_MEMBERS = 10_000
_MOST_HEADER = 10_000
_NPY = ".npy"
_SAFE_KEY = re.compile(r"[^/\0]+(/[^/\0]+)*")

_OPTIONS: dict[str, Parse] = {
    "ends": words(*ENDS),
    "max_episode_steps": at_least_one,
    "last_step": words(REPEAT, MARK, NEXT),
    "tail": one_of(keep=True, drop=False),
}
_OF_ONE_FILE = ("ends", "max_episode_steps", "tail")
_WILD = "*["


@dataclass(frozen=True)
class _Options:
    """How files are read.

    Attributes:
      ends: which flags end an episode; of `ENDS`.
      max_episode_steps: an episode also ends after so many steps.
      last_step: "next", or of `LAST_STEPS`; None for what the files have.
      tail: whether rows after the last end are an episode.
    """

    ends: str = EITHER
    max_episode_steps: int | None = None
    last_step: str | None = None
    tail: bool = True


def open_npz(text: str) -> Source:
    """Opens the dataset named after "npz:".

    Raises:
      SourceError: nothing is there, it is damaged or has no steps, or an option makes no sense.
    """
    wanted = asked("npz", text, _OPTIONS)
    path, name, options = wanted.path, wanted.name, _Options(**wanted.options)
    if path.is_file():
        return wanted.source_of(_flat_recordings(path, name, options))
    for key in _OF_ONE_FILE:
        if key in wanted.options:
            raise SourceError(
                f'"{name}": option {key} is for one file with many episodes; here each file is an episode'
            )
    return wanted.source_of(_EpisodeFiles(_files(path, name), name, options))


def _files(path: Path, people: str) -> list[Path]:
    """The files of a folder or of a pattern; each must lie in the folder where it seems to be."""
    folder, pattern = (path, "*.npz") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir() or (folder != path and not any(sign in pattern for sign in _WILD)):
        raise SourceError(f"{people}: no such file or folder")
    try:
        found = [one for one in folder.glob(pattern) if not one.is_dir() and one.suffix == ".npz"]
    except (ValueError, NotImplementedError, OSError) as error:
        raise SourceError(f"{people}: {error}") from error
    for one in found:
        if not stays_in(folder, one):
            raise SourceError(f"{people}: {one.name} is a link out of the folder; not followed")
    return found


def _flat_recordings(path: Path, name: str, options: _Options) -> FlatRecordings:
    """The episodes of one file, one after the other.

    Raises:
      SourceError: it cannot be read, its arrays differ in length, or an option does not go with it.
    """
    sums = _checksums(path)
    try:
        with opened(path) as members:
            keys = _keys_of(str(path), members)
            flags = [key for kind, key in keys.ends.items() if kind != _EPISODE_ENDS]
            rows = _rows(path, {key: members[key] for key in (*keys.columns.values(), *flags)})
            cuts = _cuts(str(path), members, keys, rows, options)
            values = {key: members[key].value() for key in keys.others if not members[key].shape}
            specs = {one: members[key].spec for one, key in keys.columns.items()}
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken
    last_step = ROWS if keys.is_of_rlds else last_step_of(name, keys.columns, options.last_step)
    if last_step != NEXT:
        specs = {one: spec for one, spec in specs.items() if one.split("/")[0] != NEXT_OBSERVATION}
    left_out = [*keys.unused, *(key for key in keys.others if key not in values)]
    notices = _notices(last_step, keys, cuts, left_out, options)

    @contextmanager
    def columns() -> Iterator[Mapping[str, Rows]]:
        if _checksums(path) != sums:
            raise SourceError(f"{path}: was written anew after it was first looked at; open the source again")
        with opened(path) as members:
            yield {one: members[keys.columns[one]] for one in specs}

    return FlatRecordings(Description(name, last_step, specs, values, notices), cuts, columns)


def _rows(path: Path, members: Mapping[str, Member]) -> int:
    lengths = {key: len(one) if one.shape else None for key, one in members.items()}
    first, rows = next(iter(lengths.items()))
    for key, length in lengths.items():
        if length is None or length != rows:
            raise SourceError(
                f"{path}: {key} has {'no' if length is None else f'{length:,}'} rows; expected {rows or 0:,}, as {first} has"
            )
    return rows or 0


class _EpisodeFiles(Recordings):
    """Episodes in files of their own, in the order of their names; numbers in these count as numbers.

    Args:
      paths: of the files.
      name: what people call them.
      options: how they are read.

    Raises:
      SourceError: there are none, or the first cannot be read.
    """

    def __init__(self, paths: Sequence[Path], name: str, options: _Options) -> None:
        self.name, self._options = name, options
        self._paths = sorted(paths, key=lambda path: by_number(path.name))
        if not self._paths:
            raise SourceError(f"{name}: no .npz files there")
        self._last_step: str | None = None
        self._left_out: list[str] = []
        try:
            first = self.one(0)
        except BrokenEpisode as broken:
            raise SourceError(f"{broken.why}; the first file says what all of them have") from broken
        self._first = {path: column_spec(column) for path, column in first.decoded().items()}

    @property
    def count(self) -> int:
        return len(self._paths)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices on how ends are read and on arrays that are not columns."""
        ending = () if self._last_step is None else (note("last_step", ENDINGS[self._last_step]),)
        features = self._features.left_out if "_features" in vars(self) else ()
        return (*ending, *_left_out_notices(self._left_out), *left_out_notices(features))

    def spec(self) -> Nest:
        """The spec of the first file."""
        return nested(self._first, self.name)

    def metadata_spec(self) -> Nest:
        """The specs of the single values that all files have."""
        return dict(self._features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        return self._features.of_each[number]

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        return each(self, numbers, lambda number: self._paths[number].stem, self._features.common)

    def one(self, number: int) -> Recording:
        path = self._paths[number]
        try:
            with opened(path) as members:
                keys = _keys_of(str(path), members)
                columns = {one: members[key].rows() for one, key in keys.columns.items()}
                if number == 0:
                    self._left_out = [*keys.unused, *(key for key in keys.others if members[key].shape)]
                made = self._made(path, keys, columns, members)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        return Recording(made, self._features.common(number), path.stem)

    @cached_property
    def _features(self) -> Features:
        return gathered(map(_values, self._paths))

    def _made(
        self, path: Path, keys: _Keys, columns: dict[str, Array], members: Mapping[str, Member]
    ) -> dict[str, Array]:
        if keys.is_of_rlds:
            return _without_next(columns)
        observation, action = columns_below(columns, OBSERVATION), columns_below(columns, ACTION)
        rows = max(map(len, action.values()))
        if not rows:
            raise BrokenEpisode("", f"{path}: no steps")
        is_terminal = _ends_terminal(path, members, keys, rows)
        lengths = {len(column) for column in observation.values()}
        if lengths != {rows + 1}:
            last_step = last_step_of(str(path), columns, self._options.last_step)
            self._last_step = last_step
            if last_step == MARK:
                return marked(_without_next(columns), is_terminal)
            observation = {at: with_last(one, _last(columns, at, one, last_step)) for at, one in observation.items()}
        return steps(observation, action, columns.get(REWARD), is_terminal, discount=columns.get(DISCOUNT))


def _last(columns: Mapping[str, Array], path: str, column: Array, last_step: str) -> Array:
    after = columns.get(f"{NEXT_OBSERVATION}/{path}" if path else NEXT_OBSERVATION, column)
    if last_step != NEXT:
        after = column
    if not len(after):
        raise BrokenEpisode(OBSERVATION, "no rows")
    return np.asarray(after[-1])


def _without_next(columns: Mapping[str, Array]) -> dict[str, Array]:
    return {path: column for path, column in columns.items() if not is_under(path, NEXT_OBSERVATION)}


def _values(path: Path) -> dict[str, Any] | None:
    """The single values of a file; None for one that cannot be read, which is a bad episode."""
    try:
        others = list(filter(_is_other, (one.removesuffix(_NPY) for one, _, _ in _checksums(path))))
        with opened(path, others) if others else nullcontext({}) as members:
            return {key: one.value() for key, one in members.items() if not one.shape}
    except (SourceError, BrokenEpisode):
        return None


@dataclass(frozen=True)
class _Keys:
    """What the arrays of a file are.

    Attributes:
      columns: path of a column -> key.
      ends: `TERMINALS`, `TIMEOUTS` or `_EPISODE_ENDS` -> key.
      others: keys of other arrays.
    """

    columns: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @property
    def is_of_rlds(self) -> bool:
        """Whether rows are RLDS rows, with flags."""
        return IS_FIRST in self.columns or IS_LAST in self.columns

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


def _keys_of(where: str, there: Mapping[str, object]) -> _Keys:
    """What the arrays of a file are, by their names.

    Raises:
      SourceError: two are the same column, it has no observations or no actions, or `is_terminal` is the only one of RLDS' flags.
    """
    columns: dict[str, str] = {}
    ends: dict[str, str] = {}
    others = []
    for key in there:
        first, slash, rest = key.partition("/")
        made, path = (ends, _ENDINGS[key]) if key in _ENDINGS else (columns, f"{_FIELDS.get(first)}{slash}{rest}")
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
            f"{where}: {columns[IS_TERMINAL]} without is_first or is_last: whether it goes with a step or with the state after it is not told. "
            "Call flags of steps terminals; or add is_last, for rows as RLDS has them"
        )
    return keys


def _cuts(where: str, members: Mapping[str, Member], keys: _Keys, rows: int, options: _Options) -> Cuts:
    """Where episodes end: by the numbers of `episode_ends`, RLDS' flags, or flags as D4RL's; one episode without any.

    Raises:
      SourceError: numbers do not ascend, or lead beyond the rows.
      BrokenEpisode: flags are none.
    """
    no = np.zeros(rows, bool)
    terminals = _truths(members[keys.ends[TERMINALS]]) if TERMINALS in keys.ends else no
    if _EPISODE_ENDS in keys.ends:
        return at_stops(_stops(where, members[keys.ends[_EPISODE_ENDS]], rows), terminals, options.tail)
    if keys.is_of_rlds:
        terminals = _truths(members[keys.columns[IS_TERMINAL]]) if IS_TERMINAL in keys.columns else no
        return at_stops(_rlds_stops(members, keys, rows), terminals, options.tail)
    timeouts = _truths(members[keys.ends[TIMEOUTS]]) if TIMEOUTS in keys.ends else None
    return cut(terminals, timeouts, options.ends, options.max_episode_steps, options.tail)


def _ends_terminal(path: Path, members: Mapping[str, Member], keys: _Keys, steps: int) -> bool | None:
    """Whether a file of one episode ends in a terminal state; None where it does not tell.

    Raises:
      SourceError: numbers of `episode_ends` do not ascend, or lead beyond the steps.
      BrokenEpisode: flags are none, are not as many as steps, or something says that an episode ends before the last step.
    """
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


def _rlds_stops(members: Mapping[str, Member], keys: _Keys, rows: int) -> Array:
    if IS_LAST in keys.columns:
        return np.flatnonzero(_truths(members[keys.columns[IS_LAST]])) + 1
    starts = np.flatnonzero(_truths(members[keys.columns[IS_FIRST]]))
    return np.append(starts[starts > 0], rows) if rows else starts


def _stops(where: str, member: Member, rows: int) -> Array:
    """`episode_ends` as numbers, validated."""
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
    values = member.rows()
    flags = values.reshape(-1)
    if values.dtype.kind not in "biuf" or len(flags) != len(values) or not np.isin(flags, (0, 1)).all():
        raise BrokenEpisode(
            member.key,
            f"{member.where}: expected a flag of 0 or 1 for each row, found {values.dtype}{list(values.shape)}",
        )
    return np.asarray(flags != 0)


def _notices(last_step: str, keys: _Keys, cuts: Cuts, left_out: Sequence[str], options: _Options) -> tuple[Notice, ...]:
    told = [] if last_step == ROWS else [note("last_step", ENDINGS[last_step])]
    if not keys.ends and not keys.is_of_rlds and options.max_episode_steps is None:
        told.append(
            Notice("no_ends", "no flags and no episode_ends: the whole file is one episode; or set max_episode_steps=N")
        )
    elif cuts.tail_rows:
        told.append(tail_notice(cuts, options.tail))
    return (*told, *_left_out_notices(left_out))


def _left_out_notices(left_out: Sequence[str]) -> tuple[Notice, ...]:
    if not left_out:
        return ()
    return (Notice("left_out", f"arrays that make no column: {', '.join(left_out[:8])}", len(left_out)),)


class Member:
    """An array of an archive, as a column of rows.

    Args:
      archive: open.
      info: of the member.
      where: what messages call the archive.

    Raises:
      BrokenEpisode: it cannot be read, or holds neither numbers nor texts.
    """

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> None:
        self._archive, self._info = archive, info
        self.key = info.filename.removesuffix(_NPY)
        self.where = f"{where}: {self.key}"
        self._file: IO[bytes] | None = None
        self._loaded: Array | None = None
        try:
            self.shape, self._is_fortran, self._dtype = self._header()
            self._check()
        except _ERRORS as error:
            self.close()
            raise self._broken(f"cannot be read: {line_of(error)}") from error
        except BrokenEpisode:
            self.close()
            raise

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def spec(self) -> ArraySpec:
        """That of a row."""
        return ArraySpec(self.shape[1:], self._dtype if self._dtype.kind in "biufc" else np.dtype(object))

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all; text as `bytes`.

        Raises:
          BrokenEpisode: they cannot be read, or there is one value without rows.
        """
        if not self.shape:
            raise self._broken("expected rows, found one value")
        stop = len(self) if stop is None else max(0, min(stop, len(self)))
        start = min(start, stop)
        try:
            return self._rows(start, stop)
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error

    def value(self) -> Any:
        """An array of no dimension, as a scalar; text as `bytes`."""
        try:
            return self._whole().reshape(())[()]
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error

    def array(self) -> Array:
        """All values as numpy has them; objects as they were pickled."""
        try:
            if not self._dtype.hasobject:
                return self._whole()
            return self._pickled(self._bytes(self._offset, self._info.file_size - self._offset))
        except _ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error
        except SourceError as error:
            raise BrokenEpisode(self.key, str(error)) from error

    def close(self) -> None:
        """Ends reading."""
        if self._file is not None:
            self._file.close()

    def _header(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        self._file = self._archive.open(self._info)
        version = _FORMAT.read_magic(self._file)
        readers = {(1, 0): _FORMAT.read_array_header_1_0, (2, 0): _FORMAT.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"a .npy of version {version}; expected 1.0 or 2.0")
        shape, is_fortran, dtype = readers[version](self._file, max_header_size=_MOST_HEADER)
        self._offset = self._file.tell()
        return shape, is_fortran, dtype

    def _check(self) -> None:
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

    def _rows(self, start: int, stop: int) -> Array:
        if self._dtype.hasobject or (self._is_fortran and len(self.shape) > 1):
            return self._whole()[start:stop]
        size = (stop - start) * self._row_bytes
        return self._shaped(self._bytes(self._offset + start * self._row_bytes, size), (stop - start, *self.shape[1:]))

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
def opened(path: Path, only: Collection[str] | None = None) -> Iterator[dict[str, Member]]:
    """The arrays of an archive, by key; those of some keys, or all.

    Raises:
      SourceError: it is missing or no archive, or a key makes no sense.
      BrokenEpisode: one of its arrays cannot be read.
    """
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive, ExitStack() as members:
            infos = [one for one in _infos(path, archive) if only is None or one.filename.removesuffix(_NPY) in only]
            made = (members.enter_context(closing(Member(archive, info, str(path)))) for info in infos)
            yield {one.key: one for one in made}
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read as .npz: {line_of(error)}") from error


def _checksums(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and CRC-32 of every array, as the archive has them.

    Raises:
      SourceError: it is missing, or no archive.
    """
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            return [(one.filename, one.file_size, one.CRC) for one in _infos(path, archive)]
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read as .npz: {line_of(error)}") from error


def most_unpacked(stored: int) -> int:
    """How many bytes so many may unpack to."""
    return max(_FREE_BYTES, _MOST_EXPANSION * stored)


def _infos(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MOST_MEMBERS:
        raise SourceError(f"{path}: {len(infos):,} arrays; expected at most {_MOST_MEMBERS:,}")
    size, stored = sum(info.file_size for info in infos), path.stat().st_size
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
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(values.shape)
