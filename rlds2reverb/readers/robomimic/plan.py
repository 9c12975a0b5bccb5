"""Which datasets of a demonstration become which columns: as the first one has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, STEP_FIELDS
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.alignment import NEXT, NEXT_OBSERVATION, last_step_of
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.robomimic.options import AFTER, AUTO, BEFORE, SUCCESS, TERMINAL, RobomimicOptions
from rlds2reverb.specs import ArraySpec

_FIELDS = {"obs": OBSERVATION, "next_obs": NEXT_OBSERVATION, "actions": ACTION, "rewards": REWARD}
_OF_SEGMENTS = ("src_demo_inds", "src_demo_labels")
"""MimicGen's, of the parts that a demonstration is made of."""
DONES, STATES = "dones", "states"


@dataclass(frozen=True, eq=False)
class Plan:
    """How demonstrations are read.

    Attributes:
      specs: path -> spec of a row; next observations are not among them.
      names: path -> dataset, of all that is looked up in a demonstration.
      align: `BEFORE` or `AFTER`.
      last_step: what becomes of the end.
      left_out: names of datasets of another number of rows.
      options: as they were given.
    """

    specs: Mapping[str, ArraySpec]
    names: Mapping[str, str]
    align: str
    last_step: str
    left_out: tuple[str, ...]
    options: RobomimicOptions

    def with_free(self, path: str, shape: tuple[int | None, ...]) -> Plan:
        """The plan in which a column has this shape."""
        return replace(self, specs={**self.specs, path: ArraySpec(shape, self.specs[path].dtype)})


def path_of(name: str) -> str:
    """What a dataset becomes: `obs/image` is `observation/image`."""
    first, slash, rest = name.partition("/")
    return f"{_FIELDS.get(first, first)}{slash}{rest}"


def columns_of(demo: h5py.Group, names: Mapping[str, str]) -> dict[str, hdf5.Column]:
    """Path -> dataset, of those that a demonstration has.

    Args:
      demo: its group.
      names: path -> name of what is looked up.

    Raises:
      BrokenEpisode: one cannot be read.
    """
    groups: dict[str, Any] = {"": demo}
    made = {}
    for path, name in names.items():
        above, _, last = name.rpartition("/")
        if above not in groups:
            groups[above] = hdf5.located(demo, above)
        group = groups[above]
        one = hdf5.located(group, last) if isinstance(group, h5py.Group) else None
        if isinstance(one, h5py.h5d.DatasetID):
            made[path] = hdf5.Column(group, last, path, one)
    return made


def _all_columns(demo: h5py.Group) -> tuple[dict[str, hdf5.Column], dict[str, str]]:
    """Path -> dataset with rows, and its name, of all in a demonstration."""
    there = {name: one for name, one in hdf5.leaves(demo).items() if one.shape}
    columns = {path_of(name): hdf5.Column(demo, name, path_of(name), one.id) for name, one in there.items()}
    return columns, {path_of(name): name for name in there}


def plan_of(demo: h5py.Group, options: RobomimicOptions, is_libero: bool) -> Plan:
    """How demonstrations like this one are read.

    Raises:
      SourceError: it has no actions, or no observations; or an option does not go with it.
      BrokenEpisode: it cannot be read.
    """
    columns, there = _all_columns(demo)
    _check(demo, columns)
    rows = len(columns[ACTION])
    beside = [path for path in columns if path.split("/")[0] not in _FIELDS.values()]
    fitting = [path for path in beside if _is_column(path, columns[path], rows)] if options.has_others else []
    used = [path for path in columns if path.split("/")[0] in (OBSERVATION, ACTION, REWARD)]
    left_out = tuple(path for path in beside if path not in fitting) if options.has_others else ()
    align = {AUTO: AFTER if is_libero else BEFORE}.get(options.align, options.align)
    specs = {path: columns[path].spec for path in (*used, *fitting)}
    last_step = _last_step(demo, columns, options, align)
    looked_up = [*specs, *{TERMINAL: [DONES], SUCCESS: [REWARD]}.get(options.done_means, [])]
    if last_step == NEXT:
        looked_up += [path for path in columns if path.split("/")[0] == NEXT_OBSERVATION]
    names = {DONES: DONES, REWARD: "rewards", **there}
    return Plan(specs, {path: names[path] for path in looked_up}, align, last_step, left_out, options)


def _is_column(path: str, column: hdf5.Column, rows: int) -> bool:
    first = path.split("/")[0]
    return len(column) == rows and first not in _OF_SEGMENTS and first not in STEP_FIELDS


def _check(demo: h5py.Group, columns: Mapping[str, Any]) -> None:
    if ACTION not in columns:
        raise SourceError(f"{hdf5.where(demo)}: no actions; expected a robomimic file")
    if not any(path.startswith(f"{OBSERVATION}/") for path in columns):
        raise SourceError(
            f"{hdf5.where(demo)}: no obs: a file of raw demonstrations, with states and actions only. Have robomimic make the "
            "observations (scripts/dataset_states_to_obs.py), and read the file that it writes"
        )


def _last_step(demo: h5py.Group, columns: Mapping[str, Any], options: RobomimicOptions, align: str) -> str:
    if align == AFTER:
        if options.last_step not in (None, NEXT):
            raise SourceError(
                f"{hdf5.path_of(demo)}: last_step goes with align=before: after the last action there is an observation"
            )
        return NEXT
    return last_step_of(hdf5.where(demo), columns, options.last_step)


def state_shape(data: h5py.Group, demos: list[str]) -> tuple[int | None, ...] | None:
    """The shape of one state in all demonstrations, None where sizes differ; None where they cannot be compared.

    Simulated states of scenes with other objects have other sizes.
    """
    shapes = set()
    for name in demos:
        try:
            one = hdf5.found(data, f"{name}/{STATES}")
        except BrokenEpisode:
            continue
        if isinstance(one, h5py.Dataset):
            shapes.add(one.shape[1:])
    if not shapes or len({len(shape) for shape in shapes}) > 1:
        return None
    return tuple(int(sizes[0]) if np.all(np.equal(sizes, sizes[0])) else None for sizes in zip(*shapes))
