"""Ids and paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.minari.dataset import ROOT_VARIABLE, data_folder, datasets_root, is_id

IDS = ["D4RL/door/human-v2", "D4RL/door/human-v1", "cartpole/test-v0", "old.name:x-v0"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in IDS:
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "metadata.json").touch()
    (tmp_path / ".hidden" / "data").mkdir(parents=True)
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", IDS)
def test_ids_and_paths_lead_to_the_folder_data(root: Path, name: str) -> None:
    assert data_folder(name) == root / name / "data"
    assert data_folder(str(root / name)) == root / name / "data"
    assert data_folder(str(root / name / "data")) == root / name / "data"


def test_without_the_variable_they_lie_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    assert datasets_root() == Path.home() / ".minari" / "datasets"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("D4RL/door/humn-v2", "did you mean D4RL/door/human-v2"),
        ("d4rl/door/human-v2", "did you mean D4RL/door/human-v2"),
        ("human-v2", "did you mean D4RL/door/human-v2"),
        ("D4RL/door/human-v3", "D4RL/door/human-v2"),
        ("test-v0", "did you mean cartpole/test-v0?"),
    ],
)
def test_a_misspelt_id_gets_suggestions(root: Path, written: str, meant: str) -> None:
    with pytest.raises(SourceError, match=ROOT_VARIABLE) as caught:
        data_folder(written)
    assert meant in str(caught.value)


def test_without_a_version_it_is_the_newest(root: Path) -> None:
    assert data_folder("D4RL/door/human") == root / "D4RL/door/human-v2" / "data"
    (root / "D4RL/door/human-v11" / "data").mkdir(parents=True)  # no dataset
    (root / "D4RL/door/human-v10" / "data").mkdir(parents=True)
    (root / "D4RL/door/human-v10" / "data" / "metadata.json").touch()
    assert data_folder("D4RL/door/human") == root / "D4RL/door/human-v10" / "data"


def test_what_is_there_instead_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "empty-v0" / "data").mkdir(parents=True)
    (root / "file").touch()
    for written, says in (
        ("empty-v0", "expected metadata.json or main_data.hdf5"),
        (str(root / "cartpole"), "below it are the datasets test-v0"),
        (str(root / "none"), "no such folder"),
        (str(root / "file"), "it is no folder"),
        ("", "the id of a Minari dataset or a path"),
    ):
        with pytest.raises(SourceError) as caught:
            data_folder(written)
        assert says in str(caught.value)
    monkeypatch.chdir(root)
    monkeypatch.setenv(ROOT_VARIABLE, str(root / "none"))
    with pytest.raises(SourceError, match=r"write \./cartpole"):
        data_folder("cartpole")
    assert data_folder("./cartpole/test-v0") == Path("cartpole/test-v0/data")


@pytest.mark.parametrize("text", ["../x", "/x", "./x", "~/x", "a//b", "a/../b", ".hidden/x", "", "a b"])
def test_what_leads_elsewhere_is_no_id(text: str) -> None:
    assert not is_id(text)
