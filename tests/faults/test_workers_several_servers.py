"""A push by workers to several real servers, one of which is killed and comes back: nothing is missing, nothing is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from replay_server import TableConfig

from rlds2reverb import Client, PushReport, connect
from rlds2reverb.errors import ServerRestarted, ServerUnreachable, report_of
from tests.support.faults import tools
from tests.support.forks import Embedded, Forks
from tests.support.gated import Gated, episode
from tests.support.processes import free_port, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(240)]

COUNT = 96
GATE = 70
"""In the third part of two workers, when those before it are stored; so that the victim is killed between parts and within one."""
ITEMS = tools.items_of([episode(number) for number in range(COUNT)])
NAMES = ("a", "b", "c")
"""Fixed: they, and not the ports, place the episodes."""


@pytest.fixture
def three(forks: Forks, tmp_path: Path) -> Iterator[list[Embedded]]:
    """Servers with checkpoints of their own, on ports that they keep."""
    tables = [TableConfig("one", sampler="fifo", max_times_sampled=1)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(forks.embedded(tables, port=free_port(), checkpoint_dir=tmp_path / name))
            for name in NAMES
        ]


def together(servers: list[Embedded], allow_missing: bool = False) -> Client:
    return connect([f"{name}={server.address}" for name, server in zip(NAMES, servers)], allow_missing=allow_missing)


def size(server: Embedded) -> int:
    with connect(server.address) as client:
        return client.tables()["one"].current_size


def assert_stored_once(servers: list[Embedded]) -> None:
    taken = [item for server in servers for item in tools.take_keys_and_items(server.address, "one")]
    assert len({key for key, _ in taken}) == len(taken)
    assert Counter(content for _, content in taken) == Counter(ITEMS)


@pytest.mark.parametrize("allow_missing", [False, True])
def test_a_server_is_killed_and_restored_while_workers_push(
    three: list[Embedded], tmp_path: Path, allow_missing: bool
) -> None:
    victim, source, ledger = three[1], Gated(tmp_path, COUNT, gate=GATE), tmp_path / "ledger.db"
    with together(three, allow_missing) as client, ThreadPoolExecutor(1) as background:
        client.push(Gated(tmp_path, 24), "one", ledger=ledger)
        with connect(victim.address) as one:
            one.checkpoint()
        kept = size(victim)
        pushing = background.submit(lambda: client.push(source, "one", workers=2, ledger=ledger))
        source.wait_for_worker()
        wait_until(lambda: size(victim) > kept)
        victim.stop()  # by SIGKILL
        victim.start()
        assert size(victim) == kept
        source.open()
        error = pushing.exception()
        if allow_missing:
            report = pushing.result()
            assert report.episodes_read + report.episodes_resumed == COUNT
        else:
            assert isinstance(error, (ServerRestarted, ServerUnreachable))
            assert victim.address in str(error)
            found = report_of(error, PushReport)
            assert found is not None
            report = found
        lost = report.servers[victim.address]
        assert bool(lost.stopped) == allow_missing
    with together(three) as client:
        later = client.push(Gated(tmp_path, COUNT), "one", workers=2, ledger=ledger)
        assert later.servers[victim.address].items_new == later.servers[victim.address].items_confirmed - kept
        for server in three:
            if server is not victim and allow_missing:
                assert later.servers[server.address].items_confirmed == 0
        again = client.push(Gated(tmp_path, COUNT), "one")
        assert (again.items_confirmed, again.items_new) == (len(ITEMS), 0)
    assert_stored_once(three)


def test_they_store_every_item_once_under_the_keys_of_one_pusher(three: list[Embedded], tmp_path: Path) -> None:
    with together(three) as client:
        report = client.push(Gated(tmp_path, COUNT), "one", workers=2)
        assert (report.items_confirmed, report.items_new, report.workers) == (len(ITEMS), len(ITEMS), 2)
        assert [report.servers[server.address].items_confirmed for server in three] == [
            size(server) for server in three
        ]
        again = client.push(Gated(tmp_path, COUNT), "one")
        assert again.items_new == 0
    assert_stored_once(three)
