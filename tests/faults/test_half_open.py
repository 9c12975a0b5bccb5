"""Connections that are swallowed and stay open: the push finds out, goes on over another one, and has every item once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb import Client
from rlds2reverb.errors import ServerRestarted, ServerUnreachable, Stalled
from rlds2reverb.transport import grpc
from tests.support.fake_reverb import FakeReverb
from tests.support.faults import tools
from tests.support.faults.proxy import BOTH, DOWN, UP, Proxy
from tests.support.forks import Embedded

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(120)]

EPISODES = tools.make_episodes(count=6, steps=41)
"""240 two-step items; pushed to one table, about 68 kB go up and 4.3 kB come down."""

ITEMS = tools.items_of(EPISODES)

WATCHFUL = replace(tools.QUICK, call=5.0, notice=0.05, silence=0.2)
"""Takes a silent stream for dead soon."""


@pytest.fixture(autouse=True)
def quick_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc, "_DOUBT_SECONDS", 0.1)


@pytest.fixture
def proxy(server: Embedded, client: Client) -> Iterator[Proxy]:
    """A proxy in front of the shared server, whose tables are empty."""
    with Proxy(server.port) as running:
        yield running


def assert_stored_once(server: Embedded, expected: list[tools.Content]) -> None:
    taken = tools.take_keys_and_items(server.address, "one")
    assert len({key for key, _ in taken}) == len(taken)
    assert [content for _, content in taken] == expected


@pytest.mark.parametrize("swallowed", [BOTH, (UP,), (DOWN,)], ids=["both", "up", "down"])
@pytest.mark.parametrize(("direction", "count"), [(UP, 5_000), (UP, 60_000), (UP, 66_500), (DOWN, 900), (DOWN, 3_000)])
def test_a_push_goes_on_over_another_connection(
    server: Embedded, proxy: Proxy, direction: str, count: int, swallowed: tuple[str, ...]
) -> None:
    proxy.swallow_after(direction, count, swallowed=swallowed)
    report = tools.push(proxy.address, EPISODES, "one", deadlines=WATCHFUL)
    assert proxy.swallowed == 1
    nothing_lost = direction == DOWN and swallowed == (UP,)  # all of it may be up by then, and the answers still come
    assert report.reconnects == 1 or (nothing_lost and report.reconnects == 0)
    assert report.items_confirmed == len(ITEMS)
    assert_stored_once(server, ITEMS)


def test_the_default_deadlines_find_it_long_before_a_push_gives_up(server: Embedded, proxy: Proxy) -> None:
    proxy.swallow_after(UP, 60_000)
    with rlds2reverb.connect(proxy.address) as client:
        report = client.push(EPISODES, table="one", stall_seconds=110)
        assert (proxy.swallowed, report.items_confirmed) == (1, len(ITEMS))
        assert client.server_info().tables["one"].current_size == len(ITEMS)
    assert_stored_once(server, ITEMS)


def test_a_push_gets_through_when_every_connection_is_swallowed(server: Embedded, proxy: Proxy) -> None:
    proxy.swallow_each(20_000)
    report = tools.push(proxy.address, EPISODES, "one", deadlines=WATCHFUL)
    assert report.items_confirmed == len(ITEMS)
    assert report.reconnects >= 3
    assert_stored_once(server, ITEMS)


def test_a_push_through_which_nothing_gets_ends_and_says_why(server: Embedded, proxy: Proxy) -> None:
    source = tools.EventfulList(EPISODES, {0: lambda: proxy.swallow_each(1), 1: lambda: proxy.swallow_after(UP, 1)})
    deadlines = replace(WATCHFUL, call=0.5, stall=2.0)
    with pytest.raises((Stalled, ServerUnreachable), match=r"no answer within 0\.5 s"):
        tools.push(proxy.address, source, "one", deadlines=deadlines)
    assert not [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-receive"]
    proxy.swallow_each(None)
    tools.push(proxy.address, EPISODES, "one")
    assert_stored_once(server, ITEMS)


def test_a_client_whose_connection_was_swallowed_while_it_was_idle_pushes(server: Embedded, proxy: Proxy) -> None:
    """As network address translation does with connections that carry nothing for a while."""
    with rlds2reverb.connect(proxy.address) as client:
        proxy.swallow_after(UP, 1)
        report = client.push(EPISODES, table="one")
        assert (proxy.swallowed, report.reconnects) == (1, 0)
        assert proxy.accepted >= 2  # more where an answer on a new one came too late
    assert_stored_once(server, ITEMS)


@pytest.mark.parametrize("seed", range(12))
def test_cuts_and_half_open_connections_lose_nothing_and_double_nothing(
    server: Embedded, proxy: Proxy, seed: int
) -> None:
    source = tools.EventfulList(EPISODES, {0: lambda: arm(proxy, np.random.default_rng(seed))})
    report = tools.push(proxy.address, source, "one", deadlines=WATCHFUL)
    assert report.items_confirmed == len(ITEMS)
    assert proxy.cuts + proxy.swallowed > 0
    assert_stored_once(server, ITEMS)


def arm(proxy: Proxy, rng: np.random.Generator) -> None:
    """Some faults, one after the other, each after a number of bytes."""
    for _ in range(rng.integers(1, 5)):
        direction = UP if rng.integers(3) else DOWN
        count = int(rng.integers(1, 15_000 if direction == UP else 700))
        if rng.integers(2):
            proxy.cut_after(direction, count)
        else:
            proxy.swallow_after(direction, count, swallowed=(BOTH, (UP,), (DOWN,))[rng.integers(3)])


# What only a server that does as it is told shows.


def test_a_limiter_that_blocks_brings_no_other_connections() -> None:
    with FakeReverb("one") as fake, Proxy(fake.port) as proxy:
        fake.hold(30)
        fake.limiters["one"] = {"max_diff": 0.0, "min_size_to_sample": 0}
        told: list[str] = []

        def listen(progress: Any) -> None:
            told.append(progress.waiting)
            if len(told) == 30:
                fake.release()

        report = tools.push(proxy.address, EPISODES, "one", deadlines=WATCHFUL, on_progress=listen)
        assert (report.reconnects, proxy.accepted, len(fake.streams)) == (0, 1, 1)
        assert sum("inserting waits for" in text for text in told) > 20


def test_a_half_open_connection_behind_a_limiter_is_found_when_the_limiter_lets_go() -> None:
    with FakeReverb("one") as fake, Proxy(fake.port) as proxy:
        fake.hold(30)
        fake.limiters["one"] = {"max_diff": 0.0, "min_size_to_sample": 0}
        told: list[str] = []

        def listen(progress: Any) -> None:
            told.append(progress.waiting)
            if progress.waiting and not proxy.swallowed:
                proxy.swallow_after(UP, 1)
            if len(told) == 40:
                fake.limiters.clear()
                fake.release()

        report = tools.push(proxy.address, EPISODES, "one", deadlines=WATCHFUL, on_progress=listen)
        assert (report.reconnects, report.items_confirmed) == (1, len(ITEMS))
        assert proxy.accepted == 2  # the first, and the one of the questions, which the stream is taken up on
        assert len(fake.stored["one"]) == len(ITEMS)


def test_a_server_that_restarts_behind_a_half_open_connection_is_noticed() -> None:
    with FakeReverb("one") as fake, Proxy(fake.port) as proxy:

        def restart() -> None:
            fake.happens(lambda fake: len(fake.stored["one"]) > 30)
            proxy.swallow_after(UP, 1)
            fake.restart()

        source = tools.EventfulList(EPISODES, {4: restart})
        with pytest.raises(ServerRestarted, match="another server process answers than before"):
            tools.push(proxy.address, source, "one", deadlines=WATCHFUL)
        assert not fake.stored["one"]
