"""What every format opens: links that lead out of the dataset's folder are refused unless they may be followed, pointers of git-lfs are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.options import escape_text
from tests.contract.test_buckets import NAMES
from tests.contract.test_versions import a_few, contents_of, files_of, whole_of, written

__all__ = ["written"]

POINTER = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


def told(name: str, whole: list[Any]) -> str:
    """The error of a reading, or the faults of its episodes; "" if it gives the whole dataset."""
    try:
        source = open_source(name)
        episodes = list(source)
    except SourceError as error:
        return str(error)
    faults = [why for episode in episodes for _, why in episode.faults]
    faults += [notice.text for notice in source.notices if notice.code == "lost_records"]
    assert faults or [contents_of(episode) for episode in episodes] == whole
    return "; ".join(faults)


def following(name: str) -> str:
    return f"{name}{',' if '?' in name else '?'}links=follow"


@pytest.mark.parametrize("written", NAMES, indirect=True)
def test_folders_that_lead_out_are_refused_unless_they_are_followed(written: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = written
    whole, outside = whole_of(name), tmp_path / "outside"
    largest = a_few(files_of(folder))[0]
    for path in [path for path in folder.rglob("*") if path.is_dir() and not path.name.startswith(".")]:
        if f"{escape_text(path)}" in name or f"{escape_text(path.parent)}" in name.replace(escape_text(folder), ""):
            continue  # named by the user
        is_read = path in largest.parents
        path.rename(outside)
        path.symlink_to(outside)
        why = told(name, whole)
        assert why or not is_read, f"{path} is read, and leads out"
        assert not why or ("leads out of the dataset" in why and str(outside) in why and "links=follow" in why)
        assert not told(following(name), whole)
        path.unlink()
        outside.rename(path)


@pytest.mark.parametrize("written", NAMES, indirect=True)
def test_links_out_of_the_folder_are_refused_unless_they_are_followed(
    written: tuple[str, Path], tmp_path: Path
) -> None:
    name, folder = written
    whole, outside = whole_of(name), tmp_path / "outside"
    largest, *others = a_few(files_of(folder))
    for path in (largest, *others):
        path.rename(outside)
        path.symlink_to(outside)
        why = told(name, whole)
        if f"{escape_text(path)}" in name:
            assert not why, "a link that is named is the user's own"
        else:
            assert why or path != largest, f"{path} is read, and leads out"
            assert not why or ("leads out of the dataset" in why and str(outside) in why and "links=follow" in why)
            source = open_source(following(name))
            assert [contents_of(episode) for episode in source] == whole
            notices = [notice for notice in source.notices if notice.code == "links_followed"]
            assert [str(outside) in notice.text for notice in notices] == [True]
        path.unlink()
        outside.rename(path)
    assert open_source(following(name)).notices == open_source(name).notices


@pytest.mark.parametrize("written", NAMES, indirect=True)
def test_pointers_of_git_lfs_are_told(written: tuple[str, Path]) -> None:
    name, folder = written
    whole = whole_of(name)
    largest, *others = a_few(files_of(folder))
    for path in (largest, *others):
        stored = path.read_bytes()
        path.write_text(POINTER)
        why = told(name, whole)
        path.write_bytes(stored)
        assert why or path != largest
        assert not why or (f"{path.name}: a git-lfs pointer" in why and "git lfs pull" in why)
