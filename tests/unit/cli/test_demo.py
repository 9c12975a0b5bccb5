"""How `demo` says that this program is called: as it was, never by a path of another machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlds2reverb.cli import demo


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment, the current folder; the shell finds nothing in it."""
    scripts = tmp_path / "my env" / "bin"
    scripts.mkdir(parents=True)
    for name in ("python", "rlds2reverb"):
        (scripts / name).write_text("#!/bin/sh\n")
        (scripts / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    return scripts


@pytest.mark.parametrize("called", ["my env/bin/rlds2reverb", "./my env/bin/rlds2reverb"])
def test_by_the_path_that_was_typed(folder: Path, monkeypatch: pytest.MonkeyPatch, called: str) -> None:
    monkeypatch.setattr(sys, "argv", [called, "demo"])
    assert demo._program() == "'my env/bin/rlds2reverb'"


def test_by_its_name_where_the_shell_finds_this_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", [str(folder / "rlds2reverb"), "demo"])
    assert demo._program() == "rlds2reverb"


def test_by_its_path_where_the_shell_finds_another_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rlds2reverb").write_text("#!/bin/sh\n")
    (tmp_path / "rlds2reverb").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(folder / "rlds2reverb"), "demo"])
    assert demo._program() == f"'{folder / 'rlds2reverb'}'"


def test_beside_the_interpreter_where_a_module_was_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", "demo"])
    assert demo._program() == f"'{folder / 'rlds2reverb'}'"
    (folder / "rlds2reverb").unlink()
    assert demo._program() == "rlds2reverb"
