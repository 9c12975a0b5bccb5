"""HDF5 files of D4RL, robomimic and TorchRL."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from benchmarks.format_files.base import TRANSITIONS, FormatFiles, episodes


def _write_d4rl(folder: Path, count: int) -> str:
    path = folder / "cheetah.hdf5"
    made = list(episodes(count))
    with h5py.File(path, "w") as file:
        file["observations"] = np.concatenate([columns["observations"][:-1] for columns in made])
        file["next_observations"] = np.concatenate([columns["observations"][1:] for columns in made])
        for key in ("actions", "rewards"):
            file[key] = np.concatenate([columns[key] for columns in made])
        file["timeouts"] = np.concatenate([columns["ends"] for columns in made])
        file["terminals"] = np.zeros(count * TRANSITIONS, bool)
    return f"d4rl:{path}"


def _read_d4rl(folder: Path) -> int:
    """By the episode, as the memory of a reader that is to be compared."""
    with h5py.File(folder / "cheetah.hdf5") as file:
        keys = ("observations", "next_observations", "actions", "rewards", "terminals")
        stops = np.flatnonzero(file["timeouts"][()]) + 1
        for start, stop in zip([0, *stops], stops):
            columns = [file[key][start:stop] for key in keys]
            assert len(columns[0]) == TRANSITIONS
    return int(stops[-1])


def _write_robomimic(folder: Path, count: int) -> str:
    path = folder / "demos.hdf5"
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        group.attrs["total"], group.attrs["env_args"] = count * TRANSITIONS, json.dumps({"env_name": "x", "type": 1})
        for number, episode in enumerate(episodes(count)):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = TRANSITIONS
            demo["obs/state"], demo["next_obs/state"] = episode["observations"][:-1], episode["observations"][1:]
            demo["actions"], demo["rewards"], demo["dones"] = (
                episode["actions"],
                episode["rewards"],
                episode["ends"].astype(np.int64),
            )
    return f"robomimic:{path}"


def _read_robomimic(folder: Path) -> int:
    steps = 0
    with h5py.File(folder / "demos.hdf5") as file:
        for number in range(len(file["data"])):
            demo = file[f"data/demo_{number}"]
            columns = [demo[key][()] for key in ("obs/state", "next_obs/state", "actions", "rewards", "dones")]
            steps += len(columns[2])
    return steps


def _write_ted(folder: Path, count: int) -> str:
    """TorchRL's H5 checkpoint."""
    path = folder / "checkpoint.h5"
    width = int(np.ceil(np.log10(count))) if count > 1 else 0
    with h5py.File(path, "w") as file:
        for number, episode in enumerate(episodes(count)):
            group = file.create_group(f"traj_{number:0{width}d}")
            group["observation"], group["action"] = episode["observations"], episode["actions"]
            group["reward"] = episode["rewards"][:, None]
            group["done"] = group["truncated"] = episode["ends"][:, None]
            group["terminated"] = (episode["ends"] & False)[:, None]
        file["_len"], file["is_full"], file["shift"] = count * TRANSITIONS, True, 0
    return f"ted:{path}"


def _read_ted(folder: Path) -> int:
    steps = 0
    with h5py.File(folder / "checkpoint.h5") as file:
        for name in file:
            if name.startswith("traj_"):
                columns = [file[name][key][()] for key in file[name]]
                steps += len(columns[0])
    return steps


FORMATS = (
    FormatFiles("d4rl", _write_d4rl, _read_d4rl),
    FormatFiles("robomimic", _write_robomimic, _read_robomimic),
    FormatFiles("ted", _write_ted, _read_ted),
)
