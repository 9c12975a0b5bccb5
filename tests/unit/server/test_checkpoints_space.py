"""A disk that is full, a real one where this user may mount one: a failed checkpoint costs no room."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reverb
from replay_server.checkpoints import CheckpointWriter, check_space, space_for
from replay_server.errors import CheckpointError
from replay_server.store import LeftOut

from tests.support.disks import small_disk_at
from tests.support.forks import Forks, Running
from tests.support.processes import wait_until
from tests.unit.server.test_service import config_of, document, metrics, take
from tests.unit.server.test_store import add, opened

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

DISK_BYTES, ITEM_BYTES = 1 << 20, 4096
TABLE = {"name": "t", "sampler": "fifo", "max_times_sampled": 1}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with small_disk_at(tmp_path / "disk", DISK_BYTES) as folder:
        yield folder


@pytest.fixture
def service(forks: Forks, disk: Path) -> Iterator[Running]:
    running = forks.start(config_of(disk, TABLE))
    yield running
    forks.end(running, signal.SIGKILL)


def insert(running: Running, count: int) -> None:
    """Items that no compression makes smaller."""
    rng = np.random.default_rng(count)
    with reverb.Client(running.address).trajectory_writer(1) as writer:
        for _ in range(count):
            writer.append([rng.integers(0, 256, ITEM_BYTES, np.uint8)])
            writer.create_item("t", 1.0, [writer.history[0][-1:]])
            writer.flush()


def checkpoints(running: Running) -> dict[str, Any]:
    return dict(document(f"{running.url}/status.json")[1]["checkpoints"])


def test_a_checkpoint_that_fills_the_disk_leaves_no_trace(service: Running, disk: Path) -> None:
    insert(service, 60)
    assert document(f"{service.url}/checkpoint", "POST")[0] == 200
    free = checkpoints(service)["free_bytes"]
    assert 0 < free < DISK_BYTES - 60 * ITEM_BYTES
    insert(service, 200)
    for failures in (1, 2):
        code, answer = document(f"{service.url}/checkpoint", "POST")
        assert (code, "No space left on device" in answer["error"]) == (503, True)
        found = checkpoints(service)
        assert (found["free_bytes"], found["failures"], found["last_error"]) == (free, failures, answer["error"])
        assert list((disk / "checkpoints" / "reverb").iterdir()) == []
    with pytest.raises(Exception, match="No space left on device"):
        reverb.Client(service.address).checkpoint()
    wait_until(lambda: checkpoints(service)["free_bytes"] == free)  # a client's, too
    take(service.address, 200)
    assert document(f"{service.url}/checkpoint", "POST")[1]["items"] == {"t": 60}
    assert checkpoints(service)["last_error"] == ""


def test_a_checkpoint_that_would_not_fit_is_refused_before_reverb_is_asked(
    service: Running, forks: Forks, disk: Path
) -> None:
    insert(service, 60)
    needed = document(f"{service.url}/checkpoint", "POST")[1]["bytes"]
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(checkpoints(service)["free_bytes"] - needed // 2))
    before = forks.log.read_text().count("Stored checkpoint")
    code, answer = document(f"{service.url}/checkpoint?anew=1", "POST")
    free = checkpoints(service)["free_bytes"]
    assert code == 503
    assert f"{free} bytes are free, {needed} are needed, as many as checkpoint 1 takes" in answer["error"]
    assert "Make the disk larger" in answer["error"]  # one generation, and nothing in set_aside
    assert forks.log.read_text().count("Stored checkpoint") == before
    found = checkpoints(service)
    assert (found["needed_bytes"], found["last_error"]) == (needed, answer["error"])
    values = metrics(service.url)
    assert values["replay_checkpoint_needed_bytes", "", ""] == needed > values["replay_checkpoint_free_bytes", "", ""]
    ballast.unlink()
    assert document(f"{service.url}/checkpoint", "POST")[0] == 200


def test_the_last_checkpoint_is_tried_however_full_the_disk_looks(forks: Forks, disk: Path) -> None:
    running = forks.start(config_of(disk, TABLE))
    insert(running, 60)
    needed = document(f"{running.url}/checkpoint", "POST")[1]["bytes"]
    (disk / "ballast").write_bytes(bytes(checkpoints(running)["free_bytes"] - needed // 2))
    take(running.address, 50)  # it is smaller by now, which only Reverb knows
    assert forks.end(running) == 0
    assert forks.start(config_of(disk, TABLE)).sizes == {"t": 10}


def test_what_is_needed_is_what_the_newest_checkpoint_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    check_space(tmp_path, 3, None)
    newest = add(store, 1)
    for free, fits in ((newest.bytes, True), (newest.bytes - 1, False)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: Usage(free))
        assert space_for(tmp_path, newest).free_bytes == free
        if fits:
            check_space(tmp_path, 3, newest)
            continue
        with pytest.raises(CheckpointError, match=f"{free} bytes are free, {newest.bytes} are needed"):
            check_space(tmp_path, 3, newest)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="cannot be asked for its free space"):
        check_space(tmp_path / "gone", 3, newest)


def test_a_full_disk_is_told_with_what_fills_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    newest = [add(store, number) for number in (1, 2, 3)][-1]
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0))
    with pytest.raises(CheckpointError) as error:
        check_space(tmp_path, 3, newest)
    assert "3 checkpoints are kept there: lower checkpoints.keep, which is 3, and restart" in str(error.value)
    assert "set_aside" not in str(error.value)
    store.note_left_out(newest, [LeftOut("one", 1, "why")])
    with pytest.raises(CheckpointError, match=f"delete what you do not need of {tmp_path}/set_aside; or make the disk"):
        check_space(tmp_path, 3, newest)


def test_a_start_that_keeps_fewer_checkpoints_makes_room_at_once(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        newest = add(opened(tmp_path), number)
    fewer = opened(tmp_path, keep=1)
    CheckpointWriter(fewer, lambda: "").restored(newest)
    assert fewer.paths() == [newest.folder]


def test_tables_that_hold_fewer_items_need_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    newest = add(store, 10)  # of ten items
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(newest.bytes // 3))
    check_space(tmp_path, 3, newest, lambda: 3)
    with pytest.raises(CheckpointError, match="as many as checkpoint 1 takes for each of its items, for 5 items"):
        check_space(tmp_path, 3, newest, lambda: 5)
    for items in (lambda: 10, lambda: 99, lambda: None):
        with pytest.raises(CheckpointError, match=f"{newest.bytes} are needed, as many as checkpoint 1 takes; nothing"):
            check_space(tmp_path, 3, newest, items)


class Usage:
    def __init__(self, free: int) -> None:
        self.free = free
