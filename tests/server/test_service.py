"""The service as users run it: HTTP, signals, restarts, exit codes and logs."""

from __future__ import annotations

import ctypes
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reverb
import yaml
from prometheus_client.parser import text_string_to_metric_families
from replay_server.config import decode, table_configs
from replay_server.http import make_app
from replay_server.service import ReplayService

import rlds2reverb
from tests.server.forks import Forks, Running, free_port

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ONCE = {"name": "t", "sampler": "fifo", "max_times_sampled": 1, "signature": "float32[2]"}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


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
        (one.name, one.labels.get("table", ""), one.labels.get("side", one.labels.get("state", ""))): one.value
        for family in text_string_to_metric_families(ask(f"{url}/metrics")[1])
        for one in family.samples
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
    return [np.asarray(one.data[0]).tolist() for one in samples]


def config_of(home: Path, *tables: dict[str, Any], **checkpoints: Any) -> dict[str, Any]:
    section = {"folder": str(home / "checkpoints"), "every_seconds": None, **checkpoints}
    return {"tables": list(tables or (ONCE,)), "checkpoints": section}


class Process:
    """`python -m replay_server`, on free ports."""

    def __init__(self, folder: Path, config: dict[str, Any], *flags: str) -> None:
        self.port, self.http_port = free_port(), free_port()
        ports = {"grpc": {"port": self.port}, "http": {"port": self.http_port}}
        path = folder / f"{self.port}.yaml"
        path.write_text(yaml.safe_dump({**ports, **config}))
        self.log = folder / f"log-{self.port}"
        command = [sys.executable, "-m", "replay_server", "--config", str(path), *flags]
        with self.log.open("wb") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.url, self.address = f"http://127.0.0.1:{self.http_port}", f"localhost:{self.port}"

    def wait_until_ready(self) -> Process:
        wait_until(lambda: self.answers("/readyz") == 200)
        return self

    def answers(self, path: str) -> int:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return ask(f"{self.url}{path}")[0]
        except OSError:
            return 0

    def end(self, number: int) -> int:
        self._process.send_signal(number)
        return self._process.wait(60)

    def result(self) -> tuple[int, str, str]:
        """Exit code, output, and errors, of one that ends by itself."""
        output, _ = self._process.communicate(timeout=60)
        return self._process.returncode, output, self.log.read_text()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(config: dict[str, Any], *flags: str) -> Process:
        made.append(Process(tmp_path, config, *flags))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def service(forks: Forks, tmp_path: Path) -> Iterator[Running]:
    running = forks.start(config_of(tmp_path, ONCE, {"name": "other"}))
    yield running
    forks.end(running, signal.SIGKILL)


def test_a_service_lives_from_start_to_restart_with_all_its_items(process: Any, tmp_path: Path) -> None:
    first = process(config_of(tmp_path), "--log-format", "json").wait_until_ready()
    stored = insert(first.address, 50)
    assert first.end(signal.SIGTERM) == 0
    events = {}
    for line in first.log.read_text().splitlines():
        if not line.startswith("[reverb/"):  # Reverb's own
            event = json.loads(line)
            assert {"event", "level", "timestamp"} <= event.keys()
            events[event["event"]] = event
    assert {"http is up", "no checkpoint to restore", "ready", "stopping", "checkpoint written", "stopped"} <= set(
        events
    )
    assert (events["checkpoint written"]["items"], events["stopped"]["exit_code"]) == (50, 0)
    second = process(config_of(tmp_path)).wait_until_ready()
    assert document(f"{second.url}/readyz")[1]["tables"] == {"t": 50}
    assert take(second.address, 50) == stored
    assert second.end(signal.SIGINT) == 0
    assert re.search(r"\[info +\] restored +items=50", second.log.read_text())


def test_health_and_readiness_and_status_are_told(service: Running) -> None:
    insert(service.address, 7)
    assert document(f"{service.url}/healthz") == (200, {"status": "alive", "state": "ready"})
    assert document(f"{service.url}/readyz") == (200, {"status": "ready", "tables": {"t": 7, "other": 0}})
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
    assert_metrics_are_server_info(service, inserts=9)
    assert metrics(service.url)["replay_checkpoint_generations", "", ""] == 0
    assert document(f"{service.url}/checkpoint", "POST")[0] == 200
    assert metrics(service.url)["replay_checkpoint_generations", "", ""] == 1
    # After a restart the counts go on.
    config = config_of(tmp_path / "other", start_from=str(tmp_path / "checkpoints"))
    restarted = forks.start({**config, "tables": [ONCE, {"name": "other"}]})
    insert(restarted.address, 2)
    assert_metrics_are_server_info(restarted, inserts=11)
    assert forks.end(restarted) == 0


