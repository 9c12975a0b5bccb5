"""Minari: one HDF5 file, or a folder of Parquet for each episode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.format_files.base import TRANSITIONS, FormatFiles, episodes, fixed, read_numbers


def _write_minari(folder: Path, count: int) -> str:
    made = folder / "cheetah" / "bench-v0" / "data"
    made.mkdir(parents=True)
    with h5py.File(made / "main_data.hdf5", "w", track_order=True) as file:
        for number, episode in enumerate(episodes(count)):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, TRANSITIONS
            for key in ("observations", "actions", "rewards"):
                group.create_dataset(key, data=episode[key], maxshape=(None, *episode[key].shape[1:]), chunks=True)
            group.create_dataset("terminations", data=episode["ends"] & False, maxshape=(None,), chunks=True)
            group.create_dataset("truncations", data=episode["ends"], maxshape=(None,), chunks=True)
    return _told_of_minari(made, count, "hdf5")


def _told_of_minari(data_folder: Path, count: int, data_format: str) -> str:
    about = {
        "total_episodes": count,
        "total_steps": count * TRANSITIONS,
        "data_format": data_format,
        "dataset_id": "cheetah/bench-v0",
        "minari_version": "0.5.3",
        "observation_space": json.dumps(_box(17)),
        "action_space": json.dumps(_box(6)),
    }
    (data_folder / "metadata.json").write_text(json.dumps(about))
    return f"minari:{data_folder.parent}"


def _box(size: int) -> dict[str, Any]:
    bounds = {"low": [float("-inf")] * size, "high": [float("inf")] * size}
    return {"type": "Box", "dtype": "float32", "shape": [size], **bounds}


def _read_minari(folder: Path) -> int:
    with h5py.File(folder / "cheetah" / "bench-v0" / "data" / "main_data.hdf5") as file:
        steps = 0
        for number in range(len(file)):
            group = file[f"episode_{number}"]
            columns = [group[key][()] for key in ("observations", "actions", "rewards", "terminations", "truncations")]
            steps += len(columns[1])
    return steps


def _write_minari_parquet(folder: Path, count: int) -> str:
    """A folder for each episode; columns of actions end with a filling."""
    made = folder / "cheetah" / "bench-v0" / "data"
    for number, episode in enumerate(episodes(count)):
        (made / str(number)).mkdir(parents=True)
        filled = {
            key: np.concatenate([column, column[-1:]]) for key, column in episode.items() if key != "observations"
        }
        columns = {
            "observations": fixed(episode["observations"]),
            "actions": fixed(filled["actions"]),
            "rewards": pa.array(filled["rewards"]),
            "terminations": pa.array(filled["ends"] & False),
            "truncations": pa.array(filled["ends"]),
        }
        pq.write_table(pa.table(columns), made / str(number) / "data.parquet")
        (made / str(number) / "metadata.json").write_text(json.dumps({"id": number, "total_steps": TRANSITIONS}))
    return _told_of_minari(made, count, "parquet")


def _read_minari_parquet(folder: Path) -> int:
    return sum(
        read_numbers(pq.read_table(path)) - 1 for path in (folder / "cheetah" / "bench-v0" / "data").rglob("*.parquet")
    )


FORMATS = (
    FormatFiles("minari", _write_minari, _read_minari),
    FormatFiles("minari_parquet", _write_minari_parquet, _read_minari_parquet),
)
