"""Places where a file can be written are told without a trace; what cannot be written says which file that is."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from rlds2reverb.errors import ConfigError, WriteError
from rlds2reverb.files import (
    append_whole,
    can_be_replaced,
    can_be_written,
    check_can_be_replaced,
    remove_whole,
    sync,
    whole,
    whole_or_none,
    write_json,
    write_whole,
    writing,
)
from tests.support.disks import fill, small_disk_at


def test_a_file_that_is_there_or_may_be_made(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    assert can_be_written(there)
    assert can_be_written(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_and_a_file_in_none(tmp_path: Path) -> None:
    assert not can_be_written(tmp_path)
    assert not can_be_written(tmp_path / "missing" / "new")


def test_what_the_system_does_not_let_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, int]] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    (tmp_path / "there").touch()
    assert not can_be_written(tmp_path / "there")
    assert not can_be_written(tmp_path / "new")
    assert asked == [(tmp_path / "there", os.W_OK), (tmp_path, os.W_OK)]


def test_only_files_give_way(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    os.mkfifo(tmp_path / "pipe")
    assert can_be_replaced(tmp_path / "there")
    assert can_be_replaced(tmp_path / "link")
    assert can_be_replaced(tmp_path / "new")
    assert not can_be_replaced(tmp_path / "pipe")
    assert not can_be_replaced(Path(os.devnull))


def test_a_place_for_no_file_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "missing" / "file")
    for name in ("file", "new"):
        check_can_be_replaced(tmp_path / name, name)
    reasons = {
        ".": "a folder",
        "pipe": "a device or a pipe",
        "link": "its folder is not there",
        "missing/x": "its folder",
    }
    for name, reason in reasons.items():
        with pytest.raises(ConfigError, match=rf"^--save x: no file can be written there: (it is )?{reason}"):
            check_can_be_replaced(tmp_path / name, "--save x", ConfigError)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "file")
    with pytest.raises(WriteError, match="write-protected"):
        check_can_be_replaced(tmp_path / "file", "--save x")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(WriteError, match="its folder"):
        check_can_be_replaced(tmp_path / "file", "--save x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_an_error_of_the_system_becomes_ours_and_keeps_its_number(tmp_path: Path) -> None:
    with pytest.raises(WriteError) as caught, writing("report x", "nothing is lost"):
        (tmp_path / "missing" / "file").write_text("a")
    assert str(caught.value) == "report x: cannot be written: No such file or directory; nothing is lost"
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(WriteError, match=r"^outer: cannot be written: Input/output error; b$"), writing("inner", "a"):
        with writing("outer", "b"):
            raise OSError(errno.EIO, "a long story\nof a library")


def test_text_is_appended_wholly_or_not_at_all(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "file"
        append_whole(path, "first\n", path, "")
        fill(disk, 4096)
        with pytest.raises(WriteError, match=r"No space left on device; make room$"):
            append_whole(path, "é" * 5000, path, "make room")
        assert path.read_text() == "first\n"
        append_whole(path, "sécond\n", path, "")
        assert path.read_bytes() == "first\nsécond\n".encode()


def test_text_is_appended_to_pipes_and_devices(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    append_whole(pipe, "a\n", pipe, "")
    assert os.read(reader, 9) == b"a\n"
    os.close(reader)
    with pytest.raises(WriteError, match="No space left on device"):
        append_whole(Path("/dev/full"), "a\n", "full", "")


# Files that are there when all of them is on disk.


def test_a_file_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with whole(path) as unfinished:
        unfinished.write_bytes(b"{}")
        assert not path.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
    assert path.read_bytes() == b"{}"


def test_what_was_there_stays_until_then(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, b"old")
    with pytest.raises(OSError, match="full"), whole(path) as unfinished:
        unfinished.write_bytes(b"ne")
        raise OSError("full")
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
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
