"""The live view on a terminal: draws what is known, and does what the keys say, until the end."""

from __future__ import annotations

import io
import signal
import sys
import time

from rich.console import Console
from rich.text import Text

from rlds2reverb.cli.top import terminal
from rlds2reverb.cli.top.keys import Choice, pressed
from rlds2reverb.cli.top.terminal import Ended, Terminal
from rlds2reverb.cli.top.view import Screen, screen
from rlds2reverb.cli.top.watching import Watch

_REDRAW_SECONDS = 1.0
"""Ages grow by the second."""


def why_not() -> str:
    """Why there can be no live view here, or ""."""
    if not terminal.IS_KNOWN:
        return "this system has no terminals as the live view needs them"
    if Console().is_dumb_terminal:
        return "this terminal cannot move its cursor (TERM)"
    return ""


def show(watch: Watch, choice: Choice) -> None:
    """Shows it until somebody quits.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed.
    """
    keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    try:
        with watch, Terminal(sys.stdout.fileno(), keys, sys.stdout.encoding) as screen_of:
            watch.on_change = screen_of.wake
            _follow(watch, screen_of, Inks(Console()), choice, has_keys=keys is not None)
    except Ended as end:
        signal.signal(end.number, signal.SIG_DFL)
        signal.raise_signal(end.number)  # ends as it would have without a view, now that the terminal is as it was


def _follow(watch: Watch, screen_of: Terminal, inks: Inks, choice: Choice, has_keys: bool) -> None:
    while True:
        drawn = screen(watch.known(), choice, screen_of.size, time.time(), has_keys)
        screen_of.draw(inks.of(drawn))
        for key in screen_of.wait(_REDRAW_SECONDS):
            changed = pressed(choice, key, drawn.body, drawn.room)
            if changed is None:
                return
            choice = changed


class Inks:
    """Turns lines into what a terminal draws, with the colors that it has.

    Args:
      console: of that terminal.
    """

    def __init__(self, console: Console) -> None:
        self._system, self._no_color = console.color_system, console.no_color

    def of(self, drawn: Screen) -> str:
        """The lines, with control sequences for their styles."""
        file = io.StringIO()
        width = max(1, *(line.cell_len for line in drawn.lines))
        console = Console(
            file=file,
            force_terminal=True,
            width=width,
            legacy_windows=False,
            color_system=self._system,  # type: ignore[arg-type]  # a str that is one of them
            no_color=self._no_color,
        )
        console.print(Text("\n").join(drawn.lines), end="", no_wrap=True, overflow="crop", crop=False, highlight=False)
        return file.getvalue()
