"""The bar of whatever takes long, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlds2reverb.cli import output
from rlds2reverb.cli.progress import ShownProgress


class _Bar:
    def __init__(self, drawn: Progress) -> None:
        self._drawn, self._task = drawn, drawn.add_task("", total=None)

    def show(self, shown: ShownProgress) -> None:
        self._drawn.update(self._task, description=shown.text, completed=shown.done, total=shown.total)

    def say(self, text: str) -> None:
        self._drawn.console.print(
            output.lines_for(sys.stderr, [text], 2), markup=False, highlight=False, soft_wrap=True
        )


@contextmanager
def bar() -> Iterator[_Bar]:
    """Draws it, and takes it away in the end; gives what moves it."""
    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, redirect_stdout=False) as drawn:
        yield _Bar(drawn)
