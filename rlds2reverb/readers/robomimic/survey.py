"""What is known of a file's demonstrations before their steps are read: a name for the data, and what is said of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import xxhash

from rlds2reverb.episodes import ACTION, REWARD, column_bytes
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.digests import content, sampled
from rlds2reverb.readers.features import Features, gathered
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.robomimic import demos
from rlds2reverb.readers.robomimic.plan import DONES, STATES, Plan, columns_of

_SHORT_BYTES = 1024
"""Metadata by which episodes may be chosen; longer texts (a simulator's model) are not kept."""
_LOOKED_INTO = 16
"""Demonstrations of which more than actions, rewards and dones is looked at for the digest."""
_ROWS = 4
"""Rows of each of their columns."""
_SMALL = {ACTION: "actions", REWARD: "rewards", DONES: "dones"}


@dataclass(frozen=True, eq=False)
class Survey:
    """What was found.

    Attributes:
      digest: 16 hex digits; of all demonstrations of the file, also when some are chosen.
      features: of the metadata of those that are read, without what is long.
      short: of each of these, the metadata that is not.
    """

    digest: str
    features: Features
    short: Sequence[Mapping[str, Any]]


def survey(
    data: h5py.Group, there: Sequence[str], chosen: Sequence[str], known: Mapping[str, Any], plan: Plan
) -> Survey:
    """Looks at every demonstration.

    Args:
      data: their group.
      there: the names of all.
      chosen: of those that are read.
      known: what is said of all of them.
      plan: how they are read.
    """
    digest = xxhash.xxh3_64(_how(plan).encode())
    _add(digest, known)
    looked_into = {there[number] for number in sampled(len(there), _LOOKED_INTO)}
    of_all = _without_long(known)
    said: dict[str, Mapping[str, Any]] = {}
    for name in there:
        digest.update(name.encode())
        try:
            demo = demos.demo_of(data, name)
            own = demos.metadata_of(demo, name)
            said[name] = {**of_all, **_without_long(own)}
            _add(digest, own)
            _look_at(digest, demo, plan.names if name in looked_into else {})
        except (BrokenEpisode, SourceError):
            digest.update(b"cannot be read")
    features = gathered(
        {key: _plain(value) for key, value in said[name].items()} if name in said else None for name in chosen
    )
    short = [
        {key: value for key, value in said.get(name, {}).items() if not isinstance(value, _Long)} for name in chosen
    ]
    return Survey(digest.hexdigest(), features, short)


def _how(plan: Plan) -> str:
    """How demonstrations are read, chosen or not; sizes of states depend on which are."""
    specs = {path: str(spec.dtype if path == STATES else spec) for path, spec in plan.specs.items()}
    return repr((plan.align, plan.last_step, plan.options.flips, plan.options.done_means, sorted(specs.items())))


class _Long:
    """Stands for what is too long to be kept, with its shape and dtype."""

    def __init__(self, value: Any) -> None:
        array = np.asarray(value)
        nothing = np.array(b"", object) if array.dtype == object else np.zeros((), array.dtype)
        self.like = b"" if isinstance(value, bytes) else np.broadcast_to(nothing, array.shape)


def _without_long(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value if _is_short(value) else _Long(value) for key, value in said.items()}


def _plain(value: Any) -> Any:
    return value.like if isinstance(value, _Long) else value


def _is_short(value: Any) -> bool:
    return (len(value) if isinstance(value, bytes) else column_bytes(np.asarray(value))) <= _SHORT_BYTES


def _add(digest: Any, values: Mapping[str, Any]) -> None:
    for key in sorted(values):
        digest.update(repr(key).encode())
        digest.update(content(values[key]))


def _look_at(digest: Any, demo: h5py.Group, names: Mapping[str, str]) -> None:
    """Adds a demonstration's actions, rewards and dones, and some rows of the columns of these names.

    Raises:
      BrokenEpisode: something cannot be read.
    """
    for path, column in columns_of(demo, _SMALL).items():
        digest.update(repr((path, column.shape)).encode())
        digest.update(content(column.rows()))
    for path, column in columns_of(demo, names).items():
        digest.update(repr((path, column.shape)).encode())
        for row in sampled(len(column), _ROWS):
            digest.update(content(column.rows(row, row + 1)))
