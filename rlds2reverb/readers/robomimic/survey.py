"""What is known of a file's demonstrations before their steps are read: what is said of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import column_bytes
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.features import Features, gathered
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.robomimic import demos

_SHORT_BYTES = 1024
"""Metadata by which episodes may be chosen; longer texts (a simulator's model) are not kept."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What was found.

    Attributes:
      features: of the metadata of those that are read, without what is long.
      short: of each of these, the metadata that is not.
    """

    features: Features
    short: Sequence[Mapping[str, Any]]


def survey(data: h5py.Group, chosen: Sequence[str], known: Mapping[str, Any]) -> Survey:
    """Looks at what is said of demonstrations.

    Args:
      data: their group.
      chosen: the names of those that are read.
      known: what is said of all of them.
    """
    of_all = _without_long(known)
    said: dict[str, Mapping[str, Any]] = {}
    for name in chosen:
        with suppress(BrokenEpisode, SourceError):  # the episode is a bad one
            said[name] = {**of_all, **_without_long(demos.metadata_of(demos.demo_of(data, name), name))}
    features = gathered(
        {key: _plain(value) for key, value in said[name].items()} if name in said else None for name in chosen
    )
    short = [
        {key: value for key, value in said.get(name, {}).items() if not isinstance(value, _Long)} for name in chosen
    ]
    return Survey(features, short)


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
