"""A dataset that changes while it is read gives one version of it, the old one, or ends with the name of what changed; never a mixture.

Of every format, on a disk and in a bucket: a file gets other bytes, more, fewer, or goes; all files become those of another version. It happens
right after the dataset was opened, after its first episode (between files, or within the only one), and after the last one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import cli
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.block_cache import BYTES_VARIABLE
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.formats.options import escape_text
from rlds2reverb.formats.paths import WrittenAnew
from rlds2reverb.inspection.workers import InspectJob, inspect_by_workers
from tests.contract.source_cases import data
from tests.contract.test_buckets import NAMES
from tests.contract.test_damaged import WRITTEN
from tests.contract.test_sources import bytes_of
from tests.support import rlds_data
from tests.support.buckets import Faults, Storage
from tests.support.push import in_memory
from tests.support.workers_in_threads import InThreads

OPENED, FIRST, LAST = "opened", "first", "last"
MOMENTS = (OPENED, FIRST, LAST)


def other_bytes(stored: bytes) -> bytes:
    """As many: of raw numbers these are other numbers, of most files damage."""
    return stored[: len(stored) // 2] + bytes(byte ^ 1 for byte in stored[len(stored) // 2 :])


CHANGES: dict[str, Callable[[bytes], bytes | None]] = {
    "other bytes": other_bytes,
    "longer": lambda stored: stored + stored,
    "cut": lambda stored: stored[: len(stored) * 2 // 3],
    "gone": lambda _: None,
}


def contents_of(episode: Any) -> Any:
    columns = {path: (column.dtype, column.shape, bytes_of(column)) for path, column in episode.columns.items()}
    return episode.id, columns, repr(sorted(episode.metadata.items())), episode.faults


def whole_of(name: str) -> list[Any]:
    return [contents_of(episode) for episode in open_source(name)]


def check_reading(name: str, whole: list[Any], change: Callable[[], object], moment: str) -> str:
    """Reads a dataset that changes meanwhile; the error that ended the reading, "" for none."""
    source, given, error = open_source(name), list[Any](), ""
    if moment == OPENED:
        change()
    try:
        for number, episode in enumerate(source):
            given.append(contents_of(episode))
            if number == {FIRST: 0, LAST: len(whole) - 1}.get(moment):
                change()
    except WrittenAnew as changed:
        error = str(changed)
    assert given == whole[: len(given)], "nothing of another version, and no bad episode"
    assert error or len(given) == len(whole)
    return error


@pytest.fixture
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The name of a dataset, and the folder with its files, which are old."""
    folder = tmp_path / "written"
    folder.mkdir()
    name = WRITTEN[request.param](folder)
    for path in files_of(folder):
        os.utime(path, ns=(10**18, 10**18))
    yield name, folder


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "expected.npz")


def a_few(files: list[Path]) -> list[Path]:
    """The largest one, the first and the last."""
    return list(dict.fromkeys((max(files, key=lambda path: path.stat().st_size), files[0], files[-1])))


@pytest.mark.parametrize("written", NAMES, indirect=True)
def test_a_file_of_the_disk_changes(written: tuple[str, Path]) -> None:
    name, folder = written
    whole = whole_of(name)
    largest, *others = a_few(files_of(folder))
    for path in (largest, *others):
        stored = path.read_bytes()
        for change, changed in CHANGES.items():
            for moment in MOMENTS:

                def happen(path: Path = path, content: bytes | None = changed(stored)) -> None:
                    path.unlink() if content is None else path.write_bytes(content)

                error = check_reading(name, whole, happen, moment)
                path.write_bytes(stored)
                os.utime(path, ns=(10**18, 10**18))
                assert not error or path.name in error
                assert error or moment != OPENED or path != largest, f"{change} of {path} is not noticed"
    assert whole_of(name) == whole


def other_version(monkeypatch: pytest.MonkeyPatch, written: str, folder: Path, lengths: int) -> Path:
    """The same kind of dataset with other values, and with other lengths of its episodes unless `lengths` is 0."""

    def columns() -> list[Any]:
        rng = np.random.default_rng(9)
        made = [rlds_data.episode(rng, 2 + (number + lengths) % 3) for number in range(data.EPISODES - 1)]
        return [*made, made[-1]]

    monkeypatch.setattr(data, "columns", columns)
    folder.mkdir()
    WRITTEN[written](folder)
    return folder


WITH_VERSIONS = (
    "tfds", "d4rl", "minari", "rllib, JSON", "ted, memory-mapped", "ted, H5", "npz, files", "npz, one file", "npz, of RLDS",
)  # fmt: skip
"""Datasets that are made of `data.columns`, and are no copies of stored ones."""


