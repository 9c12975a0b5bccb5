"""Minari's remote places: full names, versions, downloads, lists; at stand-ins of the services."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlds2reverb import files
from rlds2reverb.cli import cli
from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.minari import remote
from rlds2reverb.formats.minari.dataset import ROOT_VARIABLE, data_folder
from rlds2reverb.formats.minari.listing import ListRequest
from rlds2reverb.formats.objects import forget
from tests.contract.test_sources import contents
from tests.support import buckets
from tests.support.buckets import Faults, Storage
from tests.support.formats import minari as sets

NAME = "plain/two-v3"
SPACE = b'{"description": "some"}'


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all datasets, which is empty; the working directory is another."""
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "datasets"))
    monkeypatch.delenv(remote.REMOTE_VARIABLE, raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "datasets"


@pytest.fixture
def bucket(storage: Storage, cloud: Faults, tmp_path: Path) -> str:
    """A bucket with one dataset and its namespace, as Minari names it."""
    storage.create(name := f"sets{abs(hash(tmp_path)) % 10**9}")
    storage.upload(sets.dataset("0.5.4", NAME), name, NAME)
    storage.put(name, "plain/namespace_metadata.json", SPACE)
    return f"gcp://{name}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hub with the datasets `two-v2` and `two-v10` in the namespace `plain`."""
    repo = tmp_path / "repo"
    for version in (2, 10):
        folder = sets.copied("0.5.4", NAME, tmp_path).rename(tmp_path / f"two-v{version}")
        shutil.move(folder, repo / f"two-v{version}")
        rewrite(repo / f"two-v{version}", dataset_id=f"plain/two-v{version}")
    (repo / "namespace_metadata.json").write_bytes(SPACE)
    with buckets.hub(repo, "team/plain") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        forget()
        yield "hf://team"
    forget()


def rewrite(folder: Path, **fields: Any) -> None:
    file = folder / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def expected() -> object:
    return contents(open_source(f"minari:{sets.dataset('0.5.4', NAME)}"))


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("hf://farama-minari/D4RL/door/human-v2", ("hf://farama-minari", "D4RL/door/human-v2")),
        ("gcp://minari-datasets", ("gcp://minari-datasets", "")),
        ("gs://a/b-v0/", ("gs://a", "b-v0")),
        ("hf://datasets/farama-minari/D4RL", None),
        ("hf://", None),
        ("D4RL/door", None),
        ("ftp://a/b", None),
    ],
)
def test_full_names_are_a_place_and_an_id(name: str, parts: tuple[str, str] | None) -> None:
    assert remote.split_full_name(name) == parts


def test_full_names_are_read_where_they_lie(bucket: str, root: Path) -> None:
    assert contents(open_source(f"minari:{bucket}/{NAME}")) == expected()
    assert not root.exists()
    with pytest.raises(SourceError, match=r"says where it lies, and so does the option remote=never"):
        data_folder(f"{bucket}/{NAME}", "never")
    with pytest.raises(
        SourceError, match=r"no Minari dataset is there; beside it there is two-v3; .* inspect minari:gcp://"
    ):
        data_folder(f"{bucket}/plain/two-v4")


def test_a_download_is_whole_and_takes_the_namespace(bucket: str, root: Path, cloud: Faults) -> None:
    assert contents(open_source(f"minari:{bucket}/{NAME}?remote=download")) == expected()
    folder = sets.dataset("0.5.4", NAME)
    assert files_below(root) == {"plain/namespace_metadata.json", *(f"{NAME}/{name}" for name in files_below(folder))}
    assert all((root / NAME / name).read_bytes() == (folder / name).read_bytes() for name in files_below(folder))
    cloud.requests.clear()
    assert contents(open_source(f"minari:{NAME}?remote=download")) == expected()
    assert not cloud.requests


