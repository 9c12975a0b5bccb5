"""What pushes do to each other: ledgers and sizes, mends and keys, plans; on a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_server import TableConfig

import rlds2reverb
from rlds2reverb.errors import CapacityError, ConfigError, InvalidEpisode, ViewError
from rlds2reverb.push.known import OTHER_NAMES
from tests.support import strategies
from tests.support.forks import Embedded, Forks
from tests.support.push.in_memory import Unmeasured

reverb = pytest.importorskip("reverb")

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

STEPS = 41


@pytest.fixture(scope="module")
def server(forks: Forks) -> Iterator[Embedded]:
    tables = [TableConfig("small", max_size=100), TableConfig("large", sampler="fifo"), TableConfig("other")]
    with forks.embedded(tables) as running:
        yield running


@pytest.fixture
def client(server: Embedded) -> Iterator[rlds2reverb.Client]:
    for table in ("small", "large", "other"):
        reverb.Client(server.address).reset(table)
    with rlds2reverb.connect(server.address) as connected:
        yield connected


def episodes(count: int, **columns: Any) -> list[Any]:
    rng = np.random.default_rng(5)
    made = [strategies.episode(rng, STEPS) for _ in range(count)]
    return [replace(episode.with_columns(**columns), id=f"episode {number}") for number, episode in enumerate(made)]


def size(client: rlds2reverb.Client, table: str) -> int:
    return client.server_info().tables[table].current_size


def test_a_ledger_does_not_let_a_small_table_evict(client: rlds2reverb.Client, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="max_size 100"):
        client.push(episodes(6), "small", ledger=tmp_path / "ledger.db")
    assert size(client, "small") == 0
    for _ in range(3):
        with pytest.raises(CapacityError, match="max_size 100"):
            client.push(Unmeasured(episodes(6)), "small", ledger=tmp_path / "ledger.db")
        table = client.server_info().tables["small"]
        assert (table.current_size, table.deleted_episodes) == (80, 0)


def test_a_mended_episode_is_stored_beside_the_one_it_mends(
    client: rlds2reverb.Client, server: Embedded, tmp_path: Path
) -> None:
    terminal = np.arange(STEPS) == STEPS - 1
    source = episodes(1, is_terminal=terminal, discount=np.ones(STEPS, np.float32))
    ledger = tmp_path / "ledger.db"
    client.push(source, "large", ledger=ledger)
    report = client.push(source, "large", ledger=ledger, on_invalid="repair")
    assert (dict(report.repaired), report.items_confirmed) == ({"terminal_discount": 1}, STEPS - 1)
    assert size(client, "large") == 2 * (STEPS - 1)
    client.push(source, "large", ledger=ledger, on_invalid="repair")
    assert size(client, "large") == 2 * (STEPS - 1)
    client.push(source, "other", on_invalid="repair")
    found = {
        np.asarray(sample.data[-1])[0]
        for sample in reverb.Client(server.address).sample("other", 2000, emit_timesteps=False)
    }
    assert found == {np.float32(0), np.float32(1)}


def test_what_is_tolerated_is_not_mended(client: rlds2reverb.Client) -> None:
    terminal = np.arange(STEPS) == STEPS - 1
    source = episodes(1, is_terminal=terminal, discount=np.ones(STEPS, np.float32))
    report = client.push(source, "large", on_invalid="repair", allow=["terminal_discount"])
    assert not report.repaired


def test_a_shift_looks_at_the_last_reward_even_when_the_first_is_tolerated(client: rlds2reverb.Client) -> None:
    reward = np.ones(STEPS, np.float32)
    reward[-1] = np.nan
    with pytest.raises(InvalidEpisode, match="nan"):
        client.push(
            episodes(1, reward=reward), "large", last_reward="shift", allow=["first_reward_lost", "last_reward"]
        )
    assert size(client, "large") == 0


def test_a_plan_refuses_what_the_push_would(client: rlds2reverb.Client, tmp_path: Path) -> None:
    with pytest.raises(CapacityError):
        client.plan(episodes(101), "small")
    with pytest.raises(ConfigError):
        client.plan(episodes(1), "large", again=True, ledger=tmp_path / "l.db")
    assert [(table.name, table.size) for table in client.plan(episodes(2), "large").tables] == [("large", 0)]
    assert size(client, "large") == 0


def test_an_episode_too_long_for_the_view_is_skipped_or_named(client: rlds2reverb.Client) -> None:
    short = replace(strategies.episode(np.random.default_rng(1), 5), id="short")
    source = [*episodes(2), short]
    view = "episode:max_length=6"
    report = client.push(source, "large", view=view, on_invalid="skip")
    assert (report.items_confirmed, dict(report.rejected)) == (1, {"view_refused": 2})
    with pytest.raises(ViewError, match="episode episode 0: episode of 41 steps: longer than max_length 6"):
        client.push(source, "large", view=view)


def test_a_quarantine_file_is_looked_at_before_anything_is_pushed(client: rlds2reverb.Client, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        client.push(episodes(1), "large", on_invalid="quarantine", quarantine=tmp_path / "missing" / "q.jsonl")
    assert size(client, "large") == 0


@pytest.mark.parametrize("options", [{"chunk_length": 2.5}, {"chunk_length": True}, {"view": 3}])
def test_arguments_of_another_type_are_said(client: rlds2reverb.Client, options: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        client.push(episodes(1), "large", **options)


@pytest.mark.parametrize("command", [["status"], ["push", "bundled:cartpole", "--table", "large", "--json"]])
def test_a_reader_that_leaves_is_no_error(server: Embedded, command: list[str]) -> None:
    program = [sys.executable, "-c", "from rlds2reverb.cli import main; main()", *command, "--server", server.address]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        text = running.stderr.read().decode()
    assert running.returncode == 0, text
    assert "Traceback" not in text
    assert "BrokenPipe" not in text


def test_an_identity_finds_the_items_of_data_that_were_written_anew(client: rlds2reverb.Client, tmp_path: Path) -> None:
    """Equal keys: the items of the second push take the places of the first one's."""
    ledger = tmp_path / "ledger.db"
    plain = [replace(episode, id="") for episode in episodes(3)]
    anew = [episode.with_columns(further=np.zeros(STEPS, np.float32)) for episode in plain]
    options: dict[str, Any] = {"transform": "select=observation,action", "identity": "columns=action"}
    assert client.push(plain, "large", **options).items_new == 3 * (STEPS - 1)
    assert client.push(anew, "large", **options).items_new == 0
    assert size(client, "large") == 3 * (STEPS - 1)
    del options["identity"]
    client.push(plain, "large", ledger=ledger, **options)
    assert size(client, "large") == 6 * (STEPS - 1)
    [notice] = [
        notice for notice in client.plan(anew, "large", ledger=ledger, **options).notices if notice.code == OTHER_NAMES
    ]
    assert "all 3 episodes will be stored once more" in notice.text
    assert client.push(anew, "large", ledger=ledger, **options).items_new == 3 * (STEPS - 1)
