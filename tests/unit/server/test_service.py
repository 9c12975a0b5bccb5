"""The service as users run it: HTTP, signals, restarts, exit codes and logs."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reverb
import yaml
from prometheus_client.parser import text_string_to_metric_families
from replay_server.config import decode, table_configs
from replay_server.folder_lock import FolderLock
from replay_server.http import make_app
from replay_server.logs import log_progress, logger, share
from replay_server.service import ReplayService

import rlds2reverb
from tests.support.forks import Forks, Running
from tests.support.processes import eventually, free_port, wait_until
from tests.support.server_running import Server, ready
from tests.unit.server.test_store import add, write_checkpoint
from tests.unit.server.test_store import opened as open_folder

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ONCE = {"name": "t", "sampler": "fifo", "max_times_sampled": 1, "signature": "float32[2]"}


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and body of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def document(url: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    status, text = ask(url, method, **headers)
    return status, json.loads(text)


def metrics(url: str) -> dict[tuple[str, str, str], float]:
    """(sample, table, side or state) -> value."""
    return {
        (
            sample.name,
            sample.labels.get("table", ""),
            sample.labels.get("side", sample.labels.get("state", "")),
        ): sample.value
        for family in text_string_to_metric_families(ask(f"{url}/metrics")[1])
        for sample in family.samples
    }


def insert(address: str, count: int, first: int = 0) -> list[list[float]]:
    values = [[float(n), float(-n)] for n in range(first, first + count)]
    with reverb.Client(address).trajectory_writer(1) as writer:
        for value in values:
            writer.append(np.array(value, np.float32))
            writer.create_item("t", 1.0, writer.history[-1])
        writer.flush()
    return values


def take(address: str, count: int) -> list[list[float]]:
    samples = reverb.Client(address).sample("t", count, emit_timesteps=False)
    return [np.asarray(sample.data[0]).tolist() for sample in samples]


def config_of(home: Path, *tables: dict[str, Any], **checkpoints: Any) -> dict[str, Any]:
    section = {"folder": str(home / "checkpoints"), "every_seconds": None, **checkpoints}
    return {"tables": list(tables or (ONCE,)), "checkpoints": section}


@pytest.fixture
def process(forks: Forks, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts the command, on free ports."""
    with ExitStack() as stack:
        yield lambda config, *flags: stack.enter_context(Server(forks, tmp_path, config, *flags))


@pytest.fixture
def service(forks: Forks, tmp_path: Path) -> Iterator[Running]:
    running = forks.start(config_of(tmp_path, ONCE, {"name": "other"}))
    yield running
    forks.end(running, signal.SIGKILL)


def test_health_and_readiness_and_status_are_told(service: Running) -> None:
    insert(service.address, 7)
    assert document(f"{service.url}/healthz") == (200, {"status": "alive", "state": "ready"})
    assert ready(service.url) == {"status": "ready", "tables": {"t": 7, "other": 0}}
    wait_until(lambda: document(f"{service.url}/status.json")[1]["tables"][1:] != [])
    wait_until(lambda: document(f"{service.url}/status.json")[1]["tables"][1]["size"] == 7)
    status = document(f"{service.url}/status.json")[1]
    assert (status["server"]["state"], status["server"]["problem"]) == ("ready", "")
    assert [table["name"] for table in status["tables"]] == ["other", "t"]
    assert status["tables"][1]["limiter"]["samples"] == "samples may be taken (7 items)"
    assert status["tables"][0]["limiter"]["samples_blocked"]
    assert status["checkpoints"]["last"] is None
    code, page = ask(f"{service.url}/")
    assert (code, page.lstrip()[:15].lower()) == (200, "<!doctype html>")
    assert ask(f"{service.url}/nothing")[0] == 404


def test_the_metrics_are_what_server_info_says(service: Running, forks: Forks, tmp_path: Path) -> None:
    insert(service.address, 9)
    take(service.address, 4)
    eventually(lambda: assert_metrics_are_server_info(service, inserts=9))
    assert metrics(service.url)["replay_checkpoint_generations", "", ""] == 0
    assert document(f"{service.url}/checkpoint", "POST")[0] == 200
    assert metrics(service.url)["replay_checkpoint_generations", "", ""] == 1
    # After a restart the counts go on.
    config = config_of(tmp_path / "other", start_from=str(tmp_path / "checkpoints"))
    restarted = forks.start({**config, "tables": [ONCE, {"name": "other"}]})
    insert(restarted.address, 2)
    eventually(lambda: assert_metrics_are_server_info(restarted, inserts=11))
    assert forks.end(restarted) == 0


