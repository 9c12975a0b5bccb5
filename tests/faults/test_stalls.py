"""Tables whose rate limiter blocks: the pusher says what it waits for, gives up in time, or goes on with a sampler."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import reverb
from replay_server import EmbeddedServer, TableConfig
from replay_server.limiters import SampleToInsertRatio

import rlds2reverb
from rlds2reverb.errors import Stalled
from rlds2reverb.report import Progress
from tests.faults import tools

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(120)]

EPISODES = tools.make_episodes(count=10, steps=31, seed=11)
ITEMS = tools.items_of(EPISODES)
ALLOWED = 101
"""Inserts that the ratio tables take without a sample: one for the first item, and the buffer."""

IMPATIENT = replace(tools.QUICK, notice=0.1, stall=1.0)
"""Gives up after a second; explains before."""


def ratio_table(name: str, max_times_sampled: int = 1) -> TableConfig:
    """Takes `ALLOWED` inserts, then one for every sample."""
    ratio = SampleToInsertRatio(samples_per_insert=1.0, error_buffer=100.0)
    return TableConfig(name, sampler="fifo", max_times_sampled=max_times_sampled, rate_limiter=ratio)


@pytest.fixture(scope="module")
def blocking() -> Iterator[EmbeddedServer]:
    """A server whose ratio tables serve one test each, because a limiter's counts stay."""
    tables = [ratio_table(name) for name in ("stall", "told", "sampled", "beside")]
    tables += [ratio_table("resumed", max_times_sampled=0)]
    tables += [TableConfig.queue("queue", 50), TableConfig.queue("full", 50), TableConfig("free")]
    with EmbeddedServer(tables) as server:
        yield server


@contextmanager
def sampling(server: EmbeddedServer, table: str, taken: list[tools.Content]) -> Iterator[None]:
    """Takes as many items as `ITEMS` out of a table, in a thread."""

    def take() -> None:
        samples = reverb.Client(server.address).sample(table, len(ITEMS), emit_timesteps=False)
        taken.extend(tuple(column.tobytes() for column in sample.data) for sample in samples)

    thread = threading.Thread(target=take)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def current_size(server: EmbeddedServer, table: str) -> int:
    with rlds2reverb.connect(server.address) as client:
        return client.server_info().tables[table].current_size


def test_a_blocked_push_gives_up_and_says_which_limiter_waits_for_what(blocking: EmbeddedServer) -> None:
    with pytest.raises(Stalled) as caught:
        tools.push(blocking.address, EPISODES, "stall", deadlines=IMPATIENT)
    message = str(caught.value)
    assert f"server {blocking.address}: nothing was confirmed for 1 s" in message
    assert 'table "stall": its rate limiter waits for 1 more samples before the next insert' in message
    assert f"({ALLOWED} inserts and 0 samples so far, samples_per_insert 1, max_diff 101)" in message
    assert "Start the sampling side, change the table's rate limiter, or wait longer (stall_seconds" in message
    assert caught.value.retryable
    assert current_size(blocking, "stall") == ALLOWED
    assert not [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-receive"]


def test_stall_seconds_of_the_client_bounds_a_blocked_push(blocking: EmbeddedServer) -> None:
    with rlds2reverb.connect(blocking.address) as client, pytest.raises(Stalled, match="rate limiter waits for"):
        client.push(EPISODES, table="stall", stall_seconds=0.5)


def test_progress_tells_the_wait_and_a_sampler_ends_it(blocking: EmbeddedServer) -> None:
    told: list[Progress] = []
    waiting = threading.Event()

    def on_progress(progress: Progress) -> None:
        told.append(progress)
        if progress.waiting:
            waiting.set()

    taken: list[tools.Content] = []
    done: list[Any] = []

    def push() -> None:
        deadlines = replace(IMPATIENT, stall=60.0)
        done.append(tools.push(blocking.address, EPISODES, "told", deadlines=deadlines, on_progress=on_progress))

    pusher = threading.Thread(target=push)
    pusher.start()
    assert waiting.wait(30)
    with sampling(blocking, "told", taken):
        pusher.join(60)
    assert done and done[0].items_confirmed == len(ITEMS)
    first = next(progress for progress in told if progress.waiting)
    assert re.search(
        r'table "told": its rate limiter waits for 1 more samples .*\(101 inserts and 0 samples', first.waiting
    )
    assert first.items_confirmed <= ALLOWED
    assert told[-1].waiting == ""
    assert told[-1].items_confirmed == len(ITEMS)
    assert taken == ITEMS


def test_a_sampler_that_runs_beside_the_push_gets_every_item(blocking: EmbeddedServer) -> None:
    taken: list[tools.Content] = []
    with sampling(blocking, "sampled", taken):
        report = tools.push(blocking.address, EPISODES, "sampled")
    assert report.items_confirmed == len(ITEMS)
    assert taken == ITEMS


def test_a_queue_smaller_than_the_push_is_filled_as_it_empties(blocking: EmbeddedServer) -> None:
    taken: list[tools.Content] = []
    with sampling(blocking, "queue", taken):
        report = tools.push(blocking.address, EPISODES, "queue", allow_eviction=True)
    assert report.items_confirmed == len(ITEMS)
    assert taken == ITEMS


def test_a_full_queue_is_explained(blocking: EmbeddedServer) -> None:
    with pytest.raises(Stalled, match=r'table "full": its rate limiter waits for 1 more samples .*\(50 inserts'):
        tools.push(blocking.address, EPISODES, "full", allow_eviction=True, deadlines=IMPATIENT)


def test_of_two_tables_the_one_that_blocks_is_named(blocking: EmbeddedServer) -> None:
    with pytest.raises(Stalled) as caught:
        tools.push(blocking.address, EPISODES, "free", "beside", deadlines=IMPATIENT)
    assert 'table "beside": its rate limiter waits' in str(caught.value)
    assert 'table "free"' not in str(caught.value)
    assert current_size(blocking, "beside") == ALLOWED


def test_a_stalled_push_run_again_with_a_sampler_stores_the_rest_once(blocking: EmbeddedServer, tmp_path: Any) -> None:
    """The table keeps what is sampled; where it does not, what was never confirmed may be handed out twice."""
    ledger = tmp_path / "ledger.db"
    with pytest.raises(Stalled):
        tools.push(blocking.address, EPISODES, "resumed", deadlines=IMPATIENT, ledger=ledger)
    with sampling(blocking, "resumed", []):
        report = tools.push(blocking.address, EPISODES, "resumed", ledger=ledger)
    assert report.episodes_resumed == ALLOWED // 30
    assert report.episodes_read == len(EPISODES) - report.episodes_resumed
    assert current_size(blocking, "resumed") == len(ITEMS)
