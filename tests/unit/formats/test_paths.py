"""Links that lead out of a dataset's folder, and names with numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlds2reverb.formats.paths import by_number, stays_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name in ("out", "data/in"):
        (tmp_path / name).write_text("")
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["in", "missing", "a/b", ".", "../data/in"])
def test_what_lies_in_a_folder_stays_there(folder: Path, name: str) -> None:
    assert stays_in(folder, folder / name)


@pytest.mark.parametrize("name", ["../out", "..", "/", "a\0b", "../data2"])
def test_what_lies_elsewhere_does_not(folder: Path, name: str) -> None:
    assert not stays_in(folder, folder / name)


@pytest.mark.parametrize(("target", "stays"), [("in", True), ("../out", False), ("../data/in", True)])
def test_links_are_followed(folder: Path, target: str, stays: bool) -> None:
    link = folder / "link"
    try:
        link.symlink_to(target)
    except OSError:
        pytest.skip("no links on this system")
    assert stays_in(folder, link) is stays


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["b1", "a10", "a-10", "10", "a-2-b", "2", "a-010", "a", ""]
    assert sorted(names, key=by_number) == ["", "2", "10", "a", "a10", "a-2-b", "a-010", "a-10", "b1"]
