"""`inspect --html`: the page of a dataset, or of two, from the command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlds2reverb import cli
from rlds2reverb.cli import inspect
from tests.support.disks import FILLER, fill, small_disk_at

Run = Callable[..., tuple[int, str, str]]
SOURCE = "bundled:cartpole@train[:5]"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs inspect; exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "inspect", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return int(stopped.value.code or 0), printed.out, printed.err

    return call


def test_a_page_is_written_beside_what_is_printed(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("an older one")
    code, printed, told = run(SOURCE, "--html", str(page))
    assert (code, f"wrote {page}: 0." in told) == (0, True)
    assert (0, printed, told.partition("\n")[2]) == run(SOURCE)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_what_is_printed_as_json_is_the_same(run: Run, tmp_path: Path) -> None:
    _, printed, _ = run(SOURCE, "--json", "--html", str(tmp_path / "report.html"))
    assert json.loads(printed) == json.loads(run(SOURCE, "--json")[1])


def test_two_datasets_are_on_one_page(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, printed, _ = run(SOURCE, "--html", str(page), "--against", "bundled:half_cheetah@train[:1]", "--seed", "3")
    text = page.read_text(encoding="utf-8")
    verdict = "not the same: 5 of 7 columns changed, 2 the same"
    assert (code, printed.splitlines()[0]) == (0, verdict)
    assert verdict in text
    assert "Seed 3 chose" in text


def test_workers_make_the_same_page(run: Run, tmp_path: Path) -> None:
    one, other = tmp_path / "one.html", tmp_path / "other.html"
    assert run(SOURCE, "--html", str(one))[0] == 0
    assert run(SOURCE, "--html", str(other), "--workers", "2")[0] == 0
    assert one.read_bytes() == other.read_bytes()


def test_the_seed_of_the_page_needs_one(run: Run) -> None:
    code, _, told = run(SOURCE, "--seed", "1")
    assert (code, "--seed is of the page; give --html FILE, too" in told) == (2, True)


def test_a_full_disk_names_the_page_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "disk", 1 << 20) as disk:
        fill(disk, 0)
        code, _, told = run(SOURCE, "--html", str(disk / "page.html"))
        assert code == 6
        assert f"--html {disk / 'page.html'}: cannot be written: No space left on device" in told
        assert [path.name for path in disk.iterdir()] == [FILLER]


def test_a_place_that_cannot_be_written_is_told_before_anything_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "open_dataset", lambda name: pytest.fail("it was read"))
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "report.html", tmp_path / "folder"):
        code, _, told = run(SOURCE, "--html", str(path))
        assert code == 2
        assert f"--html {path}: no file can be written there" in told


def test_a_folder_that_lets_nobody_write_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert run(SOURCE, "--html", str(tmp_path / "report.html"))[0] == 2


def test_a_source_that_cannot_be_read_leaves_no_page(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run(SOURCE, "--html", str(page), "--against", "tfds:/nowhere")[0] == 3
    assert not page.exists()


def test_only_files_are_replaced(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name in ("pipe", "-"):
        code, _, told = run(SOURCE, "--html", name)
        assert code == 2
        assert f"--html {name}: " in told
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert Path("pipe").is_fifo()
