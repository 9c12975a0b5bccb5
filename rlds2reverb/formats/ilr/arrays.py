"""The dict format, and the benchmarks' own demonstrations, which are converted to it.

The dict format has arrays obs, next_obs, acts and dones, with all trajectories one after the other; rews and infos are optional.
Source: `load_dict_dataset` in il_representations/envs/auto.py.

Observations of demonstrations stay as recorded: no channels are moved, no frames stacked. Where a benchmark records as many observations
as actions, `last_step` decides about the last one (see `formats.rows`): "repeat" keeps its action, and "mark" does the same as
il-representations, except that the done of the last step is not lost.
Source: `load_dataset_*` and `load_data` in il_representations/envs/*_envs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import most_alike, spread, unlike_notice
from rlds2reverb.formats.ilr import keys
from rlds2reverb.formats.ilr.keys import REFUSE, SPLIT, TERMINAL, Findings, Options
from rlds2reverb.formats.ilr.pickles import Values, leaves_of
from rlds2reverb.formats.ilr.shards import aligned, column_specs
from rlds2reverb.formats.pickles import Inert
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.formats.rows import REPEAT, differing
from rlds2reverb.specs import ArraySpec, Nest

ReadFile = Callable[[], Sequence[Mapping[str, Any]]]  # reads a file: dictionaries of arrays


_LOOKED_BYTES = 64 << 20  # files are read as a whole


class _DictTrajectories:
    """A dictionary of arrays, key -> [N, ...], cut into trajectories. Raises `SourceError` if a key is missing, or lengths differ."""

    def __init__(self, arrays: Mapping[str, Any], where: str, options: Options) -> None:
        self.where = where
        self._arrays = {key: _checked(value, where, key) for key, value in arrays.items()}
        if missing := keys.missing(arrays):
            raise SourceError(f"{where}: no {', '.join(missing)}; expected obs, next_obs, acts and dones")
        lengths = {key: len(value) for key, value in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(f"{where}: arrays of several lengths: {lengths}")
        if any(seen.shape != after.shape or seen.dtype != after.dtype for seen, after in self._pairs()):
            raise SourceError(f"{where}: next_obs: of another shape or dtype than obs")
        dones = np.asarray(self._arrays[keys.DONES])
        if dones.dtype.kind not in "biuf" or dones.size != len(dones) or not np.isin(dones, (0, 1)).all():
            raise SourceError(f"{where}: dones: expected one true or false for each step")
        self._dones = dones.reshape(-1).astype(bool)
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
        if rows.stop < len(self._dones) and self._dones[rows.stop - 1]:
            findings.ends += 1
            findings.foreign += self._is_behind(rows.stop - 1, rows.stop)
        return gaps

    def _is_behind(self, row: int, other: int) -> bool:
        """Whether the observation after a row equals the observation of another row."""
        pairs = self._pairs()
        alike = (not differing(after[row : row + 1], seen[other : other + 1]).any() for seen, after in pairs)
        return bool(pairs) and all(alike)

    def columns(self, number: int, values: Mapping[str, Values], options: Options) -> dict[str, Array]:
        """RLDS columns of one trajectory; `values` read the keys that are not arrays. Raises as `aligned`."""
        rows = self._rows(number)
        columns: dict[str, dict[str, Array]] = {}
        for key, value in self._arrays.items():
            if keys.column_of(key) is None:
                continue
            if isinstance(value, np.ndarray):
                columns[key] = {"": value[rows]}
            elif key in values:
                columns[key] = values[key].columns(
                    [values[key].row_of(leaves_of(one), key, f"{self.where}: {key}") for one in value[rows]]
                )
        last = {
            key: {"": self._arrays[keys.next_of(key)][rows.stop - 1]}
            for key in columns
            if isinstance(self._arrays.get(keys.next_of(key)), np.ndarray)
        }
        return aligned(columns, last, bool(self._dones[rows.stop - 1]) and options.done_means == TERMINAL)

    def values(self) -> dict[str, Values]:
        """How to read the values of keys that are not arrays."""
        lists = {key: value for key, value in self._arrays.items() if not isinstance(value, np.ndarray)}
        return {key: Values(value[0] if value else {}) for key, value in lists.items()}

    def _rows(self, number: int) -> slice:
        return slice(int(self._stops[number - 1]) if number else 0, int(self._stops[number]))

    def _gaps(self, rows: slice) -> Array:
        """For each of these rows except the last: whether its next observation differs from the following observation."""
        found = np.zeros(max(0, rows.stop - rows.start - 1), bool)
        for seen, after in self._pairs() if len(found) else ():
            found |= differing(after[rows.start : rows.stop - 1], seen[rows.start + 1 : rows.stop])
        return found

    def _pairs(self) -> list[tuple[Array, Array]]:
        return [
            (seen, self._arrays[keys.next_of(key)])
            for key, seen in self._arrays.items()
            if keys.is_observation(key)
            and keys.next_of(key) in self._arrays
            and isinstance(seen, np.ndarray)
            and isinstance(self._arrays[keys.next_of(key)], np.ndarray)
        ]


class ArrayRecordings(Recordings):
    """The episodes of dictionaries of arrays. Files are read one at a time; the first one stays in memory.

    Where dictionaries differ in their arrays, most decide (`agreement`), among several files if these are small.
    """

    def __init__(self, parts: Sequence[ReadFile], name: str, options: Options) -> None:
        self.name, self._parts, self._options = name, tuple(parts), options
        self._first: list[_DictTrajectories] | None = None
        looks = self._looks()
        if not looks:
            raise SourceError(f"{name}: no step")
        specs = {number: column_specs(look.leaves()) for number, look in enumerate(looks)}
        chosen = most_alike(specs)
        like_most = looks[chosen]
        self._values, self._specs = like_most.values(), specs[chosen]
        self._mixed = tuple(unlike_notice(specs, chosen, "dictionary"))
        self._findings = Findings()
        self._count = sum(map(len, self._first or ())) if len(self._parts) == 1 else None

    def _looks(self) -> list[_DictTrajectories]:
        """Some dictionaries with steps: of the first file, and of others until `_LOOKED_BYTES` have been read. Raises the first error if none can be read."""
        looks: list[_DictTrajectories] = []
        why: SourceError | None = None
        size = 0
        for number in spread(range(len(self._parts))):
            try:
                found = self._trajectories(number)
            except SourceError as error:
                why = why or error
                continue
            if number == 0:
                self._first = found
            filled = [trajectories for trajectories in found if len(trajectories)]
            looks += [filled[place] for place in spread(range(len(filled)))]
            size += sum(trajectories.nbytes for trajectories in found)
            if size > _LOOKED_BYTES and looks:
                break
        if not looks and why is not None:
            raise why
        return looks

    @property
    def count(self) -> int | None:
        """None for several files until `counted` has read them."""
        return self._count

    @property
    def has_random_access(self) -> bool:
        return False

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Known before reading, and the findings of the last pass."""
        return (*self._mixed, *self._findings.notices(keys.has_rewards(self._specs), self._options))

    def spec(self) -> Nest:
        return dict(keys.with_reward(self._specs))

    def counted(self) -> ArrayRecordings:
        """The same, with `count`: reads all files."""
        self._count = sum(1 for _ in self._all())
        return self

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        self._findings = Findings()
        wanted = numbers if isinstance(numbers, range) else frozenset(numbers)
        for number, (trajectories, at) in enumerate(self._all() if numbers else ()):
            if number in wanted:
                try:
                    columns = self._columns(trajectories, at)
                    yield Recording(columns, made_up=keys.made_up_reward(columns))
                except BrokenEpisode as broken:
                    yield Recording({}, name=str(number), faults=((broken.path, broken.why),))
            if number == numbers[-1]:
                return

    def _all(self) -> Iterator[tuple[_DictTrajectories | BrokenEpisode, int]]:
        """Every trajectory; an unreadable file counts as one broken trajectory."""
        for number in range(len(self._parts)):
            try:
                kept = self._first if number == 0 else None
                found = self._trajectories(number) if kept is None else kept
            except SourceError as error:
                yield BrokenEpisode("", str(error)), 0
                continue
            for one in found:
                for at in range(len(one)):
                    yield one, at

    def _trajectories(self, number: int) -> list[_DictTrajectories]:
        return [_DictTrajectories(one, self.name, self._options) for one in self._parts[number]()]

    def _columns(self, trajectories: _DictTrajectories | BrokenEpisode, at: int) -> dict[str, Array]:
        if isinstance(trajectories, BrokenEpisode):
            raise trajectories
        gaps = trajectories.look(at, self._findings)
        if len(gaps) and self._options.gaps == REFUSE:
            raise BrokenEpisode(
                "observation", f"step {gaps[0]:,} is not the observation that followed the step before (gaps=refuse)"
            )
        columns = trajectories.columns(at, self._values, self._options)
        for path in {**self._specs, **columns}:
            column, wanted = columns.get(path), self._specs.get(path)
            found = None if column is None else ArraySpec(column.shape[1:], column.dtype)
            if found != wanted:
                raise BrokenEpisode(
                    path, f"expected {wanted or 'none'}, as most trajectories have, found {found or 'none'}"
                )
        return columns


