"""Options that make no sense are told before TensorFlow is imported, the source opened, or a server asked."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rlds2reverb import cli
from rlds2reverb.formats import registry

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process; a source that would be opened, which imports TensorFlow, fails the test."""

    def opened(_: object, known: object, side: object, name: str) -> None:
        pytest.fail(f"the source was opened: {name}")

    monkeypatch.setattr(registry.Formats, "open_as", opened)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, capsys.readouterr().err  # type: ignore[return-value]

    return run


@pytest.fixture
def unasked() -> Iterator[str]:
    """The address of a server that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with what is no ledger."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database, but some hundred bytes of text\n" * 10)
    (tmp_path / "view.yaml").write_text("view: pairs\n")
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as database:
        database.execute("CREATE TABLE theirs (x)")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("--table", "t", "--allow", "everything"), 2, "unknown code everything"),
        (("--table", "t", "--allow", "no_steps"), 2, "cannot be tolerated"),
        (("--table", "t", "--on-invalid", "quarantine"), 2, "give both or neither"),
        (("--table", "t", "--quarantine", "FILES/q.jsonl"), 2, "give both or neither"),
        (
            ("--table", "t", "--on-invalid", "quarantine", "--quarantine", "FILES/none/q"),
            2,
            "in a folder that is there",
        ),
        (("--table", "t", "--on-invalid", "quarantine", "--quarantine", "FILES/folder"), 2, "is a directory"),
        (("--table", "t", "--ledger", "FILES/none/l.db"), 6, "in a folder that is there"),
        (("--table", "t", "--ledger", "FILES/text"), 6, "cannot be used (file is not a database)"),
        (("--table", "t", "--ledger", "FILES/theirs.db"), 6, "another program's file"),
        (("--table", "t", "--ledger", "FILES/folder"), 2, "is a directory"),
        (("--table", "t", "--ledger", "FILES/l.db", "--again"), 2, "does not go with a ledger"),
        (("--table", "t", "--ledger", "FILES/l.db", "--view", "across_episodes"), 2, "leave it out"),
        (("--table", "t", "--view", "pairs"), 2, 'view "pairs"'),
        (("--table", "t", "--view-config", "FILES/view.yaml"), 2, '"pairs"'),
        (("--table", "t", "--view-config", "FILES/none.yaml"), 2, "none.yaml"),
        (("--table", "t", "--table", "t"), 2, "named twice"),
        (("--into", "t"), 2, "expected TABLE=VIEW"),
        (("--into", "t=two_step", "--into", "t=transition"), 2, '--into: "t" stands twice'),
        ((), 2, "name the tables to fill"),
        (("--table", "t", "--header", "none"), 2, "expected NAME=VALUE"),
        (("--table", "t", "--tls-ca", "FILES/none.pem"), 2, "cannot be read"),
    ],
)
def test_of_a_push(run: Run, unasked: str, files: Path, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    before = sorted(files.rglob("*"))
    code, text = run(
        "push", "tfds:anything", "--server", unasked, *(argument.replace("FILES", str(files)) for argument in arguments)
    )
    assert said in text
    assert code == exit_code
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("validate", "--allow", "everything"), "unknown code everything"),
        (("validate", "--limit", "0"), "0 is not in the range"),
        (("inspect", "--view", "pairs"), 'view "pairs"'),
        (("inspect", "--into", "t=pairs"), 'view "pairs"'),
        (("inspect", "--into", "t=two_step", "--table", "t"), "leave out --table"),
    ],
)
def test_of_what_only_reads(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, text = run(*arguments, "tfds:anything")
    assert said in text
    assert code == 2


@pytest.mark.parametrize(
    ("arguments", "exit_code"), [(("--ledger",), 6), (("--on-invalid", "quarantine", "--quarantine"), 2)]
)
def test_files_that_may_not_be_written(
    run: Run, unasked: str, files: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], exit_code: int
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, text = run("push", "tfds:anything", "--server", unasked, "--table", "t", *arguments, str(files / "new"))
    assert "cannot be written" in text
    assert code == exit_code


def test_options_that_make_sense_come_to_the_server(run: Run, files: Path) -> None:
    """What the others do not come to."""
    arguments = ("--server", "127.0.0.1:1", "--timeout", "0.2", "--table", "t", "--ledger", str(files / "new.db"))
    code, text = run("push", "tfds:anything", *arguments)
    assert "127.0.0.1:1" in text
    assert code == 5
    assert not (files / "new.db").exists()


def test_a_bad_option_imports_no_tensorflow() -> None:
    program = (
        "import sys; from rlds2reverb.cli import main\n"
        "try: main()\n"
        "finally: print([name for name in ('tensorflow', 'tensorflow_datasets') if name in sys.modules])"
    )
    arguments = ["push", "tfds:anything", "--server", "127.0.0.1:1", "--table", "t", "--allow", "everything"]
    shown = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (2, "[]\n"), shown.stderr
