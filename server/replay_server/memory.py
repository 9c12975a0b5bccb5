"""Memory of this process: what it has, how much it may have, and what the C library keeps of what was freed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_FILES = ("memory.max", "memory.limit_in_bytes")


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes, 0 where they are not known, and what sets the limit: "container" (a control group), or "machine"."""

    bytes: int
    of: str


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell. Source: proc(5), statm, which counts pages."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * mmap.PAGESIZE


def memory_limit(groups: Path = _GROUPS, of_process: Path = Path("/proc/self/cgroup")) -> MemoryLimit:
    """The lowest limit of a control group that this process is in, or what the machine has.

    Source: cgroups(7), proc(5) of the kernel's manual, and its cgroup-v2 document (memory.max is a number or "max").
    """
    machine = _machine_bytes()
    limits = [limit for path in _limit_files(groups, of_process) if (limit := _number(path)) is not None]
    if limits and (not machine or min(limits) < machine):  # version 1 says a huge number for none
        return MemoryLimit(min(limits), "container")
    return MemoryLimit(machine, "machine")


def _limit_files(groups: Path, of_process: Path) -> Iterator[Path]:
    try:
        lines = of_process.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            root = groups if number == "0" else groups / "memory"
            inner = root / path.lstrip("/")
            for group in (inner, *inner.parents):
                yield from (group / name for name in _FILES)
                if group == root:
                    break


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _machine_bytes() -> int:
    try:
        words = Path("/proc/meminfo").read_text().split()
    except OSError:
        return 0
    return int(words[1]) * 1024 if words[:1] == ["MemTotal:"] else 0


def give_back() -> None:
    """Has the C library return freed memory to the system, which takes 0.1 s for a gigabyte.

    Reverb takes a good kilobyte per item while it writes a checkpoint. glibc keeps that, once for each thread that wrote one.
    Source: malloc_trim(3), which other C libraries lack: there, nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