def _checked(value: Any, where: str, key: str) -> Any:
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


def atari(found: Mapping[str, Array], where: str, last_step: str) -> list[Arrays]:
    """An npz file with one array of dictionaries {states, actions, dones}."""
    listed = next(iter(found.values()), None)
    if len(found) != 1 or listed is None or listed.dtype != object:
        raise SourceError(f"{where}: expected one array of dictionaries with states, actions and dones")
    made = []
    for one in listed.ravel().tolist():
        states, actions, dones = (_part(one, where, key) for key in ("states", "actions", "dones"))
        made.append(_trajectory(states, actions, dones, last_step, where))
    return made


def procgen(found: Any, where: str, last_step: str) -> list[Arrays]:
    """A dictionary of lists obs, acts, rews and dones, with one entry per trajectory."""
    lists = [_part(found, where, key) for key in (keys.OBS, keys.ACTS, keys.DONES, keys.REWS)]
    if len({len(one) for one in lists}) != 1:
        raise SourceError(f"{where}: expected lists of one length, one entry for each trajectory")
    return [_trajectory(obs, acts, dones, last_step, where, rews) for obs, acts, dones, rews in zip(*lists)]


def dm_control(found: Any, where: str, _last_step: str) -> list[Arrays]:
    """A list of imitation's trajectories."""
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, Inert) for one in found):
        raise SourceError(f"{where}: expected a list of imitation's trajectories")
    return [_of_imitation(one, where) for one in found]


