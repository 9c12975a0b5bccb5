"""Places where a file can be written are told without a trace; what cannot be written says which file that is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rlds2reverb.errors import WriteError
from rlds2reverb.files import append_whole, can_be_replaced, can_be_written, writing
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
