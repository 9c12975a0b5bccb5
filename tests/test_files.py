"""Places where a file can be written are told without a trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlds2reverb.files import can_be_replaced, can_be_written


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
