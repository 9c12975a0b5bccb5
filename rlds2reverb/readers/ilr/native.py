"""The benchmarks' own demonstrations, as il-representations' loaders take them, brought to its dict format trajectory by trajectory.

Observations stay as recorded: no channels are moved, no frames stacked. Where a benchmark records as many observations as actions,
`last_step` says what becomes of the last one (see `alignment`): "repeat" keeps its action, and "mark" does what il-representations
does, with one difference: that the last step was done is not lost.

Source of the layouts: `load_dataset_*` and `load_data` in il_representations/envs/*_envs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import REPEAT
from rlds2reverb.readers.ilr import keys
from rlds2reverb.readers.pickles import Inert

Arrays = dict[str, Any]
"""Key of the dict format -> [T, ...]; infos a list of dictionaries."""

CLASSES = frozenset(
    {
        "imitation.data.types.Trajectory",
        "imitation.data.types.TrajectoryWithRew",
        "imitation.util.rollout.Trajectory",
        "imitation.util.rollout.TrajectoryNoRew",
        "magical.saved_trajectories.MAGICALTrajectory",
        "milbench.baselines.saved_trajectories.MILBenchTrajectory",
    }
)
"""Classes of the benchmarks' trajectories, which are not loaded."""

_FIELDS = ("acts", "obs", "rews", "infos")
"""Of trajectories that are namedtuples, in their order."""


def atari(found: Mapping[str, Array], where: str, last_step: str) -> list[Arrays]:
    """An npz file with one array of dictionaries {states, actions, dones}."""
    listed = next(iter(found.values()), None)
    if len(found) != 1 or listed is None or listed.dtype != object:
        raise SourceError(f"{where}: expected one array of dictionaries with states, actions and dones")
    return [
        _trajectory(
            _part(one, where, "states"), _part(one, where, "actions"), _part(one, where, "dones"), last_step, where
        )
        for one in listed.ravel().tolist()
    ]


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
    """Of T + 1 observations; dictionaries of them become a key each. Their end is done unless they say that it is none."""
    told = trajectory.state if isinstance(trajectory.state, Mapping) else dict(zip(_FIELDS, trajectory.arguments))
    obs, acts = _part(told, where, "obs"), _array(_part(told, where, "acts"), where, keys.ACTS)
    dones = np.arange(len(acts)) == (len(acts) - 1 if told.get("terminal", True) else -1)
    made: Arrays = {keys.ACTS: acts, keys.DONES: dones}
    for key, column in _observations(obs, where).items():
        if len(column) != len(acts) + 1:
            raise SourceError(f"{where}: {len(column):,} observations for {len(acts):,} actions; expected one more")
        made |= {key: column[:-1], keys.next_of(key): column[1:]}
    for key in (keys.REWS, keys.INFOS):
        if told.get(key) is not None:
            values = told[key]
            made[key] = _array(values, where, key) if key == keys.REWS else list(values)
    return made


def _observations(obs: Any, where: str) -> dict[str, Array]:
    """`obs`, or `obs_X` for each of several; given as an array, a dictionary of arrays, or a list of either for each step."""
    if isinstance(obs, list) and obs and isinstance(obs[0], Mapping):
        obs = {key: [_part(one, where, key) for one in obs] for key in obs[0]}
    if isinstance(obs, Mapping):
        return {f"{keys.OBS}_{key}": _array(values, where, keys.OBS) for key, values in obs.items()}
    return {keys.OBS: _array(obs, where, keys.OBS)}


def _trajectory(obs: Any, acts: Any, dones: Any, last_step: str, where: str, rews: Any = None) -> Arrays:
    """Of T + 1 observations, or of T."""
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
    """A list of rows as one array."""
    try:
        array = np.stack(values) if isinstance(values, Sequence) and len(values) else np.asarray(values)
        if array.dtype == object:
            array = np.stack([np.asarray(one) for one in array])
    except (ValueError, TypeError, MemoryError) as error:
        raise SourceError(f"{where}: {key}: rows of several shapes: {error}") from error
    if array.dtype.kind not in "biufc" or array.ndim == 0:
        raise SourceError(f"{where}: {key}: expected rows of numbers, found {array.dtype}")
    return array
