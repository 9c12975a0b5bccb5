"""Lines of text on a terminal: wrapped, in colour, and never led by the data that they tell of."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli import output
from rlds2reverb.cli.output import Part, cells, lines_for, wrap_parts
from tests.support.processes import read_to_end

KINDS = ["", "problem", "advice", "good", "name", "aside"]
PARTS = st.lists(st.tuples(st.text(st.sampled_from("ab-/.\u4f60 ,:"), max_size=90), st.sampled_from(KINDS)), max_size=6)
WHOLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COLOUR = re.compile("\x1b\\[[0-9;]*m")


class Screen(io.StringIO):
    """A terminal that remembers what it shows."""

    def isatty(self) -> bool:
        return True


def text_of(parts: list[Part]) -> str:
    return "".join(part if isinstance(part, str) else part[0] for part in parts)


@given(PARTS, st.integers(40, 200), st.integers(0, 20))
def test_no_word_is_broken_and_the_lines_together_are_the_text(parts: list[Part], width: int, hang: int) -> None:
    lines = [text_of(line) for line in wrap_parts(parts, width, hang)]
    text = text_of(parts)
    assert " ".join(lines).split() == text.split()
    for number, line in enumerate(lines):
        assert cells(line) <= width or len(line.split()) == 1
        assert number == 0 or line.startswith(" " * hang)
    if cells(text.rstrip()) <= width:
        assert lines == [text.rstrip()]


@given(st.text(max_size=200), st.sampled_from(KINDS))
def test_data_never_lead_a_terminal(text: str, kind: str) -> None:
    shown = lines_for(Screen(), [(text, kind), "."])
    assert all(line.isprintable() for line in COLOUR.sub("", shown).split("\n"))
    assert lines_for(io.StringIO(), [(text, kind), "."]).isprintable()


@given(st.dictionaries(WHOLE, WHOLE), st.sampled_from(["utf-8", "ascii", "latin-1"]))
def test_json_is_whole_and_leads_no_terminal_either(value: dict[str, str], encoding: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        printed = output.document(value)
    assert printed.replace("\n", "").isprintable()
    assert json.loads(printed) == value


@pytest.mark.parametrize("sign", ["\x1b", "\x7f", "\x9b", "\u202e", "\u2028", "\U000e0041"])
def test_a_sign_that_steers_is_escaped_in_json(monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    printed = output.document({"\u4f60" + sign: sign})
    assert sign not in printed
    assert "\u4f60" in printed
    assert json.loads(printed) == {"\u4f60" + sign: sign}


def test_what_is_no_terminal_gets_one_plain_line() -> None:
    parts: list[Part] = [("problem nan", "problem"), " " + "many words " * 30]
    assert lines_for(io.StringIO(), parts) == text_of(parts)
    assert lines_for(None, parts) == text_of(parts)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert lines_for(Screen(), [("bad", "problem")]) == "\x1b[31m\x1b[1mbad\x1b[0m"
    monkeypatch.setenv(name, value)
    assert lines_for(Screen(), [("bad", "problem")]) == "bad"


def test_a_value_continues_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    output.print_fields({"a": "one two three four five six seven eight nine", "longer": "x"})
    assert screen.getvalue() == ("a       one two three four five six\n        seven eight nine\nlonger  x\n")


STATUS = [
    ["TABLE", "ITEMS", "WAITS"],
    ["replay", "12 of 3,300", "-"],
    ["ratio", "17 of 1,000", "inserting waits for 1 more sample"],
]
ALIGNED = """\
TABLE   ITEMS        WAITS
replay  12 of 3,300  -
ratio   17 of 1,000  inserting waits for
                     1 more sample
"""
BLOCKS = """\
replay
  ITEMS  12 of 3,300
  WAITS  -
ratio
  ITEMS  17 of 1,000
  WAITS  inserting waits for 1 more
         sample
"""
LONG = {"observation/images/front": "float32[2] at least", "x": "one two three four five six seven eight nine ten"}
NAMES_ABOVE = """\
observation/images/front
  float32[2] at least
x
  one two three four five six seven
    eight nine ten
"""


@pytest.mark.parametrize(
    ("show", "said"),
    [
        (lambda: output.print_columns(STATUS, has_heads=True), ALIGNED),
        (lambda: output.print_columns(STATUS, has_heads=True, least=20), BLOCKS),
        (lambda: output.print_fields(LONG), NAMES_ABOVE),
        (lambda: output.print_columns([["a", "", "x" * 60], ["b", "c", "d"]]), f"a     \n      {'x' * 60}\nb  c  d\n"),
        (lambda: output.print_columns([]), ""),
    ],
)
def test_columns_are_wrapped_below_themselves_or_are_blocks(
    monkeypatch: pytest.MonkeyPatch, show: Callable[[], None], said: str
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    show()
    assert [line.rstrip() for line in screen.getvalue().split("\n")] == [line.rstrip() for line in said.split("\n")]


def test_rows_are_aligned_by_what_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", shown := io.StringIO())
    output.print_columns([["TABLE", "X"], [("\u4f60\u4f60\u4f60", "name"), "1"], ["a\n", "2"]])
    assert shown.getvalue() == "TABLE   X\n\u4f60\u4f60\u4f60  1\na\\n     2\n"


def on_a_terminal(width: int, *arguments: str, **more: str) -> str:
    """All that the program prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    command = [sys.executable, "-m", "rlds2reverb", *arguments]
    try:
        ran = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm", **more})
        os.close(theirs)
        seen = read_to_end(ours)
        ran.wait(120)
    finally:
        os.close(ours)
    return seen.decode().replace("\r\n", "\n")


