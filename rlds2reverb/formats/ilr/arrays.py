"""The dict format, and the benchmarks' own demonstrations, which are converted to it.

The dict format has arrays obs, next_obs, acts and dones, with all trajectories one after the other; rews and infos are optional.
Source: `load_dict_dataset` in il_representations/envs/auto.py.

Observations of demonstrations stay as recorded: no channels are moved, no frames stacked. Where a benchmark records as many observations
as actions, `last_step` decides about the last one (see `formats.rows`): "repeat" keeps its action, and "mark" does the same as
il-representations, except that the done of the last step is not lost.
Source: `load_dataset_*` and `load_data` in il_representations/envs/*_envs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import spread
from rlds2reverb.formats.ilr import keys
from rlds2reverb.formats.ilr.keys import BY_INFOS, KEEP, REFUSE, SPLIT, TRUNCATION, Findings, IlrOptions
from rlds2reverb.formats.ilr.pickles import LeaveOut, ValueReader, leaves_of
from rlds2reverb.formats.ilr.shards import PassRecordings, align_columns, column_specs
from rlds2reverb.formats.pickles import Inert
from rlds2reverb.formats.recordings import BrokenEpisode, Recording
from rlds2reverb.formats.rows import REPEAT, differing
from rlds2reverb.specs import ArraySpec

ReadFile = Callable[[], Sequence[Mapping[str, Any]]]  # reads a file: dictionaries of arrays


_LOOKED_BYTES = 64 << 20  # files are read as a whole


class _DictTrajectories:
    """A dictionary of arrays, key -> [N, ...], cut into trajectories. Raises `SourceError` if a key is missing, or lengths differ."""

    def __init__(self, arrays: Mapping[str, Any], where: str, options: IlrOptions) -> None:
        self.where = where
        self._arrays = {key: _check_rows(value, where, key) for key, value in arrays.items()}
        if missing := keys.missing(arrays):
            raise SourceError(f"{where}: no {', '.join(missing)}; expected obs, next_obs, acts and dones")
        lengths = {key: len(value) for key, value in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(f"{where}: arrays of several lengths: {lengths}")
        if any(seen.shape != after.shape or seen.dtype != after.dtype for seen, after in self._pairs()):
            raise SourceError(f"{where}: next_obs: of another shape or dtype than obs")
        lists = [key for key, value in self._arrays.items() if keys.is_observation(key) and isinstance(value, list)]
        if lists and options.gaps != KEEP:
            raise SourceError(f"{where}: gaps={options.gaps} compares arrays; {lists[0]} is a list: use gaps=keep")
        dones = np.asarray(self._arrays[keys.DONES])
        if dones.dtype.kind not in "biuf" or dones.size != len(dones) or not np.isin(dones, (0, 1)).all():
            raise SourceError(f"{where}: dones: expected one true or false for each step")
        self._dones = dones.reshape(-1).astype(bool)
        self._terminals = self._find_terminals()
        is_stop = self._dones.copy()
        is_stop[-1:] = True
        if options.gaps == SPLIT and len(is_stop):
            is_stop[:-1] |= self._gaps(slice(0, len(is_stop)))
        self._stops = np.flatnonzero(is_stop) + 1

    def __len__(self) -> int:
        return len(self._stops)

    @property
    def nbytes(self) -> int:
        """Of arrays; objects count with their references only."""
        return sum(value.nbytes for value in self._arrays.values() if isinstance(value, np.ndarray))

    def leaves(self) -> dict[str, dict[str, ArraySpec]]:
        """Key -> path within its value -> spec."""
        values = self.values()
        return {
            key: values[key].leaves if key in values else {"": ArraySpec(value.shape[1:], value.dtype)}
            for key, value in self._arrays.items()
        }

    def look(self, number: int, findings: Findings) -> Array:
        """Counts irregularities of a trajectory; returns the steps, from 1, that follow a gap."""
        rows = self._rows(number)
        gaps: Array = np.flatnonzero(self._gaps(rows)) + 1
        findings.steps += rows.stop - rows.start - 1
        for step in gaps:
            findings.gap(int(step))
        if not self._dones[rows.stop - 1]:  # it ends at a gap, or with the data
            if rows.stop == len(self._dones):
                findings.unfinished += 1
            else:
                findings.steps += 1
                findings.gap(rows.stop - rows.start)
        findings.repeated += self._is_behind(rows.stop - 1, rows.stop - 1)
        findings.time_limits += self._is_time_limit(rows.stop - 1)
        if rows.stop < len(self._dones) and self._dones[rows.stop - 1]:
            findings.ends += 1
            findings.foreign += self._is_behind(rows.stop - 1, rows.stop)
        return gaps

    def _is_behind(self, row: int, other: int) -> bool:
        """Whether the observation after a row equals the observation of another row."""
        pairs = self._pairs()
        alike = (not differing(after[row : row + 1], seen[other : other + 1]).any() for seen, after in pairs)
        return bool(pairs) and all(alike)

    def columns(
        self, number: int, values: Mapping[str, ValueReader], options: IlrOptions, leave_out: LeaveOut
    ) -> dict[str, Array]:
        """RLDS columns of one trajectory; `values` read the keys that are not arrays. Raises as `align_columns`."""
        rows = self._rows(number)
        columns: dict[str, dict[str, Array]] = {}
        for key, value in self._arrays.items():
            if keys.column_of(key) is None:
                continue
            if isinstance(value, np.ndarray):
                columns[key] = {"": value[rows]}
            elif key in values:
                where = f"{self.where}: {key}"
                columns[key] = values[key].columns(
                    [values[key].row_of(leaves_of(entry), key, where, leave_out) for entry in value[rows]]
                )
        stop = rows.stop - 1
        last: dict[str, Mapping[str, Array]] = {}
        for key in columns:
            after = self._arrays.get(keys.next_of(key))
            if isinstance(after, np.ndarray):
                last[key] = {"": after[stop]}
            elif after is not None and key in values:
                row = values[key].row_of(leaves_of(after[stop]), key, f"{self.where}: {keys.next_of(key)}", leave_out)
                last[key] = {path: column[0] for path, column in values[key].columns([row]).items()}
        is_limit = options.done_means == BY_INFOS and self._is_time_limit(stop)
        is_terminal = options.done_means != TRUNCATION and not is_limit
        if self._terminals is not None:
            is_terminal = bool(self._terminals[stop])
        return align_columns(columns, last, bool(self._dones[stop]) and is_terminal)

    def _is_time_limit(self, row: int) -> bool:
        infos = self._arrays.get(keys.INFOS)
        return isinstance(infos, list) and bool(self._dones[row]) and keys.is_time_limit(infos[row])

    def _find_terminals(self) -> Array | None:
        """Which steps are terminal, where it is recorded, as only this package does it."""
        if keys.TERMINALS not in self._arrays:
            return None
        terminals = np.asarray(self._arrays[keys.TERMINALS])
        if (
            terminals.dtype.kind not in "biu"
            or terminals.size != len(terminals)
            or not np.isin(terminals, (0, 1)).all()
        ):
            raise SourceError(f"{self.where}: terminals: expected one true or false for each step")
        flags: Array = terminals.reshape(-1).astype(bool)
        return flags

    def values(self) -> dict[str, ValueReader]:
        """How to read the values of keys that are not arrays."""
        lists = {key: value for key, value in self._arrays.items() if not isinstance(value, np.ndarray)}
        return {key: ValueReader(value[0] if value else {}) for key, value in lists.items()}

    def _rows(self, number: int) -> slice:
        return slice(int(self._stops[number - 1]) if number else 0, int(self._stops[number]))

    def _gaps(self, rows: slice) -> Array:
        """For each of these rows except the last: whether its next observation differs from the following observation."""
        gaps = np.zeros(max(0, rows.stop - rows.start - 1), bool)
        for seen, after in self._pairs() if len(gaps) else ():
            gaps |= differing(after[rows.start : rows.stop - 1], seen[rows.start + 1 : rows.stop])
        return gaps

    def _pairs(self) -> list[tuple[Array, Array]]:
        return [
            (seen, self._arrays[keys.next_of(key)])
            for key, seen in self._arrays.items()
            if keys.is_observation(key)
            and keys.next_of(key) in self._arrays
            and isinstance(seen, np.ndarray)
            and isinstance(self._arrays[keys.next_of(key)], np.ndarray)
        ]


class ArrayRecordings(PassRecordings):
    """The episodes of dictionaries of arrays. Files are read one at a time; the first one stays in memory.

    Where dictionaries differ in their arrays, most decide (`agreement`), among several files if these are small.
    """

    def __init__(self, parts: Sequence[ReadFile], name: str, options: IlrOptions) -> None:
        self.name, self._options, self._parts = name, options, tuple(parts)
        self._first: list[_DictTrajectories] | None = None
        looks = self._look_at_some()
        if not looks:
            raise SourceError(f"{name}: no step")
        specs = {number: column_specs(look.leaves()) for number, look in enumerate(looks)}
        super().__init__(name, options, specs, "dictionary")
        self._values = looks[self.like_most].values()
        self._count = sum(map(len, self._first or ())) if len(self._parts) == 1 else None

    def _look_at_some(self) -> list[_DictTrajectories]:
        """Some dictionaries with steps: of the first file, and of others until `_LOOKED_BYTES` have been read. Raises the first error if none can be read."""
        looks: list[_DictTrajectories] = []
        why: SourceError | None = None
        size = 0
        for number in spread(range(len(self._parts))):
            try:
                dictionaries = self._read_file(number)
            except SourceError as error:
                why = why or error
                continue
            if number == 0:
                self._first = dictionaries
            filled = [trajectories for trajectories in dictionaries if len(trajectories)]
            looks += [filled[place] for place in spread(range(len(filled)))]
            size += sum(trajectories.nbytes for trajectories in dictionaries)
            if size > _LOOKED_BYTES and looks:
                break
        if not looks and why is not None:
            raise why
        return looks

    def _pass(self, findings: Findings, numbers_read: Collection[int]) -> Iterator[Recording | None]:
        for number, (trajectories, at) in enumerate(self._list_all()):
            if number not in numbers_read:
                yield None
                continue
            try:
                columns = self._read_columns(trajectories, at, findings)
                yield Recording(columns, made_up=keys.made_up_reward(columns))
            except BrokenEpisode as broken:
                yield Recording({}, name=str(number), faults=((broken.path, broken.why),))

    def _list_all(self) -> Iterator[tuple[_DictTrajectories | BrokenEpisode, int]]:
        """Every trajectory; an unreadable file counts as one broken trajectory."""
        for number in range(len(self._parts)):
            try:
                kept = self._first if number == 0 else None
                dictionaries = self._read_file(number) if kept is None else kept
            except SourceError as error:
                yield BrokenEpisode("", str(error)), 0
                continue
            for trajectories in dictionaries:
                for at in range(len(trajectories)):
                    yield trajectories, at

    def _read_file(self, number: int) -> list[_DictTrajectories]:
        return [_DictTrajectories(arrays, self.name, self._options) for arrays in self._parts[number]()]

    def _read_columns(
        self, trajectories: _DictTrajectories | BrokenEpisode, at: int, findings: Findings
    ) -> dict[str, Array]:
        if isinstance(trajectories, BrokenEpisode):
            raise trajectories
        gaps = trajectories.look(at, findings)
        if len(gaps) and self._options.gaps == REFUSE:
            raise BrokenEpisode(
                "observation", f"step {gaps[0]:,} is not the observation that followed the step before (gaps=refuse)"
            )
        columns = trajectories.columns(at, self._values, self._options, findings.leave_out)
        for path in {**self._specs, **columns}:
            column, expected = columns.get(path), self._specs.get(path)
            recorded = None if column is None else ArraySpec(column.shape[1:], column.dtype)
            if recorded != expected:
                raise BrokenEpisode(
                    path, f"expected {expected or 'none'}, as most trajectories have, found {recorded or 'none'}"
                )
        return columns


def _check_rows(value: Any, where: str, key: str) -> Any:
    if isinstance(value, (list, tuple)):
        return list(value)
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        raise SourceError(f"{where}: {key}: expected an array with a row for each step, found {type(value).__name__}")
    return value if value.dtype.kind in "biufc" else value.tolist()


Arrays = dict[str, Any]  # key of the dict format -> [T, ...]; infos a list of dictionaries.

CLASSES = frozenset(  # classes of the benchmarks' trajectories, which are not loaded
    {
        "imitation.data.types.Trajectory",
        "imitation.data.types.TrajectoryWithRew",
        "imitation.util.rollout.Trajectory",
        "imitation.util.rollout.TrajectoryNoRew",
        "magical.saved_trajectories.MAGICALTrajectory",
        "milbench.baselines.saved_trajectories.MILBenchTrajectory",
    }
)

_FIELDS = ("acts", "obs", "rews", "infos")  # of trajectories that are namedtuples, in this order


def read_atari(content: Mapping[str, Array], where: str, last_step: str) -> list[Arrays]:
    """An npz file with one array of dictionaries {states, actions, dones}."""
    listed = next(iter(content.values()), None)
    if len(content) != 1 or listed is None or listed.dtype != object:
        raise SourceError(f"{where}: expected one array of dictionaries with states, actions and dones")
    trajectories = []
    for recorded in listed.ravel().tolist():
        states, actions, dones = (_part(recorded, where, key) for key in ("states", "actions", "dones"))
        trajectories.append(_make_trajectory(states, actions, dones, last_step, where))
    return trajectories


def read_procgen(content: Any, where: str, last_step: str) -> list[Arrays]:
    """A dictionary of lists obs, acts, rews and dones, with one entry per trajectory."""
    lists = [_part(content, where, key) for key in (keys.OBS, keys.ACTS, keys.DONES, keys.REWS)]
    if len(set(map(len, lists))) != 1:
        raise SourceError(f"{where}: expected lists of one length, one entry for each trajectory")
    return [_make_trajectory(obs, acts, dones, last_step, where, rews) for obs, acts, dones, rews in zip(*lists)]


def read_dm_control(content: Any, where: str, _last_step: str) -> list[Arrays]:
    """A list of imitation's trajectories."""
    if not isinstance(content, (list, tuple)) or not all(isinstance(trajectory, Inert) for trajectory in content):
        raise SourceError(f"{where}: expected a list of imitation's trajectories")
    return [_read_imitation(trajectory, where) for trajectory in content]


