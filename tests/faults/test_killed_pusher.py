"""A pusher that is killed again and again, and run once more: nothing is missing, nothing is there twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Client
from rlds2reverb.views.frame_stack import FrameStack
from tests.support.faults import tools
from tests.support.faults.proxy import UP, Proxy
from tests.support.forks import Embedded, Forks
from tests.support.processes import Process
from tests.support.views.every import slow_items

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(180)]

EPISODES = tools.make_episodes(count=30, steps=61, seed=3)
MADE = "made:30:61:3"
ITEMS = tools.items_of(EPISODES)
TWO_VIEWS = "one=two_step+two=frame_stack:frames=2"
PUSH_BYTES = 450_000
"""Less than a whole push of `MADE` sends."""


@pytest.fixture
def proxy(server: Embedded, client: Client) -> Iterator[Proxy]:
    """A proxy in front of the shared server, whose tables are empty."""
    with Proxy(server.port) as running:
        yield running


@dataclass(frozen=True)
class Pushers:
    """Starts pushers, each a process of its own, through the proxy."""

    forks: Forks
    folder: Path
    proxy: Proxy

    def start(
        self, source: str = MADE, on_invalid: str = "raise", ledger: Path | str = "", tables: str = "one"
    ) -> Process:
        arguments = (self.proxy.address, tables, source, on_invalid, str(ledger))
        return self.forks.module(self.folder, "tests.support.faults.pusher", *arguments)

    def kill_after(self, count: int, **how: Any) -> None:
        """Runs one, and kills it when `count` bytes have come through and it waits for more to be taken."""
        self.proxy.hold_after(UP, count)
        with self.start(**how) as pusher:
            reached = self.proxy.fired.wait(120)
        assert reached, pusher.errors
        self.proxy.cut()
        self.proxy.release()

    def finish(self, **how: Any) -> dict[str, Any]:
        """Runs one to its end; its report."""
        with self.start(**how) as pusher:
            code, output, errors = pusher.result()
        assert code == 0, errors
        report: dict[str, Any] = json.loads(output)
        return report


@pytest.fixture
def pushers(forks: Forks, tmp_path: Path, proxy: Proxy) -> Pushers:
    return Pushers(forks, tmp_path, proxy)


def assert_stored_once(server: Embedded, expected: list[tools.Content], table: str = "one") -> None:
    taken = tools.take_keys_and_items(server.address, table)
    assert len({key for key, _ in taken}) == len(taken)
    assert [content for _, content in taken] == expected


def places(seed: int, kills: int, most: float) -> list[int]:
    """Bytes until each kill, up to the share `most` of a whole push."""
    return [int(n) for n in np.random.default_rng(seed).integers(1000, int(most * PUSH_BYTES), kills)]


def confirmed_items(ledger: Path) -> int:
    """Items of all episodes that the ledger has as confirmed."""
    with sqlite3.connect(ledger) as database:
        return int(database.execute("SELECT coalesce(sum(items), 0) FROM confirmed").fetchone()[0])


def test_an_undisturbed_pusher_stores_every_item_once(server: Embedded, proxy: Proxy, pushers: Pushers) -> None:
    report = pushers.finish()
    assert (report["items_confirmed"], report["reconnects"]) == (len(ITEMS), 0)
    assert proxy.forwarded[UP] > PUSH_BYTES
    assert_stored_once(server, ITEMS)


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_without_a_ledger_lose_nothing_and_double_nothing(server: Embedded, pushers: Pushers, seed: int) -> None:
    for count in places(seed, kills=3, most=1.0):
        pushers.kill_after(count)
    report = pushers.finish()
    assert (report["items_confirmed"], report["episodes_resumed"]) == (len(ITEMS), 0)
    assert_stored_once(server, ITEMS)


@pytest.mark.parametrize("seed", [3, 4])
def test_kills_with_a_ledger_lose_nothing_and_double_nothing(
    server: Embedded, client: Client, pushers: Pushers, tmp_path: Path, seed: int
) -> None:
    ledger = tmp_path / "ledger.db"
    for count in places(seed, kills=3, most=0.3):
        pushers.kill_after(count, ledger=ledger)
        assert confirmed_items(ledger) <= client.server_info().tables["one"].current_size
    resumed_items = confirmed_items(ledger)
    report = pushers.finish(ledger=ledger)
    assert 0 < resumed_items == len(ITEMS) - report["items_confirmed"]
    assert report["episodes_resumed"] == resumed_items // 60 == len(EPISODES) - report["episodes_read"]
    assert_stored_once(server, ITEMS)


@pytest.mark.parametrize("with_ledger", [False, True])
def test_kills_of_a_push_of_two_views_lose_nothing_and_double_nothing(
    server: Embedded, pushers: Pushers, tmp_path: Path, with_ledger: bool
) -> None:
    ledger = tmp_path / "ledger.db" if with_ledger else ""
    for count in places(5, kills=3, most=0.4):
        pushers.kill_after(count, ledger=ledger, tables=TWO_VIEWS)
    report = pushers.finish(ledger=ledger, tables=TWO_VIEWS)
    assert report["items_made"] == {"one": len(ITEMS), "two": len(ITEMS)}
    assert (report["episodes_resumed"] > 0) == with_ledger
    assert_stored_once(server, ITEMS)
    stacks = [item for episode in EPISODES for item in slow_items(FrameStack(2), episode)]
    assert_stored_once(server, [tuple(column.tobytes() for column in item) for item in stacks], "two")


def test_a_finished_push_run_again_with_its_ledger_sends_nothing(
    server: Embedded, pushers: Pushers, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.db"
    pushers.kill_after(PUSH_BYTES // 3, ledger=ledger)
    pushers.finish(ledger=ledger)
    report = pushers.finish(ledger=ledger)
    assert (report["episodes_resumed"], report["episodes_read"], report["bytes"]) == (len(EPISODES), 0, 0)
    assert_stored_once(server, ITEMS)


def test_the_ledger_of_a_killed_push_does_not_hide_episodes_that_a_table_lost(
    server: Embedded, client: Client, pushers: Pushers, tmp_path: Path
) -> None:
    """Resuming trusts the server process; `resume=False` sends all."""
    ledger = tmp_path / "ledger.db"
    pushers.kill_after(PUSH_BYTES // 2, ledger=ledger)
    tools.take_items(server.address, "one")
    report = tools.push(server.address, EPISODES, "one", ledger=ledger, resume=False)
    assert report.items_confirmed == len(ITEMS)
    assert_stored_once(server, ITEMS)


def test_a_killed_push_of_a_bundled_dataset_ends_as_a_clean_one(
    server: Embedded, client: Client, pushers: Pushers
) -> None:
    pushers.kill_after(300_000, source="bundled:half_cheetah")
    assert client.server_info().tables["one"].current_size > 0
    report = pushers.finish(source="bundled:half_cheetah")
    clean = client.push("bundled:half_cheetah", table="two")
    assert report["items_confirmed"] == clean.items_confirmed > 1000
    assert_stored_once(server, tools.take_items(server.address, "two"))


@pytest.mark.parametrize("bad", [0, 17])
def test_nothing_of_a_bad_episode_is_stored(server: Embedded, pushers: Pushers, bad: int) -> None:
    with pushers.start(source=f"{MADE}:{bad}") as pusher:
        code, _, errors = pusher.result()
    assert code == 1
    assert f"InvalidEpisode: episode episode-3-{bad}: nan" in errors
    assert_stored_once(server, tools.items_of(EPISODES[:bad]))


def test_killed_pushes_of_bad_input_store_the_good_episodes_once(
    server: Embedded, pushers: Pushers, tmp_path: Path
) -> None:
    how = {"source": f"{MADE}:4:11", "on_invalid": "skip", "ledger": tmp_path / "ledger.db"}
    for count in places(seed=5, kills=2, most=0.4):
        pushers.kill_after(count, **how)
    report = pushers.finish(**how)
    assert report["rejected"]["nan"] > 0
    assert_stored_once(server, tools.items_of([e for n, e in enumerate(EPISODES) if n not in (4, 11)]))


def test_two_pushers_of_the_same_data_at_once_store_it_once(
    server: Embedded, client: Client, proxy: Proxy, pushers: Pushers
) -> None:
    proxy.hold_after(UP, PUSH_BYTES // 3)
    with pushers.start() as other:
        assert proxy.fired.wait(120), other.errors
        assert client.push(EPISODES, table="one").items_confirmed == len(ITEMS)
        proxy.release()
        code, _, errors = other.result()
    assert code == 0, errors
    assert_stored_once(server, ITEMS)
