"""Progress of every command on stderr: on a terminal a bar after a second, elsewhere a line every ten seconds. A wait is printed when it begins."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from rlds2reverb.cli import output
from rlds2reverb.extras import Lazily
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.text import counted, rate, visible

OnProgress = Callable[[Progress], None]

BAR_AFTER_SECONDS = 1.0
LINE_SECONDS = 10.0


@dataclass(frozen=True)
class ShownProgress:
    """Progress as one line of text, and in numbers."""

    text: str
    done: int = 0
    total: int | None = None  # None where it is not known
    waiting: str = ""  # why nothing moves, "" when something does
    held_by: tuple[str, ...] = ()  # names of the tables whose rate limiters are the reason


Tell = Callable[[ShownProgress], None]


class Bar(Protocol):
    """A bar that is drawn."""

    def show(self, shown: ShownProgress) -> None:
        """Draws it anew."""

    def say(self, text: str) -> None:
        """Prints a line above it."""


_bar: Callable[[], AbstractContextManager[Bar]] = Lazily("rlds2reverb.cli.bar:bar")  # rich, only where it is drawn


@contextmanager
def on_progress(quiet: bool) -> Iterator[OnProgress]:
    """A callback for `on_progress`: a bar on a terminal, lines elsewhere, nothing when quiet."""
    with reporting(quiet) as tell:
        yield lambda progress: tell(describe_progress(progress))


@contextmanager
def reporting(quiet: bool, begins: str = "starting") -> Iterator[Tell]:
    """Shows progress that counts anything; until the first is reported, shows `begins` and the seconds since."""
    if quiet:
        yield lambda _: None
    elif sys.stderr is not None and sys.stderr.isatty():
        with LateBar(begins) as bar:
            yield bar
    else:
        with ProgressLines(output.talk, begins) as lines:
            yield lines


class LateBar:
    """A bar that a thread of its own draws when a second is over."""

    def __init__(self, begins: str, after_seconds: float = BAR_AFTER_SECONDS) -> None:
        self._newest = ShownProgress(begins)
        self._waits = WaitTeller(self._say)
        self._changing = threading.Lock()
        self._drawing: AbstractContextManager[Bar] | None = None
        self._bar: Bar | None = None
        self._has_ended = False
        # Most commands end within the second: a bar that flashes up tells nothing, and rich takes a while to load.
        self._timer = threading.Timer(after_seconds, self._draw)
        self._timer.daemon = True

    def __enter__(self) -> LateBar:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        with self._changing:
            self._has_ended = True
            if self._drawing is not None:
                self._drawing.__exit__(None, None, None)

    def __call__(self, shown: ShownProgress) -> None:
        with self._changing:
            self._newest = shown
            self._waits(shown)
            if self._bar is not None:
                self._bar.show(shown)

    def _draw(self) -> None:
        with self._changing:
            if not self._has_ended:
                self._drawing = _bar()
                self._bar = self._drawing.__enter__()
                self._bar.show(self._newest)

    def _say(self, text: str) -> None:
        if self._bar is None:
            output.talk(text)
        else:
            self._bar.say(text)


class ProgressLines:
    """Prints progress every so many seconds, by a thread of its own; and a wait when it begins."""

    def __init__(self, tell: Callable[[str], None], begins: str = "starting", seconds: float = LINE_SECONDS) -> None:
        self._tell, self._begins, self._seconds = tell, begins, seconds
        self._newest: ShownProgress | None = None
        self._waits = WaitTeller(tell)
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressLines:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, shown: ShownProgress) -> None:
        self._newest = shown
        self._waits(shown)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            began = f"{self._begins}  {timedelta(seconds=int(time.monotonic() - self._began))}"
            self._tell(began if self._newest is None else self._newest.text)


class WaitTeller:
    """Tells a wait when it begins, and again when it is another one. A wait for the same tables is the same, whatever its counts."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last: str | tuple[str, ...] = ""

    def __call__(self, shown: ShownProgress) -> None:
        wait = shown.held_by or shown.waiting
        if wait and wait != self._last:
            self._tell(f"waiting: {visible(shown.waiting)}")
        self._last = wait or self._last


def describe_progress(progress: Progress) -> ShownProgress:
    """The progress of what reads episodes: episodes, steps/s, MB/s where something is sent, ETA, and whether it waits."""
    seconds = max(progress.seconds, 1e-9)
    count = progress.episode_count
    if count is not None and progress.episodes > count:  # a table that grows
        count = None
    parts = [
        progress.doing,
        _so_many(progress.episodes, count, "file" if progress.doing == "uploading" else "episode"),
        f"{rate(progress.steps / seconds)} steps/s" if progress.steps else f"{rate(progress.episodes / seconds)}/s",
        f"{rate(progress.bytes / seconds / 1e6)} MB/s" if progress.bytes else "",
        _left(progress.episodes, count, seconds),
        "waiting" if progress.waiting else "",
    ]
    return ShownProgress("  ".join(filter(None, parts)), progress.episodes, count, progress.waiting, progress.held_by)


def describe_count(done: int, total: int | None, noun: str, seconds: float) -> ShownProgress:
    """The progress of what counts things of one kind."""
    parts = [_so_many(done, total, noun), f"{rate(done / max(seconds, 1e-9))}/s", _left(done, total, seconds)]
    return ShownProgress("  ".join(filter(None, parts)), done, total)


def _so_many(done: int, total: int | None, noun: str) -> str:
    return counted(done, noun) if total is None else f"{done:,}/{counted(total, noun)}"


def _left(done: int, total: int | None, seconds: float) -> str:
    return f"ETA {timedelta(seconds=int(seconds / done * max(0, total - done)))}" if total and done else ""