def read_magical(content: Any, where: str, _last_step: str) -> list[Arrays]:
    """A dictionary with one trajectory."""
    trajectory = _part(content, where, "trajectory")
    if not isinstance(trajectory, Inert):
        raise SourceError(f"{where}: trajectory: expected one of MAGICAL's")
    return [_read_imitation(trajectory, where)]


def _read_imitation(trajectory: Inert, where: str) -> Arrays:
    """A trajectory of T + 1 observations; each entry of a dictionary of observations becomes a key. The last step is done unless `terminal` is false."""
    fields = trajectory.state if isinstance(trajectory.state, Mapping) else dict(zip(_FIELDS, trajectory.arguments))
    obs, acts = _part(fields, where, "obs"), _array(_part(fields, where, "acts"), where, keys.ACTS)
    dones = np.arange(len(acts)) == (len(acts) - 1 if fields.get("terminal", True) else -1)
    arrays: Arrays = {keys.ACTS: acts, keys.DONES: dones}
    for key, column in _observations(obs, where).items():
        if len(column) != len(acts) + 1:
            raise SourceError(f"{where}: {len(column):,} observations for {len(acts):,} actions; expected one more")
        arrays |= {key: column[:-1], keys.next_of(key): column[1:]}
    if fields.get(keys.REWS) is not None:
        arrays[keys.REWS] = _array(fields[keys.REWS], where, keys.REWS)
    if fields.get(keys.INFOS) is not None:
        arrays[keys.INFOS] = list(fields[keys.INFOS])
    return arrays


