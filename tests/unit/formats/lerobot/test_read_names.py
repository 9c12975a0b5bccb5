"""Names and options of LeRobot datasets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.contract.source_cases.lerobot import DATA

VARIABLES = ("HF_LEROBOT_HOME", "HF_HOME", "XDG_CACHE_HOME", "HOME")


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_LEROBOT_HOME", ""),
        ("HF_HOME", "lerobot"),
        ("XDG_CACHE_HOME", "huggingface/lerobot"),
        ("HOME", ".cache/huggingface/lerobot"),
    ],
)
def test_a_name_is_looked_up_where_lerobot_does(
    variable: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "there"))
    shutil.copytree(DATA / "v30", tmp_path / "there" / below / "org/cubes")
    assert open_source("lerobot:org/cubes?videos=skip").episode_count == 3


def test_snapshots_are_found_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    cache = tmp_path / "hub/datasets--org--cubes"
    for commit, name in (("aa", "v21"), ("bb", "v30_depth")):
        shutil.copytree(DATA / name, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    assert open_source("lerobot:org/cubes").episode_count == 3
    (cache / "refs/v3.0").write_text("bb")
    assert open_source("lerobot:org/cubes").episode_count == 2
    (cache / "refs/v3.0").write_text("../../../other")
    assert open_source("lerobot:org/cubes").episode_count == 3


def test_a_folder_comes_before_a_name(tmp_path: Path) -> None:
    shutil.copytree(DATA / "v30_depth", tmp_path / "org/cubes")
    assert open_source("lerobot:org/cubes").episode_count == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lerobot:org/none", "no dataset of that name"),
        ("lerobot:", "names nothing"),
        ("lerobot:/nowhere", "expected a LeRobot dataset"),
        ("lerobot:./nowhere", "expected a LeRobot dataset"),
        ("lerobot:a/b/c/d", "expected a LeRobot dataset"),
        (f"lerobot:{DATA / 'v30'}?tolerance=-1", "seconds above 0"),
        (f"lerobot:{DATA / 'v30'}?tolerance=0", "seconds above 0"),
        (f"lerobot:{DATA / 'v30'}?tolerance=", "seconds above 0"),
        (f"lerobot:{DATA / 'v30'}?videos=no", "expected decode or skip"),
        (f"lerobot:{DATA / 'v30'}?last_step=drop", "expected repeat or mark"),
        (f"lerobot:{DATA / 'v30'}?fps=3", "unknown option"),
        (f"lerobot:{DATA / 'v30'}?where=x=1", "no episode has metadata"),
    ],
)
def test_names_that_make_no_sense_are_refused(name: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        open_source(name)
