"""What a running server does otherwise than its config says, and how long a restart takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_server.config import HttpSection
from replay_server.differences import RunningServer, compare, restart_words, running_server
from replay_server.tables import MinSize, SampleToInsertRatio, TableConfig

from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import table_info
from rlds2reverb.transport.http import CheckpointPart, LimiterPart, NewestCheckpoint, ServerPart, Status, TablePart
from rlds2reverb.wire.messages import RateLimiter, ServerInfo
from tests.support.fake_reverb import FakeReverb
from tests.support.processes import dead_port

VECTOR = ArraySpec((2,), np.dtype(np.float32))
CONFIG = TableConfig("replay", {"observation": VECTOR}, max_size=10, rate_limiter=MinSize())


def running(config: TableConfig, items: int = 7) -> Any:
    bounds = config.rate_limiter.bounds()
    limiter = RateLimiter(bounds.samples_per_insert, bounds.min_diff, bounds.max_diff, bounds.min_size_to_sample, 0, 0)
    table = table_info(config.name, config.signature, config.max_size)
    return replace(table, sampler=config.sampler, remover=config.remover, rate_limiter=limiter, current_size=items)


def differences_of(config: TableConfig) -> list[str]:
    return compare([config], ServerInfo.of(7, [running(CONFIG)])).get("replay", [])


def test_a_server_that_does_as_its_config_says_has_no_differences() -> None:
    assert differences_of(CONFIG) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_size": 20}, "max_size 10, in the config 20"),
        ({"max_size": 5}, "max_size 10, in the config 5: a restart removes 2 items, as the remover chooses"),
        ({"sampler": "prioritized", "priority_exponent": 0.6}, "sampler uniform, in the config prioritized(0.6)"),
        ({"remover": "lifo"}, "remover fifo, in the config lifo"),
        ({"max_times_sampled": 3}, "max_times_sampled no limit, in the config 3"),
        (
            {"rate_limiter": MinSize(min_size=4)},
            "rate_limiter: samples wait for 1 item; in the config samples wait for 4 items",
        ),
        (
            {"rate_limiter": SampleToInsertRatio(samples_per_insert=4, error_buffer=8, min_size=1)},
            "in the config samples wait for 1 item, 4 samples per insert, difference from -4 to 12",
        ),
        ({"signature": {"observation": replace(VECTOR, dtype=np.dtype(np.float64))}}, "rlds2reverb migrate"),
    ],
)
def test_each_difference_is_said(change: dict[str, Any], words: str) -> None:
    (line,) = differences_of(replace(CONFIG, **change))
    assert words in line


def test_tables_that_come_and_go_are_said() -> None:
    info = ServerInfo.of(7, [running(CONFIG), running(replace(CONFIG, name="old"))])
    assert compare([CONFIG, replace(CONFIG, name="new")], info) == {
        "new": ["new: it is there after a restart, and begins empty"],
        "old": ["not in the config: a restart leaves 7 items out, and keeps the checkpoint that has them"],
    }


def status(ready: float | None, restored: int, items: int, writing: float | None) -> Status:
    last = None if writing is None else NewestCheckpoint(3, 0.0, 100, writing)
    table = TablePart("replay", items, 100, 0, 0, 0, LimiterPart(False, False))
    return Status(ServerPart("ready", "", 0.0, 0.0, 0, ready, restored), CheckpointPart(last, None, 0, "", ""), [table])


def test_the_seconds_of_a_restart_grow_with_the_items() -> None:
    assert restart_words(status(None, 0, 5, None)) == ""
    assert restart_words(status(2.0, 0, 50, None)) == "about 2.0 s (the last start took 2.0 s with 0 items)"
    words = "about 21.0 s (the last start took 2.0 s with 10 items, the last checkpoint 1.0 s)"
    assert restart_words(status(2.0, 10, 100, 1.0)) == words
    assert restart_words(status(2.0, 100, 10, 70.0)).startswith("about 1 min (")


def test_the_server_of_a_port_is_asked() -> None:
    nobody = HttpSection(port=0)
    with dead_port() as port:
        assert running_server(port, nobody, [CONFIG]) is None
    assert running_server(0, nobody, [CONFIG]) is None
    with FakeReverb("other") as server:
        port = int(server.address.rpartition(":")[2])
        found = running_server(port, nobody, [CONFIG])
    assert found is not None
    assert [*found.tables] == ["replay", "other"]
    assert found.sentence.endswith("differs from the config in replay, other: that changes with a restart")
    assert RunningServer("x:1").sentence == ""
