"""The demonstrations of a robomimic file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.alignment import MARK, NEXT, NEXT_OBSERVATION, marked, steps, with_last
from rlds2reverb.readers.nests import nested, value_spec
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, each
from rlds2reverb.readers.robomimic import demos
from rlds2reverb.readers.robomimic.options import AFTER, NOTHING, TERMINAL, RobomimicOptions
from rlds2reverb.readers.robomimic.plan import DONES, STATES, Plan, columns_of, plan_of, state_shape
from rlds2reverb.readers.robomimic.telling import remarks_of
from rlds2reverb.specs import ArraySpec, Nest

_SHORT_BYTES = 1024
"""Metadata by which episodes may be chosen; longer texts (a simulator's model) are not kept."""
_WITH_OBSERVATIONS = ("robot_states",)
"""Recorded at the same time as the observations, also where these come after the action."""


class RobomimicRecordings:
    """The demonstrations of a robomimic file, by their numbers.

    Args:
      path: of the file.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read, is no file of robomimic, or an option does not go with it.
    """

    def __init__(self, path: Path, name: str, options: RobomimicOptions = RobomimicOptions()) -> None:
        self.name, self._path = name, path
        with hdf5.opened(path) as file:
            self._stamp = hdf5.stamp_of(file)
            try:
                self._demos, strangers = demos.demos_of(file, options.filter)
                data = demos.data_of(file)
                self._known = demos.known_of(data)
                if not self._demos:
                    raise SourceError(f'{path}: filter "{options.filter}": none of its demonstrations is in the file')
                first = _first(data, self._demos)
                plan = plan_of(first, options, demos.is_of_libero(self._known))
                shape = state_shape(data, self._demos) if STATES in plan.specs else None
                self._plan = plan if shape is None else plan.with_free(STATES, shape)
                self._metadata = {**self._known, **demos.metadata_of(first, self._demos[0])}
                self.fingerprint = f"robomimic:{_digest(data, self._demos, self._plan)}"
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
        self.remarks = remarks_of(self._plan, self._known, strangers)

    @property
    def count(self) -> int:
        """How many demonstrations are chosen."""
        return len(self._demos)

    def spec(self) -> Nest:
        """What the first demonstration has."""
        flag, number = ArraySpec((), np.dtype(bool)), ArraySpec((), np.dtype(np.float32))
        flags = ["is_first", "is_last"]
        made: dict[str, ArraySpec] = dict(self._plan.specs)
        if self._plan.options.done_means != NOTHING:
            made["discount"] = number
            flags.append("is_terminal")
        return nested({**made, **dict.fromkeys(flags, flag)}, self.name)

    def metadata_spec(self) -> Nest:
        """What is said of the first demonstration."""
        return {key: value_spec(value) for key, value in self._metadata.items()}

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """What is said of a demonstration, without long texts."""
        return self._short[number]

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The demonstrations of these numbers."""
        if not numbers:
            return
        with hdf5.opened(self._path, stamp=self._stamp) as file:
            try:
                data = demos.data_of(file)
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
            yield from each(_Pass(data, self._demos, self._plan, self._known), numbers)

    @cached_property
    def _short(self) -> list[dict[str, Any]]:
        with hdf5.opened(self._path, stamp=self._stamp) as file:
            try:
                data = demos.data_of(file)
                said = [demos.metadata_of(_demo(data, name), name) for name in self._demos]
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
        return [{key: value for key, value in {**self._known, **one}.items() if _is_short(value)} for one in said]


class _Pass:
    """One pass over the demonstrations."""

    def __init__(self, data: h5py.Group, names: Sequence[str], plan: Plan, known: Mapping[str, Any]) -> None:
        self._data, self._names, self._plan, self._known = data, names, plan, known

    def one(self, number: int) -> Recording:
        """One demonstration."""
        name = self._names[number]
        demo = _demo(self._data, name)
        try:
            said = demos.metadata_of(demo, name)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        columns = columns_of(demo, self._plan.names)
        self._check(hdf5.where(demo), columns, said.get("num_samples"))
        return Recording(self._made(columns), {**self._known, **said}, name)

    def _check(self, where: str, columns: Mapping[str, hdf5.Column], samples: Any) -> None:
        """Every column of the plan is there, and has a row for each action."""
        missing = [path for path in self._plan.specs if path not in columns]
        if missing:
            raise BrokenEpisode(missing[0], f"{where}: lacks what the first demonstration has: {', '.join(missing)}")
        rows = len(columns[ACTION])
        if isinstance(samples, (int, np.integer)) and int(samples) != rows:
            raise BrokenEpisode(
                ACTION, f"{where}: {rows:,} actions; expected {int(samples):,}, as its num_samples says"
            )
        for path in self._plan.specs:
            if len(columns[path]) != rows:
                raise BrokenEpisode(
                    path,
                    f"{where}: {columns[path].where} has {len(columns[path]):,} rows; expected {rows:,}, one for each action",
                )

    def _made(self, columns: Mapping[str, hdf5.Column]) -> dict[str, Array]:
        plan = self._plan
        read = {path: self._upright(path, columns[path].rows()) for path in plan.specs}
        rows = len(read[ACTION])
        if not rows:
            raise BrokenEpisode("", "no steps")
        is_terminal = self._is_terminal(columns, read)
        if plan.last_step == MARK:
            return marked(read, is_terminal)
        observation = {path: column for path, column in read.items() if _field(path) == OBSERVATION}
        if plan.align == AFTER:
            read = {path: column if _is_with_observation(path) else column[1:] for path, column in read.items()}
        else:
            observation = {
                path: with_last(column, self._after(columns, path, column)) for path, column in observation.items()
            }
        others = {path: column for path, column in read.items() if _field(path) not in (OBSERVATION, ACTION, REWARD)}
        below = {path.partition("/")[2]: column for path, column in observation.items()}
        return steps(below, {"": read[ACTION]}, read.get(REWARD), is_terminal, others)

    def _after(self, columns: Mapping[str, hdf5.Column], path: str, column: Array) -> Array:
        """The observation after the last action."""
        if self._plan.last_step != NEXT:
            return np.asarray(column[-1])
        beside = path.replace(OBSERVATION, NEXT_OBSERVATION, 1)
        if beside not in columns or len(columns[beside]) != len(column):
            raise BrokenEpisode(
                path,
                f"no {beside.replace(NEXT_OBSERVATION, 'next_obs', 1)} of {len(column):,} rows; last_step=repeat does without",
            )
        last: Array = self._upright(path, columns[beside].rows(len(column) - 1, len(column)))[0]
        return last

    def _upright(self, path: str, column: Array) -> Array:
        is_image = column.ndim == 4 and _field(path) == OBSERVATION
        return column[:, ::-1] if self._plan.options.flips and is_image else column

    def _is_terminal(self, columns: Mapping[str, hdf5.Column], read: Mapping[str, Array]) -> bool | None:
        means = self._plan.options.done_means
        if means == NOTHING:
            return None
        path = DONES if means == TERMINAL else REWARD
        if path not in columns:
            raise BrokenEpisode(path, f"done_means={means}: no {'dones' if means == TERMINAL else 'rewards'}")
        column = read[path] if path in read else columns[path].rows()
        return bool(np.any(column[-1:] > 0))


def _field(path: str) -> str:
    return path.partition("/")[0]


def _is_with_observation(path: str) -> bool:
    return _field(path) in (OBSERVATION, *_WITH_OBSERVATIONS)


def _is_short(value: Any) -> bool:
    return (len(value) if isinstance(value, bytes) else np.asarray(value).nbytes) <= _SHORT_BYTES


def _demo(data: h5py.Group, name: str) -> h5py.Group:
    demo = hdf5.found(data, name)
    if not isinstance(demo, h5py.Group):
        raise BrokenEpisode("", f"{hdf5.where(data)}/{name}: expected a group, found something else")
    return demo


def _first(data: h5py.Group, names: Sequence[str]) -> h5py.Group:
    return _demo(data, names[0])


def _digest(data: h5py.Group, names: Sequence[str], plan: Plan) -> str:
    """16 hex digits of the columns, how they are aligned, and the actions of the first and the last demonstration."""
    how = (plan.align, plan.last_step, plan.options.flips)
    digest = xxhash.xxh3_64(f"{how}|{sorted((path, str(spec)) for path, spec in plan.specs.items())}".encode())
    for name in {names[0]: None, names[-1]: None}:
        digest.update(name.encode() + hdf5.column(_demo(data, name), "actions", ACTION).tobytes())
    return digest.hexdigest()
