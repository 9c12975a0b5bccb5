"""What a conversion must not touch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert, planned
from rlds2reverb.conversion.guarding import label_of, places_of
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.formats.registry import DESTINATIONS
from tests.contract.destination_cases import data
from tests.contract.test_destinations import CASES

SCHEMES = [destination.scheme for destination in DESTINATIONS]
FOLDERS = [scheme for scheme in SCHEMES if open_destination(CASES[scheme].name(Path("to"))).marks]
"""Formats whose datasets are folders, not single files."""
EPISODES = [data.episode(number) for number in range(3)]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Some file of another format."""
    one = data.episode(3)
    path = tmp_path / "files" / "rows.npz"
    path.parent.mkdir()
    np.savez(
        path,
        observations=one.columns["observation"],
        actions=one.columns["action"],
        rewards=one.columns["reward"],
        terminals=one.columns["is_last"],
    )
    return f"npz:{path}"


def names(scheme: str, folder: Path) -> list[str]:
    """A destination that is a folder, and one that is a file where the format has such."""
    files = {"ted": "ted:{}/one.h5", "ilr": "ilr:{}/one.tar.zst"}
    return [CASES[scheme].name(folder), *([files[scheme].format(folder)] if scheme in files else [])]


def refused(source: Any, name: str, match: str, **options: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        convert(source, name, **options)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_a_dataset_of_the_format_or_an_empty_folder_is_replaced(scheme: str, tmp_path: Path) -> None:
    for number, name in enumerate(names(scheme, tmp_path / "to")):
        destination = open_destination(name)
        path = destination.path
        is_folder = bool(destination.marks)
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_folder:
            path.mkdir()
            convert(EPISODES, name, overwrite=True)
            (path / "thesis.tex").write_text("mine", encoding="utf-8")
            refused(EPISODES, name, r"holds thesis\.tex.*is replaced", overwrite=True)
            assert (path / "thesis.tex").read_text(encoding="utf-8") == "mine"
            (path / "thesis.tex").unlink()
        else:
            path.write_text("mine", encoding="utf-8")
            refused(EPISODES, name, r"cannot be read \(", overwrite=True)
            assert path.read_text(encoding="utf-8") == "mine"
            path.unlink()
            convert(EPISODES, name)
        assert convert(EPISODES[:2], name, overwrite=True).episodes_written == 2
        moved = path.rename(tmp_path / f"moved {number}")
        path.symlink_to(moved)
        refused(EPISODES, name, "is a link to", overwrite=True)
        path.unlink()
        path.touch() if is_folder else path.mkdir()
        refused(EPISODES, name, "is a file" if is_folder else "is a folder", overwrite=True)
        path.unlink() if is_folder else path.rmdir()


@pytest.mark.parametrize("scheme", FOLDERS)
def test_a_folder_that_only_looks_like_a_dataset_is_not_replaced(scheme: str, tmp_path: Path) -> None:
    destination = open_destination(CASES[scheme].name(tmp_path / "to"))
    first, *others = destination.marks
    for pattern in others:
        file = destination.path / pattern.replace("*", "x")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    refused(
        EPISODES, CASES[scheme].name(tmp_path / "to"), f"holds no {re.escape(first)}|cannot be read", overwrite=True
    )
    (destination.path / first.replace("*", "x")).touch()
    refused(EPISODES, CASES[scheme].name(tmp_path / "to"), r"cannot be read \(", overwrite=True)


@pytest.mark.parametrize("scheme", FOLDERS)
def test_other_files_below_a_dataset_keep_it(scheme: str, tmp_path: Path) -> None:
    name = CASES[scheme].name(tmp_path / "to")
    path = open_destination(name).path
    convert(EPISODES, name)
    for folder in [folder_path for folder_path in path.rglob("*") if folder_path.is_dir()] + [path / "mine"]:
        folder.mkdir(exist_ok=True)
        file = folder / "notes.doc"
        file.touch()
        refused(EPISODES, name, rf"holds {file.relative_to(path)}", overwrite=True)
        file.unlink()
        (folder / "link").symlink_to(tmp_path)
        refused(EPISODES, name, rf"holds {folder.relative_to(path)}/link", overwrite=True)
        (folder / "link").unlink()
    assert convert(EPISODES[:1], name, overwrite=True).episodes_written == 1


def test_what_appears_while_it_is_converted_is_not_replaced(tmp_path: Path) -> None:
    name = f"lerobot:{tmp_path / 'to'}"

    def appears(_: Any) -> None:
        (tmp_path / "to").mkdir(exist_ok=True)
        (tmp_path / "to" / "mine").touch()

    refused(EPISODES, name, "is there already", on_progress=appears)
    refused(EPISODES, name, "holds mine", overwrite=True)
    assert (tmp_path / "to" / "mine").exists()
    (tmp_path / "to").rename(tmp_path / "away")
    assert convert(EPISODES, name).episodes_resumed == 3


def test_the_source_stays(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(source.partition(":")[2])
    before = file.read_bytes()
    refused(source, f"ted:{file}", "is the source itself", overwrite=True)
    refused(source, f"lerobot:{file.parent}", "holds the source", overwrite=True)
    refused(f"npz:{file.parent}", f"lerobot:{file.parent}/to", "lies inside of the source")
    refused(f"npz:{file.parent}/*.npz", f"ted:{file}", "is the source itself", overwrite=True)
    (tmp_path / "link").symlink_to(file.parent)
    refused(f"npz:{tmp_path / 'link'}", f"lerobot:{file.parent}", "is the source itself", overwrite=True)
    refused(source, f"ted:{tmp_path / 'link' / file.name}", "is the source itself", overwrite=True)
    refused(open_source(source), f"ted:{file}", "is the source itself", overwrite=True)
    monkeypatch.chdir(file.parent)
    refused(f"npz:{file.name}", f"ted:{file}", "is the source itself", overwrite=True)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_dataset_is_not_converted_into_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "lerobot"))
    for written, read in [
        (f"tfds:{tmp_path}/own", f"tfds:{tmp_path}/own/1.0.0@train[:2]"),
        ("minari:own-v0", "minari:own-v0?episodes=:2"),
        (f"lerobot:{tmp_path}/lerobot/me/own", "lerobot:me/own"),
    ]:
        convert(EPISODES, written)
        refused(read, written, "is the source itself|holds the source", overwrite=True)
        assert len(list(open_source(read))) >= 2


