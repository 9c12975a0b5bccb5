"""What a process is at, so that the run can tell it when the process ends there."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.profiles import SEED

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
    return list(_ended().values())


def forget() -> None:
    """The next run of the same seed does it again."""
    for note in _ended():
        note.unlink(missing_ok=True)


def _ended() -> dict[Path, str]:
    """Notes that no process holds. One that comes to its end meanwhile takes its note away."""
    found = {}
    for note in sorted(FOLDER.glob("*")):
        with suppress(BlockingIOError, FileNotFoundError), note.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:
                found[note] = file.read()
    return found
