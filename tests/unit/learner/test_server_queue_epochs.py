"""Epochs: every item as often as was asked for, then the end; and tables that cannot give them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.learner import server_queue
from rlds2reverb.learner.options import SampleOptions, count_owed_samples
from rlds2reverb.learner.server_queue import Drained
from rlds2reverb.testing import FREE_LIMITER, MemoryServer, table_info
from rlds2reverb.wire.messages import RateLimiter, TableInfo
from tests.support.learner.stored import connected, server_of


def table_of(count: int, times: int, **table: Any) -> MemoryServer:
    return server_of(None, [(np.array(number),) for number in range(count)], max_times_sampled=times, **table)


@pytest.mark.parametrize("sampler", ["fifo", "lifo", "uniform", "prioritized(1)", "max_heap", "min_heap"])
@pytest.mark.parametrize(("epochs", "streams"), [(1, 1), (3, 1), (3, 3)])
def test_every_item_comes_as_often_as_there_are_epochs(sampler: str, epochs: int, streams: int) -> None:
    server = table_of(23, epochs, sampler=sampler, priorities=[float(number) for number in range(23)])
    with connected(server) as client, client.sample("replay", 10, epochs=epochs, streams=streams) as sampler_of:
        batches = list(sampler_of)
        assert next(sampler_of, None) is None
    assert Counter(value for (data,), _ in batches for value in data.tolist()) == dict.fromkeys(range(23), epochs)
    assert not server.contents()


def test_fifo_is_in_the_order_of_insertion_and_uniform_is_shuffled() -> None:
    found = {}
    for sampler in ("fifo", "uniform"):
        with connected(table_of(50, 1, sampler=sampler)) as client:
            found[sampler] = [value for (data,), _ in client.sample("replay", 7, epochs=1) for value in data.tolist()]
    assert found["fifo"] == list(range(50))
    assert found["uniform"] != found["fifo"]
    assert sorted(found["uniform"]) == found["fifo"]


def test_two_learners_share_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither knows how many the other gets: both end when the table is empty."""
    monkeypatch.setattr(server_queue, "LOOK_SECONDS", 0.05)
    server = table_of(40, 1, sampler="fifo")
    with connected(server) as client:
        one, other = (client.sample("replay", 4, epochs=1) for _ in range(2))
        found = [next(sampler) for _ in range(2) for sampler in (one, other)]
        found += [*one, *other]
    assert Counter(value for (data,), _ in found for value in data.tolist()) == dict.fromkeys(range(40), 1)


def test_items_that_were_sampled_before_do_not_make_it_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_queue, "LOOK_SECONDS", 0.05)
    server = table_of(5, 2, sampler="fifo")
    for _ in range(3):
        server.sample()
    with connected(server) as client:
        sampler = client.sample("replay", 4, epochs=2)
        found = [value for (data,), _ in sampler for value in data.tolist()]
        assert found == [1, 2, 2, 3, 3, 4, 4]
        server.put("replay", 99, (np.array(99),))
        assert next(sampler, None) is None
    assert len(server.contents()) == 1, "nothing is left that asks for samples"


def test_a_table_that_is_not_empty_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something holds the samples back: that is no end, and timeout_seconds says so."""
    monkeypatch.setattr(server_queue, "LOOK_SECONDS", 0.05)
    server = table_of(20, 1, sampler="fifo")
    with connected(server) as client:
        sampler = client.sample("replay", 4, epochs=1, prefetch=1, timeout_seconds=0.5)
        with server.changed:
            table = server.tables["replay"]
            table._info = limited(table._info, min_size_to_sample=15)
        with pytest.raises(Stalled, match=r"no batch within 0.5 s"):
            list(sampler)


def limited(table: TableInfo, **limiter: Any) -> TableInfo:
    return replace(table, rate_limiter=replace(FREE_LIMITER, **limiter))


FULL = replace(table_info(sampler="fifo"), current_size=10, max_times_sampled=2)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (replace(FULL, max_times_sampled=0), "the table has no limit; expected max_times_sampled: 2"),
        (replace(FULL, max_times_sampled=3), "the table has max_times_sampled 3; expected max_times_sampled: 2"),
        (replace(FULL, current_size=0), "the table is empty"),
        (limited(FULL, min_size_to_sample=4), "so the last 3 would never come; expected min_size 1"),
        (limited(FULL, min_diff=0.0, inserts=10), "the rate limiter allows 10 more samples, of 20 that 10 items give"),
        (limited(FULL, min_diff=0.0, inserts=10, samples=10), "the rate limiter allows 0 more samples"),
    ],
)
def test_tables_that_cannot_give_epochs_are_refused(table: TableInfo, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        count_owed_samples(table, 2)


def test_a_queue_gives_one_epoch() -> None:
    queue = RateLimiter(1.0, 0.0, 10.0, 1, 12, 2)
    assert count_owed_samples(replace(FULL, max_times_sampled=1, rate_limiter=queue), 1) == 10


def test_drained_is_empty_twice_with_nothing_in_between() -> None:
    empty = replace(FULL, current_size=0)
    drained = Drained()
    looks = [(empty, 0), (FULL, 0), (empty, 5), (empty, 6), (empty, 6), (None, 6), (None, 7)]
    assert [drained.is_over(*look) for look in looks] == [False, False, False, False, True, True, False]


@pytest.mark.parametrize("options", [{"epochs": 0}, {"epochs": 1, "samples": 5}, {"epochs": True}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="epochs"):
        SampleOptions(**options)
