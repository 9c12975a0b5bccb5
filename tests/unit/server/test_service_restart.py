"""A server that is stopped, killed and started again: what it holds, and what the config makes of it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rlds2reverb
from rlds2reverb.formats.tfds import bundled_path
from tests.support import strategies
from tests.support.forks import Forks
from tests.support.processes import END_SECONDS, wait_until
from tests.support.server_running import Server, ready

reverb = pytest.importorskip("reverb")

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

RATIO = {"kind": "sample_to_insert_ratio", "samples_per_insert": 2.0, "error_buffer": 10.0, "min_size": 20}


def table(name: str = "t", **options: Any) -> dict[str, Any]:
    return {"name": name, "sampler": "fifo", "remover": "fifo", **options}


def episodes(count: int, rows: int = 11) -> list[Any]:
    rng = np.random.default_rng(4)
    return [strategies.episode(rng, rows) for _ in range(count)]


def push(running: Server, count: int, name: str = "t", **options: Any) -> int:
    with rlds2reverb.connect(running.address) as client:
        return client.push(episodes(count), table=name, **options).items_confirmed


def sizes(running: Server) -> dict[str, int]:
    return dict(ready(running.url)["tables"])


def contents(running: Server, name: str, count: int) -> dict[int, list[Any]]:
    """Key -> values of every item; the sampler goes through them in order."""
    client, found = reverb.Client(running.address), {}
    for sample in client.sample(name, count, emit_timesteps=False):
        found[sample.info.key] = [np.asarray(column) for column in sample.data]
    return found


def awaited(running: Server, condition: Callable[[Any], bool]) -> Any:
    """The status, once it is so; the monitor looks now and then."""
    wait_until(lambda: condition(running.get("/status.json")[1]), reason=lambda: running.get("/status.json"))
    return running.get("/status.json")[1]


def limiter(status: Any) -> Any:
    """The limiter of the first table."""
    return status["tables"][0]["limiter"]


def events(log: str) -> dict[str, Any]:
    """The last event of each name in a JSON log; lines of Reverb itself are none."""
    lines = [json.loads(line) for line in log.splitlines() if not line.startswith("[reverb/")]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    return {line["event"]: line for line in lines}


def test_a_service_of_its_own_lives_from_start_to_restart_with_all_its_items(tmp_path: Path) -> None:
    """The one that nothing of the tests imports or forks, as users run it."""
    config = {"tables": [table(max_times_sampled=0), table("other", sampler="uniform")], "log": {"format": "json"}}
    with Server(None, tmp_path, config).until_ready() as running:
        assert (push(running, 5), push(running, 3, "other")) == (50, 30)
        before = contents(running, "other", 2000)
        assert running.stop() == 0
        said = events(running.log)
        assert {
            "http is up",
            "loading Reverb",
            "no checkpoint to restore",
            "ready",
            "stopping",
        } <= said.keys()
        assert (said["checkpoint written"]["items"], said["stopped"]["exit_code"]) == (80, 0)
    with Server(None, tmp_path, config, "--log-format", "text").until_ready() as running:
        assert sizes(running) == {"t": 50, "other": 30}
        after = contents(running, "other", 2000)
        assert before.keys() == after.keys()
        assert len(after) == 30
        for key, values in before.items():
            for ours, theirs in zip(values, after[key], strict=True):
                np.testing.assert_array_equal(ours, theirs)
        assert push(running, 5) == 50  # the same keys: nothing is double
        assert sizes(running)["t"] == 50
        status = awaited(running, lambda status: status["tables"] != [])
        assert {document["name"]: document["restored"] for document in status["tables"]} == {"t": 50, "other": 30}
        assert status["checkpoints"]["last"]["items"] == {"t": 50, "other": 30}
        assert running.stop(signal.SIGINT) == 0
        assert re.search(r"\[info +\] restored +items=80", running.log)


IN_THE_MIDDLE = """if True:
    import io, os, signal, sys
    from pathlib import Path
    from replay_server.command import run

    class Signalling(io.FileIO):
        def write(self, data):
            if b" ready " in bytes(data):
                os.kill(os.getpid(), signal.SIGTERM)
            return super().write(data)

    sys.stderr = io.TextIOWrapper(io.BufferedWriter(Signalling(2, "wb", closefd=False)), write_through=True)
    run(Path(sys.argv[1]), (), False)
