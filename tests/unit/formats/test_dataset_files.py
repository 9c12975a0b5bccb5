"""The files of a dataset: stamps, links that lead out of its folder, pointers of git-lfs."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import for_library, local_copy
from rlds2reverb.formats.dataset_files import DatasetFiles, boundary_of
from rlds2reverb.formats.paths import WrittenAnew

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file at its top and one below; a file beside it."""
    for name in ("out", "data/top", "data/sub/in"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, ns=(10**18, 10**18))
    return tmp_path / "data"


def replace(path: Path) -> None:
    """Another file of the same size and time takes the name, as rsync and tar put it there."""
    other = path.with_name("another")
    other.write_text(path.read_text().upper())
    os.utime(other, ns=(10**18, 10**18))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written over": lambda path: path.write_text(path.read_text().upper()),
    "cut": lambda path: os.truncate(path, 2),
    "replaced": replace,
    "gone": Path.unlink,
    "its folder is gone": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["top", "sub/in"])
def test_each_change_ends_a_reading_wherever_it_is_noticed(folder: Path, name: str, change: str) -> None:
    files = DatasetFiles()
    path = files.pin(folder) / name
    with files.reading(is_whole=True):
        assert path.read_text() == f"data/{name}"
        files.check_recent()
    CHANGES[change](folder / name)
    for is_whole in (True, False):
        with pytest.raises(WrittenAnew, match=name), files.reading(is_whole):
            path.exists()
    with pytest.raises(WrittenAnew, match=name), files.reading(is_whole=True):
        pass
    with pytest.raises(WrittenAnew, match=name):
        files.check_recent()
    with pytest.raises(WrittenAnew, match=name), files.reading(is_whole=False):
        raise SourceError("what the format took it for")


def test_what_is_no_change_is_none(folder: Path) -> None:
    files = DatasetFiles()
    path = files.pin(folder)
    with files.reading(is_whole=True):
        (path / "top").read_bytes()
        (folder / "top").chmod(0o600)
        os.link(folder / "top", folder.parent / "a copy, as backups make it")
        (folder / "later").write_text("of the same recorder")
        files.check_recent()
    with pytest.raises(SourceError, match=r"^something else$"), files.reading(is_whole=True):
        raise SourceError("something else")


def test_a_file_that_was_looked_for_may_not_come_later(folder: Path) -> None:
    files = DatasetFiles()
    path = files.pin(folder)
    assert not (path / "tasks").exists()
    (folder / "tasks").write_text("")
    with pytest.raises(WrittenAnew, match="tasks: is there"):
        files.check()


def test_a_range_answers_for_what_it_used_and_for_the_description(folder: Path) -> None:
    files = DatasetFiles()
    path = files.pin(folder)
    (path / "top").read_text()  # the description, read before the first range
    with files.reading(is_whole=False):
        (path / "sub/in").read_text()
    (folder / "sub/in").write_text("changed")
    with files.reading(is_whole=False):
        pass
    (folder / "top").write_text("changed")
    with pytest.raises(WrittenAnew, match="top"), files.reading(is_whole=False):
        pass


def test_files_that_are_none_of_the_dataset_may_change(folder: Path) -> None:
    (folder / "log").write_text("")
    files = DatasetFiles()
    path = files.pin(folder)
    files.restrict([path / "top"])
    (folder / "log").write_text("more")
    (folder / "sub/in").unlink()
    files.check()
    (folder / "top").unlink()
    with pytest.raises(WrittenAnew, match="top: is gone"):
        files.check()


def test_a_format_that_looks_at_all_of_its_files_needs_not_name_them(folder: Path) -> None:
    files = DatasetFiles()
    assert (files.pin(folder) / "top").exists()
    files.restrict_to_looked()
    (folder / "sub/in").unlink()
    files.check()
    (folder / "top").unlink()
    with pytest.raises(WrittenAnew, match="top: is gone"):
        files.check()


