"""What a process is at, so that the run can tell it when the process ends there."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.profiles import SEED

FOLDER = Path(tempfile.gettempdir()) / f"rlds2reverb-tests-{SEED}"
"""A file for each process of this run that is at something; its name is the process."""


@contextmanager
def noted(name: str) -> Iterator[None]:
    """The process is at this for as long as the body runs."""
    FOLDER.mkdir(exist_ok=True)
    note = FOLDER / str(os.getpid())
    with note.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with the process, however that ends
        file.write(name)
        file.flush()
        try:
            yield
        finally:
            note.unlink()


def unfinished() -> list[str]:
    """What processes of this run were at when they ended."""
    return [note.read_text() for note in _ended()]


def forget() -> None:
    """The next run of the same seed does it again."""
    for note in _ended():
        note.unlink()


def _ended() -> list[Path]:
    return [note for note in sorted(FOLDER.glob("*")) if not _is_held(note)]


def _is_held(note: Path) -> bool:
    try:
        with note.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):  # it is at it, or has just come to its end
        return True
    return False
