"""Starts that must not go on, and folders that are lost while a service runs; with real services."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replay_server.folder_lock import OWNER, FolderOwner, this_process
from replay_server.history import newest_checkpoint

from tests.support.forks import Forks, Running
from tests.support.processes import wait_until
from tests.support.server_running import ready
from tests.unit.server.test_choosing import io_error
from tests.unit.server.test_service import config_of, document, insert, take

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


@pytest.fixture
def start(forks: Forks) -> Iterator[Callable[..., Running]]:
    """Starts services that end with the test."""
    started: list[Running] = []

    def start_one(config: dict[str, Any]) -> Running:
        started.append(forks.start(config))
        return started[-1]

    yield start_one
    for running in started:
        try:
            os.kill(running.pid, 0)
        except ProcessLookupError:
            continue  # ended by the test
        forks.end(running, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def three(forks: Forks, tmp_path: Path, folder: Path) -> list[Path]:
    """Generations of 1, 2 and 3 items, newest first; no service runs."""
    running = forks.start(config_of(tmp_path))
    for number in range(3):
        insert(running.address, 1, number)
        assert document(f"{running.url}/checkpoint", "POST")[0] == 200
    forks.end(running, signal.SIGKILL)
    return sorted((folder / "generations").iterdir(), reverse=True)


def refused(start: Any, config: dict[str, Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        start(config)
    return str(error.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_service_on_a_folder_is_refused_and_the_first_loses_nothing(
    start: Any, forks: Forks, tmp_path: Path, folder: Path
) -> None:
    first = start(config_of(tmp_path))
    stored = insert(first.address, 6)
    assert document(f"{first.url}/checkpoint", "POST")[1]["generation"] == 1
    reason = refused(start, config_of(tmp_path, keep=1))
    assert f"CheckpointError: checkpoint folder {folder}: another server uses it: process {first.pid} on host" in reason
    ready(first.url)
    insert(first.address, 1, 6)
    assert document(f"{first.url}/checkpoint", "POST")[1]["generation"] == 2
    forks.end(first, signal.SIGKILL)
    again = start(config_of(tmp_path))  # at once: the kernel says that the owner is gone
    assert (again.restored, again.sizes) == (2, {"t": 7})
    assert take(again.address, 6) == stored
    assert forks.end(again) == 0
    assert names(folder) == ["HISTORY.json", "LOCK", "generations", "reverb", "set_aside", "taken"]


def test_a_service_that_lost_its_folder_writes_nothing_more_and_says_so(
    start: Any, forks: Forks, tmp_path: Path, folder: Path
) -> None:
    running = start(config_of(tmp_path))
    insert(running.address, 3)
    other = FolderOwner(
        **{**{name: getattr(this_process(0, 1), name) for name in FolderOwner.__struct_fields__}, "host": "thief"}
    )
    (folder / "new").write_bytes(other.encoded())
    (folder / "new").rename(folder / OWNER)
    before = names(folder / "generations"), names(folder / "reverb")
    code, answer = document(f"{running.url}/checkpoint", "POST")
    assert (code, "another server has taken it, process" in answer["error"]) == (503, True)
    code, answer = document(f"{running.url}/readyz")
    assert (code, "on host thief" in answer["reason"]) == (503, True)
    status = document(f"{running.url}/status.json")[1]["checkpoints"]
    assert ("on host thief" in status["problem"], "on host thief" in status["last_error"]) == (True, True)
    assert document(f"{running.url}/healthz")[0] == 200
    assert take(running.address, 1)  # what it holds is served all the same
    assert forks.end(running) == 1
    assert (names(folder / "generations"), names(folder / "reverb")) == before
    assert b"thief" in (folder / OWNER).read_bytes()
    assert '"level": "critical"' in forks.log.read_text()


def test_a_folder_that_is_gone_for_a_while_costs_no_checkpoint_after_it(
    start: Any, forks: Forks, tmp_path: Path, folder: Path
) -> None:
    running = start(config_of(tmp_path))
    insert(running.address, 3)
    folder.rename(tmp_path / "away")
    assert document(f"{running.url}/checkpoint", "POST")[0] == 503
    for path, code in (("readyz", 503), ("status.json", 200), ("healthz", 200)):
        assert document(f"{running.url}/{path}")[0] == code
    assert document(f"{running.url}/status.json")[1]["checkpoints"]["problem"]
    assert not folder.exists()
    (tmp_path / "away").rename(folder)
    assert document(f"{running.url}/checkpoint", "POST")[0] == 200
    ready(running.url)
    assert forks.end(running) == 0


def test_checkpoints_that_cannot_be_read_stop_every_start_until_it_is_told_to_go_on(
    start: Any, tmp_path: Path, folder: Path, three: list[Path]
) -> None:
    io_error(three[0] / "items.tfrecord")
    io_error(three[1] / "MANIFEST.json")
    for _ in range(2):
        reason = refused(start, config_of(tmp_path))
        assert f"{three[0]}/items.tfrecord: cannot be read (Input/output error)" in reason
        assert "--start-empty (checkpoints.start_empty: true)" in reason
        assert (names(folder / "generations"), names(folder / "set_aside")) == (["000001", "000002", "000003"], [])
    running = start(config_of(tmp_path, start_empty=True))
    assert (running.restored, running.sizes) == (1, {"t": 1})
    answer = ready(running.url)
    assert (answer["unreadable"]["count"], "set_aside" in answer) == (2, False)
    assert "Input/output error" in answer["unreadable"]["reason"]
    assert document(f"{running.url}/checkpoint?anew=1", "POST")[1]["generation"] == 4


def test_folders_that_are_removed_under_a_service_cost_no_checkpoint(
    start: Any, forks: Forks, tmp_path: Path, folder: Path
) -> None:
    running = start(config_of(tmp_path))
    insert(running.address, 1, 0)
    for number, name in enumerate(("generations", "taken", "set_aside", "reverb"), 1):
        shutil.rmtree(folder / name)
        assert document(f"{running.url}/checkpoint?anew=1", "POST")[1]["generation"] == number
        assert names(folder / "generations") == [f"{generation:06d}" for generation in range(1, number + 1)][-3:]
    shutil.rmtree(folder / "generations")
    assert document(f"{running.url}/status.json")[1]["checkpoints"]["last"] is None
    assert '"event": "folder made again", "level": "warning"' in forks.log.read_text()
    assert forks.end(running) == 0
    assert start(config_of(tmp_path)).sizes == {"t": 1}


def test_a_folder_without_its_checkpoints_is_started_empty_only_when_told_to(
    start: Any, forks: Forks, tmp_path: Path, folder: Path, three: list[Path]
) -> None:
    running = start(config_of(tmp_path))
    assert forks.end(running) == 0  # a server that ends has written its history
    shutil.rmtree(folder / "generations")
    for _ in range(2):
        reason = refused(start, config_of(tmp_path))
        assert f"{folder}: checkpoint 3, whole at" in reason
        assert "--start-empty (checkpoints.start_empty: true)" in reason
    running = start(config_of(tmp_path, start_empty=True))
    assert (running.restored, running.sizes) == (None, {"t": 0})
    wait_until(lambda: newest_checkpoint(folder) is None)
    forks.end(running, signal.SIGKILL)
    running = start(config_of(tmp_path))  # once is enough, also where no checkpoint came since
    assert running.restored is None


def test_checkpoints_that_are_all_broken_stop_the_start_and_are_told_when_it_goes_on(
    start: Any, forks: Forks, tmp_path: Path, folder: Path, three: list[Path]
) -> None:
    for path in three:
        os.truncate(path / "items.tfrecord", 1)
    for _ in range(2):
        assert "none of 3 loads" in refused(start, config_of(tmp_path))
    assert names(folder / "set_aside") == []
    running = start(config_of(tmp_path, start_empty=True))
    assert (running.restored, running.sizes) == (None, {"t": 0})
    for told in (ready(running.url), document(f"{running.url}/status.json")[1]["checkpoints"]):
        assert told["set_aside"]["count"] == 3
        assert told["set_aside"]["path"] == str(folder / "set_aside" / "000003-broken")
        assert "items.tfrecord" in told["set_aside"]["reason"]
    assert '"event": "broken checkpoint set aside", "level": "warning"' in forks.log.read_text()


@pytest.mark.parametrize("name", ["MANIFEST.json", "chunks.tfrecord"])
def test_a_pipe_among_the_files_hangs_no_start(
    start: Any, tmp_path: Path, folder: Path, three: list[Path], name: str
) -> None:
    (three[0] / name).unlink()
    os.mkfifo(three[0] / name)
    os.mkfifo(folder / "reverb" / "pipe")
    os.mkfifo(folder / "generations" / "000009")
    running = start(config_of(tmp_path))
    assert (running.restored, running.sizes) == (2, {"t": 2})
    assert ready(running.url)["set_aside"]["count"] == 2
    assert names(folder / "set_aside") == ["000003-broken", "000009-broken"]


def test_what_stands_in_the_place_of_reverbs_folder_is_refused(start: Any, tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "reverb")
    said = refused(start, config_of(tmp_path))
    assert f"checkpoint folder {folder}: " in said
    assert f"'{folder / 'reverb'}'; clear what is in the way there" in said
