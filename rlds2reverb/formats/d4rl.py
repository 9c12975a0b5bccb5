"""D4RL: one HDF5 file of rows; terminals and timeouts end episodes.

Source of the layout: d4rl/offline_env.py, d4rl/__init__.py and scripts/generation of D4RL (commit 89141a6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, STEP_FIELDS, Array, Notice, note
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import hdf5, rows
from rlds2reverb.formats import rows as cutting
from rlds2reverb.formats.options import at_least_one, one_of, whole_number, words
from rlds2reverb.formats.recordings import BrokenEpisode, asked
from rlds2reverb.formats.rows import (
    EITHER,
    ENDINGS,
    ENDS,
    MARK,
    NEXT,
    NEXT_OBSERVATION,
    REPEAT,
    Cuts,
    Description,
    FlatRecordings,
    Opened,
    Rows,
    cut,
    differing,
    last_step_of,
)
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted

# How a D4RL file is to be read.


@dataclass(frozen=True)
class D4rlOptions:
    """See docs/formats/d4rl.md.

    Attributes:
      ends: which flags end an episode; of `cutting.ENDS`.
      max_episode_steps: an episode also ends after so many steps.
      last_step: `alignment.NEXT`, or of `alignment.LAST_STEPS`; None for what the file has.
      keeps_tail: whether rows after the last end are an episode.
      has_others: whether infos and other datasets of as many rows become columns.
      chunk: the number of the part to read, in a file of parts; None for the whole.
    """

    ends: str = EITHER
    max_episode_steps: int | None = None
    last_step: str | None = None
    keeps_tail: bool = True
    has_others: bool = True
    chunk: int | None = None


# What a D4RL file has: which of its datasets become columns, which flags, which metadata.

TERMINALS, TIMEOUTS = "terminals", "timeouts"
FIELDS = {
    "observations": OBSERVATION,
    "actions": ACTION,
    "rewards": REWARD,
    "next_observations": NEXT_OBSERVATION,
}
"""Name in the file -> what it becomes."""
MANDATORY = ("observations", "actions", "rewards", TERMINALS)
_METADATA, _PARTS = "metadata", "virtual"


@dataclass(frozen=True, eq=False)
class Layout:
    """What a file has.

    Attributes:
      rows: how many.
      names: path of a column -> name in the file.
      specs: path -> spec of a row.
      flags: terminals and, where there are any, timeouts: [rows] bool.
      terminals_dtype: as recorded.
      metadata: of the file; numbers and texts.
      left_out: names of metadata that are arrays, and of datasets that are of another number of rows.
    """

    rows: int
    names: Mapping[str, str]
    specs: Mapping[str, ArraySpec]
    flags: Mapping[str, Array]
    terminals_dtype: np.dtype[Any]
    metadata: Mapping[str, Any]
    left_out: tuple[str, ...]


class OneNumber:
    """A column of shape (rows, 1), as D4RL may write rewards, as one of numbers."""

    def __init__(self, column: Rows) -> None:
        self._column = column
        self.spec = ArraySpec((), column.spec.dtype)

    def __len__(self) -> int:
        return len(self._column)

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all."""
        return self._column.rows(start, stop).reshape(-1)


def part_of(file: h5py.File, chunk: int | None) -> h5py.Group:
    """The group that has the rows: the file, or a part of it.

    Raises:
      SourceError: there is no such part, or the file has nothing but parts.
      BrokenEpisode: it cannot be read.
    """
    parts = hdf5.found(file, _PARTS)
    known = sorted(filter(str.isdecimal, hdf5.names(parts)), key=int) if isinstance(parts, h5py.Group) else []
    if chunk is None:
        if known and hdf5.found(file, "observations") is None:
            raise SourceError(
                f"{hdf5.path_of(file)}: has only parts ({_PARTS}/K); choose one by chunk=K: {', '.join(known)}"
            )
        return file
    part = hdf5.found(file, f"{_PARTS}/{chunk}")
    if not isinstance(part, h5py.Group):
        raise SourceError(f"{hdf5.path_of(file)}: no {_PARTS}/{chunk}; there are: {', '.join(known) or 'none'}")
    return part


