"""How much memory the process has, and may have."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from replay_server.memory import MemoryLimit, give_back, memory_limit, resident_bytes

from tests.support.project import ROOT


def test_this_process_has_some_and_the_machine_has_more() -> None:
    assert 1 << 20 < resident_bytes() < memory_limit().bytes


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/", {"memory.max": "123456\n"}, 123456),
        ("0::/a/b", {"a/b/memory.max": "max\n", "a/memory.max": "5000\n", "memory.max": "9000\n"}, 5000),
        ("12:pids:/x\n7:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": "777"}, 777),
        ("0::/../outside", {"memory.max": "4321"}, 4321),
    ],
)
def test_the_lowest_limit_of_the_groups_holds(tmp_path: Path, line: str, files: dict[str, str], limit: int) -> None:
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "cgroup").write_text(f"{line}\n")
    assert memory_limit(tmp_path / "groups", tmp_path / "cgroup") == MemoryLimit(limit, "container")


@pytest.mark.parametrize("text", ["max", "", "9223372036854771712", "-1", "many"])
def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory.max").write_text(text)
    (tmp_path / "cgroup").write_text("0::/\n")
    found = memory_limit(tmp_path, tmp_path / "cgroup")
    assert found == memory_limit(tmp_path / "nothing", tmp_path / "nowhere")
    assert found.of == "machine"


# Memory that was freed goes back to the system.

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
