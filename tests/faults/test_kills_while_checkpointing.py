"""SIGKILL while checkpoints are written: every start succeeds, from a valid checkpoint, with all of its items."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from replay_server.store import Checkpoint, read_checkpoint

from tests.support.forks import Forks
from tests.support.processes import wait_until
from tests.support.profiles import drawn

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(600)]

KILLS = drawn(40, 200)
LONGEST_SECONDS = 0.3
"""Until a kill; a checkpoint of these tables takes some 0.05 to 0.2 s."""


def newest(folder: Path) -> Checkpoint | None:
    """The newest finished checkpoint, which must be valid."""
    numbered = sorted(path for path in (folder / "generations").glob("*") if path.name.isdecimal())
    return read_checkpoint(numbered[-1]) if numbered else None


def items_of_newest(folder: Path) -> int:
    found = newest(folder)
    return 0 if found is None else found.manifest.items["one"]


def unfinished(folder: Path) -> list[Path]:
    working = [*(folder / "reverb").glob("*"), *(folder / "taken").glob("*")]
    return [*working, *(folder / "generations").glob("*.partial")]


def test_kills_while_checkpointing_cost_no_start_and_no_item_of_a_checkpoint(forks: Forks, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    config = {
        "tables": [{"name": "one", "max_size": 2000}, {"name": "two"}],
        "checkpoints": {"folder": str(folder), "every_seconds": 0.001, "keep": 2},
    }
    rng = np.random.default_rng(20)
    in_the_middle, numbers = 0, [0]
    for _ in range(KILLS):
        expected = newest(folder)
        service = forks.start(config, insert_into="one")
        before = 0 if expected is None else expected.number
        assert (service.restored or 0) in (before, before + 1)  # one more: Reverb had finished it when the kill came
        if expected is not None and service.restored == before:
            assert service.manifest == expected.manifest.items
        assert service.sizes == (service.manifest or {"one": 0, "two": 0})
        numbers.append(service.restored or 0)
        time.sleep(rng.uniform(0, LONGEST_SECONDS))
        assert forks.end(service, signal.SIGKILL) == -signal.SIGKILL
        in_the_middle += bool(unfinished(folder))
    assert numbers == sorted(numbers)
    assert numbers[-1] > KILLS / 4  # checkpoints were written
    assert in_the_middle > KILLS / 4  # and kills met them half done
    assert list((folder / "set_aside").iterdir()) == []
    last = newest(folder)
    assert last is not None
    assert last.manifest.items["one"] > 0


def test_what_a_killed_server_had_checkpointed_is_served_and_saved_again(forks: Forks, tmp_path: Path) -> None:
    config = {"tables": [{"name": "one"}], "checkpoints": {"folder": str(tmp_path / "c"), "every_seconds": 0.001}}
    service = forks.start(config, insert_into="one")
    wait_until(lambda: items_of_newest(tmp_path / "c") > 0)
    items = items_of_newest(tmp_path / "c")
    forks.end(service, signal.SIGKILL)
    quiet = {**config, "checkpoints": {"folder": str(tmp_path / "c"), "every_seconds": None}}
    service = forks.start(quiet)
    assert service.sizes["one"] >= items
    assert forks.end(service, signal.SIGTERM) == 0
    again = forks.start(quiet)
    assert again.sizes == service.sizes
    assert forks.end(again, signal.SIGINT) == 0
