"""Files damaged at random: an error of ours, or a bad episode; never a traceback, a hang or the end of the process.

Each case has a seed of its own and draws nothing from the cases before it. Deep runs are cut into `PARTS`, each a test that ends
long before the limit of a test. What ends the process itself leaves the name of its case behind (`tests.support.notes`).
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.support import notes
from tests.support.profiles import DEEP, SEED, drawn
from tests.support.raising import outcome_of

PARTS = range(50 if DEEP else 1)

LONGEST = 20.0
"""Seconds until a case counts as a hang; one takes milliseconds."""


def truncated(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def overwritten(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice((b"\0", b"\xff", b"[", b'"')) * draw.randrange(1, 40) + data[at + 8 :]


def emptied(data: bytes, draw: random.Random) -> bytes:
    return b""


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (truncated, flipped, flipped, overwritten, emptied)


def damaged(data: bytes, draw: random.Random) -> bytes:
    return draw.choice(DAMAGES)(data, draw)


def each_case(what: str, part: int, few: int, deep: int, job: Callable[[str, random.Random], None]) -> None:
    """Runs a job for each case of a part, with its name and its draws.

    Args:
      what: is damaged; stands in the names.
      part: one of `PARTS`.
      few: cases in all; deep: those of a deep run.
    """
    seed, count = (SEED, -(-drawn(few, deep) // len(PARTS))) if DEEP else (1, few)
    killers = notes.unfinished()
    for number in range(part * count, (part + 1) * count):
        name = f"{what}, case {number} of seed {seed}"
        if name in killers:  # pytest-xdist gives a test that ended its process to another one, again and again
            pytest.fail(f"{name}: ended the process")
        with notes.noted(name), _ended_after(LONGEST, name):
            job(name, random.Random(name))


def check(name: str, source: str) -> None:
    """Reads all of a source.

    Raises:
      AssertionError: with another error than one of ours, or an empty message.
    """
    try:
        found = outcome_of(
            SourceError, lambda: [bool(episode.faults) or len(episode) > 0 for episode in open_source(source)]
        )
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    assert str(found) if isinstance(found, SourceError) else all(found), name


def check_files(files: Sequence[Path], source: str, what: str, part: int, few: int, deep: int) -> None:
    """Damages one of the files at a time, and reads the source; each file is whole again in the end."""

    def job(name: str, draw: random.Random) -> None:
        path = draw.choice(files)
        whole = path.read_bytes()
        path.write_bytes(damaged(whole, draw))
        try:
            check(f"{name}, {path.name}", source)
        finally:
            path.write_bytes(whole)

    each_case(what, part, few, deep, job)


@contextmanager
def _ended_after(seconds: float, name: str) -> Iterator[None]:
    """Fails when the body takes longer; without a word where signals do not come."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def fail(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{name}: not at its end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
