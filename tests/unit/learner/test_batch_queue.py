"""Samples of several servers as if they were one: every item is as likely as in one table, also when servers come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Batch
from rlds2reverb.errors import ConfigError, ServerUnreachable, Stalled, TransportError
from rlds2reverb.testing import MemoryServer
from rlds2reverb.testing.streams import SamplePlan
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import Reason
from tests.support.learner.reading import next_of, source_of
from tests.support.servers.memory import filled, group_of, priorities, server_of, table


def test_every_item_is_as_likely_as_in_one_table() -> None:
    """12,800 samples of 64 items on servers of 8 and 56; chi-squared of 63 degrees of freedom is under 125 except once in 100,000."""
    with group_of(server_of(*range(8)), server_of(*range(8, 64)), server_of()) as group:
        counts: Counter[int] = Counter()
        with group.sample("replay", 640, samples=12_800) as sampler:
            for data, info in sampler:
                counts.update(info.key.tolist())
                np.testing.assert_array_equal(data["x"], info.key.astype(np.int64))
                np.testing.assert_array_equal(source_of(Batch(data, info)), (info.key >= 8).astype(int))
                np.testing.assert_allclose(info.probability, 1 / 64)
                assert (info.table_size == 64).all()
        assert sum(counts.values()) == 12_800
        assert sum((counts[key] - 200) ** 2 / 200 for key in range(64)) < 125


def test_probabilities_and_weights_are_of_all_servers_together() -> None:
    prioritized = "prioritized(1.0)"
    one = server_of(sampler=prioritized)
    filled(one, 1, priority=1.0)
    filled(one, 2, priority=3.0)
    two = filled(MemoryServer(table(sampler=prioritized)), 11, 12, 13, 14, 15, 16, priority=2.0)
    expected = {1: 1 / 4 * 2 / 8, 2: 3 / 4 * 2 / 8, **dict.fromkeys(range(11, 17), 1 / 8)}
    with group_of(one, two) as group, group.sample("replay", 64, weights="unscaled", beta=1.0) as sampler:
        batch = next(iter(sampler))
    assert batch.info.weight is not None
    for key, probability, weight in zip(
        batch.info.key.tolist(), batch.info.probability, batch.info.weight, strict=True
    ):
        assert probability == pytest.approx(expected[key])
        assert weight == pytest.approx(1 / (8 * expected[key]))


def test_sizes_are_followed() -> None:
    one, two = server_of(*range(10)), server_of()
    with group_of(one, two, ask_seconds=1e-9) as group, group.sample("replay", 32, prefetch=1) as sampler:
        assert set(source_of(next_of(sampler))) == {0}
        filled(two, *range(100, 1090))
        sampler.next_batch()
        batch = next_of(sampler)
        assert source_of(batch).mean() > 0.7
        assert (batch.info.table_size == 1000).all()


def test_all_empty_it_waits_for_whoever_is_filled_first() -> None:
    one, two = server_of(), server_of()
    with group_of(one, two) as group, group.sample("replay", 4, timeout_seconds=0.3) as sampler:
        with pytest.raises(Stalled, match=r'table "replay" of all servers: no batch came for 0.3 s'):
            sampler.next_batch()
        filled(two, 5)
        batch = next_of(sampler)
        assert batch.info.key.tolist() == [5] * 4


def test_a_wait_for_tables_that_are_all_empty_is_told_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadlines, "notice", 0.01)
    one, two = server_of(), server_of()
    told: list[Reason] = []

    def fill_when_told(reason: Reason) -> None:
        if not told:
            filled(two, 5)
        told.append(reason)

    with group_of(one, two) as group, group.sample("replay", 4, on_wait=fill_when_told) as sampler:
        sampler.next_batch()
    assert (told[0], told[-1]) == (Reason("the table is empty on all servers"), Reason())


def test_a_queue_that_runs_empty_leaves_the_rest_to_the_others() -> None:
    queue = replace(table(sampler="fifo"), max_times_sampled=1)
    one, two = filled(MemoryServer(queue), *range(5)), filled(MemoryServer(queue), *range(100, 200))
    with group_of(one, two) as group, group.sample("replay", 20, end_after_seconds=2.0) as sampler:
        keys = [int(key) for batch in sampler for key in batch.info.key]
    assert sorted(keys) == [*range(5), *range(100, 200)]


def test_it_does_not_end_at_an_empty_queue_while_another_has_items() -> None:
    queue = replace(table(sampler="fifo"), max_times_sampled=1)
    one, two = MemoryServer(queue), filled(MemoryServer(queue), *range(100, 110))
    with group_of(one, two) as group, group.sample("replay", 10, end_after_seconds=1.0) as sampler:
        assert sorted(next_of(sampler).info.key.tolist()) == [*range(100, 110)]
        filled(one, *range(10))
        assert sorted(next_of(sampler).info.key.tolist()) == [*range(10)]


def test_draining_hands_out_all_that_was_asked_for() -> None:
    queue = replace(table(sampler="fifo"), max_times_sampled=1)
    servers = [filled(MemoryServer(queue), *range(first, first + 60)) for first in (0, 100)]
    with group_of(*servers) as group:
        sampler = group.sample("replay", 10)
        keys = [int(key) for _ in range(3) for key in next_of(sampler).info.key]
        for batch in sampler.drain(0.2):
            keys += batch.info.key.tolist()
            assert ((batch.info.probability > 0) & (batch.info.probability <= 1)).all()
        assert sampler.next_batch() is None
    left = [int(key) for server in servers for key in server.tables["replay"].items]
    assert sorted(keys + left) == [*range(60), *range(100, 160)]


def test_samples_and_the_last_batch() -> None:
    with group_of(server_of(*range(9)), server_of(*range(20, 29))) as group:
        assert [batch.size for batch in group.sample("replay", 8, samples=20)] == [8, 8, 4]
        assert [batch.size for batch in group.sample("replay", 8, samples=20, drop_last=True)] == [8, 8]
        assert group.sample_one("replay").data["x"].shape == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"epochs": 1}, "epochs: each server"), ({"weights": "table_min", "beta": 1.0, "min_priority": 1}, "table_min")],
)
def test_what_is_of_one_server_only_is_refused(options: dict[str, Any], said: str) -> None:
    with group_of(server_of(1), server_of(2)) as group, pytest.raises(ConfigError, match=said):
        group.sample("replay", **options)


# Missing servers.


def test_a_server_that_is_away_is_an_error_that_names_it() -> None:
    one, two = server_of(1), server_of(2)
    one.checkpoint_path = "/a"
    with group_of(one, two) as group:
        two.is_away = True
        calls: list[Callable[[], object]] = [
            group.tables,
            lambda: group.sample("replay"),
            lambda: group.delete("replay", [1]),
            group.checkpoint,
        ]
        for call in calls:
            with pytest.raises(ServerUnreachable, match="b:8000"):
                call()


def test_allowed_to_be_missing_it_is_told_and_the_others_go_on(caplog: Any) -> None:
    one, two = server_of(1), server_of(2, 3, 4)
    two.is_away = True
    with group_of(one, two, allow_missing=True, ask_seconds=1e-9) as group:
        assert group.tables()["replay"].current_size == 1
        assert group.missing == ("b:8000",)
        assert [record.getMessage().split(":")[0] for record in caplog.records] == ["server b"]
        with group.sample("replay", 64, prefetch=1) as sampler:  # none misses a server by chance
            assert set(next_of(sampler).info.key) == {1}
            group.update_priorities("replay", [1, 2], 4.0)
            assert priorities(one) == {1: 4.0}
            two.is_away = False
            sampler.next_batch()
            batch = next_of(sampler)
        assert set(batch.info.key) <= {1, 2, 3, 4}
        assert set(batch.info.key) > {1}
        assert group.missing == ()
        one.is_away = two.is_away = True
        with pytest.raises(ServerUnreachable, match="no server of a:8000, b:8000 can be reached"):
            group.tables()


def go_away(server: MemoryServer) -> None:
    """Breaks all streams, and lets none begin again."""
    with server.changed:
        server.is_away = True
        server.sample_plans.extend(SamplePlan(samples=0, status="UNAVAILABLE") for _ in range(1000))
        server.break_streams()


def come_back(server: MemoryServer) -> None:
    with server.changed:
        server.is_away = False
        server.sample_plans.clear()


@pytest.mark.parametrize("allow_missing", [False, True])
def test_a_server_that_goes_away_while_it_is_sampled(allow_missing: bool) -> None:
    one, two = server_of(*range(50)), server_of(*range(100, 150))
    with group_of(one, two, allow_missing=allow_missing, ask_seconds=1e-9) as group:
        with group.sample("replay", 16, prefetch=1, reconnect_seconds=0.2) as sampler:
            for _ in range(4):
                sampler.next_batch()
            go_away(two)
            if not allow_missing:
                with pytest.raises(TransportError, match="b:8000"):
                    for _ in range(50):
                        sampler.next_batch()
                return
            batches = [next_of(sampler) for _ in range(12)]
            assert group.missing == ("b:8000",)
            assert batches[-1] is not None
            assert set(source_of(batches[-1])) == {0}
            assert (batches[-1].info.table_size == 50).all()
            come_back(two)
            again = [next_of(sampler) for _ in range(12)][-1]
            assert set(source_of(again)) == {0, 1}
            assert group.missing == ()
