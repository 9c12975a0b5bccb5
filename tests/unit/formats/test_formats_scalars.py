"""A reward and a discount are numbers: files that keep them as [1] in each step are read as files that keep a number, names included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats import open_source
from rlds2reverb.specs import flatten

STEPS = 5


def columns(is_array: bool) -> dict[str, Any]:
    """Flat columns of an episode, with a reward and a discount as numbers or as arrays of one."""
    rng = np.random.default_rng(0)
    shape = (STEPS, 1) if is_array else (STEPS,)
    return {
        "observations": rng.normal(size=(STEPS, 3)).astype(np.float32),
        "actions": rng.normal(size=(STEPS, 1)).astype(np.float32),
        "rewards": rng.normal(size=STEPS).astype(np.float32).reshape(shape),
        "discount": rng.uniform(size=STEPS).astype(np.float32).reshape(shape),
        "terminals": np.arange(STEPS) == STEPS - 1,
    }


def write_npz_file(folder: Path, values: Mapping[str, Any]) -> str:
    np.savez(folder / "rows.npz", **values)
    return f"npz:{folder / 'rows.npz'}"


def write_npz_folder(folder: Path, values: Mapping[str, Any]) -> str:
    np.savez(folder / "0.npz", **values)
    return f"npz:{folder}"


def write_npz_with_last_observation(folder: Path, values: Mapping[str, Any]) -> str:
    observations = values["observations"]
    np.savez(folder / "0.npz", **{**values, "observations": np.concatenate([observations, observations[-1:]])})
    return f"npz:{folder}"


def write_d4rl(folder: Path, values: Mapping[str, Any]) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "rows.hdf5", "w") as file:
        for key, column in values.items():
            file[key] = column
    return f"d4rl:{folder / 'rows.hdf5'}"


def write_robomimic(folder: Path, values: Mapping[str, Any]) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "demos.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo.attrs["num_samples"] = STEPS
        demo["obs/state"] = demo["next_obs/state"] = values["observations"]
        for key in ("actions", "rewards", "discount"):
            demo[key] = values[key]
        demo["dones"] = values["terminals"]
    return f"robomimic:{folder / 'demos.hdf5'}"


WRITERS = (write_npz_file, write_npz_folder, write_npz_with_last_observation, write_d4rl, write_robomimic)


@pytest.mark.parametrize("write", WRITERS)
def test_arrays_of_one_number_are_read_as_numbers(
    write: Callable[[Path, Mapping[str, Any]], str], tmp_path: Path
) -> None:
    episodes, specs = [], []
    for is_array in (False, True):
        folder = tmp_path / str(is_array)
        folder.mkdir()
        source = open_source(write(folder, columns(is_array)))
        specs.append(flatten(source.spec()))
        episodes += list(source.episodes())
    numbers, arrays = episodes
    assert specs[0] == specs[1]
    assert specs[1]["reward"].shape == ()
    assert numbers.id == arrays.id
    for path, column in numbers.columns.items():
        assert arrays.columns[path].shape == column.shape
        assert arrays.columns[path].tobytes() == column.tobytes()
    assert arrays.columns["reward"][:STEPS].tolist() == columns(False)["rewards"].tolist()
    assert arrays.columns["action"].shape == (STEPS + 1 if len(numbers) > STEPS else STEPS, 1), (
        "an action stays an array"
    )
