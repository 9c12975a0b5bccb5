"""Small file systems of their own, to be filled up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = "filler"


@contextmanager
def small_disk_at(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of this size, in memory; skips the test where this user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, left_bytes: int) -> None:
    """Leaves only so many bytes free."""
    filler = disk / FILLER
    state = os.statvfs(disk)
    free = state.f_bavail * state.f_frsize + (filler.stat().st_size if filler.exists() else 0)
    filler.write_bytes(bytes(max(0, free - left_bytes)))
