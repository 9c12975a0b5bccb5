"""The live view in a real terminal: it starts, follows the terminal's size, and whatever ends it leaves the terminal as it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("textual")

from rlds2reverb.extras import how_to_install
from tests.support.cli.shell import Shell, needs_tmux
from tests.support.processes import wait_until

pytestmark = needs_tmux

ARGUMENTS = ("-m", "tests.support.cli.memory_view", "--server", "memory:1", "--interval", "0.2")
SMALL, LARGE = (80, 24), (160, 50)


@pytest.fixture
def view() -> Iterator[Shell]:
    with Shell(SMALL, *ARGUMENTS) as shell:
        yield shell.until_shown("table 00", "memory:1  answers", "q quit")


def test_it_starts_and_q_ends_it(view: Shell) -> None:
    assert view.is_taken
    assert "error" not in view.press("q").until_ended(0)


def test_keys_scroll_sort_and_help(view: Shell) -> None:
    assert "table 39" not in view.screen
    view.press("End").until_shown("table 39")
    view.press("Home").until_shown("table 00")
    view.press("r").until_shown("waits (reverse)")
    view.press("?").until_shown("Columns", "PgUp")
    view.press("Escape").until_shown("table 01")
    view.press("q").until_ended(0)


def test_a_terminal_of_another_size_gets_a_view_of_that_size(view: Shell) -> None:
    view.resize(LARGE).until_shown("table 10", " / 100")


def test_ctrl_c_ends_it_as_any_command(view: Shell) -> None:
    assert "rlds2reverb: interrupted" in view.press("C-c").until_ended(130)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_it_as_it_ends_any_process(view: Shell, number: int, code: int) -> None:
    assert "Traceback" not in view.send(number).until_ended(code)


def test_ctrl_z_stops_it(view: Shell) -> None:
    view.press("C-z")
    wait_until(lambda: not view.is_taken)
    view.send(signal.SIGCONT).send(signal.SIGKILL)


def test_a_bug_leaves_the_terminal_as_it_was() -> None:
    with Shell(SMALL, *ARGUMENTS, TROUBLE="bug") as shell:
        shell.until_shown("table 00").press("?")
        assert "this is a bug: ZeroDivisionError: a bug" in shell.until_ended(70)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ((), {"TERM": "dumb"}, "this terminal cannot move its cursor"),
        (("--once",), {}, 'table "table 00"'),
    ],
)
def test_lines_come_where_there_is_no_view(arguments: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    with Shell((100, 300), *ARGUMENTS, *arguments, **environment) as shell:
        shell.until_shown(said, 'table "table 00"')
        assert not shell.is_taken


def test_without_textual_lines_come_and_a_sentence_says_how_to_get_it() -> None:
    program = "import runpy, sys; sys.modules['textual'] = None; sys.argv = sys.argv[1:]; "
    program += "runpy.run_module('tests.support.cli.memory_view', run_name='__main__')"
    with Shell((200, 300), "-c", program, "top", *ARGUMENTS[2:]) as shell:
        shell.until_shown(how_to_install("top"), 'table "table 00"')
        assert not shell.is_taken