def _observations(obs: Any, where: str) -> dict[str, Array]:
    """`obs` from an array; `obs_X` for each entry X of a dictionary of arrays, or of a list with a dictionary per step."""
    if isinstance(obs, list) and obs and isinstance(obs[0], Mapping):
        obs = {key: [_part(step, where, key) for step in obs] for key in obs[0]}
    if isinstance(obs, Mapping):
        return {f"{keys.OBS}_{key}": _array(values, where, keys.OBS) for key, values in obs.items()}
    return {keys.OBS: _array(obs, where, keys.OBS)}


def _make_trajectory(obs: Any, acts: Any, dones: Any, last_step: str, where: str, rews: Any = None) -> Arrays:
    """A trajectory of T + 1 observations, or of T."""
    arrays = {keys.ACTS: _array(acts, where, keys.ACTS), keys.DONES: _array(dones, where, keys.DONES)}
    if rews is not None:
        arrays[keys.REWS] = _array(rews, where, keys.REWS)
    seen, count = _array(obs, where, keys.OBS), len(arrays[keys.ACTS])
    if set(map(len, arrays.values())) != {count} or len(seen) not in (count, count + 1):
        raise SourceError(
            f"{where}: {len(seen):,} observations for {count:,} actions; expected as many, or one more, and as many dones"
        )
    if len(seen) == count and last_step == REPEAT:
        seen = np.concatenate([seen, seen[-1:]])
    elif len(seen) == count:
        # The last step goes without its observation. Its done, which would be lost, is given to the step before.
        is_done = arrays[keys.DONES][-2:].any(axis=0, keepdims=True)
        arrays = {key: column[:-1] for key, column in arrays.items()}
        arrays[keys.DONES] = np.concatenate([arrays[keys.DONES][:-1], is_done[: count - 1]])
    return {keys.OBS: seen[:-1], keys.NEXT_OBS: seen[1:], **arrays}


def _part(content: Any, where: str, key: str) -> Any:
    if not isinstance(content, Mapping) or key not in content:
        raise SourceError(f"{where}: no {key}; expected it in a dictionary")
    return content[key]


def _array(values: Any, where: str, key: str) -> Array:
    try:
        array = np.stack(values) if isinstance(values, Sequence) and len(values) else np.asarray(values)
        if array.dtype == object:
            array = np.stack([np.asarray(row) for row in array])
    except (ValueError, TypeError, MemoryError) as error:
        raise SourceError(f"{where}: {key}: rows of several shapes: {error}") from error
    if array.dtype.kind not in "biufc" or array.ndim == 0:
        raise SourceError(f"{where}: {key}: expected rows of numbers, found {array.dtype}")
    return array
