"""The demonstrations of a robomimic file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.alignment import MARK, NEXT, NEXT_OBSERVATION, marked, steps, with_last
from rlds2reverb.readers.features import fitted, left_out_remarks
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings, each
from rlds2reverb.readers.robomimic import demos
from rlds2reverb.readers.robomimic.options import AFTER, NOTHING, TERMINAL, RobomimicOptions
from rlds2reverb.readers.robomimic.plan import DONES, STATES, Plan, columns_of, plan_of, state_shape
from rlds2reverb.readers.robomimic.survey import survey
from rlds2reverb.readers.robomimic.telling import remarks_of
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest

_MOST_TRIED = 32
"""Demonstrations that are looked at for the columns, until one can be read."""
_WITH_OBSERVATIONS = ("robot_states",)
"""Recorded at the same time as the observations, also where these come after the action."""


class RobomimicRecordings(Recordings):
    """The demonstrations of a robomimic file, by their numbers.

    Args:
      path: of the file.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read, is no file of robomimic, or an option does not go with it.
    """

    remarks: tuple[Remark, ...] = ()

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
                plan = _plan(data, self._demos, options, demos.is_of_libero(self._known))
                shape = state_shape(data, self._demos) if STATES in plan.specs else None
                self._plan = plan if shape is None else plan.with_free(STATES, shape)
                self._survey = survey(data, self._demos, self._known)
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
        self.remarks = (
            *remarks_of(self._plan, self._known, strangers),
            *left_out_remarks(self._survey.features.left_out),
        )

    @property
    def count(self) -> int:
        """How many demonstrations are chosen."""
        return len(self._demos)

    def length_of(self, number: int) -> int | None:
        """Its samples, and the row that is added."""
        samples = self.metadata_of(number).get("num_samples")
        if not isinstance(samples, (int, np.integer)) or isinstance(samples, bool):
            return None
        return int(samples) + (self._plan.last_step != MARK and self._plan.align != AFTER)

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
        """What is said of all demonstrations."""
        return dict(self._survey.features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """What is said of a demonstration, without long texts."""
        return self._survey.short[number]

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The demonstrations of these numbers."""
        if not numbers:
            return
        with hdf5.opened(self._path, stamp=self._stamp) as file:
            try:
                data = demos.data_of(file)
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
            passing = _Pass(data, self._demos, self._plan, self._known, self._survey.features.spec)
            yield from each(passing, numbers, self._demos.__getitem__, self.metadata_of)


class _Pass:
    """One pass over the demonstrations."""

    def __init__(
        self,
        data: h5py.Group,
        names: Sequence[str],
        plan: Plan,
        known: Mapping[str, Any],
        features: Mapping[str, ArraySpec],
    ) -> None:
        self._data, self._names, self._plan, self._known, self._features = data, names, plan, known, features

    def one(self, number: int) -> Recording:
        """One demonstration."""
        name = self._names[number]
        demo = demos.demo_of(self._data, name)
        try:
            said = {**self._known, **demos.metadata_of(demo, name)}
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        columns = columns_of(demo, self._plan.names)
        self._check(hdf5.where(demo), columns, said.get("num_samples"))
        return Recording(self._made(columns), fitted(said, self._features), name)

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


def _plan(data: h5py.Group, names: Sequence[str], options: RobomimicOptions, is_libero: bool) -> Plan:
    """How demonstrations are read, as the first that can be read has it.

    Raises:
      SourceError, BrokenEpisode: none of the first ones can be; what is wrong with the very first.
    """
    why: SourceError | BrokenEpisode | None = None
    for name in names[:_MOST_TRIED]:
        try:
            return plan_of(demos.demo_of(data, name), options, is_libero)
        except (SourceError, BrokenEpisode) as error:
            why = why or error
    raise why or SourceError(f"{hdf5.where(data)}: no demonstrations")
