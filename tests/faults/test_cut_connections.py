"""A push through a connection that is cut at many places: every item once, with its values, in bounded time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb import Client
from rlds2reverb.errors import Rlds2ReverbError, ServerUnreachable, TransportError
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode
from tests.support.faults import tools
from tests.support.faults.proxy import DOWN, UP, Proxy
from tests.support.forks import Embedded

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(120)]

EPISODES = tools.make_episodes(count=6, steps=41)
"""240 two-step items; pushed to one table, about 68 kB go up and 4.3 kB come down."""

ITEMS = tools.items_of(EPISODES)

STREAM_IS_OPEN = {UP: 2000, DOWN: 800}
"""What a connection may carry before the insert stream is open on both sides; a later cut breaks an open stream."""

ENDS = {UP: 60_000, DOWN: 3_000}
"""Less than any whole push carries, so that a cut before it always comes."""


@pytest.fixture
def proxy(server: Embedded, client: Client) -> Iterator[Proxy]:
    """A proxy in front of the shared server, whose tables are empty."""
    with Proxy(server.port) as running:
        yield running


def assert_stored_once(server: Embedded, table: str, expected: list[tools.Content]) -> None:
    taken = tools.take_keys_and_items(server.address, table)
    assert len({key for key, _ in taken}) == len(taken)
    assert [content for _, content in taken] == expected


def places(direction: str, cuts: int, cases: int) -> list[tuple[str, tuple[int, ...]]]:
    """`cases` lists of byte counts, each between two cuts, that add up to less than a push."""
    rng = np.random.default_rng([cuts, cases, len(direction)])
    most = ENDS[direction] // cuts
    return [(direction, tuple(int(n) for n in rng.integers(1, most, cuts))) for _ in range(cases)]


def test_an_uncut_push_reports_no_reconnect(server: Embedded, proxy: Proxy) -> None:
    report = tools.push(proxy.address, EPISODES, "one")
    assert (report.reconnects, report.items_confirmed) == (0, len(ITEMS))
    assert all(proxy.forwarded[direction] > ENDS[direction] for direction in (UP, DOWN))
    assert_stored_once(server, "one", ITEMS)


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize(
    ("direction", "counts"),
    [
        *[(UP, (count,)) for count in (1, 24, 100, 400, 1000)],
        *[(DOWN, (count,)) for count in (1, 20, 100, 400)],
        *places(UP, 1, 12),
        *places(DOWN, 1, 10),
        *places(UP, 4, 6),
        *places(DOWN, 4, 6),
        *places(UP, 12, 2),
    ],
)
def test_cuts_lose_nothing_and_double_nothing(
    server: Embedded, proxy: Proxy, direction: str, counts: tuple[int, ...], reset: bool
) -> None:
    proxy.reset = reset
    proxy.cut_after(direction, *counts)
    report = tools.push(proxy.address, EPISODES, "one")
    assert proxy.cuts == len(counts)
    assert report.items_confirmed == len(ITEMS)
    assert sum(count > STREAM_IS_OPEN[direction] for count in counts) <= report.reconnects <= proxy.cuts
    assert_stored_once(server, "one", ITEMS)


@pytest.mark.parametrize(("direction", "counts"), [*places(UP, 3, 6), *places(DOWN, 3, 6)])
def test_two_tables_hold_every_item_once(
    server: Embedded, proxy: Proxy, direction: str, counts: tuple[int, ...]
) -> None:
    proxy.cut_after(direction, *counts)
    report = tools.push(proxy.address, EPISODES, "one", "two")
    assert (proxy.cuts, report.items_confirmed) == (3, 2 * len(ITEMS))
    assert_stored_once(server, "one", ITEMS)
    assert_stored_once(server, "two", ITEMS)


@pytest.mark.parametrize("length", [20, None], ids=["windows of 20 rows", "whole episodes"])
@pytest.mark.parametrize("counts", [counts for _, counts in places(UP, 4, 6)])
def test_items_whose_chunks_went_before_the_cut_are_whole(
    server: Embedded, proxy: Proxy, counts: tuple[int, ...], length: int | None
) -> None:
    """Chunks of two rows: an item refers to many, sent in earlier requests or in several messages."""
    episodes = tools.make_episodes(count=8, steps=100, seed=1)
    expected = tools.items_of(episodes, length)
    proxy.cut_after(UP, *counts)
    view: View = WholeEpisode()
    if length is not None:
        view = SequenceView(length)
    report = tools.push(proxy.address, episodes, "one", view=view, chunk_length=2)
    assert (proxy.cuts, report.items_confirmed) == (4, len(expected))
    assert_stored_once(server, "one", expected)


def test_a_server_that_is_away_for_a_while_is_waited_for(server: Embedded, proxy: Proxy) -> None:
    told: list[str] = []

    def come_back(progress: Progress) -> None:
        if progress.waiting and not told:
            proxy.accept()
            told.append(progress.waiting)

    source = tools.EventfulList(EPISODES, {4: proxy.refuse})
    deadlines = replace(tools.QUICK, call=0.5, notice=0.1)
    report = tools.push(proxy.address, source, "one", deadlines=deadlines, on_progress=come_back)
    assert "no answer" in told[0]
    assert report.reconnects == 1
    assert_stored_once(server, "one", ITEMS)


def test_a_slow_connection_is_no_fault(server: Embedded, proxy: Proxy) -> None:
    proxy.delay(0.005)
    proxy.throttle(500_000)
    report = tools.push(proxy.address, EPISODES, "one")
    assert report.reconnects == 0
    assert_stored_once(server, "one", ITEMS)


def test_a_connection_that_opens_slowly_opens(proxy: Proxy) -> None:
    proxy.delay(1.2)
    with rlds2reverb.connect(proxy.address, timeout_seconds=60.0):
        assert proxy.accepted <= 3  # others while the first is silent, ever less often


def test_connecting_outlasts_a_cut(proxy: Proxy) -> None:
    proxy.cut_after(DOWN, 50, 1)
    with rlds2reverb.connect(proxy.address) as client:
        assert "one" in client.server_info().tables
    assert proxy.cuts == 2


def test_a_connection_that_is_always_cut_ends_the_push(server: Embedded, proxy: Proxy) -> None:
    source = tools.EventfulList(EPISODES, {1: lambda: proxy.cut_after(UP, *[5] * 100_000)})
    deadlines = replace(tools.QUICK, call=0.5, reconnect=1.0)
    with pytest.raises(ServerUnreachable, match=r"no answer within 0\.5 s"):
        tools.push(proxy.address, source, "one", deadlines=deadlines)
    proxy.forget_triggers()
    tools.push(proxy.address, EPISODES, "one")
    assert_stored_once(server, "one", ITEMS)


def test_closing_the_client_ends_its_push_with_an_error(server: Embedded, client: Client) -> None:
    source = tools.EventfulList(EPISODES, {3: client.close})
    with pytest.raises(TransportError, match="closed"):
        client.push(source, table="one")


def test_no_thread_is_left_after_a_broken_push(proxy: Proxy) -> None:
    source = tools.EventfulList(EPISODES, {1: proxy.refuse})
    deadlines = replace(tools.QUICK, call=0.2, reconnect=0.2)
    with pytest.raises(Rlds2ReverbError):
        tools.push(proxy.address, source, "one", deadlines=deadlines)
    assert not [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-receive"]
