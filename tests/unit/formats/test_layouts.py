"""What is proposed for a path without a scheme: the format whose layout its file has, not only one that shares its extension."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import layouts, open_source
from rlds2reverb.formats.registry import SOURCES
from tests.support.project import ROOT

DATA = ROOT / "tests" / "data"


def hdf5(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = np.zeros(3)
    return path


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def hint(path: Path) -> str:
    """The end of the refusal of a bare path; "" for none."""
    with pytest.raises(SourceError) as caught:
        open_source(str(path))
    return str(caught.value).partition(SOURCES.syntax)[2]


def proposed(path: Path) -> str:
    match = re.fullmatch(r'; did you mean "(.*)"\?', hint(path))
    return match[1] if match else ""


LAYOUTS: dict[str, Sequence[str]] = {
    "d4rl": ("observations", "actions", "rewards", "terminals", "infos/qpos"),
    "robomimic": ("data/demo_3/actions",),
    "ted": ("traj_0/action", "is_full"),
}


@pytest.mark.parametrize("ending", [".hdf5", ".h5"])
@pytest.mark.parametrize("scheme", LAYOUTS)
def test_an_hdf5_file_is_proposed_to_the_format_of_its_layout(scheme: str, ending: str, tmp_path: Path) -> None:
    path = hdf5(tmp_path / f"a{ending}", *LAYOUTS[scheme])
    assert proposed(path) == f"{scheme}:{path}"
    assert proposed(tmp_path) == f"{scheme}:{path}", "these formats read files, not folders of them"
    assert list(SOURCES.below(tmp_path)) == [f"{scheme}:{path}"]


def test_of_an_hdf5_file_of_no_known_layout_the_readers_are_listed(tmp_path: Path) -> None:
    said = "; a file of this name is read by d4rl:, robomimic: or ted:, and this one has none of their layouts"
    assert hint(hdf5(tmp_path / "a.hdf5", "observations", "actions")) == said
    assert hint(written(tmp_path / "b.hdf5", "not HDF5")) == said
    assert list(SOURCES.below(tmp_path)) == []


def test_without_the_library_only_the_readers_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hdf5(tmp_path / "a.hdf5", *LAYOUTS["robomimic"])

    def missing(_: Path) -> bool:
        raise ModuleNotFoundError("No module named 'h5py'", name="h5py")

    for scheme in ("d4rl", "robomimic", "ted"):
        monkeypatch.setitem(cast("dict[str, Any]", layouts.LAYOUTS), scheme, missing)
    assert hint(path) == "; a file of this name is read by d4rl:, robomimic: or ted:"


@pytest.mark.parametrize(
    ("scheme", "root", "file"),
    [
        ("minari", "data", "data/main_data.hdf5"),
        ("lerobot", ".", "meta/info.json"),
        ("lerobot", ".", "videos/chunk-000/observation.images.top/file-000.mp4"),
        ("lerobot", ".", "data/chunk-000/file-000.parquet"),
        ("tfds", ".", "dataset_info.json"),
        ("tfds", ".", "x-train.tfrecord-00000-of-00001"),
    ],
)
def test_of_a_file_in_a_dataset_the_folder_is_proposed(scheme: str, root: str, file: str, tmp_path: Path) -> None:
    mark = {"minari": "data/main_data.hdf5", "lerobot": "meta/info.json", "tfds": "dataset_info.json"}[scheme]
    for name in (mark, file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert proposed(tmp_path / file) == f"{scheme}:{(tmp_path / root).resolve()}"


@pytest.mark.parametrize("file", sorted((DATA / "rllib").glob("*/*.[jp]*"))[::3], ids=lambda path: path.name)
def test_what_rllib_wrote_is_known(file: Path) -> None:
    assert layouts.LAYOUTS["rllib"](file)


def test_other_json_and_parquet_is_not_rllibs(tmp_path: Path) -> None:
    settings = written(tmp_path / "a.json", json.dumps({"actions": 3, "name": "x"}))
    assert hint(settings) == "; a file of this name is read by rllib:, and this one has another layout"
    assert not any(map(layouts.LAYOUTS["rllib"], (DATA / "lerobot").rglob("*.parquet")))
    assert proposed(tmp_path) == ""
    batch = written(tmp_path / "b.json", '{"type": "SampleBatch", "obs": []}')
    assert proposed(batch) == f"rllib:{batch}"
    assert proposed(tmp_path) == f"rllib:{tmp_path}"


def test_npz_files_of_il_representations_are_told_from_others(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(ours, action=np.zeros(2))
    np.savez(theirs, obs=np.zeros(2), next_obs=np.zeros(2), acts=np.zeros(2), dones=np.zeros(2))
    assert (proposed(ours), proposed(theirs)) == (f"npz:{ours}", f"ilr:{theirs}")