@pytest.mark.parametrize("lengths", [0, 1])
@pytest.mark.parametrize(("written", "kind"), [(name, name) for name in WITH_VERSIONS], indirect=["written"])
def test_all_files_of_the_disk_become_those_of_another_version(
    written: tuple[str, Path], kind: str, lengths: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, folder = written
    whole, kept = whole_of(name), tmp_path / "kept"
    shutil.copytree(folder, kept)
    other = other_version(monkeypatch, kind, tmp_path / "other", lengths)
    files = [path.relative_to(folder) for path in files_of(folder)]
    for moment in MOMENTS:

        def happen() -> None:
            for file in files:
                (folder / file).write_bytes((other / file).read_bytes())

        error = check_reading(name, whole, happen, moment)
        assert error or moment != OPENED
        assert whole_of(name) != whole, "opened again, it is the other one"
        for file in files:
            shutil.copy2(kept / file, folder / file)


IN_BUCKETS = (
    "tfds", "d4rl", "minari", "robomimic", "ilr, shards", "ilr, npz", "lerobot, v2.1", "lerobot, v3.0", "rllib, JSON", "rllib, Parquet",
    "ted, memory-mapped", "ted, H5", "npz, files", "npz, one file",
)  # fmt: skip
"""One dataset of each way to read, since a request to the storage of the tests takes 10 ms."""


@pytest.mark.parametrize("written", IN_BUCKETS, indirect=True)
def test_an_object_of_a_bucket_changes(
    written: tuple[str, Path], storage: Storage, cloud: Faults, tmp_path: Path
) -> None:
    name, folder = written
    storage.create("versions")
    prefix = tmp_path.name
    storage.upload(folder, "versions", prefix)
    name = name.replace(escape_text(folder), f"s3://versions/{prefix}")
    whole = whole_of(name)
    files = a_few(files_of(folder))
    cases = [(files[0], "other bytes", OPENED), (files[-1], "gone", OPENED), (files[-1], "longer", FIRST)]
    for path, change, moment in cases:
        key, stored = f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes()

        def happen(key: str = key, content: bytes | None = CHANGES[change](stored)) -> None:
            storage.remove("versions", key) if content is None else storage.put("versions", key, content)

        error = check_reading(name, whole, happen, moment)
        storage.put("versions", key, stored)
        assert not error or path.name in error
        assert error or moment != OPENED or path != files[0], f"{change} of {key} is not noticed"
    assert whole_of(name) == whole, "opened again at once"


def test_blocks_of_a_cache_are_of_the_old_version_or_of_the_new_one(
    storage: Storage, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BYTES_VARIABLE, "100MB")
    (tmp_path / "data").mkdir()
    WRITTEN["npz, files"](tmp_path / "data")
    storage.create("versions")
    storage.upload(tmp_path / "data", "versions", tmp_path.name)
    name, key = f"npz:s3://versions/{tmp_path.name}", f"{tmp_path.name}/episode_3.npz"
    whole = whole_of(name)
    first = (tmp_path / "data/episode_0.npz").read_bytes()
    error = check_reading(name, whole, lambda: storage.put("versions", key, first), OPENED)
    assert "episode_3.npz: was written anew" in error
    again = whole_of(name)
    assert [row[1] for row in again] == [row[1] for row in (*whole[:3], whole[0], whole[4])]


def test_a_dataset_that_changes_while_workers_read_it_is_told(tmp_path: Path) -> None:
    """Each worker opens it for itself, so one that begins later reads another version throughout."""
    name = WRITTEN["npz, files"](tmp_path)

    class Changing(InThreads):
        def submit(self, task: Any) -> None:
            if task.start == 2:
                shutil.copy(tmp_path / "episode_0.npz", tmp_path / "episode_4.npz")
            super().submit(task)

    wanted = InspectJob(NamedSource(name))
    assert inspect_by_workers(wanted, lambda job: InThreads(job, 1), 1).as_dict()["episodes"] == data.EPISODES
    with pytest.raises(WrittenAnew, match="episode_4"):
        inspect_by_workers(wanted, lambda job: Changing(job, 1), 1)


def test_a_push_tells_what_it_stored_and_goes_on_with_the_new_version(tmp_path: Path) -> None:
    name, server = WRITTEN["npz, files"](tmp_path), in_memory.Server()
    source = open_source(name)
    (tmp_path / "episode_2.npz").unlink()
    ledger = tmp_path / "ledger"
    with pytest.raises(SourceError, match=r"episode_2\.npz: is gone") as failed:
        in_memory.push(server, source, ledger=ledger, on_invalid="skip")
    report = failed.value.report
    assert report is not None
    assert not report.rejected, "none is taken for a bad one"
    again = in_memory.push(server, open_source(name), ledger=ledger, on_invalid="skip")
    assert report.episodes_pushed == again.episodes_resumed
    assert again.episodes_pushed + again.episodes_resumed == data.EPISODES - 1


def test_the_command_line_ends_with_3_and_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = WRITTEN["npz, files"](tmp_path)
    usual = DatasetFiles.restrict

    def change(files: DatasetFiles, paths: Any) -> None:
        usual(files, paths)
        (tmp_path / "episode_3.npz").write_bytes(b"")

    monkeypatch.setattr(DatasetFiles, "restrict", change)
    monkeypatch.setattr("sys.argv", ["rlds2reverb", "validate", name])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    assert "episode_3.npz: was written anew after the dataset was opened" in capsys.readouterr().err
