"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest
from replay_server.memory import give_back

from tests.support.project import ROOT

PROGRAM = """
from pathlib import Path
from replay_server.memory import give_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

blocks = [bytes(1000) for _ in range(200_000)]
kept = blocks[::1000]  # so that the freed memory is between others
filled = resident()
del blocks
freed = resident()
give_back()
print(filled, freed, resident(), len(kept))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library, which has no malloc_trim")
def test_what_was_freed_goes_back_to_the_system() -> None:
    """Blocks of less than a page, as items are: with some of them kept in between, the library gives nothing back by itself."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT / "server", capture_output=True, text=True, check=True, timeout=60
    )
    filled, freed, left, _ = map(int, told.stdout.split())
    assert freed > filled - 20e6
    assert left < freed - 100e6


def test_nothing_is_done_where_the_library_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", asked.append)  # None, which has no malloc_trim
    give_back()
    assert asked == [None]
