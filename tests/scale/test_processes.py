"""Workers that are processes: they push what one pusher does, die and are replaced, and end with whoever started them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Client, PushReport, connect
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, WorkersLost, report_of
from tests.processes import started, wait_until
from tests.push import in_memory
from tests.scale.gated import ROWS, Gated, is_running
from tests.transport.fake_reverb import FakeReverb

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

COUNT = 60
ITEMS = ROWS - 1


@pytest.fixture
def server() -> Iterator[FakeReverb]:
    with FakeReverb("replay") as running:
        yield running


@pytest.fixture
def client(server: FakeReverb) -> Iterator[Client]:
    with connect(server.address) as connected:
        yield connected


def values(server: FakeReverb) -> dict[int, Any]:
    return {key: [np.asarray(one).tobytes() for one in item] for key, item in server.stored["replay"].items()}


def in_background(push: Any) -> tuple[threading.Thread, list[PushReport]]:
    reports: list[PushReport] = []
    thread = threading.Thread(target=lambda: reports.append(push()), daemon=True)
    thread.start()
    return thread, reports


def test_they_store_what_one_pusher_does_under_the_same_keys(
    server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    told: list[Any] = []
    report = client.push(Gated(tmp_path, COUNT), "replay", workers=2, on_progress=told.append)
    stored = values(server)
    assert (report.items_confirmed, report.episodes_pushed, report.workers) == (COUNT * ITEMS, COUNT, 2)
    assert len(stored) == COUNT * ITEMS
    assert told[-1].episodes == told[-1].episode_count == COUNT
    again = client.push(Gated(tmp_path, COUNT), "replay")
    assert again.items_confirmed == COUNT * ITEMS
    assert values(server) == stored


def test_several_servers_get_what_one_pusher_gives_them(server: FakeReverb, tmp_path: Path) -> None:
    with FakeReverb("replay") as other:
        other.state_id = server.state_id + 1
        with connect([f"a={server.address}", f"b={other.address}"]) as group:
            report = group.push(Gated(tmp_path, COUNT), "replay", workers=2)
            held = [values(one) for one in (server, other)]
            assert (report.items_confirmed, report.workers) == (COUNT * ITEMS, 2)
            assert [part.items_confirmed for part in report.servers.values()] == [len(one) for one in held]
            again = group.push(Gated(tmp_path, COUNT), "replay")
            assert again.items_confirmed == COUNT * ITEMS
            assert [values(one) for one in (server, other)] == held


def test_a_worker_that_is_killed_is_replaced_and_its_part_pushed_again(
    server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    thread, reports = in_background(lambda: client.push(source, "replay", workers=2, ledger=tmp_path / "ledger.db"))
    os.kill(source.wait_for_worker(), signal.SIGKILL)
    source.open()
    thread.join(60)
    (report,) = reports
    assert (report.parts_again, report.episodes_pushed, report.items_confirmed) == (1, COUNT, COUNT * ITEMS)
    assert len(values(server)) == COUNT * ITEMS
    resumed = client.push(source, "replay", workers=2, ledger=tmp_path / "ledger.db")
    assert (resumed.episodes_resumed, resumed.episodes_read) == (COUNT, 0)


def test_a_part_that_kills_its_workers_ends_the_push_after_some_tries(
    server: FakeReverb, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(WorkersLost, match=r"at episodes 16 to 31, killed by SIGKILL; it was begun 3 times") as caught:
        client.push(Gated(tmp_path, COUNT, gate=20, dies=True), "replay", workers=1)
    report = report_of(caught.value)
    assert report is not None
    assert (report.parts_again, report.episodes_pushed) == (2, 16)
    assert report.stopped.startswith("WorkersLost: process ")


def test_the_first_bad_episode_is_the_error(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidEpisode, match="episode e17: nan") as caught:
        client.push(Gated(tmp_path, COUNT, bad=(17, 34, 50)), "replay", workers=2)
    report = report_of(caught.value)
    assert report is not None
    assert report.episodes_pushed >= 17


def test_an_interruption_ends_all_workers_and_says_what_is_stored(server: FakeReverb, tmp_path: Path) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    with started(tmp_path, "-m", "tests.scale.interrupted", server.address, str(tmp_path), str(COUNT), "20") as pusher:
        worker = source.wait_for_worker()
        wait_until(lambda: len(values(server)) >= 16 * ITEMS)
        children = [int(one) for one in Path(f"/proc/{pusher.pid}/task/{pusher.pid}/children").read_text().split()]
        assert worker in children
        pusher.send(signal.SIGINT)
        source.open()
        code, output, errors = pusher.result()
    assert (code, errors) == (0, "")
    report = json.loads(output)
    assert report["stopped"] == "interrupted"
    assert report["items_confirmed"] == len(values(server))
    assert report["episodes_pushed"] * ITEMS == len(values(server))
    assert not any(map(is_running, children))


def test_workers_end_with_the_process_that_started_them(server: FakeReverb, tmp_path: Path) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    with started(tmp_path, "-m", "tests.scale.interrupted", server.address, str(tmp_path), str(COUNT), "20") as pusher:
        worker = source.wait_for_worker()
        pusher.kill()
    wait_until(lambda: not is_running(worker))


def test_a_list_of_episodes_goes_to_the_workers_as_it_is(server: FakeReverb, client: Client) -> None:
    report = client.push(in_memory.episodes(20), "replay", workers=1)
    assert (report.episodes_pushed, len(values(server))) == (20, 60)


def test_what_cannot_be_sent_to_a_worker_is_refused_before_one_starts(client: Client) -> None:
    episodes = in_memory.EpisodeList(in_memory.episodes(3))
    vars(episodes)["lock"] = threading.Lock()
    with pytest.raises(ConfigError, match=r"by name, or as objects that can be pickled: .*lock"):
        client.push(episodes, "replay", workers=2)


def test_a_source_whose_length_only_reading_tells_is_refused(client: Client, tmp_path: Path) -> None:
    class Open(Gated):
        episode_count = None  # type: ignore[assignment]

    with pytest.raises(SourceError, match="only reading tells how many episodes it has"):
        client.push(Open(tmp_path, 3), "replay", workers=2)


def test_a_server_in_the_memory_of_this_process_is_refused(tmp_path: Path) -> None:
    client = Client(in_memory.MemoryTransport(in_memory.Server()))
    with pytest.raises(ConfigError, match="need a server that other processes can reach"):
        client.push(Gated(tmp_path, 3), "replay", workers=2)
