"""The bar of a push, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from rlds2reverb.cli.progress import Heard, Waits, describe
from rlds2reverb.push.report import Progress


@contextmanager
def bar() -> Iterator[Heard]:
    """Draws it, a line for every wait above it; gives what moves it."""
    console = Console(stderr=True)
    tell_wait = Waits(lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True))
    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as drawn:
        task = drawn.add_task("starting", total=None)

        def update(progress: Progress) -> None:
            tell_wait(progress)
            drawn.update(
                task, description=describe(progress), completed=progress.episodes, total=progress.episode_count
            )

        yield update
