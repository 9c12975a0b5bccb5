"""What a process is at, so that the run can tell it when the process ends there."""

from __future__ import annotations

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
    note.write_text(name)
    try:
        yield
    finally:
        note.unlink()


def unfinished() -> list[str]:
    """What processes of this run were at when they ended; told once."""
    ended = [note for note in sorted(FOLDER.glob("*")) if not _is_running(int(note.name))]
    names = [note.read_text() for note in ended]
    for note in ended:
        note.unlink()
    return names


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
