"""How many streams a sampler uses: what was asked for, bounded by the processors of the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlds2reverb.client import Client
from rlds2reverb.learner import options
from rlds2reverb.learner.options import SampleOptions, processors
from rlds2reverb.testing import MemoryServer, MemoryTransport
from tests.unit.learner.tables import fill, keys_of, once, our_threads


@pytest.mark.parametrize(
    ("count", "streams", "used"),
    [(1, 1, 1), (1, 4, 1), (2, 4, 2), (3, 4, 3), (4, 4, 4), (64, 4, 4), (64, 1, 1)],
)
def test_no_more_than_processors(monkeypatch: pytest.MonkeyPatch, count: int, streams: int, used: int) -> None:
    monkeypatch.setattr(options, "processors", lambda: count)
    assert SampleOptions(streams=streams).streams_used == used


def test_a_sampler_has_no_threads_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(count: int) -> int:
        monkeypatch.setattr(options, "processors", lambda: count)
        server = MemoryServer(once())
        fill(server, range(100))
        with Client(MemoryTransport(server)).sample("replay", 10, streams=4, prefetch=1, samples=100) as sampler:
            first = sampler.next_batch()
            assert first is not None
            running = len(our_threads())
            assert len(set(keys_of([first, *sampler]))) == 100
        return running

    assert threads(1) < threads(8)


@pytest.mark.parametrize(
    ("limit", "count"),
    [(None, 8), ("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), ("nonsense", 8)],
)
def test_processors_are_those_of_the_affinity_and_of_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(options, "_CPU_LIMIT", tmp_path / "cpu.max")
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert processors() == count
