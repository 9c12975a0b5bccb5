"""Samplers on a real server: every item once, and what is lost is told."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2reverb import Client
from rlds2reverb.errors import ConfigError, Stalled
from tests.support.faults import tools
from tests.support.faults.sampling import contents
from tests.support.forks import Embedded
from tests.support.processes import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

EPISODES = tools.make_episodes(count=6, steps=41, seed=31)
ITEMS = tools.items_of(EPISODES)

real_server = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refill(client: Client, server: Embedded, table: str = "one") -> None:
    """Just the items, in their order."""
    client.reset(table)
    tools.push(server.address, EPISODES, table)


def left(client: Client, table: str = "one") -> int:
    return client.tables()[table].current_size


@pytest.mark.parametrize("batch_size", [1, 7, 240, 1000])
def test_a_queue_is_read_in_its_order_with_its_values(client: Client, server: Embedded, batch_size: int) -> None:
    refill(client, server)
    with client.sample("one", batch_size, samples=len(ITEMS)) as sampler:
        batches = list(sampler)
    assert len(batches) == -(-len(ITEMS) // batch_size)
    assert [content for _, content in contents(batches)] == ITEMS
    assert (left(client), sampler.lost_at_most) == (0, 0)


@real_server
@given(
    read=st.integers(0, 6),
    batch_size=st.integers(1, 40),
    prefetch=st.integers(1, 4),
    streams=st.integers(1, 3),
)
def test_a_drained_sampler_has_lost_no_item(
    client: Client, server: Embedded, read: int, batch_size: int, prefetch: int, streams: int
) -> None:
    refill(client, server)
    sampler = client.sample("one", batch_size, prefetch=prefetch, streams=streams, end_after_seconds=0.3)
    read_first = contents(itertools.islice(sampler, read))
    drained = contents(sampler.drain(quiet_seconds=0.3))
    rest = tools.take_keys_and_items(server.address, "one")
    samples = [*read_first, *drained, *rest]
    assert len({key for key, _ in samples}) == len(samples) == len(ITEMS)
    assert sorted(content for _, content in samples) == sorted(ITEMS)
    if rest:
        assert sampler.lost_at_most == 0
        if streams == 1:
            assert [content for _, content in samples] == ITEMS


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_closed_sampler_tells_how_many_were_lost_at_most(client: Client, server: Embedded, prefetch: int) -> None:
    refill(client, server)
    with client.sample("one", 20, prefetch=prefetch) as sampler:
        came = next(sampler).size
        wait_until(lambda: left(client) == len(ITEMS) - 20 - 20 * prefetch)
    lost = len(ITEMS) - came - left(client)
    assert lost == sampler.lost_at_most == 20 * prefetch


def test_two_learners_share_a_queue(client: Client, server: Embedded) -> None:
    refill(client, server)
    with client.sample("one", 16, samples=120) as first, client.sample("one", 8, samples=120, streams=3) as second:
        samples = contents(itertools.chain(first, second))
    assert sorted(content for _, content in samples) == sorted(ITEMS)
    assert left(client) == 0


def test_the_end_of_a_queue_is_quiet_and_reading_goes_on_with_what_comes_later(
    client: Client, server: Embedded
) -> None:
    refill(client, server)
    with client.sample("one", 50, end_after_seconds=0.3) as sampler:
        assert [batch.size for batch in sampler] == [50, 50, 50, 50, 40]
        tools.push(server.address, tools.make_episodes(1, 31, seed=77), "one")
        assert [batch.size for batch in sampler] == [30]


def test_an_empty_table_is_an_error_that_says_what_it_waits_for(client: Client) -> None:
    with pytest.raises(Stalled, match=r'table "one": no batch within 0\.2 s .*sampling waits for 1 more insert'):
        client.sample_one("one", timeout_seconds=0.2)


def test_a_table_that_is_not_there_is_said_before_anything_is_asked_for(client: Client) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        client.sample("nowhere")


def test_priorities_deletion_and_emptying(client: Client, server: Embedded) -> None:
    refill(client, server, "keep")
    with client.sample("keep", 32) as sampler:
        keys = np.unique(next(sampler).info.key)
    client.update_priorities("keep", keys, 0.5)
    client.delete("keep", keys[:3].view(np.int64))
    assert left(client, "keep") == len(ITEMS) - 3
    client.update_priorities("keep", [], [])
    client.reset("keep")
    assert left(client, "keep") == 0
    calls = (
        lambda: client.update_priorities("nowhere", [1], [1.0]),
        lambda: client.delete("nowhere", [1]),
        lambda: client.reset("nowhere"),
    )
    for call in calls:
        with pytest.raises(ConfigError, match=r'the server has no table "nowhere"; it has .*keep'):
            call()
