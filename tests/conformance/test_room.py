"""Room in tables, on a real server: what its counts mean, what is never evicted, what a stopped push says."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_server import TableConfig
from replay_server.tables import Queue, Stack

import rlds2reverb
from rlds2reverb.errors import CapacityError, InvalidEpisode, Stalled
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.wire.messages import waits_when_full
from tests.support import strategies
from tests.support.forks import Embedded, Forks
from tests.support.processes import Process, started, wait_until

reverb = pytest.importorskip("reverb")

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

STEPS = 41
ITEMS = STEPS - 1
ONCE: dict[str, Any] = {"max_times_sampled": 1, "max_size": 100}

TABLES = [
    TableConfig("exact", max_size=10 * ITEMS, remover="fifo"),
    TableConfig("stack", sampler="lifo", remover="lifo", rate_limiter=Stack(size=100), **ONCE),
    *(TableConfig(name, sampler="fifo", remover="fifo", rate_limiter=Queue(size=100), **ONCE)
      for name in ("queue", "stalled", "interrupted", "ended")),
    TableConfig("large"),
]  # fmt: skip
"""What a stopped push has on its way comes in when a queue is emptied, so each such test has a queue of its own."""


@pytest.fixture(scope="module")
def server(forks: Forks) -> Iterator[Embedded]:
    with forks.embedded(TABLES) as running:
        yield running


@pytest.fixture
def client(server: Embedded) -> Iterator[rlds2reverb.Client]:
    for table in TABLES:
        reverb.Client(server.address).reset(table.name)
    with rlds2reverb.connect(server.address) as connected:
        yield connected


def episodes(count: int, name: str = "e", seed: int = 5) -> list[rlds2reverb.Episode]:
    rng = np.random.default_rng(seed)
    return [replace(strategies.episode(rng, STEPS), id=f"{name}{number}") for number in range(count)]


def keys(server: Embedded, table: str) -> set[int]:
    """The keys of all items of a table that is sampled uniformly: one is missed once in ten million calls."""
    theirs = reverb.Client(server.address)
    size = theirs.server_info()[table].current_size
    return {int(sample.info.key) for sample in theirs.sample(table, 24 * size, emit_timesteps=False)} if size else set()


class TestWhatTheServerCounts:
    def test_an_insert_is_a_new_key_and_what_left_is_the_difference(self, client: rlds2reverb.Client) -> None:
        def counts() -> tuple[int, int]:
            table = client.server_info().tables["exact"]
            return table.current_size, table.rate_limiter.inserts

        client.push(episodes(2), "exact")
        assert counts() == (2 * ITEMS, 2 * ITEMS)
        client.push(episodes(2), "exact")
        assert counts() == (2 * ITEMS, 2 * ITEMS)
        client.push(episodes(9, "other"), "exact", allow_eviction=True)
        assert counts() == (10 * ITEMS, 11 * ITEMS)

    def test_keys_that_are_not_there_are_passed_over_when_items_are_taken_out(
        self, client: rlds2reverb.Client, server: Embedded
    ) -> None:
        client.push(episodes(1), "large")
        found = np.array(sorted(keys(server, "large")), np.uint64)
        client.transport.delete_items("large", np.append(found[:7], np.uint64(5)))
        table = client.server_info().tables["large"]
        assert (table.current_size, table.rate_limiter.inserts) == (ITEMS - 7, ITEMS)
        assert client.push(episodes(1), "large").items_new == 7

    def test_queues_and_stacks_wait_when_they_are_full(self, client: rlds2reverb.Client) -> None:
        tables = client.server_info().tables
        assert {name for name, table in tables.items() if waits_when_full(table)} == {
            "queue",
            "stack",
            "stalled",
            "interrupted",
            "ended",
        }


class TestAFullTable:
    def test_refuses_the_same_push_without_a_ledger_and_takes_it_with_one(
        self, client: rlds2reverb.Client, server: Embedded, tmp_path: Path
    ) -> None:
        ledger = tmp_path / "ledger.db"
        assert client.push(episodes(10), "exact", ledger=ledger).items_new == 10 * ITEMS
        before = keys(server, "exact")
        with pytest.raises(CapacityError, match=r'"exact" is full \(400 of at most 400 items\)') as caught:
            client.push(episodes(10), "exact")
        assert caught.value.report is not None
        assert caught.value.report.items_confirmed == 0
        report = client.push(episodes(10), "exact", ledger=ledger)
        assert (report.episodes_resumed, report.items_confirmed) == (10, 0)
        assert keys(server, "exact") == before

    def test_with_a_free_place_takes_the_same_push_again_and_is_as_before(
        self, client: rlds2reverb.Client, server: Embedded
    ) -> None:
        made = episodes(10)
        made[-1] = strategies.episode(np.random.default_rng(6), STEPS - 1)  # one item less
        assert client.push(made, "exact").items_new == 10 * ITEMS - 1
        before = keys(server, "exact")
        report = client.push(made, "exact")
        assert (report.items_confirmed, report.items_new) == (10 * ITEMS - 1, 0)
        assert keys(server, "exact") == before

    def test_refuses_other_data_and_is_as_before(self, client: rlds2reverb.Client, server: Embedded) -> None:
        client.push(episodes(10), "exact")
        before = keys(server, "exact")
        with pytest.raises(CapacityError, match=r'"exact" is full \(400 of at most 400 items\)') as caught:
            client.push(episodes(5, "other", 6), "exact")
        assert keys(server, "exact") == before
        assert caught.value.report is not None
        assert (caught.value.report.items_confirmed, caught.value.report.items_new) == (0, 0)

    def test_is_as_before_when_the_push_has_more_than_it_holds(
        self, client: rlds2reverb.Client, server: Embedded
    ) -> None:
        client.push(episodes(6), "exact")
        client.push(episodes(4, "other", 6), "exact")
        before = keys(server, "exact")
        with pytest.raises(CapacityError, match=r"would evict|is full"):
            client.push(episodes(9), "exact")
        assert keys(server, "exact") == before


def test_two_pushes_at_once_do_not_evict_in_silence(client: rlds2reverb.Client, server: Embedded) -> None:
    """The second fills the table while the first one reads."""

    class Slow(EpisodeList):
        def __iter__(self) -> Iterator[rlds2reverb.Episode]:
            for number, episode in enumerate(super().__iter__()):
                if number == 3:
                    with rlds2reverb.connect(server.address) as other:
                        other.push(episodes(9, "other", 6), "exact", allow_eviction=True)
                yield episode

    with pytest.raises(CapacityError):
        client.push(Slow(episodes(9)), "exact")


@pytest.mark.parametrize("table", ["queue", "stack"])
def test_a_table_that_blocks_takes_any_push_as_it_is_emptied(
    client: rlds2reverb.Client, server: Embedded, table: str
) -> None:
    told: list[str] = []
    theirs = reverb.Client(server.address)

    def consume(progress: rlds2reverb.Progress) -> None:
        if progress.waiting:
            told.append(progress.waiting)
            list(theirs.sample(table, 100, emit_timesteps=False))

    report = client.push(episodes(5), table, on_progress=consume)
    assert (report.items_confirmed, report.items_new) == (5 * ITEMS, 5 * ITEMS)
    assert f'table "{table}": inserting waits for 1 more sample' in told[0]


class TestWhatStopsAPush:
    def test_has_the_account_as_its_report(self, client: rlds2reverb.Client) -> None:
        source = episodes(4)
        source[2] = source[2].with_columns(reward=np.full(STEPS, np.nan, np.float32))
        with pytest.raises(InvalidEpisode) as caught:
            client.push(source, "large")
        report = caught.value.report
        assert report is not None
        assert (report.episodes_read, report.episodes_pushed, dict(report.rejected)) == (3, 2, {"nan": 1})
        assert (report.items_confirmed, report.items_new, report.episodes_unread) == (2 * ITEMS, 2 * ITEMS, 1)
        assert report.stopped.startswith("InvalidEpisode: episode e2: nan")

    def test_counts_what_came_back_before_a_stall(self, client: rlds2reverb.Client) -> None:
        with pytest.raises(Stalled) as caught:
            client.push(episodes(5), "stalled", stall_seconds=1.0)
        report = caught.value.report
        assert report is not None
        assert (report.items_confirmed, report.items_new, report.episodes_unread) == (100, None, 0)
        assert report.episodes_pushed + report.episodes_unconfirmed == 5


PROGRAM = """
from rlds2reverb.cli import main, push
from tests.support.faults.tools import make_episodes
from rlds2reverb.formats.lists import EpisodeList
push.open_dataset = lambda name: EpisodeList(make_episodes(40, 41), name)
main()
"""
"""The command, with a source that needs no TensorFlow."""


@contextmanager
def interrupted_push(folder: Path, server: Embedded, table: str) -> Iterator[Process]:
    """A push that waited for a sampler, and was then interrupted."""
    arguments = ("-c", PROGRAM, "push", "made", "--server", server.address, "--table", table, "--json")
    with started(folder, *arguments) as running:
        said(running, "waiting:")
        running.send(signal.SIGINT)
        said(running, "Ctrl-C again")
        yield running


def said(running: Process, text: str) -> None:
    """Waits until it said so."""
    wait_until(lambda: text in running.errors, reason=lambda: running.errors)


def test_an_interrupted_push_prints_its_account(server: Embedded, tmp_path: Path) -> None:
    with interrupted_push(tmp_path, server, "interrupted") as running:
        code, text, talk = running.result()
    assert code == 130, talk
    report = json.loads(text)
    assert (report["stopped"], report["items_confirmed"]) == ("interrupted", 100)
    assert report["episodes_unconfirmed"] == report["episodes_read"] - report["episodes_pushed"] > 0
    assert "the same push, run again, adds the rest" in talk


def test_a_second_interruption_ends_at_once(server: Embedded, tmp_path: Path) -> None:
    with interrupted_push(tmp_path, server, "ended") as running:
        running.send(signal.SIGINT)
        code, text, talk = running.result()
    assert (code, text) == (130, ""), talk
