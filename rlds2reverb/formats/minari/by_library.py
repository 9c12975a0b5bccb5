"""What Minari itself reads of a dataset that is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from minari import MinariDataset

from rlds2reverb.episode import ACTION, IS_TERMINAL, OBSERVATION, REWARD, Array


def read_back(path: Path) -> Iterator[dict[str, Array]]:
    """The columns of every episode of a dataset's folder."""
    for episode in MinariDataset(path / "data"):
        columns = {
            **_flatten(OBSERVATION, episode.observations),
            **_flatten(ACTION, episode.actions),
            **_flatten("infos", episode.infos),
            REWARD: episode.rewards,
        }
        if len(episode.terminations):
            columns[IS_TERMINAL] = np.append(False, episode.terminations)
        yield columns


def _flatten(path: str, values: Any) -> dict[str, Array]:
    if isinstance(values, tuple):
        values = {f"_index_{place}": below for place, below in enumerate(values)}
    if isinstance(values, Mapping):
        return {name: leaf for key, below in values.items() for name, leaf in _flatten(f"{path}/{key}", below).items()}
    if isinstance(values, list) and any(isinstance(value, str) for value in values):
        return {path: np.array([value.encode() for value in values], object)}
    return {path: np.asarray(values)}