def magical(found: Any, where: str, _last_step: str) -> list[Arrays]:
    """A dictionary with one trajectory."""
    trajectory = _part(found, where, "trajectory")
    if not isinstance(trajectory, Inert):
        raise SourceError(f"{where}: trajectory: expected one of MAGICAL's")
    return [_of_imitation(trajectory, where)]


def _of_imitation(trajectory: Inert, where: str) -> Arrays:
    """A trajectory of T + 1 observations; each entry of a dictionary of observations becomes a key. The last step is done unless `terminal` is false."""
    fields = trajectory.state if isinstance(trajectory.state, Mapping) else dict(zip(_FIELDS, trajectory.arguments))
    obs, acts = _part(fields, where, "obs"), _array(_part(fields, where, "acts"), where, keys.ACTS)
    dones = np.arange(len(acts)) == (len(acts) - 1 if fields.get("terminal", True) else -1)
    made: Arrays = {keys.ACTS: acts, keys.DONES: dones}
    for key, column in _observations(obs, where).items():
        if len(column) != len(acts) + 1:
            raise SourceError(f"{where}: {len(column):,} observations for {len(acts):,} actions; expected one more")
        made |= {key: column[:-1], keys.next_of(key): column[1:]}
    if fields.get(keys.REWS) is not None:
        made[keys.REWS] = _array(fields[keys.REWS], where, keys.REWS)
    if fields.get(keys.INFOS) is not None:
        made[keys.INFOS] = list(fields[keys.INFOS])
    return made


def _observations(obs: Any, where: str) -> dict[str, Array]:
    """`obs` from an array; `obs_X` for each entry X of a dictionary of arrays, or of a list with a dictionary per step."""
    if isinstance(obs, list) and obs and isinstance(obs[0], Mapping):
        obs = {key: [_part(one, where, key) for one in obs] for key in obs[0]}
    if isinstance(obs, Mapping):
        return {f"{keys.OBS}_{key}": _array(values, where, keys.OBS) for key, values in obs.items()}
    return {keys.OBS: _array(obs, where, keys.OBS)}


def _trajectory(obs: Any, acts: Any, dones: Any, last_step: str, where: str, rews: Any = None) -> Arrays:
    """A trajectory of T + 1 observations, or of T."""
    made = {keys.ACTS: _array(acts, where, keys.ACTS), keys.DONES: _array(dones, where, keys.DONES)}
    if rews is not None:
        made[keys.REWS] = _array(rews, where, keys.REWS)
    seen, count = _array(obs, where, keys.OBS), len(made[keys.ACTS])
    if {len(one) for one in made.values()} != {count} or len(seen) not in (count, count + 1):
        raise SourceError(
            f"{where}: {len(seen):,} observations for {count:,} actions; expected as many, or one more, and as many dones"
        )
    if len(seen) == count and last_step == REPEAT:
        seen = np.concatenate([seen, seen[-1:]])
    elif len(seen) == count:
        is_done = made[keys.DONES][-2:].any(axis=0, keepdims=True)
        made = {key: column[:-1] for key, column in made.items()}
        made[keys.DONES] = np.concatenate([made[keys.DONES][:-1], is_done[: count - 1]])
    return {keys.OBS: seen[:-1], keys.NEXT_OBS: seen[1:], **made}


def _part(found: Any, where: str, key: str) -> Any:
    if not isinstance(found, Mapping) or key not in found:
        raise SourceError(f"{where}: no {key}; expected it in a dictionary")
    return found[key]


def _array(values: Any, where: str, key: str) -> Array:
    try:
        array = np.stack(values) if isinstance(values, Sequence) and len(values) else np.asarray(values)
        if array.dtype == object:
            array = np.stack([np.asarray(one) for one in array])
    except (ValueError, TypeError, MemoryError) as error:
        raise SourceError(f"{where}: {key}: rows of several shapes: {error}") from error
    if array.dtype.kind not in "biufc" or array.ndim == 0:
        raise SourceError(f"{where}: {key}: expected rows of numbers, found {array.dtype}")
    return array
