"""One of several real servers is killed in mid-push: what is said, what the others have, and what a later push fills."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay_server import TableConfig

import rlds2reverb
from rlds2reverb.errors import ServerUnreachable
from rlds2reverb.push.keys import Placement
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import Tuning, plan_push
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push
from rlds2reverb.transport.grpc import GrpcTransport
from tests.support.faults import tools
from tests.support.forks import Embedded, Forks
from tests.support.processes import free_port, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(240)]

EPISODES = tools.make_episodes(count=24, steps=31, seed=11)
ITEMS = tools.items_of(EPISODES)
HALF = 12
BOUND_SECONDS = 60.0
"""Of a push during which a server is killed; deadlines are far below."""


@pytest.fixture
def three(forks: Forks, tmp_path: Path) -> Iterator[list[Embedded]]:
    """Servers with checkpoints of their own, on ports that they keep."""
    tables = [TableConfig("one", sampler="fifo", max_times_sampled=1)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(forks.embedded(tables, port=free_port(), checkpoint_dir=tmp_path / str(number)))
            for number in range(3)
        ]


def push(servers: list[Embedded], source: object, allow_missing: bool = False, **options: Any) -> PushReport:
    """A push in small requests, which gives a server up after a second."""
    tuning = Tuning(deadlines=replace(tools.QUICK, call=1.0, reconnect=1.0), **tools.SMALL)
    transports = {server.address: GrpcTransport(server.address, call_seconds=1.0) for server in servers}
    try:
        infos = {address: transport.server_info() for address, transport in transports.items()}
        names = {address: address for address in transports}
        plan = plan_push(source, PushOptions("one", **options), lambda: infos, names, allow_missing, tuning)
        return Push(transports, plan).run()
    finally:
        for transport in transports.values():
            transport.close()


def kill_after_half(victim: Embedded) -> tools.EventfulList:
    """The episodes; before the second half the victim, which has some of the first, is killed."""

    def kill() -> None:
        wait_until(lambda: size(victim) > 0)
        victim.stop()  # by SIGKILL

    return tools.EventfulList(EPISODES, {HALF: kill})


def busiest(servers: list[Embedded]) -> Embedded:
    """The server that gets the most in both halves: names are fixed, and ports are not."""
    placing = Placement([server.address for server in servers])
    placed = [placing.of(episode.id) for episode in EPISODES]
    return max(servers, key=lambda one: min(placed[:HALF].count(one.address), placed[HALF:].count(one.address)))


def size(server: Embedded) -> int:
    with rlds2reverb.connect(server.address) as client:
        return client.server_info().tables["one"].current_size


def assert_stored_once(servers: list[Embedded]) -> None:
    taken = [item for server in servers for item in tools.take_keys_and_items(server.address, "one")]
    assert len({key for key, _ in taken}) == len(taken)
    assert Counter(content for _, content in taken) == Counter(ITEMS)


def test_the_push_stops_says_what_is_stored_where_and_the_next_one_fills(three: list[Embedded], tmp_path: Path) -> None:
    victim, ledger, began = busiest(three), tmp_path / "ledger.db", time.monotonic()
    with pytest.raises(ServerUnreachable, match=victim.address) as caught:
        push(three, kill_after_half(victim), ledger=ledger)
    assert time.monotonic() - began < BOUND_SECONDS
    report = caught.value.report
    assert report is not None
    others = [server for server in three if server is not victim]
    for server in others:
        assert report.servers[server.address].episodes_pushed == report.servers[server.address].episodes_read
        assert size(server) == report.servers[server.address].items_confirmed
    victim.start()  # empty: it had no checkpoint
    later = push(three, EPISODES, ledger=ledger)
    assert later.episodes_resumed == sum(report.servers[other.address].episodes_pushed for other in others)
    assert later.servers[victim.address].items_new == later.servers[victim.address].items_confirmed > 0
    assert_stored_once(three)


def test_the_others_go_on_where_that_is_allowed_and_a_checkpoint_fills_in(
    three: list[Embedded], tmp_path: Path
) -> None:
    victim, ledger, began = busiest(three), tmp_path / "ledger.db", time.monotonic()
    push(three, EPISODES[:6], ledger=ledger)
    with rlds2reverb.connect(victim.address) as client:
        client.checkpoint()
        kept = client.tables()["one"].current_size
    report = push(three, kill_after_half(victim), allow_missing=True, ledger=ledger)
    assert time.monotonic() - began < BOUND_SECONDS
    lost = report.servers[victim.address]
    assert lost.stopped.startswith("ServerUnreachable")
    assert lost.episodes_left_out + lost.episodes_unconfirmed > 0
    assert report.episodes_pushed + report.episodes_resumed == len(EPISODES) - (
        lost.episodes_left_out + lost.episodes_unconfirmed
    )
    victim.start()
    assert size(victim) == kept  # what it had at the checkpoint
    later = push(three, EPISODES, ledger=ledger)
    assert later.servers[victim.address].items_new == later.servers[victim.address].items_confirmed - kept
    assert all(later.servers[server.address].items_confirmed == 0 for server in three if server is not victim)
    assert_stored_once(three)


def test_without_a_ledger_the_same_push_adds_nothing(three: list[Embedded]) -> None:
    first = push(three, EPISODES)
    again = push(three, EPISODES)
    assert (first.items_new, again.items_new) == (len(ITEMS), 0)
    assert again.items_confirmed == len(ITEMS)
    assert_stored_once(three)
