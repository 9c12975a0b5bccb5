"""D4RL: one HDF5 file of rows; terminals and timeouts end episodes. `d4rl:FILE[?OPTIONS]`; see docs/formats/d4rl.md.

Source of the layout: d4rl/offline_env.py, d4rl/__init__.py and scripts/generation of D4RL (commit 89141a6).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, STEP_FIELDS, Array, Notice, is_under, note
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import hdf5, rows
from rlds2reverb.formats.agreement import spread
from rlds2reverb.formats.options import one_of, whole_number
from rlds2reverb.formats.recordings import BrokenEpisode, parse_source_name, refuse_broken
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec

_COLUMNS = {
    "observations": OBSERVATION,
    "actions": ACTION,
    "rewards": REWARD,
    "next_observations": rows.NEXT_OBSERVATION,
}
_MANDATORY = ("observations", "actions", "rewards", rows.TERMINALS)
_METADATA, _PARTS = "metadata", "virtual"
_COMPARED_ROWS = 2_000
_MANY = 0.5  # if this share of terminals follows another terminal, they mark a state rather than an end
_MOST_STEPS = {  # by the name of a file. Source: `max_episode_steps` in d4rl/*/__init__.py.
    "kitchen": 280,
    "ant.*u-?maze": 700,
    "door|hammer|relocate": 200,
    "pen[-_]": 100,
    "hopper|halfcheetah|walker2d|ant": 1000,
}

_OPTIONS = {**rows.ROW_OPTIONS, "infos": one_of(yes=True, no=False), "chunk": whole_number}


@dataclass(frozen=True)
class _D4rlOptions(rows.RowOptions):
    """The options; see docs/formats/d4rl.md."""

    infos: bool = True
    chunk: int | None = None


def open_d4rl(text: str) -> Source:
    """Opens the dataset named after "d4rl:".

    Raises:
      SourceError: there is no such file, it is damaged or not D4RL's, or an option makes no sense.
    """
    request = parse_source_name("d4rl", text, _OPTIONS)
    path, name, options = request.files.pin(request.path), request.name, _D4rlOptions(**request.options)
    with hdf5.open_file(path) as file, refuse_broken():
        layout = _read_layout(file, options)
        options.check_alignment(name)
        last_step = rows.last_step_of(name, layout.names, options.last_step)
        last_step = rows.LED_TO if options.align == rows.AFTER else last_step
        timeouts = layout.flags.get(rows.TIMEOUTS)
        if options.ends == rows.TIMEOUTS and timeouts is None and options.max_episode_steps is None:
            raise SourceError(
                f"{name}: ends=timeouts: the file has no timeouts; set max_episode_steps=N, or choose ends=terminals"
            )
        cuts = rows.cut(layout.flags[rows.TERMINALS], timeouts, options.ends, options.max_episode_steps, options.tail)
        notices = tuple(_notices(layout, cuts, _find_rows(file, options.chunk), options, last_step, path.name))
    names = {
        column: key
        for column, key in layout.names.items()
        if last_step == rows.NEXT or not is_under(column, rows.NEXT_OBSERVATION)
    }

    @contextmanager
    def columns(paths: Collection[str]) -> Iterator[Mapping[str, rows.Rows]]:
        with hdf5.open_file(path) as file:
            with refuse_broken():
                group = _find_rows(file, options.chunk)
                columns = {path: hdf5.HdfColumn(group, names[path], path) for path in paths}
            yield columns

    specs = {column: layout.specs[column] for column in names}
    return request.make_source(rows.FlatRecordings(name, last_step, specs, layout.metadata, cuts, columns, notices))


@dataclass(frozen=True, eq=False)
class _D4rlLayout:
    """The content of a file.

    Attributes:
      names: path of a column -> name in the file.
      specs: path -> spec of a row.
      flags: terminals and, if there are any, timeouts: [rows] bool.
      metadata: of the file; numbers and texts.
      left_out: names of metadata that are arrays, and of datasets with another number of rows.
    """

    rows: int
    names: Mapping[str, str]
    specs: Mapping[str, ArraySpec]
    flags: Mapping[str, Array]
    terminals_dtype: np.dtype[Any]
    metadata: Mapping[str, Any]
    left_out: tuple[str, ...]


def _read_layout(file: h5py.Group, options: _D4rlOptions) -> _D4rlLayout:
    """Reads a file's flags and metadata, and the specs of its columns; raises `SourceError` if a dataset is missing, or lengths differ."""
    group, where = _find_rows(file, options.chunk), hdf5.path_of(file)
    datasets = hdf5.list_datasets(group)
    first = {name: name.partition("/")[0] for name in datasets}
    missing = [key for key in _MANDATORY if key not in (datasets if key == rows.TERMINALS else first.values())]
    if missing:
        raise SourceError(f"{where}: no {', '.join(missing)}; expected a D4RL file with {', '.join(_MANDATORY)}")

    names = {_COLUMNS[key] + name[len(key) :]: name for name, key in first.items() if key in _COLUMNS}
    columns = {path: hdf5.HdfColumn(group, name, path) for path, name in names.items()}
    flags = {key: hdf5.HdfColumn(group, key, key) for key in (rows.TERMINALS, rows.TIMEOUTS) if key in datasets}
    count = len(flags[rows.TERMINALS])
    for name, column in {**{names[path]: column for path, column in columns.items()}, **flags}.items():
        if len(column) != count:
            raise SourceError(f"{where}: {name} has {len(column):,} rows; expected {count:,}, as {rows.TERMINALS} has")

    left_out = []
    for name, key in first.items() if options.infos else ():
        if key in _COLUMNS or name in flags or key in (_METADATA, _PARTS):
            continue
        if datasets[name].shape and datasets[name].shape[0] == count and key not in STEP_FIELDS:
            names[name] = name
        else:
            left_out.append(name)
    if options.ends == rows.TIMEOUTS:
        names[rows.TERMINALS] = rows.TERMINALS  # they end no episode then, and are kept as recorded
    columns |= {path: hdf5.HdfColumn(group, name, path) for path, name in names.items() if path not in columns}

    metadata: dict[str, Any] = {}
    about = hdf5.find(file, _METADATA)
    if isinstance(about, h5py.Group):
        features = hdf5.list_datasets(about)
        metadata = {name: hdf5.read_value(about, name) for name, value in features.items() if value.shape == ()}
        left_out = [*(f"{_METADATA}/{name}" for name in features if name not in metadata), *left_out]
    return _D4rlLayout(
        count,
        names,
        {path: column.spec for path, column in columns.items()},
        {key: rows.truths(column.rows(), column.path, column.where) for key, column in flags.items()},
        flags[rows.TERMINALS].dtype,
        metadata,
        tuple(left_out),
    )


