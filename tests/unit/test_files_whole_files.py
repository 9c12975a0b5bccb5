"""Files that are there when all of them is on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlds2reverb.files import remove_whole, sync, whole, whole_or_none, write_json, write_whole


def test_a_file_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with whole(path) as unfinished:
        unfinished.write_bytes(b"{}")
        assert not path.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    assert path.read_bytes() == b"{}"


def test_what_was_there_stays_until_then(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, b"old")
    with pytest.raises(OSError, match="full"), whole(path) as unfinished:
        unfinished.write_bytes(b"ne")
        raise OSError("full")
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert path.read_bytes() == b"new"


def test_json_is_written_as_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"ä": 1}, ensure_ascii=False, indent=1)
    assert path.read_bytes() == '{\n "ä": 1\n}'.encode()
    assert json.loads(path.read_bytes()) == {"ä": 1}


def test_folders_are_synced_too(tmp_path: Path) -> None:
    sync(tmp_path)


def test_a_folder_that_is_removed_is_whole_or_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "b").touch()

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_whole(folder)
    assert not folder.exists()
    remove_whole(folder)
    remove_whole(folder)
    assert list(tmp_path.iterdir()) == []


def test_of_a_file_that_could_not_be_written_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole_or_none(tmp_path / "file") as unfinished:
        unfinished.write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with whole_or_none(link) as unfinished:
        unfinished.write_text("new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    assert list(target.parent.iterdir()) == [target]