def assert_metrics_are_server_info(running: Running, inserts: int) -> None:
    key = "replay_table_inserts_total"
    wait_until(lambda: metrics(running.url).get((key, "t", "")) == inserts)
    found = metrics(running.url)
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
        code, answer = document(f"{service.url}/checkpoint", "POST", **headers)
        assert (code, answer["generation"], answer["items"]) == (200, number, {"t": 5, "other": 0})
        assert (Path(answer["folder"]) / "MANIFEST.json").is_file()
    assert document(f"{service.url}/status.json")[1]["checkpoints"]["last"]["generation"] == 2


@pytest.mark.parametrize("state", ["starting", "restoring", "stopping"])
def test_a_service_that_is_not_ready_says_so(tmp_path: Path, state: Any) -> None:
    made = unstarted(tmp_path, free_port())
    made.state = state
    client = make_app(made).test_client()
    assert client.get("/healthz").status_code == 200
    for answer in (client.get("/readyz"), client.post("/checkpoint")):
        assert answer.status_code == 503
        assert f"the server is {state}" in answer.get_data(as_text=True)


def unstarted(folder: Path, port: int) -> ReplayService:
    config = decode({**config_of(folder), "grpc": {"port": port}}, "config")
    return ReplayService(config, table_configs(config))


def test_a_reverb_that_does_not_answer_is_not_ready_within_its_deadline(tmp_path: Path) -> None:
    """Something takes the connection, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = unstarted(tmp_path, silent.getsockname()[1])
        made.state = "ready"
        client = make_app(made).test_client()
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
    made.checkpoints._request = lambda: str(tmp_path / "nowhere")
    made.state = "ready"
    client = make_app(made).test_client()
    answer = client.post("/checkpoint")
    assert (answer.status_code, "nowhere" in answer.get_json()["error"]) == (503, True)
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


def test_a_truncated_newest_generation_costs_one(forks: Forks, tmp_path: Path) -> None:
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
    third = forks.start(config)
    assert (third.restored, third.sizes) == (1, {"t": 2})
    assert forks.end(third) == 0
    with pytest.raises(RuntimeError, match=r"CheckpointError: .*nowhere: expected a checkpoint folder"):
        forks.start(config_of(tmp_path / "c", start_from=str(tmp_path / "nowhere")))


def test_the_schedule_writes_and_keeps_so_many(forks: Forks, tmp_path: Path) -> None:
    running = forks.start(config_of(tmp_path, every_seconds=0.01, keep=2))
    kept = tmp_path / "checkpoints" / "generations"
    wait_until(lambda: max((int(p.name) for p in kept.iterdir() if p.name.isdecimal()), default=0) >= 6)
    assert forks.end(running) == 0
    assert len([path for path in kept.iterdir() if path.name.isdecimal()]) == 2


def test_a_config_that_makes_no_sense_ends_with_2_and_a_line_for_each_reason(process: Any, tmp_path: Path) -> None:
    code, output, errors = process({"tables": [{"name": "t", "max_size": "lots"}]}).result()
    assert (code, output) == (2, "")
    assert re.fullmatch(r"replay_server: error: .*\.yaml: Expected `int`, got `str` - at `\$.*max_size`\n", errors)
    two = [{"name": n, "max_size": 3, "rate_limiter": {"kind": "min_size", "min_size": 4}} for n in "ab"]
    code, _, errors = process({"tables": two}).result()
    assert (code, len(errors.splitlines())) == (2, 2)
    assert all(line.startswith('replay_server: error: table "') for line in errors.splitlines())


def test_a_check_prints_what_would_run_and_starts_nothing(process: Any, tmp_path: Path) -> None:
    code, output, errors = process(config_of(tmp_path), "--check", "--set", "checkpoints.keep=7").result()
    assert (code, errors) == (0, "")
    plain = yaml.safe_load(output)
    assert plain["checkpoints"]["keep"] == 7
    assert plain["checkpoints"]["starts_from"] == "nothing: empty tables"
    assert plain["tables"]["t"]["max_times_sampled"] == 1
    assert not (tmp_path / "checkpoints").exists()


def test_what_keeps_the_server_from_starting_ends_with_3_and_a_line(process: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        started = {
            r"checkpoint folder .*cannot be written to": process(config_of(tmp_path, folder=str(tmp_path / "file"))),
            rf"grpc\.port {port}: taken": process(config_of(tmp_path), "--set", f"grpc.port={port}"),
            rf"http 127\.0\.0\.1:{port}: cannot listen": process(config_of(tmp_path), "--set", f"http.port={port}"),
        }
        for reason, one in started.items():
            code, output, errors = one.result()
            assert (code, output) == (3, "")
            [line] = errors.splitlines()
            assert re.search(rf"\[critical *\] cannot start .*{reason}", line)