def _find_rows(file: h5py.Group, chunk: int | None) -> h5py.Group:
    """The group that holds the rows: the file itself, or one chunk of it."""
    # D4RL's own `get_dataset_chunk` reads a part virtual/K alone; each has all the datasets of a file.
    parts = hdf5.find(file, _PARTS)
    numbers = sorted(filter(str.isdecimal, hdf5.list_names(parts)), key=int) if isinstance(parts, h5py.Group) else []
    if chunk is None:
        if numbers and hdf5.find(file, "observations") is None:
            raise SourceError(
                f"{hdf5.path_of(file)}: has only parts ({_PARTS}/K); choose one by chunk=K: {', '.join(numbers)}"
            )
        return file
    part = hdf5.find(file, f"{_PARTS}/{chunk}")
    if not isinstance(part, h5py.Group):
        raise SourceError(f"{hdf5.path_of(file)}: no {_PARTS}/{chunk}; there are: {', '.join(numbers) or 'none'}")
    return part


def _notices(
    layout: _D4rlLayout, cuts: rows.Cuts, group: h5py.Group, options: _D4rlOptions, last_step: str, file_name: str
) -> Iterator[Notice]:
    yield rows.ending_notice(last_step)
    yield from _notices_of_ends(layout, options, file_name)
    if options.align is None:
        led_to = {
            path: hdf5.HdfColumn(group, name, path)
            for path, name in layout.names.items()
            if is_under(path, ACTION) or is_under(path, REWARD)
        }
        places = spread(np.flatnonzero(cuts.stops > cuts.starts).tolist())
        yield from rows.find_dummy_actions(rows.read_beginnings(led_to, cuts, places))
    if cuts.tail_rows:
        yield rows.tail_notice(cuts, options.tail)
    yield from _notices_of_next(layout, cuts, group)
    if layout.left_out:
        names = ", ".join(layout.left_out[:8]) + (", ..." if len(layout.left_out) > 8 else "")
        text = f"no numbers or texts of the file, and no row for each step: {names}"
        yield Notice("left_out", text, len(layout.left_out))


def _notices_of_ends(layout: _D4rlLayout, options: _D4rlOptions, file_name: str) -> Iterator[Notice]:
    terminals, timeouts = layout.flags[rows.TERMINALS], layout.flags.get(rows.TIMEOUTS)
    if timeouts is None:
        if options.max_episode_steps is None:
            limit = next((steps for name, steps in _MOST_STEPS.items() if re.search(name, file_name.lower())), None)
            hint = f"; for files of this name it is {limit}" if limit else ""
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
            f"{following:,} of {int(terminals.sum()):,} terminals follow another one: they mark a state, such as contact with the goal in antmaze, "
            "and end nothing. ends=timeouts cuts at timeouts only, and keeps terminals as a column",
            following,
        )


def _notices_of_next(layout: _D4rlLayout, cuts: rows.Cuts, group: h5py.Group) -> Iterator[Notice]:
    """Checks on the first rows of the file whether next_observations equal the observations of the following rows."""
    compared = min(_COMPARED_ROWS, layout.rows)
    ends = np.zeros(layout.rows, bool)
    ends[cuts.stops - 1] = True
    inside = ~ends[: compared - 1]
    for path, name in layout.names.items():
        beside = name[len("next_") :]
        if not is_under(path, rows.NEXT_OBSERVATION) or not compared or beside not in layout.names.values():
            continue
        try:
            after = hdf5.HdfColumn(group, name, path).rows(0, compared)[:-1]
            following = hdf5.HdfColumn(group, beside, path).rows(0, compared)[1:]
        except BrokenEpisode:  # reading says so, if the column is read
            continue
        if count := int((rows.differing(after, following) & inside).sum()):
            text = (
                f"of the first {compared:,} rows {count:,} have {name} that are not the next row's {beside}, though no flag ends an "
                "episode there: ends may be missing from the file"
            )
            yield Notice("next_differs", text, count, path)
