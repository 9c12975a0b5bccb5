"""Files that grow while a dataset is written, and are cut where a state says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_BUFFER_BYTES = 1 << 20


def at_end(path: Path, size: int) -> Any:
    """A file to append to, cut to its first `size` bytes; a new one where there is none and `size` is 0.

    Raises:
      OSError: it has fewer bytes, or the disk.
    """
    there = path.stat().st_size if path.exists() else 0
    if there < size:
        raise lost(path, size)
    file = path.open("r+b" if path.exists() else "w+b", buffering=_BUFFER_BYTES)
    file.truncate(size)
    file.seek(size)
    return file


def put(file: Any) -> None:
    """Puts an open file on disk."""
    file.flush()
    os.fsync(file.fileno())


def lost(path: Path, size: int) -> OSError:
    """What is said of a file that has lost what was on disk."""
    return OSError(
        f"{path}: has fewer than the {size:,} bytes that were on disk; begin anew with restart=True (--restart)"
    )