def assert_metrics_are_server_info(running: Running, inserts: int) -> None:
    key = "replay_table_inserts_total"
    found = metrics(running.url)
    assert found.get((key, "t", "")) == inserts
    with rlds2reverb.connect(running.address) as client:
        tables = client.server_info().tables
    for name, table in tables.items():
        assert found["replay_table_size", name, ""] == table.current_size
        assert found["replay_table_max_size", name, ""] == table.max_size
        assert found[key, name, ""] == table.rate_limiter.inserts
        assert found["replay_table_samples_total", name, ""] == table.rate_limiter.samples
        assert found["replay_table_unique_samples_total", name, ""] == table.unique_samples
        assert found["replay_table_episodes", name, ""] == table.episodes
        assert found["replay_limiter_blocked", name, "sample"] == float(table.current_size == 0)
        assert found["replay_limiter_blocked", name, "insert"] == 0
    assert found["replay_ready", "", ""] == 1
    assert found["replay_checkpoint_failures_total", "", ""] == 0
    assert found["process_resident_memory_bytes", "", ""] > 1e7


def test_a_checkpoint_is_written_on_request_and_not_for_a_foreign_page(service: Running, tmp_path: Path) -> None:
    insert(service.address, 5)
    code, answer = document(f"{service.url}/checkpoint", "POST", Origin="http://elsewhere.example")
    assert (code, list((tmp_path / "checkpoints" / "generations").iterdir())) == (403, [])
    assert "elsewhere.example" in answer["error"]
    assert ask(f"{service.url}/checkpoint")[0] == 405
    for number, headers in ((1, {}), (2, {"Origin": service.url})):
        code, answer = document(f"{service.url}/checkpoint?anew=1", "POST", **headers)
        assert (code, answer["generation"], answer["items"]) == (200, number, {"t": 5, "other": 0})
        assert answer["written"]
        assert (Path(answer["folder"]) / "MANIFEST.json").is_file()
    code, answer = document(f"{service.url}/checkpoint", "POST")  # nothing has changed
    assert (code, answer["generation"], answer["written"]) == (200, 2, False)
    assert document(f"{service.url}/status.json")[1]["checkpoints"]["last"]["generation"] == 2
    assert metrics(service.url)["replay_checkpoint_not_needed_total", "", ""] == 1


@pytest.mark.parametrize("state", ["starting", "restoring", "stopping"])
def test_a_service_that_is_not_ready_says_so(tmp_path: Path, state: Any) -> None:
    made = unstarted(tmp_path, free_port())
    made.state.phase = state
    client = make_app(made.state, made.requested_checkpoint).test_client()
    assert client.get("/healthz").status_code == 200
    for answer in (client.get("/readyz"), client.post("/checkpoint")):
        assert answer.status_code == 503
        assert f"the server is {state}" in answer.get_data(as_text=True)


def test_how_far_a_start_is_stands_beside_its_state(tmp_path: Path) -> None:
    made = unstarted(tmp_path, free_port())
    made.state.phase = "restoring"
    client = make_app(made.state, made.requested_checkpoint).test_client()
    with log_progress(logger("test"), "verifying checkpoints", lambda: share(43, 100)):
        assert client.get("/readyz").get_json()["reason"] == "the server is restoring 43 %"
        (work,) = client.get("/status.json").get_json()["server"]["progress"]
        assert (work["what"], work["percent"]) == ("verifying checkpoints", 43)
    assert client.get("/readyz").get_json()["reason"] == "the server is restoring"


def unstarted(folder: Path, port: int) -> ReplayService:
    config = decode({**config_of(folder), "grpc": {"port": port}}, "config")
    return ReplayService(config, table_configs(config))


