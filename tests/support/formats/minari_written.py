"""Small datasets by the layout, for what Minari itself would not write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

BOX = {"type": "Box", "dtype": "float32", "shape": [2], "low": [float("-inf")] * 2, "high": [float("inf")] * 2}
MOVES = {"type": "Discrete", "dtype": "int64", "start": 0, "n": 4}

Change = Callable[[h5py.Group], None]


def episode(file: h5py.File, number: int, actions: int = 3, terminated: bool = True) -> h5py.Group:
    """One as Minari has it."""
    group = file.create_group(f"episode_{number}")
    ends = np.arange(actions) == actions - 1
    group.attrs.update(id=number, total_steps=actions)
    group["observations"] = np.arange(2 * actions + 2, dtype=np.float32).reshape(-1, 2) + 100 * number
    group["actions"] = np.arange(actions)
    group["rewards"] = np.arange(actions) / 2
    group["terminations"], group["truncations"] = ends & terminated, ends & (not terminated)
    return group


def dataset(folder: Path, changes: list[Change | None], told: dict[str, Any] | None = None) -> str:
    """A dataset with an episode for each change, which is made to its group; the name of the source."""
    data = folder / "own-v0" / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for number, change in enumerate(changes):
            group = episode(file, number)
            if change is not None:
                change(group)
    spaces = {"observation_space": json.dumps(BOX), "action_space": json.dumps(MOVES)}
    about = {"total_episodes": len(changes), "data_format": "hdf5", "dataset_id": "own-v0", "minari_version": "0.5.4"}
    metadata = {key: value for key, value in {**about, **spaces, **(told or {})}.items() if value is not None}
    (data / "metadata.json").write_text(json.dumps(metadata))
    return f"minari:{folder / 'own-v0'}"


def put(**values: Any) -> Change:
    """Puts datasets in place of others."""

    def change(group: h5py.Group) -> None:
        for name, value in values.items():
            if name in group:
                del group[name]
            if value is not None:
                group[name] = value

    return change
