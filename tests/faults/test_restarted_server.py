"""The server dies in mid-push: what the pusher says, and what it takes to have every item once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import reverb
from replay_server import TableConfig

import rlds2reverb
from rlds2reverb.errors import ServerRestarted, ServerUnreachable
from tests.support.faults import tools
from tests.support.forks import Embedded, Forks
from tests.support.processes import free_port, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(240)]

EPISODES = tools.make_episodes(count=20, steps=51, seed=7)
ITEMS = tools.items_of(EPISODES)
HALF = 10
TABLES = [TableConfig("one", sampler="fifo", max_times_sampled=1)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the mortal server's checkpoints."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def mortal(forks: Forks, checkpoints: Path) -> Iterator[Embedded]:
    """A server that tests may kill; on a port that it keeps."""
    with forks.embedded(TABLES, port=free_port(), checkpoint_dir=checkpoints) as server:
        yield server


@pytest.fixture
def empty(mortal: Embedded, checkpoints: Path) -> Embedded:
    """The mortal server, running, empty and without a checkpoint."""
    if not mortal.is_running:
        mortal.start()
    reverb.Client(mortal.address).reset("one")
    for checkpoint in checkpoints.iterdir():
        shutil.rmtree(checkpoint)
    return mortal


def restart(server: Embedded) -> None:
    server.stop()
    server.start()


def size(server: Embedded) -> int:
    with rlds2reverb.connect(server.address) as client:
        return client.server_info().tables["one"].current_size


def after_half(server: Embedded, event: Callable[[], object]) -> tools.EventfulList:
    """The episodes; the event comes when the server holds some items of the first half."""

    def when_stored() -> None:
        wait_until(lambda: size(server) > 0)
        event()

    return tools.EventfulList(EPISODES, {HALF: when_stored})


def assert_stored_once(server: Embedded) -> None:
    taken = tools.take_keys_and_items(server.address, "one")
    assert len({key for key, _ in taken}) == len(taken)
    assert [content for _, content in taken] == ITEMS


def test_a_restarted_server_ends_the_push_and_the_ledger_of_the_old_one_hides_nothing(
    empty: Embedded, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.db"
    whole = tools.push(empty.address, EPISODES[:3], "one", ledger=ledger)
    assert whole.episodes_read == 3
    with pytest.raises(ServerRestarted) as caught:
        tools.push(empty.address, after_half(empty, lambda: restart(empty)), "one", ledger=ledger)
    message = str(caught.value)
    assert f"server {empty.address}: another server process answers than before" in message
    assert "items confirmed earlier" in message
    assert "Run the same push again" in message
    assert not caught.value.retryable
    assert size(empty) == 0  # nothing went to the new server unasked

    report = tools.push(empty.address, EPISODES, "one", ledger=ledger)
    assert (report.episodes_resumed, report.items_confirmed) == (0, len(ITEMS))
    assert tools.push(empty.address, EPISODES, "one", ledger=ledger).episodes_resumed == len(EPISODES)
    assert_stored_once(empty)


def test_a_server_that_goes_away_for_good_ends_the_push(empty: Embedded, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    deadlines = replace(tools.QUICK, call=0.5, reconnect=1.0)
    with pytest.raises(
        ServerUnreachable, match=rf"server {empty.address}: no answer within 0\.5 s: nothing listens .*is it running"
    ):
        tools.push(empty.address, after_half(empty, empty.stop), "one", ledger=ledger, deadlines=deadlines)
    empty.start()
    assert tools.push(empty.address, EPISODES, "one", ledger=ledger).episodes_resumed == 0
    assert_stored_once(empty)


def test_a_push_to_a_server_restored_from_a_checkpoint_doubles_nothing(empty: Embedded, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    tools.push(empty.address, EPISODES[:HALF], "one", ledger=ledger)
    reverb.Client(empty.address).checkpoint()
    with pytest.raises(ServerRestarted):
        # More is stored after the checkpoint, and lost.
        tools.push(
            empty.address,
            tools.EventfulList(EPISODES, {15: lambda: restart(empty)}),
            "one",
            ledger=ledger,
        )
    restored = size(empty)
    assert restored == len(tools.items_of(EPISODES[:HALF]))
    report = tools.push(empty.address, EPISODES, "one", ledger=ledger)
    assert (report.episodes_resumed, report.items_confirmed) == (0, len(ITEMS))
    assert_stored_once(empty)


def test_a_server_that_is_away_before_the_push_is_said_at_once(empty: Embedded) -> None:
    with rlds2reverb.connect(empty.address, timeout_seconds=0.5) as client:
        empty.stop()
        with pytest.raises(ServerUnreachable, match="is it running"):
            client.push(EPISODES, table="one")
