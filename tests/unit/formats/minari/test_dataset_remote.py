"""Datasets at the remote place that Minari's variable names: found after those here, read where they lie, and listed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlds2reverb.cli import cli
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.minari.dataset import ROOT_VARIABLE, data_folder
from rlds2reverb.formats.minari.remote import REMOTE_VARIABLE, list_remote, remote_folder
from tests.support.buckets import Faults, Storage
from tests.support.formats import minari as sets

BUCKET = "minari-datasets"


LOCAL = sets.root("0.5.4")
NAME = "plain/two-v3"


@pytest.fixture(scope="module")
def filled(storage: Storage) -> str:
    storage.create(BUCKET)
    storage.upload(LOCAL / NAME, BUCKET, NAME)
    return BUCKET


@pytest.mark.parametrize(
    ("remote", "name", "folder"),
    [
        ("gcp://minari-datasets", "D4RL/door/human-v2", "gs://minari-datasets/D4RL/door/human-v2"),
        ("gs://minari-datasets/", "", "gs://minari-datasets"),
        ("s3://mine/minari", "a-v0", "s3://mine/minari/a-v0"),
        ("hf://farama-minari", "D4RL/door/human-v2", "hf://datasets/farama-minari/D4RL/door/human-v2"),
    ],
)
def test_places_are_those_of_minari(remote: str, name: str, folder: str) -> None:
    assert remote_folder(remote, name) == path_of(folder)


@pytest.mark.parametrize("remote", ["farama", "ftp://x", "hf://", "gcp://", "hf://a/b", "://x"])
def test_what_is_no_place_is_refused(remote: str) -> None:
    with pytest.raises(SourceError, match="expected gcp://BUCKET"):
        remote_folder(remote, "a-v0")


def test_the_hub_as_a_whole_is_no_folder() -> None:
    with pytest.raises(SourceError, match="expected gcp://BUCKET"):
        remote_folder("hf://farama-minari")


def test_an_id_is_found_here_first_then_there(
    filled: str, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    monkeypatch.delenv(REMOTE_VARIABLE, raising=False)
    with pytest.raises(SourceError, match=r"remote=hf://farama-minari, or set \$MINARI_REMOTE"):
        data_folder(NAME)
    here = list(open_source(f"minari:{LOCAL / NAME}"))
    there = list(open_source(f"minari:{NAME}?remote=s3://{filled}"))
    assert [episode.id for episode in there] == [episode.id for episode in here]
    monkeypatch.setenv(REMOTE_VARIABLE, f"s3://{filled}")
    assert data_folder(NAME) == path_of(f"s3://{filled}/{NAME}/data")
    (tmp_path / NAME / "data").mkdir(parents=True)
    (tmp_path / NAME / "data" / "metadata.json").touch()
    assert data_folder(NAME) == tmp_path / NAME / "data"
    with pytest.raises(SourceError, match=f"no-v9.*nor at s3://{filled}"):
        data_folder("group/no-v9")


def test_a_list_has_what_is_here_and_there(
    filled: str, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    monkeypatch.setenv(REMOTE_VARIABLE, f"s3://{filled}")
    shutil.copytree(sets.dataset("0.5.4", "blank-v0"), tmp_path / "blank-v0")
    assert list(list_remote(f"s3://{filled}")) == [NAME]
    listed = CliRunner().invoke(cli, ["inspect", "minari:"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["dataset", "minari:blank-v0", f"minari:{NAME}"]
    assert [line.split()[-1] for line in listed.stdout.splitlines()[1:]] == [str(tmp_path), f"s3://{filled}"]
    monkeypatch.setenv(REMOTE_VARIABLE, "ftp://there")
    failed = CliRunner().invoke(cli, ["inspect", "minari:"])
    assert failed.exit_code != 0
    assert "minari:blank-v0" in failed.stdout
    assert "ftp://there" in str(failed.exception) + failed.stderr