def test_a_download_goes_on_in_the_middle_of_a_file(
    bucket: str, root: Path, cloud: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(remote, "_SYNC_BYTES", 1 << 12)
    puts: list[int] = []

    def stop(file: Any) -> None:
        files.put(file)
        puts.append(file.tell())
        if len(puts) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(remote, "put", stop)
        patch.setattr(remote, "_AT_ONCE", 1)
        with pytest.raises(KeyboardInterrupt):
            open_source(f"minari:{bucket}/{NAME}?remote=download")
    assert not (root / NAME).exists()
    kept = sum(path.stat().st_size for path in root.rglob("*.unfinished"))
    assert kept
    with pytest.raises(SourceError, match="no Minari dataset"):
        data_folder(NAME)
    cloud.sent = 0
    assert contents(open_source(f"minari:{bucket}/{NAME}?remote=download")) == expected()
    whole = sum(path.stat().st_size for path in (root / NAME).rglob("*") if path.is_file())
    assert cloud.sent < whole
    assert [path.name for path in (root / "plain").iterdir() if path.name.startswith(".")] == []


def test_a_download_of_files_that_were_replaced_meanwhile_begins_anew(
    bucket: str, root: Path, storage: Storage, cloud: Faults
) -> None:
    cloud.before = lambda request: 403 if "main_data" in request.path else None
    with pytest.raises(Exception, match="main_data"):
        open_source(f"minari:{bucket}/{NAME}?remote=download")
    assert not (root / NAME).exists()
    assert [path.name for path in root.rglob("files.json")] == ["files.json"]
    cloud.before = lambda _: None
    other = sets.copied("0.5.4", NAME, root.parent)
    rewrite(other, description="another")
    storage.upload(other, bucket.removeprefix("gcp://"), NAME)
    folder = data_folder(f"{bucket}/{NAME}", "download")
    assert json.loads((folder / "metadata.json").read_text())["description"] == "another"


def test_what_is_no_dataset_of_this_id_is_not_kept(bucket: str, root: Path, storage: Storage) -> None:
    name = bucket.removeprefix("gcp://")
    storage.upload(sets.dataset("0.5.4", NAME), name, "other/two-v3")
    with pytest.raises(SourceError, match=r"says that its id is 'plain/two-v3'"):
        data_folder(f"{bucket}/other/two-v3", "download")
    storage.put(
        name,
        f"{NAME}/data/main_data.hdf5",
        sets.dataset("0.5.4", NAME).joinpath("data/main_data.hdf5").read_bytes()[:5000],
    )
    with pytest.raises(SourceError, match=r"main_data.hdf5"):
        data_folder(f"{bucket}/{NAME}", "download")
    assert [path for path in root.rglob("*") if path.is_file() and path.name != "namespace_metadata.json"] == []


def test_two_that_download_at_once_both_get_it(bucket: str, root: Path) -> None:
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(data_folder(f"{bucket}/{NAME}", "download"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [root / NAME / "data"] * 3


def test_without_room_nothing_begins(bucket: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1000))
    with pytest.raises(SourceError, match=r"are missing here, and .* has room for 1.*; make room"):
        data_folder(f"{bucket}/{NAME}", "download")
    monkeypatch.setenv(ROOT_VARIABLE, bucket.replace("gcp:", "gs:") + "/other")
    with pytest.raises(SourceError, match="nothing is downloaded into a bucket"):
        data_folder(f"{bucket}/{NAME}", "download")


def test_the_hub_is_a_remote_place_and_the_newest_version_is_taken(hub: str, root: Path) -> None:
    source = open_source(f"minari:{hub}/plain/two")
    assert (source.name, source.about.own["dataset_id"]) == ("minari:hf://team/plain/two-v10", "plain/two-v10")
    assert contents(open_source(f"minari:plain/two-v2?remote={hub}")) == expected()
    source = open_source(f"minari:{hub}/plain/two?remote=download,episodes=:2")
    assert source.name == "minari:hf://team/plain/two-v10?remote=download,episodes=:2"
    assert (root / "plain" / "namespace_metadata.json").read_bytes() == SPACE
    assert sorted(path.name for path in (root / "plain").iterdir()) == ["namespace_metadata.json", "two-v10"]
    assert open_source("minari:plain/two").name == "minari:plain/two-v10"
    with pytest.raises(
        StorageError, match=r'no Minari dataset "nowhere/two" in .*, so hf://team was asked: .*it is private'
    ):
        data_folder("nowhere/two", hub)


def test_a_file_of_other_contents_than_the_hub_says_is_refused(
    hub: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlds2reverb.formats.objects.hub.Hub.range", lambda *_: memoryview(bytes(_[4] - _[3])))
    with pytest.raises(SourceError, match="another SHA-256"):
        data_folder(f"{hub}/plain/two-v2", "download")
    assert not (root / "plain" / "two-v2").exists()


def test_a_name_that_is_an_id_and_a_path_is_refused_where_it_leads_to_two(
    bucket: str, root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cwd" / NAME
    shutil.copytree(sets.dataset("0.5.4", NAME), folder)
    with pytest.raises(SourceError, match=rf"write \./{NAME}; to look for it at {bucket}, write {bucket}/{NAME}"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(remote.REMOTE_VARIABLE, bucket)
            data_folder(NAME)
    shutil.copytree(folder, root / NAME)
    with pytest.raises(
        SourceError, match=rf"names two datasets: write \./{NAME} for the folder here, or {root}/{NAME} for"
    ):
        data_folder(NAME)
    assert data_folder(f"./{NAME}") == Path(NAME) / "data"
    with pytest.raises(SourceError, match=rf"the dataset of that id is in {root}: write {NAME}"):
        data_folder(f"/{NAME}")


def test_never_asks_nowhere(bucket: str, cloud: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.REMOTE_VARIABLE, bucket)
    cloud.requests.clear()
    with pytest.raises(SourceError, match=r"no Minari dataset"):
        open_source(f"minari:{NAME}?remote=never")
    assert not cloud.requests


def test_nonsense_is_refused_also_where_the_dataset_is_here(root: Path) -> None:
    shutil.copytree(sets.root("0.5.4"), root)
    with pytest.raises(
        SourceError, match=r"remote place 'dowload': expected .*; the option remote may also be download or never"
    ):
        open_source(f"minari:{NAME}?remote=dowload")
    with pytest.raises(SourceError, match="it is a namespace: rlds2reverb inspect minari:plain/ lists"):
        open_source("minari:plain")


def listed(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(cli, ["inspect", *arguments, "--json"]).stdout)


def test_lists_have_sizes_episodes_and_steps(hub: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = listed(f"minari:{hub}")
    assert there["datasets"] == ["minari:hf://team/plain/two-v10", "minari:hf://team/plain/two-v2"]
    size = sum(path.stat().st_size for path in (root.parent / "repo" / "two-v2").rglob("*") if path.is_file())
    assert there["about"][1] == {
        "id": "plain/two-v2", "place": hub, "bytes": size, "episodes": 5, "steps": 16, "authors": ["someone"], "minari_version": "0.5.4",
        "problem": "",
    }  # fmt: skip
    assert listed(f"minari:{hub}/plain/")["datasets"] == there["datasets"]
    assert listed(f"minari:{hub}/other/")["datasets"] == []
    shutil.copytree(sets.root("0.5.4"), root)
    rewrite(root / "blank-v0", dataset_id="other-v0")
    (root / "kinds" / "hdf5-v0" / "data" / "metadata.json").write_text("{")
    here = listed("minari:")
    problems = {dataset["id"]: dataset["problem"] for dataset in here["about"] if dataset["problem"]}
    assert problems.keys() == {"blank-v0", "kinds/hdf5-v0"}
    assert listed("minari:kinds/")["datasets"] == [f"minari:kinds/{kind}-v0" for kind in ("arrow", "hdf5", "parquet")]
    monkeypatch.setenv(remote.REMOTE_VARIABLE, hub)
    both = listed("minari:plain/")
    assert [(name, about["place"]) for name, about in zip(both["datasets"], both["about"])] == [
        ("minari:plain/two-v3", str(root)),
        ("minari:plain/two-v10", hub),
        ("minari:plain/two-v2", hub),
    ]
    shown = CliRunner().invoke(cli, ["inspect", "minari:plain/"])
    assert "minari:plain/two-v3   5         16     109 kB  0.5.4   someone  " in shown.stdout
    assert f"{hub}: 2 datasets, " in shown.stderr


def test_an_empty_list_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "plain" / "one-v0" / "data").mkdir(parents=True)
    (tmp_path / "plain" / "one-v0" / "data" / "metadata.json").touch()
    for root, name, account in (
        (tmp_path, "minari:plane/", "0 datasets in plane/; namespaces there: plain"),
        (tmp_path / "nowhere", "minari:", "no such folder; 0 datasets"),
        (tmp_path / "file", "minari:", "a file, and no folder of datasets"),
    ):
        monkeypatch.setenv(ROOT_VARIABLE, str(root))
        listed = CliRunner().invoke(cli, ["inspect", name])
        assert (listed.exit_code, account in listed.stderr) == (0, True), listed.stderr


def test_datasets_of_older_versions_are_listed(root: Path) -> None:
    shutil.copytree(sets.root("0.4.3"), root)
    about = listed("minari:")["about"]
    assert [(dataset["id"], dataset["episodes"], dataset["minari_version"]) for dataset in about] == [
        ("two-both-v0", 5, "~=0.4"),
        ("two-other-v0", 2, "~=0.4"),
        ("two-own-v0", 3, "~=0.4"),
    ]


@pytest.mark.parametrize(
    "text", ["D4RL/door/human-v2", "/data/", "./data/", "hf://a/b", "hf://datasets/a/b", "hf://", "ftp://a/"]
)
def test_names_of_datasets_are_no_lists(text: str) -> None:
    assert ListRequest.of(text) is None


@pytest.mark.parametrize("text", ["?remote=download", "?episodes=:2", "?remote=", "hf://a?remote=hf://b"])
def test_a_list_has_no_further_option(text: str) -> None:
    with pytest.raises(SourceError, match=r"a list of datasets has the option|says where they lie twice"):
        ListRequest.of(text)