"""


def test_a_signal_in_the_middle_of_a_line_of_the_log_stops_the_server(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "tables": [table()],
                "grpc": {"port": 0},
                "http": {"port": 0},
                "checkpoints": {"folder": str(tmp_path / "checkpoints")},
            }
        )
    )
    ended = subprocess.run(
        [sys.executable, "-c", IN_THE_MIDDLE, file], capture_output=True, text=True, timeout=END_SECONDS, check=False
    )
    assert (ended.returncode, "Logging error" in ended.stderr) == (0, False)
    assert re.search(r"\[info +\] stopping +signal=SIGTERM", ended.stderr)


def test_a_killed_server_starts_from_its_newest_checkpoint(forks: Forks, tmp_path: Path) -> None:
    config = {"tables": [table()]}
    with Server(forks, tmp_path, config).until_ready() as running:
        push(running, 3)
        running.get("/checkpoint", "POST")
        push(running, 5)
    with Server(forks, tmp_path, config).until_ready() as running:
        assert sizes(running) == {"t": 30}


def test_the_config_decides_what_a_restored_table_is(forks: Forks, tmp_path: Path) -> None:
    first = {"tables": [table(sampler="uniform"), table("gone"), table("ratio", sampler="uniform")]}
    with Server(forks, tmp_path, first).until_ready() as running:
        push(running, 6)
        push(running, 2, "gone")
        push(running, 4, "ratio")
        everything = contents(running, "t", 2000)
        assert running.stop() == 0
    second = {
        "tables": [
            table(max_size=25, sampler="lifo", max_times_sampled=7),
            table("ratio", sampler="uniform", rate_limiter=RATIO),
            table("new"),
        ]
    }
    with Server(forks, tmp_path, second).until_ready() as running:
        assert sizes(running) == {"t": 25, "ratio": 40, "new": 0}
        with rlds2reverb.connect(running.address) as client:
            found = client.server_info().tables["t"]
        assert (found.max_size, found.sampler, found.max_times_sampled) == (25, "lifo", 7)
        newest = next(iter(contents(running, "t", 1)))
        assert newest in everything
        left = next((tmp_path / "checkpoints" / "set_aside").iterdir())
        assert "left-out" in left.name
        text = running.log
        for words in ("table is new", "no longer in the config", "table is smaller now", "rate limiter changed"):
            assert words in text
        # Halfway between its bounds: both sides may go on, for about error_buffer.
        assert len(contents(running, "ratio", 5)) > 0
        with rlds2reverb.connect(running.address) as client:
            report = client.push(episodes(1, rows=5), table="ratio", again=True)
        assert report.items_confirmed == 4


def test_a_prefilled_table_gets_its_limiter_at_the_restart(forks: Forks, tmp_path: Path) -> None:
    config = {"tables": [table(sampler="uniform", rate_limiter={"kind": "prefill", "items": 50, "then": RATIO})]}
    with Server(forks, tmp_path, config).until_ready() as running:
        assert push(running, 3) == 30
        awaited(running, lambda status: limiter(status)["samples_blocked"])
        assert running.stop() == 0
    with Server(forks, tmp_path, config).until_ready() as running:  # not full yet: it goes on filling
        awaited(running, lambda status: limiter(status)["prefilling"])
        assert push(running, 6) == 60
        assert running.stop() == 0
    with Server(forks, tmp_path, config).until_ready() as running:
        with rlds2reverb.connect(running.address) as client:
            found = client.server_info().tables["t"].rate_limiter
        assert (found.samples_per_insert, found.min_diff, found.max_diff) == (2.0, 30.0, 50.0)
        assert "prefill is done" in running.log
        assert len(contents(running, "t", 8)) > 0
        awaited(running, lambda status: not limiter(status)["inserts_blocked"])


@pytest.mark.parametrize("policy", ["set_aside", "refuse"])
def test_a_check_says_of_a_table_with_another_signature_what_the_start_does(
    forks: Forks, tmp_path: Path, policy: str
) -> None:
    with Server(forks, tmp_path, {"tables": [table(), table("same")]}).until_ready() as running:
        push(running, 2)
        push(running, 1, "same")
        assert running.stop() == 0
    changed = {
        "tables": [table(signature={"from_dataset": f"tfds:{bundled_path('cartpole')}"}), table("same")],
        "checkpoints": {"unfit_tables": policy},
    }
    with Server(forks, tmp_path, changed, "--check") as checking:
        code, output, errors = checking.result()
    said = {name: table["at_start"] for name, table in yaml.safe_load(output)["tables"].items()}
    with Server(forks, tmp_path, changed) as running:
        if policy == "refuse":
            assert (code, running.result()[0]) == (3, 3)
            assert said["t"].startswith("refused: its items were stored without a signature")
            assert all("put the signature back" in text for text in (errors, running.log))
            return
        assert code == 0
        assert said == {"t": said["t"], "same": "10 items restored"}
        assert said["t"].startswith("empty, 20 items set aside: its items were stored without a signature")
        assert f'table "t": {said["t"]}' in errors
        running.until_ready()
        assert sizes(running) == {"t": 0, "same": 10}
        [kept] = (tmp_path / "checkpoints" / "set_aside").iterdir()
        assert (kept / "items.tfrecord").stat().st_size > 0
        assert running.stop() == 0
    with Server(forks, tmp_path, changed).until_ready() as running:  # a restart ends no alert
        [alert] = running.get("/status.json")[1]["alerts"]
        assert (alert["alert"], alert["firing"]) == ("ReplayItemsSetAside", True)
        [found] = alert["found"]
        assert (found["table"], found["words"].startswith("20 items not restored: its items")) == ("t", True)
        assert found["words"].endswith(str(kept))
        assert 'replay_items_set_aside{table="t"} 20.0' in running.get("/metrics")[1]
        shutil.rmtree(kept)
        assert running.get("/status.json")[1]["alerts"] == []


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--set", "tables.0.max_size=none"], 2, "$.tables[0].max_size"),
        (["--set", "http.prot=1"], 2, "unknown field `prot`"),
        (
            ["--set", "tables.0.rate_limiter={kind: min_size, min_size: 9}", "--set", "tables.0.max_size=5"],
            2,
            "holds at most 5",
        ),
        (["--set", "checkpoints.folder=/proc/nowhere"], 3, "cannot be written to"),
        (["--set", "http.host=203.0.113.7"], 3, "cannot listen"),
    ],
)
def test_what_cannot_run_ends_with_a_line_and_a_code(
    forks: Forks, tmp_path: Path, flags: list[str], code: int, words: str
) -> None:
    with Server(forks, tmp_path, {"tables": [table()]}, *flags) as running:
        ended, _, text = running.result()
    assert ended == code
    assert words in text
    assert "Traceback" not in text