@pytest.mark.parametrize("root", ["data", "./data", "data/../data", "."])
def test_relative_names_and_other_writings_mean_the_same_file(
    folder: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder if root == "." else folder.parent)
    files = DatasetFiles()
    path = files.pin(Path(root))
    replace(folder / "sub/in")
    for writing in (path / "sub/in", (path / "sub/in").absolute(), (path / "sub/in").resolve(), path / "sub/../sub/in"):
        writing.read_text()
        with pytest.raises(WrittenAnew):
            files.check_recent()


def test_paths_of_a_dataset_are_paths(folder: Path) -> None:
    path = DatasetFiles().pin(folder)
    assert path == folder
    assert hash(path) == hash(folder)
    assert sorted(path.rglob("*")) == sorted(folder.rglob("*"))
    assert pickle.loads(pickle.dumps(path / "top")) == folder / "top"
    assert type(pickle.loads(pickle.dumps(path))) is type(folder)


LINKS = {"top": True, "sub/in": True, "../data/top": True, "../out": False, "..": False}


@pytest.mark.parametrize("place", ["link", "sub/link"])
@pytest.mark.parametrize("target", LINKS)
@pytest.mark.parametrize("opens", [Path.read_bytes, Path.read_text, for_library, local_copy])
def test_links_that_lead_out_are_refused_and_followed_on_request(
    folder: Path, target: str, place: str, opens: Callable[[Path], object]
) -> None:
    goal = Path(os.path.normpath(folder / target))
    (folder / place).symlink_to(goal)
    name = place if goal.is_file() else f"{place}/out"
    files = DatasetFiles()
    path = files.pin(folder) / name
    if LINKS[target]:
        opens(path)
    else:
        with pytest.raises(SourceError, match=r"leads out of the dataset, to .*links=follow"):
            opens(path)
    assert files.notices == ()
    files = DatasetFiles(follow_links=True)
    opens(files.pin(folder) / name)
    assert [str(goal) in notice.text for notice in files.notices] == ([] if LINKS[target] else [True])


def test_a_file_out_of_the_folder_is_refused_and_followed_on_request(folder: Path) -> None:
    """A dataset may name its files itself, by their whole paths."""
    other = folder.parent / "other"
    other.write_text("of somebody")
    with pytest.raises(SourceError, match=r"other: is out of the dataset's folder; .*links=follow"):
        (DatasetFiles().pin(folder) / other).read_text()
    files = DatasetFiles(follow_links=True)
    assert (files.pin(folder) / other).read_text() == "of somebody"
    assert len(files.notices) == 1


def test_circles_of_links_are_no_files(folder: Path) -> None:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    (folder / "again").symlink_to(folder)
    files = DatasetFiles(follow_links=True)
    assert (files.pin(folder) / "again/again/top").read_text() == "data/top"
    files.check()


def test_the_blobs_of_a_hugging_face_cache_are_inside(tmp_path: Path) -> None:
    snapshot = tmp_path / "datasets--org--name/snapshots/abc"
    (snapshot / "meta").mkdir(parents=True)
    (tmp_path / "datasets--org--name/blobs").mkdir()
    (tmp_path / "datasets--org--name/blobs/1").write_text("blob")
    (snapshot / "meta/info.json").symlink_to("../../../blobs/1")
    path = DatasetFiles().pin(snapshot) / "meta/info.json"
    assert path.read_text() == "blob"
    assert boundary_of(path) == tmp_path / "datasets--org--name"


@pytest.mark.parametrize("opens", [Path.read_text, for_library, local_copy])
def test_pointers_of_git_lfs_are_told(folder: Path, opens: Callable[[Path], object]) -> None:
    (folder / "sub/in").write_text(POINTER)
    path = DatasetFiles().pin(folder)
    opens(path / "top")
    with pytest.raises(SourceError, match="a git-lfs pointer, not the file itself; run `git lfs pull`"):
        opens(path / "sub/in")
