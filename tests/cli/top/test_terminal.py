"""The live view in a real terminal: keys, sizes, and a terminal that is as it was after whatever ended the view."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("termios", reason="Windows has no such terminals")

from tests.cli.top.shell import GIVE, TAKE, Shell
from tests.processes import wait_until

ARGUMENTS = ("-m", "tests.cli.top.memory_view", "--server", "memory:1", "--interval", "0.2")
SMALL, LARGE, TINY = (80, 24), (160, 50), (20, 5)


@pytest.fixture
def view() -> Iterator[Shell]:
    with Shell(SMALL, *ARGUMENTS) as shell:
        yield shell.until_shown("table 00")


def ended(shell: Shell, code: int) -> str:
    """What the program wrote after the view, once it ended so; the terminal must be as it was."""
    shell.until(f"@ended {code}, same modes")
    assert shell.read.count(TAKE) == shell.read.count(GIVE) > 0
    return shell.after_the_view()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_it_is_drawn_and_q_ends_it(size: tuple[int, int]) -> None:
    with Shell(size, *ARGUMENTS) as shell:
        shell.until_shown("table 00", "memory:1  answers", "q quit")
        assert len(shell.lines) == size[1]
        assert all(len(line) <= size[0] for line in shell.lines)
        shell.type("q")
        assert "error" not in ended(shell, 0)


def test_a_tiny_terminal_does_not_break_it() -> None:
    with Shell(TINY, *ARGUMENTS) as shell:
        shell.until_shown("INSERTS/S", "q quit").type("\x1b[B\x1b[B").until_shown("table …")
        shell.type("?").until_shown("Keys").type("q")
        ended(shell, 0)


def test_keys_scroll_sort_and_help(view: Shell) -> None:
    assert "table 39" not in view.screen
    view.type("\x1b[F").until_shown("table 39")
    view.type("\x1b[H").until_shown("table 00")
    view.type("\x1b[6~").until_shown("table 19")
    view.type("r").until_shown("table 39", "name (reverse)")
    view.type("s").until_shown("sort: items  ")
    view.type("?").until_shown("Columns", "PgUp")
    view.type("\x1b").until_shown("table 00")
    view.type("h").until_shown("Columns").type("hq")
    ended(view, 0)


def test_a_terminal_of_another_size_gets_a_view_of_that_size(view: Shell) -> None:
    assert len(view.lines) == 24
    view.resize(LARGE).until_shown("table 10", "0 / 100")
    assert len(view.lines) == 50
    view.resize(TINY).until_shown("INSERTS/S")
    view.type("q")
    ended(view, 0)


def test_ctrl_c_ends_it_as_any_command(view: Shell) -> None:
    view.type("\x03")
    assert "rlds2reverb: interrupted" in ended(view, 130)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_it_ends_any_process(view: Shell, number: int) -> None:
    view.send(number)
    assert "Traceback" not in ended(view, -number)


def test_ctrl_z_stops_it_and_it_goes_on(view: Shell) -> None:
    for times in (1, 2):
        view.type("\x1a").until("@stopped, same modes", times)
        assert view.read.count(TAKE) == view.read.count(GIVE) == times
        view.type("\n").until(TAKE, times + 1)
        view.type("h").until_shown("Columns").type("h").until_shown("table 00")
    view.type("q")
    ended(view, 0)


def test_a_stop_that_nobody_can_catch_is_survived(view: Shell) -> None:
    view.send(signal.SIGSTOP).until("@stopped, other modes")
    view.type("\n")
    view.type("?").until_shown("Columns").type("q")
    ended(view, 0)


def test_a_bug_leaves_the_terminal_as_it_was() -> None:
    with Shell(SMALL, *ARGUMENTS, TROUBLE="bug") as shell:
        shell.until_shown("table 00").type("?")
        assert "this is a bug: ZeroDivisionError: a bug" in ended(shell, 70)


def test_a_terminal_that_takes_nothing_does_not_keep_it_from_ending(view: Shell) -> None:
    """Ctrl-S; what gives the terminal back cannot be written, its modes can be."""
    pid = view.pid
    view.type("\x13").send(signal.SIGTERM)
    wait_until(lambda: view.is_over(pid))
    view.type("\x11").until(f"@ended {-signal.SIGTERM}, same modes")


def test_without_a_terminal_to_read_from_it_says_that_there_are_no_keys() -> None:
    program = "import os, runpy, sys; os.dup2(os.open(os.devnull, os.O_RDONLY), 0); sys.argv = sys.argv[1:]; "
    program += "runpy.run_module('tests.cli.top.memory_view', run_name='__main__')"
    with Shell(SMALL, "-c", program, "top", *ARGUMENTS[2:]) as shell:
        shell.until_shown("table 00", "no keys: standard input is no terminal")
        shell.send(signal.SIGINT)
        assert "interrupted" in ended(shell, 130)


def test_a_terminal_that_moves_no_cursor_gets_blocks() -> None:
    with Shell(SMALL, *ARGUMENTS, TERM="dumb") as shell:
        shell.until("this terminal cannot move its cursor").until('table "table 00"')
        assert TAKE not in shell.read
        shell.type("\x03").until("@ended 130, same modes")


def test_a_terminal_that_is_gone_ends_it(view: Shell) -> None:
    pid = view.pid
    view.hang_up()
    wait_until(lambda: view.is_over(pid))


def test_no_color_is_heeded() -> None:
    with Shell(SMALL, *ARGUMENTS, NO_COLOR="1") as shell:
        shell.until_shown("table 00")
        assert "\x1b[33m" not in shell.read
        shell.type("q")
        ended(shell, 0)


def test_colors_are_drawn(view: Shell) -> None:
    assert os.environ.get("NO_COLOR") or "\x1b[33m" in view.read
