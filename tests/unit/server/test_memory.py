"""How much memory the process has, and may have."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_server.memory import MemoryLimit, memory_limit, resident_bytes


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
