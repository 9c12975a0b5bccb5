"""Samplers on a real server behind connections that are cut, swallowed or slow, and on one that dies: no wrong batch, no hang."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from replay_server import TableConfig

from rlds2reverb import Client, cli
from rlds2reverb.errors import ServerRestarted, ServerUnreachable, Stalled
from rlds2reverb.transport import grpc
from tests.support.faults import tools
from tests.support.faults.proxy import BOTH, DOWN, UP, Proxy
from tests.support.faults.sampling import be_quick, contents, sampler_of
from tests.support.forks import Embedded, Forks
from tests.support.processes import free_port, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(120)]

EPISODES = tools.make_episodes(count=6, steps=41, seed=33)
ITEMS = tools.items_of(EPISODES)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(grpc, "_DOUBT_SECONDS", 0.1)
    be_quick(monkeypatch)
    yield
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("rlds2reverb-")])


@pytest.fixture
def proxy(server: Embedded, client: Client) -> Iterator[Proxy]:
    """A proxy in front of the shared server, whose tables hold the items."""
    for table in ("one", "keep"):
        tools.push(server.address, EPISODES, table)
    with Proxy(server.port) as running:
        yield running


@pytest.mark.parametrize("seed", range(8))
def test_cuts_change_no_batch(proxy: Proxy, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with sampler_of(proxy.address, "keep", 32, samples=2000, streams=1 + seed % 3) as sampler:
        next(sampler)
        proxy.cut_after(DOWN, *(int(count) for count in rng.integers(1, 40_000, 4)))
        sizes, samples = [], []
        for batch in sampler:
            sizes.append(batch.size)
            samples += contents([batch])
        assert sizes == [32] * 61 + [16]
        assert proxy.cuts > 0
        assert sampler.reconnects > 0
    values = set(ITEMS)
    assert all(content in values for _, content in samples)
    assert len({(key, content) for key, content in samples}) == len({key for key, _ in samples})


@pytest.mark.parametrize("seed", range(4))
def test_of_a_queue_behind_cuts_no_item_comes_twice_and_the_loss_is_bounded(
    client: Client, proxy: Proxy, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with sampler_of(proxy.address, "one", 20, end_after_seconds=1.0) as sampler:
        samples = contents([next(sampler)])
        proxy.cut_after(DOWN, *(int(count) for count in rng.integers(1, 20_000, 3)))
        samples += contents(sampler)
        samples += contents(sampler.drain(0.2))
        keys = [key for key, _ in samples]
        assert len(set(keys)) == len(keys)
        assert {content for _, content in samples} <= set(ITEMS)
        assert len(keys) + sampler.lost_at_most >= len(ITEMS)
    assert client.tables()["one"].current_size == 0


@pytest.mark.parametrize("swallowed", [BOTH, (UP,), (DOWN,)], ids=["both", "up", "down"])
@pytest.mark.parametrize("streams", [1, 3])
def test_a_half_open_connection_is_left_for_another_one(proxy: Proxy, streams: int, swallowed: tuple[str, ...]) -> None:
    with sampler_of(proxy.address, "keep", 32, samples=3000, streams=streams) as sampler:
        next(sampler)
        proxy.swallow_after(DOWN, 30_000, swallowed=swallowed)
        assert sum(batch.size for batch in sampler) == 3000 - 32
        assert proxy.swallowed == 1
        assert sampler.reconnects >= 1


def test_the_command_outlasts_a_half_open_connection(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", f"rlds2reverb sample --server {proxy.address} --table keep -n 300 --json".split())
    proxy.swallow_after(DOWN, 30_000)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert not ended.value.code, shown.err
    assert proxy.swallowed == 1
    assert len(shown.out.splitlines()) == 300


def test_closing_over_a_half_open_connection_takes_bounded_time(proxy: Proxy) -> None:
    with sampler_of(proxy.address, "keep", 32, streams=4) as sampler:
        next(sampler)
        proxy.swallow_after(DOWN, 1)
        for _ in range(3):
            next(sampler)
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-receive"])


def test_a_slow_connection_brings_every_item_once(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    be_quick(monkeypatch, silence_seconds=10.0)
    proxy.throttle(200_000)
    with sampler_of(proxy.address, "one", 50, samples=len(ITEMS)) as sampler:
        samples = contents(sampler)
        assert (sampler.reconnects, sampler.lost_at_most) == (0, 0)
    assert [content for _, content in samples] == ITEMS


def test_a_connection_that_is_slower_than_patience_brings_samples_in_the_end(proxy: Proxy) -> None:
    proxy.throttle(200_000)
    with sampler_of(proxy.address, "keep", 100, samples=200) as sampler:
        assert [content in ITEMS for _, content in contents(sampler)] == [True] * 200


def test_a_server_behind_a_connection_that_is_refused_is_waited_for_and_then_given_up(proxy: Proxy) -> None:
    with sampler_of(proxy.address, "keep", 32, prefetch=1, reconnect_seconds=0.5) as sampler:
        next(sampler)
        proxy.refuse()
        with pytest.raises(ServerUnreachable, match=rf"server {proxy.address}"):
            list(sampler)
        proxy.accept()


# A server that dies.


@pytest.fixture
def mortal(forks: Forks, tmp_path: Path) -> Iterator[Embedded]:
    """A server that keeps its port and its checkpoints."""
    tables = [TableConfig("keep"), TableConfig("one", sampler="fifo", max_times_sampled=1)]
    with forks.embedded(tables, port=free_port(), checkpoint_dir=tmp_path / "checkpoints") as running:
        tools.push(running.address, EPISODES, "keep", "one")
        yield running


@pytest.mark.parametrize("streams", [1, 3])
def test_a_server_that_is_killed_and_restored_is_sampled_on(mortal: Embedded, streams: int) -> None:
    with sampler_of(mortal.address, "keep", 32, streams=streams) as sampler:
        samples = contents([next(sampler)])
        with sampler_of(mortal.address, "one", 20) as queue:
            read = contents([next(queue)])
            with tools_client(mortal) as client:
                client.checkpoint()
            mortal.stop()
            mortal.start()
            wait_until(lambda: queue.restarts == 1)
            read += contents([next(queue)])
        while sampler.reconnects < streams:
            samples += contents([next(sampler)])
        for _ in range(20):
            samples += contents([next(sampler)])
        assert sampler.restarts == 1
    values = set(ITEMS)
    assert all(content in values for _, content in samples)
    assert all(content in values for _, content in read)


def tools_client(server: Embedded) -> Client:
    import rlds2reverb

    return rlds2reverb.connect(server.address)


def test_a_server_that_comes_back_empty_is_told_as_what_it_is(mortal: Embedded) -> None:
    with sampler_of(mortal.address, "keep", 32, prefetch=1, timeout_seconds=5.0) as sampler:
        next(sampler)
        mortal.stop()
        mortal.start()
        with pytest.raises(Stalled, match="sampling waits for 1 more insert"):
            list(sampler)
        assert sampler.restarts == 1


def test_a_server_that_comes_back_without_the_table_is_told(forks: Forks) -> None:
    port = free_port()
    with forks.embedded([TableConfig("keep")], port=port) as before:
        tools.push(before.address, EPISODES, "keep")
        with sampler_of(before.address, "keep", 32, prefetch=1) as sampler:
            next(sampler)
            before.stop()
            with (
                forks.embedded([TableConfig("other")], port=port),
                pytest.raises(ServerRestarted, match='no table "keep"'),
            ):
                list(sampler)
