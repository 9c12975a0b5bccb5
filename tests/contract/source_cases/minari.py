"""Datasets of Minari: as Minari wrote them, and one written by its layout."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py

from rlds2reverb.formats import open_source
from tests.contract.source_cases import data
from tests.support.formats.minari import dataset

_BOX = {"type": "Box", "dtype": "float32", "low": float("-inf"), "high": float("inf")}


def write(folder: Path) -> str:
    """Writes a small dataset into a folder; the name of the source."""
    (folder / "own-v0" / "data").mkdir(parents=True)
    made = data.columns()
    with h5py.File(folder / "own-v0" / "data" / "main_data.hdf5", "w", track_order=True) as file:
        for number, columns in enumerate(made):
            group = file.create_group(f"episode_{number}")
            group.attrs.update(id=number, total_steps=len(columns["reward"]) - 1, seed=number)
            group["observations"] = columns["observation"]
            for name, column in (("actions", columns["action"]), ("rewards", columns["reward"])):
                group[name] = column[:-1]
            group["terminations"] = columns["is_terminal"][1:]
            group["truncations"] = columns["is_last"][1:] & ~columns["is_terminal"][1:]
    spaces = {key: {**_BOX, "shape": made[0][key].shape[1:]} for key in ("observation", "action")}
    told = {f"{key}_space": json.dumps(space) for key, space in spaces.items()}
    about = {"total_episodes": len(made), "data_format": "hdf5", "dataset_id": "own-v0", "minari_version": "0.5.4"}
    (folder / "own-v0" / "data" / "metadata.json").write_text(json.dumps({**about, **told}))
    return f"minari:{folder / 'own-v0'}"


def opened(options: str = "") -> Any:
    return open_source(write(Path(mkdtemp())) + options)


def of_version(version: str, name: str, options: str = "") -> Any:
    return lambda: open_source(f"minari:{dataset(version, name)}{options}")


SOURCES = {
    "as it is": opened,
    "a part": lambda: opened("?episodes=1:"),
    "of 0.3": of_version("0.3.1", "two-own-v0", "?spaces=stored"),
    "of 0.4.2": of_version("0.4.2", "two-own-v0"),
    "of 0.4.3": of_version("0.4.3", "two-both-v0"),
    "raw images": of_version("0.5.2", "kinds/hdf5-v0"),
    "HDF5": of_version("0.5.4", "kinds/hdf5-v0"),
    "Arrow": of_version("0.5.4", "kinds/arrow-v0"),
    "Parquet": of_version("0.5.4", "kinds/parquet-v0"),
    "without infos": of_version("0.5.4", "kinds/hdf5-v0", "?infos=drop"),
    "a sample": of_version("0.5.4", "plain/two-v3", "?sample=3,seed=5"),
}
PUSHED = ["as it is", "of 0.4.2", "HDF5"]
