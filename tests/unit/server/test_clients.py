"""What a client had Reverb save is a checkpoint, though Reverb itself deletes it with the next one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import reverb
from replay_server.store import read_checkpoint

from tests.support.forks import Forks, Running
from tests.support.processes import wait_until
from tests.unit.server.test_service import config_of, document, insert, metrics, take

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def last(running: Running) -> dict[str, Any]:
    found = document(f"{running.url}/status.json")[1]["checkpoints"]["last"]
    return {} if found is None else dict(found)


@contextmanager
def looping(running: Running, clients: int) -> Iterator[None]:
    """So many clients that ask for one checkpoint after the other.

    Of calls that overlap, Reverb itself fails some: they delete the same entry.
    """
    ended = threading.Event()

    def ask() -> None:
        client = reverb.Client(running.address)
        while not ended.is_set():
            with suppress(RuntimeError):
                client.checkpoint()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_clients_checkpoint_becomes_a_checkpoint_while_running(forks: Forks, tmp_path: Path) -> None:
    running = forks.start(config_of(tmp_path))
    stored = insert(running.address, 20)
    assert Path(reverb.Client(running.address).checkpoint()).parent == tmp_path / "checkpoints" / "reverb"
    wait_until(lambda: last(running) != {})
    found = last(running)
    assert (found["generation"], found["reason"], found["items"]) == (1, "client", {"t": 20})
    assert metrics(running.url)["replay_checkpoint_from_clients_total", "", ""] == 1
    kept = read_checkpoint(tmp_path / "checkpoints" / "generations" / "000001")
    assert kept.manifest.items == {"t": 20}
    forks.end(running, signal.SIGKILL)
    again = forks.start(config_of(tmp_path))
    assert (again.restored, again.sizes) == (1, {"t": 20})
    assert take(again.address, 20) == stored
    forks.end(again, signal.SIGKILL)


def test_a_clients_checkpoint_survives_a_kill_right_after_it_was_confirmed(forks: Forks, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    stored: list[list[float]] = []
    for start in range(1, 4):
        running = forks.start(config)
        assert running.sizes == {"t": len(stored)}
        assert running.restored == (start - 1 or None)
        stored += insert(running.address, 10, first=10 * start)
        reverb.Client(running.address).checkpoint()
        forks.end(running, signal.SIGKILL)
    running = forks.start(config)
    assert (running.restored, running.manifest) == (3, {"t": 30})
    assert take(running.address, 30) == stored
    forks.end(running, signal.SIGKILL)
    assert forks.start(config).restored == 3  # not a second time


def test_our_own_checkpoints_succeed_while_two_clients_loop_the_call(forks: Forks, tmp_path: Path) -> None:
    running = forks.start(config_of(tmp_path))
    insert(running.address, 300)
    with looping(running, 2):
        answers = [document(f"{running.url}/checkpoint", "POST") for _ in range(30)]
    assert [answer for answer in answers if answer[0] != 200] == []
    assert [answer[1]["items"] for answer in answers] == [{"t": 300}] * 30
    status = document(f"{running.url}/status.json")[1]["checkpoints"]
    assert (status["failures"], status["last_error"]) == (0, "")
    assert forks.end(running) == 0
    assert forks.start(config_of(tmp_path)).sizes == {"t": 300}


def test_a_looping_client_does_not_rotate_the_schedules_checkpoints_away(forks: Forks, tmp_path: Path) -> None:
    running = forks.start(config_of(tmp_path, keep=3))
    own = []
    for first in (0, 5):
        insert(running.address, 5, first=first)
        own.append(document(f"{running.url}/checkpoint", "POST")[1]["generation"])
    insert(running.address, 5, first=10)
    with looping(running, 1):
        wait_until(lambda: last(running)["reason"] == "client")
    assert forks.end(running) == 0  # gives way to the one at the end
    names = sorted(int(path.name) for path in (tmp_path / "checkpoints" / "generations").iterdir())
    assert names[:2] == own
    assert len(names) == 3


def test_without_a_checkpoint_at_the_end_a_clients_is_kept_all_the_same(forks: Forks, tmp_path: Path) -> None:
    config = config_of(tmp_path, on_shutdown=False)
    running = forks.start(config)
    insert(running.address, 5)
    reverb.Client(running.address).checkpoint()
    assert forks.end(running) == 0
    assert [path.name for path in (tmp_path / "checkpoints" / "generations").iterdir()] == ["000001"]
    assert forks.start(config).sizes == {"t": 5}
