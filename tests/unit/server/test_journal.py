"""The journal of a real server: what pushes leave, across kills, restarts and checkpoints of others."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reverb
from replay_server.config import check
from replay_server.tables import TableConfig

import rlds2reverb
from rlds2reverb.errors import ConfigError
from rlds2reverb.wire.messages import JOURNAL, is_own
from tests.support import strategies
from tests.support.forks import Forks
from tests.support.processes import wait_until
from tests.support.server_running import Server, ready

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

CONFIG = {"tables": [{"name": "t", "sampler": "fifo", "remover": "fifo"}]}


def episodes(count: int, seed: int = 4) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [strategies.episode(rng, 11) for _ in range(count)]


def push(running: Server, count: int, **options: Any) -> None:
    with rlds2reverb.connect(running.address) as client:
        client.push(episodes(count), table="t", **options)


def journal(running: Server) -> list[tuple[str, str, int, int | None]]:
    """Kind, state, items and new items of every entry."""
    with rlds2reverb.connect(running.address) as client:
        process = f"{client.server_info().state_id:032x}"
        return [(entry.kind, entry.find_state(process), entry.items, entry.items_new) for entry in client.journal()]


def test_the_journal_comes_back_with_the_checkpoint_that_it_describes(forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        push(running, 2, note="first")
        push(running, 3)
        assert journal(running) == [("push", "done", 20, 20), ("push", "done", 30, 10)]
        assert running.get("/checkpoint", "POST")[1]["items"] == {"t": 30}
        push(running, 4)  # no checkpoint has it
        assert len(journal(running)) == 3
        running.process.kill()
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        assert journal(running) == [("push", "done", 20, 20), ("push", "done", 30, 10)]
        # No list of tables, size or sum has it.
        assert ready(running.url)["tables"] == {"t": 30}
        wait_until(lambda: running.get("/status.json")[1]["journal"]["count"] == 2, 30)
        status = running.get("/status.json")[1]
        assert [entry["note"] for entry in status["journal"]["newest"]] == ["", "first"]
        assert [table["name"] for table in status["tables"]] == ["t"]
        assert JOURNAL not in running.get("/metrics")[1]
        assert "items=30" in next(line for line in running.log.splitlines() if " ready " in line)
        assert running.stop() == 0
    with Server(forks, tmp_path, CONFIG, "--check") as checked:
        code, output, errors = checked.result()
        assert (code, JOURNAL in output + errors) == (0, False)


def test_a_push_that_is_killed_leaves_an_entry_that_says_so(forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, {"tables": [{"name": "t", "rate_limiter": {"kind": "queue", "size": 5}}]}) as running:
        running.until_ready()
        with forks.module(tmp_path, "tests.support.faults.pusher", running.address, "t", "made:30:61:3", "raise", ""):
            wait_until(lambda: ready(running.url)["tables"]["t"] >= 5, 60)  # it waits for samples
            assert [state for _, state, *_ in journal(running)] == ["running"]
        wait_until(lambda: [state for _, state, *_ in journal(running)] == ["cut off"], 30)


def test_pushes_and_readers_at_once_miss_nothing(forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        threads = [threading.Thread(target=push, args=(running, 1 + number)) for number in range(6)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            journal(running)
        for thread in threads:
            thread.join()
        assert sorted(items for _, _, items, _ in journal(running)) == [10 * (1 + number) for number in range(6)]


def test_clients_of_other_libraries_see_a_table_of_text(forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        push(running, 1)
        client = reverb.Client(running.address)
        assert {name for name in client.server_info() if not is_own(name)} == {"t"}
        (sample,) = client.sample(JOURNAL, 1, emit_timesteps=False)
        record = sample.data["record"] if isinstance(sample.data, dict) else sample.data[0]
        assert json.loads(bytes(np.asarray(record).ravel()[0]))["items"] == 10


def test_a_checkpoint_without_a_journal_is_loaded_with_an_empty_one(forks: Forks, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    with forks.embedded([TableConfig("t", sampler="fifo")], checkpoint_dir=folder) as other:
        with rlds2reverb.connect(other.address) as client:
            client.push(episodes(2), table="t")
            assert client.journal() == []  # somebody else's server: all works, and nothing is kept
            (path,) = client.checkpoint().values()
    config = {**CONFIG, "checkpoints": {"start_from": path}}
    with Server(forks, tmp_path, config).until_ready() as running:
        assert (ready(running.url)["tables"], journal(running)) == ({"t": 20}, [])
        push(running, 3)
        assert journal(running) == [("push", "done", 30, 10)]


def test_names_of_the_servers_own_tables_are_refused_in_a_config() -> None:
    with pytest.raises(
        ConfigError, match=r"a table that the server keeps for itself, choose another - at `\$.tables\[0\].name`"
    ):
        check([TableConfig(JOURNAL)])
    check([TableConfig(f"{JOURNAL}s")])
