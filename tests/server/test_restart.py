"""A server that is stopped, killed and started again: what it holds, and what the config makes of it."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.datasets import bundled_path
from tests import strategies
from tests.server.running import Running

reverb = pytest.importorskip("reverb")

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

RATIO = {"kind": "sample_to_insert_ratio", "samples_per_insert": 2.0, "error_buffer": 10.0, "min_size": 20}


def table(name: str = "t", **options: Any) -> dict[str, Any]:
    return {"name": name, "sampler": "fifo", "remover": "fifo", **options}


def episodes(count: int, rows: int = 11) -> list[Any]:
    rng = np.random.default_rng(4)
    return [strategies.episode(rng, rows) for _ in range(count)]


def push(running: Running, count: int, name: str = "t", **options: Any) -> int:
    with rlds2reverb.connect(running.address) as client:
        return client.push(episodes(count), table=name, **options).items_confirmed


def sizes(running: Running) -> dict[str, int]:
    status, document = running.get("/readyz")
    assert status == 200
    return document["tables"]


def contents(running: Running, name: str, count: int) -> dict[int, list[Any]]:
    """Key -> values of every item; the sampler goes through them in order."""
    client, found = reverb.Client(running.address), {}
    for sample in client.sample(name, count, emit_timesteps=False):
        found[sample.info.key] = [np.asarray(column) for column in sample.data]
    return found


def test_everything_is_there_after_a_restart_and_the_server_says_so(tmp_path: Path) -> None:
    config = {"tables": [table(max_times_sampled=0), table("other", sampler="uniform")], "log": {"format": "json"}}
    with Running(tmp_path, config) as running:
        assert (push(running, 5), push(running, 3, "other")) == (50, 30)
        before = contents(running, "other", 2000)
        assert running.stop() == 0
    with Running(tmp_path, config) as running:
        assert sizes(running) == {"t": 50, "other": 30}
        after = contents(running, "other", 2000)
        assert before.keys() == after.keys()
        assert len(after) == 30
        for key, values in before.items():
            for ours, theirs in zip(values, after[key], strict=True):
                np.testing.assert_array_equal(ours, theirs)
        assert push(running, 5) == 50  # the same keys: nothing is double
        assert sizes(running)["t"] == 50
        _, status = running.get("/status.json")
        assert {one["name"]: one["restored"] for one in status["tables"]} == {"t": 50, "other": 30}
        assert status["checkpoints"]["last"]["items"] == {"t": 50, "other": 30}
        assert running.stop(signal.SIGINT) == 0


def test_a_truncated_newest_generation_costs_one_and_not_the_start(tmp_path: Path) -> None:
    config = {"tables": [table()]}
    with Running(tmp_path, config) as running:
        push(running, 2)
        assert running.get("/checkpoint", "POST")[1]["items"] == {"t": 20}
        push(running, 4)
        assert running.stop() == 0
        newest = running.generations[-1]
    os.truncate(newest / "items.tfrecord", 100)
    with Running(tmp_path, config) as running:
        assert sizes(running) == {"t": 20}
        assert "broken checkpoint set aside" in running.log.read_text()
        assert [path.name for path in (tmp_path / "checkpoints" / "set_aside").iterdir()] == [f"{newest.name}-broken"]
        push(running, 4)
        assert sizes(running) == {"t": 40}


def test_a_killed_server_starts_from_its_newest_checkpoint(tmp_path: Path) -> None:
    config = {"tables": [table()]}
    with Running(tmp_path, config) as running:
        push(running, 3)
        running.get("/checkpoint", "POST")
        push(running, 5)
    with Running(tmp_path, config) as running:
        assert sizes(running) == {"t": 30}


def test_the_config_decides_what_a_restored_table_is(tmp_path: Path) -> None:
    first = {"tables": [table(sampler="uniform"), table("gone"), table("ratio", sampler="uniform")]}
    with Running(tmp_path, first) as running:
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
    with Running(tmp_path, second) as running:
        assert sizes(running) == {"t": 25, "ratio": 40, "new": 0}
        with rlds2reverb.connect(running.address) as client:
            found = client.server_info().tables["t"]
        assert (found.max_size, found.sampler, found.max_times_sampled) == (25, "lifo", 7)
        newest = next(iter(contents(running, "t", 1)))
        assert newest in everything
        left = next((tmp_path / "checkpoints" / "set_aside").iterdir())
        assert "left-out" in left.name
        text = running.log.read_text()
        for words in ("table is new", "no longer in the config", "table is smaller now", "rate limiter changed"):
            assert words in text
        # Halfway between its bounds: both sides may go on, for about error_buffer.
        assert len(contents(running, "ratio", 5)) > 0
        with rlds2reverb.connect(running.address) as client:
            report = client.push(episodes(1, rows=5), table="ratio", again=True)
        assert report.items_confirmed == 4


def test_a_prefilled_table_gets_its_limiter_at_the_restart(tmp_path: Path) -> None:
    config = {"tables": [table(sampler="uniform", rate_limiter={"kind": "prefill", "items": 50, "then": RATIO})]}
    with Running(tmp_path, config) as running:
        assert push(running, 3) == 30
        assert running.get("/status.json")[1]["tables"][0]["limiter"]["samples_blocked"]
        assert running.stop() == 0
    with Running(tmp_path, config) as running:  # not full yet: it goes on filling
        assert running.get("/status.json")[1]["tables"][0]["limiter"]["prefilling"]
        assert push(running, 6) == 60
        assert running.stop() == 0
    with Running(tmp_path, config) as running:
        with rlds2reverb.connect(running.address) as client:
            limiter = client.server_info().tables["t"].rate_limiter
        assert (limiter.samples_per_insert, limiter.min_diff, limiter.max_diff) == (2.0, 30.0, 50.0)
        assert "prefill is done" in running.log.read_text()
        assert len(contents(running, "t", 8)) > 0
        _, status = running.get("/status.json")
        assert not status["tables"][0]["limiter"]["inserts_blocked"], status["tables"][0]


def test_another_experiments_checkpoint_is_a_start(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    with Running(one, {"tables": [table()]}) as running:
        push(running, 2)
        assert running.stop() == 0
    start = {"start_from": str(one / "checkpoints")}
    with Running(two, {"tables": [table()], "checkpoints": start}) as running:
        assert sizes(running) == {"t": 20}
        push(running, 3)
        assert running.stop() == 0
    shutil.rmtree(one)
    with Running(two, {"tables": [table()], "checkpoints": start}) as running:  # its own comes first
        assert sizes(running) == {"t": 30}


@pytest.mark.parametrize("policy", ["set_aside", "refuse"])
def test_a_table_with_another_signature_is_said_and_nothing_is_lost(tmp_path: Path, policy: str) -> None:
    with Running(tmp_path, {"tables": [table()]}) as running:
        push(running, 2)
        assert running.stop() == 0
    changed = {
        "tables": [table(signature={"from_dataset": f"tfds:{bundled_path('cartpole')}"})],
        "checkpoints": {"unfit_tables": policy},
    }
    with Running(tmp_path, changed, wait=policy == "set_aside") as running:
        if policy == "refuse":
            assert running.process.wait(timeout=120) == 3
            assert "put the signature back" in running.log.read_text()
            return
        assert sizes(running) == {"t": 0}
        kept = next((tmp_path / "checkpoints" / "set_aside").iterdir())
        assert (kept / "items.tfrecord").stat().st_size > 0


def test_ready_and_metrics_tell_what_reverb_tells(tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    queue = {"name": "q", "rate_limiter": {"kind": "queue", "size": 5}}
    with Running(tmp_path, {"tables": [table(), queue]}) as running:
        push(running, 2)
        values: dict[tuple[str, str], float] = {}
        while values.get(("replay_table_size", "t")) != 20:
            text = running.get("/metrics")[1]
            for family in text_string_to_metric_families(text):
                values |= {(one.name, one.labels.get("table", "")): one.value for one in family.samples}
        assert values["replay_table_inserts_total", "t"] == 20
        assert values["replay_table_max_size", "q"] == 5
        assert values["replay_ready", ""] == 1
        assert running.get("/healthz")[1]["status"] == "alive"
        assert running.get("/checkpoint", "POST", Origin="http://elsewhere.example")[0] == 403
        assert running.get("/nothing")[0] == 404


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
def test_what_cannot_run_ends_with_a_line_and_a_code(tmp_path: Path, flags: list[str], code: int, words: str) -> None:
    with Running(tmp_path, {"tables": [table()]}, *flags, wait=False) as running:
        assert running.process.wait(timeout=120) == code
        text = running.log.read_text()
    assert words in text
    assert "Traceback" not in text