@pytest.fixture
def bad(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a dataset of two files, one of them with a NaN."""
    folder = tmp_path_factory.mktemp("bad")
    flags = {"is_first": np.arange(4) == 0, "is_last": np.arange(4) == 3, "is_terminal": np.zeros(4, bool)}
    for number in range(2):
        rewards = np.array([0, np.nan if number else 0, 0, 0], np.float32)
        columns = {"observation": np.ones((4, 2), np.float32), "action": np.zeros(4), "reward": rewards}
        np.savez(folder / f"pick_{number}.npz", discount=np.ones(4, np.float32), **columns, **flags)  # type: ignore[arg-type]
    return f"npz:{folder}"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_validate_on_a_terminal(bad: str, width: int) -> None:
    shown = on_a_terminal(width, "validate", bad, "--quiet")
    assert shown.startswith("\x1b[31m\x1b[1m1 of 2 episodes has problems\x1b[0m: nan\n")
    plain, _, command = COLOUR.sub("", shown).partition("next:\n")
    assert command == f"  rlds2reverb push {bad} --server localhost:8000 --table replay --on-invalid skip\n"
    assert all(len(line) <= width or len(line.split()) == 1 for line in plain.splitlines())
    piped = subprocess.run(
        [sys.executable, "-m", "rlds2reverb", "validate", bad], capture_output=True, text=True, timeout=120, check=False
    ).stdout
    assert plain.split() == piped.split()
    assert "\n  " + f"{bad}#pick_1: " in piped


def test_an_error_on_a_terminal() -> None:
    shown = on_a_terminal(60, "validate", "bundled:cartpol", "--quiet")
    assert shown.startswith("rlds2reverb: \x1b[31m\x1b[1merror:\x1b[0m unknown bundled dataset: ")
    assert COLOUR.sub("", shown).split()[-1] == '"cartpole"?'
    assert "\x1b" not in on_a_terminal(60, "validate", "bundled:cartpol", "--quiet", NO_COLOR="1")


# Readers that leave, and disks that are full: a stopped command is told by its exit code all the same.

STOPPED = """
import click, sys
from rlds2reverb import cli, errors
from rlds2reverb.cli import output, progress, push as reports

def push():
    with reports.report_when_stopped(as_json=False, again=False), progress.on_progress(quiet=False) as tell:
        output.talk("begins")
        tell(progress.Progress(1, 1, None, 1, 1, 1.0, "waits for a sampler"))
        error = errors.TransportError("gone") if sys.argv[1] == "fail" else KeyboardInterrupt()
        errors.keep_report(error, "account")
        if sys.argv[1] != "end":
            raise error
    click.echo("account")

reports.print_report = lambda as_json, report: click.echo(report)
cli.cli.resolve_command = lambda context, arguments: ("push", click.Command("push", callback=push), [])
cli.main()
"""


@contextmanager
def no_reader() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def full_disk() -> Iterator[int]:
    number = os.open("/dev/full", os.O_WRONLY)
    yield number
    os.close(number)


def exit_code(how: str, stdout: int, stderr: int) -> int:
    return subprocess.run([sys.executable, "-c", STOPPED, how], stdout=stdout, stderr=stderr, timeout=60).returncode


@pytest.mark.parametrize(("how", "code"), [("fail", 5), ("stop", 130), ("end", 0)])
def test_a_reader_that_left_changes_no_exit_code(how: str, code: int) -> None:
    with no_reader() as nobody:
        assert exit_code(how, nobody, subprocess.DEVNULL) == code
        assert exit_code(how, subprocess.DEVNULL, nobody) == code


@pytest.mark.parametrize(("how", "code"), [("fail", 5), ("stop", 130), ("end", 6)])
def test_a_full_disk_is_an_error_of_a_finished_command_only(how: str, code: int) -> None:
    with full_disk() as disk:
        assert exit_code(how, disk, subprocess.DEVNULL) == code


def test_a_full_disk_names_the_stream() -> None:
    with full_disk() as disk:
        done = subprocess.run(
            [sys.executable, "-c", STOPPED, "end"],
            stdout=disk,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stderr.splitlines()[-1].startswith(
        "rlds2reverb: error: stdout: cannot be written: No space left on device;"
    )


def test_talk_that_finds_no_room_changes_nothing() -> None:
    with full_disk() as disk:
        assert exit_code("end", subprocess.DEVNULL, disk) == 0