def test_a_reverb_that_does_not_answer_is_not_ready_within_its_deadline(tmp_path: Path) -> None:
    """Something takes the connection, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = unstarted(tmp_path, silent.getsockname()[1])
        made.state.phase = "ready"
        client = make_app(made.state, made.requested_checkpoint).test_client()
        began = time.monotonic()
        answer = client.get("/readyz")
        assert time.monotonic() - began < 5
        assert answer.status_code == 503
        assert answer.get_json()["reason"]
        assert client.get("/healthz").status_code == 200
        made.monitor.look()
        assert "replay_ready 0.0" in client.get("/metrics").get_data(as_text=True)


def test_a_checkpoint_that_cannot_be_written_is_answered_and_counted(tmp_path: Path) -> None:
    made = unstarted(tmp_path, free_port())
    made.lock.take()
    assert made.lock.settle(lambda _: False)
    made.checkpoints._request = lambda: str(tmp_path / "nowhere")
    made.state.phase = "ready"
    client = make_app(made.state, made.requested_checkpoint).test_client()
    answer = client.post("/checkpoint")
    assert (answer.status_code, "nowhere" in answer.get_json()["error"]) == (503, True)
    made.lock.release()
    assert "replay_checkpoint_failures_total 1.0" in client.get("/metrics").get_data(as_text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_the_next_start_has_it(forks: Forks, tmp_path: Path, number: int) -> None:
    first = forks.start(config_of(tmp_path))
    stored = insert(first.address, 20)
    assert take(first.address, 3) == stored[:3]
    assert forks.end(first, number) == 0
    second = forks.start(config_of(tmp_path))
    assert (second.restored, second.sizes) == (1, {"t": 17})
    assert take(second.address, 17) == stored[3:]
    assert forks.end(second, number) == 0
    assert forks.start(config_of(tmp_path)).sizes == {"t": 0}


def test_a_signal_that_wakes_another_thread_is_noticed_all_the_same(forks: Forks, tmp_path: Path) -> None:
    running = forks.start(config_of(tmp_path))
    insert(running.address, 20)
    others = (task for task in Path(f"/proc/{running.pid}/task").iterdir() if int(task.name) != running.pid)
    thread = next(int(task.name) for task in others if takes(task, signal.SIGTERM))
    assert ctypes.CDLL(None).tgkill(running.pid, thread, signal.SIGTERM) == 0
    assert forks.wait(running) == 0
    assert forks.start(config_of(tmp_path)).sizes == {"t": 20}


def takes(task: Path, number: int) -> bool:
    """Whether a thread does not block a signal."""
    blocked = re.search(r"^SigBlk:\s*(\w+)$", (task / "status").read_text(), re.MULTILINE)
    return blocked is not None and not int(blocked[1], 16) >> (number - 1) & 1


def test_no_checkpoint_is_written_at_the_end_when_the_config_says_so(forks: Forks, tmp_path: Path) -> None:
    config = config_of(tmp_path, on_shutdown=False)
    running = forks.start(config)
    insert(running.address, 2)
    assert forks.end(running) == 0
    assert forks.start(config).restored is None


def test_a_truncated_newest_checkpoint_costs_one(forks: Forks, tmp_path: Path) -> None:
    running = forks.start(config_of(tmp_path))
    stored = insert(running.address, 5)
    document(f"{running.url}/checkpoint", "POST")
    insert(running.address, 5)
    newest = Path(document(f"{running.url}/checkpoint", "POST")[1]["folder"])
    forks.end(running, signal.SIGKILL)
    data = (newest / "items.tfrecord").read_bytes()
    (newest / "items.tfrecord").write_bytes(data[: len(data) // 2])
    running = forks.start(config_of(tmp_path))
    assert (running.restored, running.sizes) == (1, {"t": 5})
    assert take(running.address, 5) == stored
    assert [path.name for path in (tmp_path / "checkpoints" / "set_aside").iterdir()] == ["000002-broken"]
    assert document(f"{running.url}/checkpoint", "POST")[1]["generation"] == 3
    insert(running.address, 7)
    assert ready(running.url)["tables"] == {"t": 7}
    forks.end(running)


def test_a_service_starts_from_another_experiment_only_when_it_has_nothing_of_its_own(
    forks: Forks, tmp_path: Path
) -> None:
    first = forks.start(config_of(tmp_path / "a"))
    stored = insert(first.address, 6)
    assert forks.end(first) == 0
    config = config_of(tmp_path / "b", start_from=str(tmp_path / "a" / "checkpoints"))
    second = forks.start(config)
    assert (second.restored, second.sizes) == (None, {"t": 6})
    assert take(second.address, 4) == stored[:4]
    assert forks.end(second) == 0
    shutil.rmtree(tmp_path / "a")  # its own comes first
    third = forks.start(config)
    assert (third.restored, third.sizes) == (1, {"t": 2})
    assert forks.end(third) == 0
    with pytest.raises(RuntimeError, match=r"CheckpointError: .*nowhere: expected a checkpoint folder"):
        forks.start(config_of(tmp_path / "c", start_from=str(tmp_path / "nowhere")))


def test_the_schedule_writes_and_keeps_so_many(forks: Forks, tmp_path: Path) -> None:
    running = forks.start(config_of(tmp_path, every_seconds=0.01, keep=2, skip_unchanged=False))
    kept = tmp_path / "checkpoints" / "generations"
    wait_until(lambda: max((int(p.name) for p in kept.iterdir() if p.name.isdecimal()), default=0) >= 6)
    assert forks.end(running) == 0
    assert len([path for path in kept.iterdir() if path.name.isdecimal()]) == 2


def test_a_config_that_makes_no_sense_ends_with_2_and_a_line_for_each_reason(
    process: Callable[..., Server], tmp_path: Path
) -> None:
    code, output, errors = process({"tables": [{"name": "t", "max_size": "lots"}]}).result()
    assert (code, output) == (2, "")
    assert re.fullmatch(
        r"python -m replay_server: error: .*\.yaml: Expected `int`, got `str` - at `\$.*max_size`\n", errors
    )
    two = [{"name": n, "max_size": 3, "rate_limiter": {"kind": "min_size", "min_size": 4}} for n in "ab"]
    code, _, errors = process({"tables": two}).result()
    assert (code, len(errors.splitlines())) == (2, 2)
    told = re.compile(r'python -m replay_server: error: .*\.yaml: table "')
    assert all(told.match(line) for line in errors.splitlines())


def test_a_check_prints_what_would_run_and_starts_nothing(process: Callable[..., Server], tmp_path: Path) -> None:
    code, output, errors = process(
        config_of(tmp_path), "--check", "--set", "checkpoints.keep=7", "--set", "grpc.port=0"
    ).result()
    assert (code, errors) == (0, "")
    plain = yaml.safe_load(output)
    assert (plain["checkpoints"]["keep"], plain["grpc"]) == (7, "every interface, a free port")
    assert (plain["http"]["names"], plain["http"]["token"]) == (["localhost"], "none")
    assert plain["checkpoints"]["starts_from"] == "nothing: empty tables"
    assert plain["checkpoints"]["last_checkpoint"] == "none"
    assert plain["tables"]["t"]["max_times_sampled"] == 1
    assert not (tmp_path / "checkpoints").exists()
    left = write_checkpoint(tmp_path / "checkpoints" / "reverb" / "2026-01-02T03:04:05+00:00", 1)
    _, output, _ = process(config_of(tmp_path), "--check").result()
    checkpoints = yaml.safe_load(output)["checkpoints"]
    assert left.name in checkpoints["starts_from"]
    assert checkpoints["last_checkpoint"].startswith(f"{left.name}, written at ")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["reverb"]


def test_a_config_means_the_same_folder_wherever_the_server_is_started(forks: Forks, tmp_path: Path) -> None:
    for name in ("configs", "here"):
        (tmp_path / name).mkdir()
    path = tmp_path / "configs" / "server.yaml"
    path.write_text("tables: [{name: one}]\ncheckpoints: {folder: kept}")
    add(open_folder(tmp_path / "here" / "kept"), 1)

    def checked(cwd: Path) -> tuple[str, str]:
        (output := tmp_path / "output").mkdir(exist_ok=True)
        code, text, errors = forks.module(output, "replay_server", "--config", str(path), "--check", cwd=cwd).result()
        assert code == 0
        return yaml.safe_load(text)["checkpoints"]["starts_from"], errors

    assert checked(tmp_path) == ("nothing: empty tables", "")
    started, errors = checked(tmp_path / "here")
    assert started == "nothing: empty tables"
    assert f"{tmp_path}/configs/kept holds no checkpoint, and {tmp_path}/here/kept does" in errors
    path.write_text("tables: [{name: one}]\ncheckpoints: {folder: kept, start_from: ../here/kept}")
    started, errors = checked(tmp_path / "here")
    assert "here/kept" in started
    assert errors == ""
    path.write_text("tables: [{name: one}]\ncheckpoints: {folder: kept}")
    for number in (1, 2):
        add(open_folder(tmp_path / "configs" / "kept"), number)
    for cwd in (tmp_path, tmp_path / "here", tmp_path / "configs"):
        started, errors = checked(cwd)
        assert (started.split(",")[0], errors) == ("checkpoint 2", "")


def test_a_check_says_what_is_wrong_with_start_from_and_who_uses_the_folder(
    process: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = write_checkpoint(tmp_path / "other" / "generations" / "000001", 1)
    lock = FolderLock(tmp_path / "checkpoints", 0.0)
    lock.take()
    assert lock.settle(lambda _: False)
    good = process(config_of(tmp_path, start_from=str(other)), "--check")
    bad = process(config_of(tmp_path, start_from=str(tmp_path / "other")), "--check")
    empty = process(config_of(tmp_path, folder=str(tmp_path / "other")), "--check", "--start-empty")
    code, output, errors = good.result()
    assert (code, "error: checkpoint folder" in errors, "another server uses it" in errors) == (3, True, True)
    checkpoints = yaml.safe_load(output)["checkpoints"]
    assert checkpoints["starts_from"] == f"{other}, named by start_from"
    assert checkpoints["used_by"].startswith(f"process {os.getpid()} on host")
    code, output, errors = bad.result()
    assert (code, yaml.safe_load(output)["checkpoints"]["starts_from"]) == (3, "nothing: the start would be refused")
    used, line = errors.splitlines()
    assert "another server uses it" in used
    assert line.startswith("python -m replay_server: error: checkpoints.start_from: ")
    assert str(other / "MANIFEST.json") in line
    code, output, errors = empty.result()
    assert (code, yaml.safe_load(output)["checkpoints"]["starts_from"]) == (0, "nothing: empty tables")
    assert errors.endswith("it would be set aside\n")
    lock.check()  # looking took nothing
    lock.release()


def test_errors_begin_with_the_command_that_was_typed(tmp_path: Path) -> None:
    config = tmp_path / "missing.yaml"
    command = [str(Path(sys.executable).with_name("rlds2reverb")), "serve", "--config", str(config)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"rlds2reverb: error: {config}: cannot be read")


def test_port_0_is_a_free_port_which_is_told(process: Callable[..., Server], tmp_path: Path) -> None:
    flags = ("--set", "grpc.port=0", "--log-format", "json")
    started = [process(config_of(tmp_path / name), *flags).until_ready() for name in "ab"]
    ports = []
    for running in started:
        [ready] = [line for line in map(json_of, running.log.splitlines()) if line.get("event") == "ready"]
        ports.append(ready["grpc_port"])
        assert document(f"{running.url}/status.json")[1]["server"]["grpc_port"] == ports[-1]
        assert insert(f"localhost:{ports[-1]}", 3) == take(f"localhost:{ports[-1]}", 3)
    assert len({0, *ports}) == 3


def json_of(line: str) -> dict[str, Any]:
    """A line of the log; {} of Reverb's own."""
    return dict(json.loads(line)) if line.startswith("{") else {}


def test_what_keeps_the_server_from_starting_ends_with_3_and_a_line(
    process: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    lock = FolderLock(tmp_path / "used" / "checkpoints", 0.0)
    lock.take()
    assert lock.settle(lambda _: False)
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        started = {
            r"checkpoint folder .*cannot be written to": process(config_of(tmp_path, folder=str(tmp_path / "file"))),
            rf"grpc\.port {port}: taken": process(config_of(tmp_path), "--set", f"grpc.port={port}"),
            rf"http 127\.0\.0\.1:{port}: cannot listen": process(config_of(tmp_path), "--set", f"http.port={port}"),
            rf"another server uses it: process {os.getpid()} on host": process(config_of(tmp_path / "used")),
        }
        for reason, outcome in started.items():
            code, output, errors = outcome.result()
            assert (code, output) == (3, "")
            [line] = errors.splitlines()
            assert re.search(rf"\[critical *\] cannot start .*{reason}", line)
    lock.release()
