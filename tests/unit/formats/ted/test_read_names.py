"""Names of trajectories: other data has others, and so have options that make other columns. Files that are written anew are refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.support.formats import ted as ted_data

STEPS = 100
NAMES = {np.dtype(np.float32): "torch.float32", np.dtype(bool): "torch.bool", np.dtype(np.int64): "torch.int64"}


def columns(**changes: Any) -> dict[str, Any]:
    """One long trajectory, as a collector of a single environment records it."""
    at = np.arange(STEPS)
    root = {"observation": at[:, None].astype(np.float32), "action": at}
    after = {
        "next/observation": at[:, None].astype(np.float32) + 1,
        "next/reward": np.zeros((STEPS, 1), np.float32),
        "next/done": (at == STEPS - 1)[:, None],
        "next/terminated": (at == STEPS - 1)[:, None],
    }
    return {key: column for key, column in {**root, **after, **changes}.items() if column is not None}


def written(folder: Path, **changes: Any) -> str:
    """A memory-mapped TensorDict of these columns; the name of the source."""
    metas: dict[Path, dict[str, Any]] = {}
    for key, column in columns(**changes).items():
        file = folder / f"{key}.memmap"
        meta = metas.setdefault(file.parent, {"shape": [STEPS], "device": "cpu", "_type": "TensorDict"})
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(column.tobytes())
        meta[file.stem] = {"device": "cpu", "shape": list(column.shape), "dtype": NAMES[column.dtype]}
    for below, meta in metas.items():
        (below / "meta.json").write_text(json.dumps(meta))
    return f"ted:{folder}"


def ids(name: str) -> set[str]:
    return {episode.id for episode in open_source(name)}


def at_step(key: str, step: int, value: Any) -> dict[str, Any]:
    column = columns()[key].copy()
    column[step] = value
    return {key: column}


@pytest.mark.parametrize(
    "change",
    [
        at_step("next/reward", 60, 1),
        at_step("next/terminated", STEPS - 1, False),
        at_step("action", STEPS // 2, 7),
        at_step("observation", STEPS - 2, 7),
    ],
)
def test_other_values_are_other_data(tmp_path: Path, change: dict[str, Any]) -> None:
    plain, copy = ids(written(tmp_path / "a")), ids(written(tmp_path / "b"))
    assert plain == copy
    changed = ids(written(tmp_path / "c", **change))
    assert plain - changed


@pytest.mark.parametrize("form", ["flat", "nested", "h5", "memmap"])
def test_rewards_between_are_seen_in_every_form(tmp_path: Path, form: str) -> None:
    version = ted_data.VERSIONS[0]
    folder = Path(shutil.copytree(ted_data.folder(version) / f"ring_{form}", tmp_path / form))
    before = ids(f"ted:{folder}")
    assert before == ids(f"ted:{ted_data.folder(version) / f'ring_{form}'}")
    changed_reward(folder)
    assert len(before - ids(f"ted:{folder}")) == 1


def changed_reward(folder: Path) -> None:
    """Another reward in the middle of a buffer."""
    if (folder / "storage" / "checkpoint.h5").exists():
        with h5py.File(folder / "storage" / "checkpoint.h5", "r+") as file:
            file["traj_1/reward"][1] = 77
        return
    file = max(folder.rglob("reward.memmap"), key=lambda path: "next" in path.parts)
    data = np.fromfile(file, np.float32)
    data[len(data) // 2] = 77
    data.tofile(file)


def test_options_that_make_other_columns_make_other_names(tmp_path: Path) -> None:
    name = written(tmp_path, **{"next/terminated": None})
    told = [ids(f"{name}{option}") for option in ("", "?done_means=terminal", "?done_means=timeout", "?next=keep")]
    assert len(set().union(*told)) == 4
    assert ids(f"{name}?next=check") == ids(f"{name}?next=last") == told[0]
    alone = written(tmp_path / "alone", **{"next/observation": None})
    assert ids(alone).isdisjoint(ids(f"{alone}?last_step=mark"))
    assert ids(alone) == ids(f"{alone}?last_step=repeat") == ids(f"{alone}?done_means=timeout")


def test_mapped_files_that_are_written_anew_are_refused(tmp_path: Path) -> None:
    source = open_source(written(tmp_path))
    assert len(list(source)) == 1
    written(tmp_path, **at_step("next/reward", 3, 1))
    with pytest.raises(SourceError, match="was written anew"):
        list(source)
    file = tmp_path / "next" / "reward.memmap"
    fresh = open_source(f"ted:{tmp_path}")
    passing = iter(fresh)
    os.utime(file, ns=(0, 0))
    with pytest.raises(SourceError, match=r"reward\.memmap: was written anew"):
        list(passing)


def test_h5_files_that_are_written_anew_are_refused(tmp_path: Path) -> None:
    shutil.copy(ted_data.folder(ted_data.VERSIONS[0]) / "ring_h5" / "storage" / "checkpoint.h5", tmp_path / "x.h5")
    source = open_source(f"ted:{tmp_path / 'x.h5'}")
    assert list(source)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["traj_1/reward"][0] = 77
    os.utime(tmp_path / "x.h5", ns=(0, 0))
    with pytest.raises(SourceError, match="was written anew"):
        list(source)


def test_groups_of_h5_files_come_by_number(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(11):
            group = file.create_group(f"traj_{number}")
            group["observation"] = np.full((3, 1), number, np.float32)
            group["action"] = np.zeros((2, 1), np.float32)
            group["reward"] = np.zeros((2, 1), np.float32)
            group["done"] = np.array([[False], [True]])
    found = [episode.columns["observation"][0, 0] for episode in open_source(f"ted:{tmp_path / 'x.h5'}")]
    assert found == list(range(11))
