"""How results and progress look. Data to stdout, talk to stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from rlds2reverb.push.report import Progress
from rlds2reverb.wording import counted


def print_json(value: Any) -> None:
    """One JSON document on stdout; infinities and NaN, which JSON lacks, become null."""
    click.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_fields(fields: Mapping[str, Any], indent: str = "") -> None:
    """Aligned "name  value" lines on stdout."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        click.echo(f"{indent}{name:<{width}}  {value}")


def talk(text: str) -> None:
    """A line on stderr."""
    click.echo(text, err=True)


def number(value: float | None) -> str:
    """A number for people: 1,234 or 0.5678."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:,.4g}"


def describe(progress: Progress) -> str:
    """Episodes, steps/s, MB/s, ETA, and whether something is waited for, on one line."""
    seconds = max(progress.seconds, 1e-9)
    count = progress.episode_count
    read = counted(progress.episodes, "episode")
    parts = [
        read if count is None else f"{progress.episodes:,}/{counted(count, 'episode')}",
        f"{progress.steps / seconds:,.0f} steps/s",
        f"{progress.bytes / seconds / 1e6:,.1f} MB/s",
    ]
    if progress.episode_count and progress.episodes:
        left = seconds / progress.episodes * max(0, progress.episode_count - progress.episodes)
        parts.append(f"ETA {int(left) // 60}:{int(left) % 60:02d}")
    if progress.waiting:
        parts.append("waiting")
    return "  ".join(parts)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Any]:
    """A callback for `on_progress`: a bar on a terminal unless quiet, and everywhere a line for every wait."""
    console = Console(stderr=True)
    tell_wait = _Waits(lambda text: console.print(text, highlight=False, soft_wrap=True))
    if quiet or not sys.stderr.isatty():
        yield tell_wait
        return
    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def update(progress: Progress) -> None:
            tell_wait(progress)
            bar.update(task, description=describe(progress), completed=progress.episodes, total=progress.episode_count)

        yield update


class _Waits:
    """Tells a wait when it begins, and again only when it is another one: one of the same tables is the same, whatever its counts."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: str | tuple[str, ...] = ""

    def __call__(self, progress: Progress) -> None:
        wait = progress.held_by or progress.waiting
        if wait and wait != self._told:
            self._tell(f"waiting: {progress.waiting}")
        self._told = wait or self._told