def column(group: h5py.Group, name: str, path: str) -> Rows:
    """A column of a file; rewards as numbers."""
    one = hdf5.Column(group, name, path)
    if path == REWARD and one.shape[1:] == (1,):
        return OneNumber(one)
    return one


def layout_of(file: h5py.File, options: D4rlOptions) -> Layout:
    """Looks at a file; reads its flags and its metadata.

    Raises:
      SourceError: it lacks what D4RL's files have, or columns differ in their number of rows; names them.
      BrokenEpisode: something in it cannot be read.
    """
    group, where = part_of(file, options.chunk), hdf5.path_of(file)
    there = hdf5.leaves(group)
    missing = [key for key in MANDATORY if not any(_is_below(name, key) for name in there)]
    if missing:
        raise SourceError(f"{where}: no {', '.join(missing)}; expected a D4RL file with {', '.join(MANDATORY)}")
    names = {_path(name): name for name in there if _field(name) is not None}
    columns = {path: column(group, name, path) for path, name in names.items()}
    flags = {key: hdf5.Column(group, key, key) for key in (TERMINALS, TIMEOUTS) if key in there}
    rows = _rows(str(where), {**{names[path]: one for path, one in columns.items()}, **flags})
    others, left_out = _others(there, rows) if options.has_others else ({}, ())
    if options.ends == cutting.TIMEOUTS:
        others[TERMINALS] = TERMINALS  # no flag of the episode's then, so kept as recorded
    columns |= {path: column(group, name, path) for path, name in others.items()}
    metadata, weights = _metadata(file)
    return Layout(
        rows,
        {**names, **others},
        {path: one.spec for path, one in columns.items()},
        {key: _truths(one) for key, one in flags.items()},
        flags[TERMINALS].dtype,
        metadata,
        (*weights, *left_out),
    )


def _field(name: str) -> str | None:
    return FIELDS.get(name.partition("/")[0])


def _path(name: str) -> str:
    """`observations/image` -> `observation/image`."""
    first, slash, rest = name.partition("/")
    return f"{FIELDS[first]}{slash}{rest}"


def _is_below(name: str, key: str) -> bool:
    return name == key or name.startswith(f"{key}/")


def _rows(where: str, columns: Mapping[str, Rows]) -> int:
    rows = len(columns[TERMINALS])
    for name, one in columns.items():
        if len(one) != rows:
            raise SourceError(f"{where}: {name} has {len(one):,} rows; expected {rows:,}, as {TERMINALS} has")
    return rows


