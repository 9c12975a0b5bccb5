"""A writer over connections that break, to servers that die, in processes that are killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reverb
from replay_server import TableConfig
from replay_server.tables import SampleToInsertRatio

from rlds2reverb import Client
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerRestarted, ServerUnreachable
from rlds2reverb.prepare.progress import Progress
from tests.support.faults import tools
from tests.support.faults.actor import writer
from tests.support.faults.proxy import DOWN, UP, Proxy
from tests.support.forks import Embedded, Forks
from tests.support.learner.loops import write
from tests.support.processes import free_port, wait_until
from tests.support.raising import error_of

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(180)]

EPISODES = tools.make_episodes(count=6, steps=41)
ITEMS = tools.items_of(EPISODES)
ENDS = {UP: 60_000, DOWN: 3_000}
"""Less than a whole loop carries."""


@pytest.fixture
def proxy(server: Embedded, client: Client) -> Iterator[Proxy]:
    """A proxy in front of the shared server, whose tables are empty."""
    with Proxy(server.port) as running:
        yield running


@pytest.fixture(scope="module")
def mortal(forks: Forks) -> Iterator[Embedded]:
    """A server that tests may kill; on a port that it keeps."""
    tables = [TableConfig("one", sampler="fifo", max_times_sampled=1)]
    with forks.embedded(tables, port=free_port()) as server:
        yield server


def assert_stored_once(server: Embedded, expected: list[tools.Content]) -> None:
    taken = tools.take_keys_and_items(server.address, "one")
    assert len({key for key, _ in taken}) == len(taken)
    assert [content for _, content in taken] == expected


@pytest.mark.parametrize("direction", [UP, DOWN])
@pytest.mark.parametrize("seed", range(4))
def test_cut_connections_lose_nothing_and_double_nothing(
    server: Embedded, proxy: Proxy, direction: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    proxy.cut_after(direction, *map(int, rng.integers(1, ENDS[direction] // 3, 3)))
    with writer(proxy.address) as to:
        for episode in EPISODES:
            write(to, episode)
    assert_stored_once(server, ITEMS)
    assert to.report().reconnects >= 1


def test_a_server_that_is_restarted_is_told_once_and_another_writer_goes_on(mortal: Embedded) -> None:
    with writer(mortal.address, name="actor") as to:
        write(to, EPISODES[0])
        to.flush()
        mortal.stop()
        mortal.start()
        found = None
        while found is None:
            found = error_of(Rlds2ReverbError, lambda: write(to, EPISODES[1])) or error_of(Rlds2ReverbError, to.flush)
        assert isinstance(found, ServerRestarted)
        assert "a new writer" in str(found)
        with pytest.raises(ConfigError, match="it stopped earlier"):
            write(to, EPISODES[1])
    with writer(mortal.address, name="actor") as to:
        for episode in EPISODES:
            write(to, episode)
    assert_stored_once(mortal, ITEMS)


def test_a_server_that_is_gone_is_told_in_bounded_time(mortal: Embedded) -> None:
    deadlines = replace(tools.QUICK, call=0.5, reconnect=1.0)
    with writer(mortal.address, deadlines=deadlines) as to:
        write(to, EPISODES[0])
        to.flush()
        mortal.stop()
        found = None
        while found is None:
            found = error_of(Rlds2ReverbError, lambda: write(to, EPISODES[1])) or error_of(Rlds2ReverbError, to.flush)
        assert isinstance(found, ServerUnreachable)
        assert (to.report().episodes_pushed, to.report().stopped[:17]) == (1, "ServerUnreachable")
    mortal.start()


def test_the_same_steps_complete_what_a_killed_actor_left(
    forks: Forks, server: Embedded, client: Client, proxy: Proxy, tmp_path: Path
) -> None:
    expected = tools.items_of(tools.make_episodes(20, 41, 3))
    sizes = []
    for number, count in enumerate((40_000, 90_000)):
        proxy.hold_after(UP, count)
        folder = tmp_path / str(number)
        folder.mkdir()
        with forks.module(folder, "tests.support.faults.actor", proxy.address, "one", "actor-3", "20", "41") as actor:
            reached = proxy.fired.wait(120)
        assert reached, actor.errors
        proxy.cut()
        proxy.release()
        sizes.append(client.tables()["one"].current_size)
    assert 0 < sizes[0] < sizes[1] < len(expected)
    with writer(server.address, "one", name="actor-3") as to:
        for episode in tools.make_episodes(20, 41, 3):
            write(to, episode)
    assert to.report().items_new == len(expected) - sizes[1]
    assert_stored_once(server, expected)


def test_a_limiter_that_blocks_lets_the_loop_wait_until_somebody_samples(forks: Forks) -> None:
    ratio = SampleToInsertRatio(samples_per_insert=1.0, error_buffer=100.0)
    table = TableConfig("one", sampler="fifo", max_times_sampled=1, rate_limiter=ratio)
    told: list[Progress] = []
    ended = threading.Event()
    with forks.embedded([table]) as server, writer(server.address, most_waiting_bytes=1, on_progress=told.append) as to:

        def loop() -> None:
            for episode in EPISODES:
                write(to, episode)
            to.flush()
            ended.set()

        thread = threading.Thread(target=loop)
        thread.start()
        wait_until(lambda: any("inserting waits" in progress.waiting for progress in told))
        assert not ended.is_set()
        samples = reverb.Client(server.address).sample("one", len(ITEMS), emit_timesteps=False)
        taken = [tuple(np.asarray(column).tobytes() for column in sample.data) for sample in samples]
        thread.join(60)
        assert ended.is_set()
    assert taken == ITEMS
    assert {name for progress in told for name in progress.held_by} == {"one"}
