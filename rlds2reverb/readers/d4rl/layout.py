"""What a D4RL file has: which of its datasets become columns, which flags, which metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, STEP_FIELDS, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.alignment import NEXT_OBSERVATION
from rlds2reverb.readers.d4rl.options import D4rlOptions
from rlds2reverb.readers.flat import cutting
from rlds2reverb.readers.flat.columns import Rows
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

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