@pytest.mark.parametrize("name", ["lerobot:.", "ted:..", "lerobot:x/..", "ilr:/"])
def test_a_place_without_a_name_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(EPISODES, name, "ends in no name|expected ted", overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_places_and_labels_are_told_by_names(tmp_path: Path) -> None:
    mixed = MixedSource([open_source("bundled:cartpole"), open_source("bundled:cartpole@train[:2]")], seed=3)
    assert places_of(mixed, mixed) == []
    assert places_of(EPISODES, open_source(EPISODES)) == []
    assert places_of("tfds:/none/of/these", mixed) == []
    assert places_of(f"rllib:{tmp_path};{tmp_path}/none?x=1", mixed) == [tmp_path]
    (tmp_path / "o?d").touch()
    assert places_of(f"npz:{tmp_path}/o%3Fd?x=1", mixed) == [tmp_path / "o?d"]
    for nowhere in (
        f"npz:{'x' * 300}",
        "npz:~nobody/here",
        "bundled:.",
        "npz:",
        "npz:\0",
        "reverb:localhost:1/t",
        "none",
    ):
        assert places_of(nowhere, mixed) == [], nowhere
    assert "seed=3" in label_of(mixed, mixed)
    assert places_of(f"mix:bundled:cartpole|rllib:{tmp_path}?x=1|?seed=3", mixed) == [tmp_path]
    assert label_of("mix:tfds:/a/b/c@train|ted:d/e.h5|?seed=1", mixed) == "mix:tfds:c@train|ted:e.h5|?seed=1"
    assert planned(EPISODES, f"tfds:{tmp_path}/own").job.places == []
