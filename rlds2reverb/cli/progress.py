"""How the progress of a push or a conversion looks, on stderr: a bar on a terminal, and everywhere a line for every wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from rlds2reverb.cli import output
from rlds2reverb.formats import Lazily
from rlds2reverb.push.report import Progress
from rlds2reverb.wording import counted

Heard = Callable[[Progress], None]

_bar: Callable[[], AbstractContextManager[Heard]] = Lazily("rlds2reverb.cli.bar:bar")  # rich, only where it is drawn


def told(quiet: bool) -> AbstractContextManager[Heard]:
    """A callback for `on_progress`: a bar on a terminal unless quiet, and everywhere a line for every wait."""
    return nullcontext(Waits(output.talk)) if quiet or not sys.stderr.isatty() else _bar()


def told_by_lines(quiet: bool) -> AbstractContextManager[Heard]:
    """A callback for `on_progress`: a bar on a terminal, a line every ten seconds elsewhere, nothing when quiet."""
    if quiet:
        return nullcontext(lambda _: None)
    return _bar() if sys.stderr.isatty() else nullcontext(Lines(output.talk))


def describe(progress: Progress) -> str:
    """Episodes, steps/s, MB/s where something is sent, ETA, and whether something is waited for, on one line."""
    seconds = max(progress.seconds, 1e-9)
    count = progress.episode_count
    read = counted(progress.episodes, "episode")
    parts = [
        read if count is None else f"{progress.episodes:,}/{counted(count, 'episode')}",
        f"{progress.steps / seconds:,.0f} steps/s",
        *([f"{progress.bytes / seconds / 1e6:,.1f} MB/s"] if progress.bytes else []),
    ]
    if progress.episode_count and progress.episodes:
        left = seconds / progress.episodes * max(0, progress.episode_count - progress.episodes)
        parts.append(f"ETA {int(left) // 60}:{int(left) % 60:02d}")
    if progress.waiting:
        parts.append("waiting")
    return "  ".join(parts)


class Lines:
    """Tells how far it is in a line every so many seconds, for what is no terminal.

    Args:
      tell: takes a line.
      seconds: between two of them; the first comes after as many.
    """

    def __init__(self, tell: Callable[[str], None], seconds: float = 10.0) -> None:
        self._tell, self._seconds, self._told_at = tell, seconds, 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.seconds - self._told_at >= self._seconds:
            self._told_at = progress.seconds
            self._tell(describe(progress))


class Waits:
    """Tells a wait when it begins, and again only when it is another one: one of the same tables is the same, whatever its counts."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: str | tuple[str, ...] = ""

    def __call__(self, progress: Progress) -> None:
        wait = progress.held_by or progress.waiting
        if wait and wait != self._told:
            self._tell(f"waiting: {progress.waiting}")
        self._told = wait or self._told
