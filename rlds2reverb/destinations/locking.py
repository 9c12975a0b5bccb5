"""One writer per place: a lock on a file, which the system drops when the process ends, however it ends.

SQLite does it, because it locks files on every system in that system's way.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Locks a file, which is made where it is absent; whether nobody else has it locked.

    Raises:
      OSError: the file cannot be made.
    """
    path.touch()
    before = path.stat()
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            yield False
            return
        yield _is_still(before, path)


def _is_still(before: os.stat_result, path: Path) -> bool:
    """Whether the file is still there: whoever had it locked may have removed it."""
    try:
        return os.path.samestat(before, path.stat())
    except FileNotFoundError:
        return False