def _others(there: Mapping[str, h5py.Dataset], rows: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Further datasets with a row for each step, by their own names; and those that have not."""
    beside = [name for name in there if _field(name) is None and not _is_of_file(name)]
    fitting = {name: name for name in beside if there[name].shape and there[name].shape[0] == rows}
    taken = {name for name in fitting if name.partition("/")[0] in STEP_FIELDS}
    kept = {name: name for name in fitting if name not in taken}
    return kept, tuple(name for name in beside if name not in kept)


def _is_of_file(name: str) -> bool:
    return name in (TERMINALS, TIMEOUTS) or name.partition("/")[0] in (_METADATA, _PARTS)


def _metadata(file: h5py.File) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What stands below "metadata": numbers and texts, and the names of arrays."""
    group = hdf5.found(file, _METADATA)
    if not isinstance(group, h5py.Group):
        return {}, ()
    there = hdf5.leaves(group)
    values = {name: hdf5.value(group, name) for name, one in there.items() if one.shape == ()}
    return values, tuple(f"{_METADATA}/{name}" for name in there if name not in values)


def _truths(column: hdf5.Column) -> Array:
    """Flags of any dtype, of shape (rows,) or (rows, 1), as booleans."""
    values = column.rows()
    if values.dtype.kind not in "biuf" or values.size != len(values):
        raise BrokenEpisode(
            column.path, f"{column.where}: expected a flag for each row, found {values.dtype}{list(values.shape)}"
        )
    flags = values.reshape(-1)
    if flags.dtype.kind != "b" and not np.isin(flags, (0, 1)).all():
        raise BrokenEpisode(
            column.path,
            f"{column.where}: expected zeros and ones; row {int(np.argmin(np.isin(flags, (0, 1)))):,} is neither",
        )
    return np.asarray(flags != 0)


def known_steps(file_name: str) -> int | None:
    """The `max_episode_steps` of D4RL's environment that a file is of, as far as its name tells."""
    return next((steps for pattern, steps in _MOST_STEPS.items() if re.search(pattern, file_name.lower())), None)


_MOST_STEPS = {
    "kitchen": 280,
    "ant.*u-?maze": 700,
    "door|hammer|relocate": 200,
    "pen[-_]": 100,
    "hopper|halfcheetah|walker2d|ant": 1000,
}
"""Source: `max_episode_steps` in d4rl/*/__init__.py."""


# What is to be said of a D4RL file: what it lacks, and what its producers are known to do.

_COMPARED_ROWS = 2_000
_MANY = 0.5
"""The share of terminals that follow a terminal, from which on they are taken for a state rather than for an end."""


def notices_of(
    layout: Layout, cuts: Cuts, group: h5py.Group, options: D4rlOptions, last_step: str, file_name: str
) -> tuple[Notice, ...]:
    """All notices on a file.

    Raises:
      BrokenEpisode: what is compared cannot be read.
    """
    told = [note("last_step", ENDINGS[last_step])]
    told += _of_ends(layout, options, file_name)
    if cuts.tail_rows:
        became = "an episode without an end" if options.keeps_tail else "left out"
        told.append(
            Notice(
                "unfinished_tail",
                f"{counted(cuts.tail_rows, 'row')} after the last end: {became} (tail=keep or drop)",
                cuts.tail_rows,
            )
        )
    told += _of_next(layout, cuts, group)
    if layout.left_out:
        names = ", ".join(layout.left_out[:8]) + (", ..." if len(layout.left_out) > 8 else "")
        told.append(
            Notice(
                "left_out", f"no numbers or texts of the file, and no row for each step: {names}", len(layout.left_out)
            )
        )
    return tuple(told)


def _of_ends(layout: Layout, options: D4rlOptions, file_name: str) -> Iterator[Notice]:
    terminals, timeouts = layout.flags[TERMINALS], layout.flags.get(TIMEOUTS)
    if timeouts is None:
        if options.max_episode_steps is None:
            known = known_steps(file_name)
            hint = f"; for files of this name it is {known}" if known else ""
            yield Notice(
                "no_timeouts",
                "the file has no timeouts, so only terminals end episodes. D4RL counts to its environment's max_episode_steps, which is "
                f"not in the file{hint}: set max_episode_steps=N",
            )
        else:
            yield note(
                "time_limit",
                f"the file has no timeouts: episodes end at terminals and after {options.max_episode_steps:,} steps",
            )
        if layout.terminals_dtype.kind == "f":
            yield Notice(
                "terminals_of_demonstrations",
                "float terminals and no timeouts, as kitchen's writer has them: they mark the end of a demonstration, which need not be a terminal state",
            )
    following = int((terminals[1:] & terminals[:-1]).sum())
    if following and following >= _MANY * terminals.sum() and options.ends != rows.TIMEOUTS:
        yield Notice(
            "terminals_go_on",
            f"{following:,} of {int(terminals.sum()):,} terminals follow another one: they tell of a state, such as contact with the goal in antmaze, "
            "and end nothing. ends=timeouts cuts at timeouts only, and keeps terminals as a column",
            following,
        )


def _of_next(layout: Layout, cuts: Cuts, group: h5py.Group) -> Iterator[Notice]:
    """Whether next_observations are the next rows' observations, in the first rows of the file."""
    compared = min(_COMPARED_ROWS, layout.rows)
    ends = np.zeros(layout.rows, bool)
    ends[cuts.stops - 1] = True
    inside = ~ends[: compared - 1]
    for path, name in layout.names.items():
        if path.split("/")[0] != NEXT_OBSERVATION or not compared:
            continue
        beside = name[len("next_") :]
        if beside not in layout.names.values():
            continue
        after = column(group, name, path).rows(0, compared)[:-1]
        others = int((differing(after, column(group, beside, path).rows(0, compared)[1:]) & inside).sum())
        if others:
            yield Notice(
                "next_differs",
                f"of the first {compared:,} rows {others:,} have {name} that are not the next row's {beside}, though no flag ends an "
                "episode there: ends may be missing from the file",
                others,
                path,
            )


# The episodes of a D4RL file.


def d4rl_recordings(path: Path, name: str, options: D4rlOptions = D4rlOptions()) -> FlatRecordings:
    """The episodes of a D4RL file.

    Args:
      path: of the file.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read, is no file of D4RL, or an option does not go with it.
    """
    with hdf5.opened(path) as file:
        stamp = hdf5.stamp_of(file)
        try:
            layout = layout_of(file, options)
            last_step = last_step_of(name, layout.names, options.last_step)
            cuts = _cuts(name, layout, options)
            notices = notices_of(layout, cuts, part_of(file, options.chunk), options, last_step, path.name)
        except BrokenEpisode as broken:
            raise SourceError(broken.why) from broken
    names = {one: at for one, at in layout.names.items() if last_step == NEXT or one.split("/")[0] != NEXT_OBSERVATION}
    specs = {one: layout.specs[one] for one in names}
    about = Description(name, last_step, specs, layout.metadata, notices)
    return FlatRecordings(about, cuts, _opener(path, options, stamp, names))


def _opener(path: Path, options: D4rlOptions, stamp: hdf5.Stamp, names: Mapping[str, str]) -> Opened:
    @contextmanager
    def opened() -> Iterator[Mapping[str, Rows]]:
        with hdf5.opened(path, stamp=stamp) as file:
            try:
                group = part_of(file, options.chunk)
                columns = {one: column(group, at, one) for one, at in names.items()}
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
            yield columns

    return opened


def _cuts(name: str, layout: Layout, options: D4rlOptions) -> Cuts:
    timeouts = layout.flags.get(TIMEOUTS)
    if options.ends == rows.TIMEOUTS and timeouts is None and options.max_episode_steps is None:
        raise SourceError(
            f"{name}: ends=timeouts: the file has no timeouts; set max_episode_steps=N, or choose ends=terminals"
        )
    return cut(layout.flags[TERMINALS], timeouts, options.ends, options.max_episode_steps, options.keeps_tail)


# D4RL files as a source: `d4rl:FILE[?OPTIONS]`.

_OPTIONS = {
    "ends": words(*ENDS),
    "max_episode_steps": at_least_one,
    "last_step": words(REPEAT, MARK, NEXT),
    "tail": one_of(keep=True, drop=False),
    "infos": one_of(yes=True, no=False),
    "chunk": whole_number,
}
_FIELDS = {"tail": "keeps_tail", "infos": "has_others"}


def open_d4rl(text: str) -> Source:
    """Opens what stands behind "d4rl:".

    Raises:
      SourceError: no such file, it is damaged or none of D4RL's, or an option makes no sense.
    """
    wanted = asked("d4rl", text, _OPTIONS)
    return wanted.source_of(d4rl_recordings(wanted.path, wanted.name, D4rlOptions(**wanted.renamed(_FIELDS))))
