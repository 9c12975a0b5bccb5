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
from replay_server import TableConfig
from replay_server.tables import SampleToInsertRatio

import rlds2reverb
from rlds2reverb.errors import Stalled
from rlds2reverb.prepare.progress import Progress
from tests.support.faults import tools
from tests.support.forks import Embedded, Forks
from tests.support.processes import eventually

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
def blocking(forks: Forks) -> Iterator[Embedded]:
    """A server whose ratio tables serve one test each, because a limiter's counts stay."""
    tables = [ratio_table(name) for name in ("stall", "told", "sampled", "beside")]
    tables += [ratio_table("resumed", max_times_sampled=0)]
    tables += [TableConfig.queue("queue", 50), TableConfig.queue("full", 50), TableConfig("free")]
    with forks.embedded(tables) as server:
        yield server


@contextmanager
def sampling(server: Embedded, table: str, taken: list[tools.Content]) -> Iterator[None]:
    """Takes as many items as `ITEMS` out of a table, in a thread."""

    def take() -> None:
        samples = reverb.Client(server.address).sample(table, len(ITEMS), emit_timesteps=False)
        taken.extend(tuple(column.tobytes() for column in sample.data) for sample in samples)

    thread = threading.Thread(target=take)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def stalled(server: Embedded, *tables: str, **options: Any) -> Stalled:
    """How a push gives up on a limiter; on a busy machine the first may give up before it has filled the table."""

    def push() -> Stalled:
        with pytest.raises(Stalled) as caught:
            tools.push(server.address, EPISODES, *tables, deadlines=IMPATIENT, **options)
        assert "inserting waits" in str(caught.value)
        return caught.value

    return eventually(push)


def current_size(server: Embedded, table: str) -> int:
    with rlds2reverb.connect(server.address) as client:
        return client.server_info().tables[table].current_size


def test_a_blocked_push_gives_up_and_says_which_limiter_waits_for_what(blocking: Embedded) -> None:
    error = stalled(blocking, "stall")
    message = str(error)
    assert f"server {blocking.address}: nothing was confirmed for 1 s" in message
    assert 'table "stall": inserting waits for 1 more sample' in message
    assert f"({ALLOWED} inserts and 0 samples so far, samples_per_insert 1, max_diff 101)" in message
    assert "Start the sampling side, change the table's rate limiter, or wait longer (stall_seconds" in message
    assert error.retryable
    assert current_size(blocking, "stall") == ALLOWED
    assert not [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-receive"]


def test_stall_seconds_of_the_client_bounds_a_blocked_push(blocking: Embedded) -> None:
    with rlds2reverb.connect(blocking.address) as client, pytest.raises(Stalled, match="inserting waits for"):
        client.push(EPISODES, table="stall", stall_seconds=0.5)


def test_progress_tells_the_wait_and_a_sampler_ends_it(blocking: Embedded) -> None:
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
    assert re.search(r'table "told": inserting waits for 1 more sample .*\(101 inserts and 0 samples', first.waiting)
    assert first.items_confirmed <= ALLOWED
    assert told[-1].waiting == ""
    assert told[-1].items_confirmed == len(ITEMS)
    assert taken == ITEMS


def test_a_sampler_that_runs_beside_the_push_gets_every_item(blocking: Embedded) -> None:
    taken: list[tools.Content] = []
    with sampling(blocking, "sampled", taken):
        report = tools.push(blocking.address, EPISODES, "sampled")
    assert report.items_confirmed == len(ITEMS)
    assert taken == ITEMS


def test_a_queue_smaller_than_the_push_is_filled_as_it_empties(blocking: Embedded) -> None:
    taken: list[tools.Content] = []
    with sampling(blocking, "queue", taken):
        report = tools.push(blocking.address, EPISODES, "queue")
    assert report.items_confirmed == len(ITEMS)
    assert taken == ITEMS


def test_a_full_queue_is_explained(blocking: Embedded) -> None:
    message = str(stalled(blocking, "full"))
    assert re.search(r'table "full": inserting waits for 1 more sample .*\(50 inserts', message)


def test_of_two_tables_the_one_that_blocks_is_named(blocking: Embedded) -> None:
    message = str(stalled(blocking, "free", "beside"))
    assert 'table "beside": inserting waits' in message
    assert 'table "free"' not in message
    assert current_size(blocking, "beside") == ALLOWED


def test_a_stalled_push_run_again_with_a_sampler_stores_the_rest_once(blocking: Embedded, tmp_path: Any) -> None:
    """The table keeps what is sampled; where it does not, what was never confirmed may be handed out twice."""
    ledger = tmp_path / "ledger.db"
    stalled(blocking, "resumed", ledger=ledger)
    with sampling(blocking, "resumed", []):
        report = tools.push(blocking.address, EPISODES, "resumed", ledger=ledger)
    assert report.episodes_resumed == ALLOWED // 30
    assert report.episodes_read == len(EPISODES) - report.episodes_resumed
    assert current_size(blocking, "resumed") == len(ITEMS)
