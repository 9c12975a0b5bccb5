"""Services without the seconds that Python needs to import TensorFlow: one process imports all, and forks one a start.

python -m tests.server.forks reads a request a line and answers each with a line. Nothing of TensorFlow or gRPC runs before
the fork; importing them starts no thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_PATIENCE_SECONDS = 60
"""For a service to start or to end; one that does not is killed, so that the others can go on."""


@dataclass(frozen=True)
class Running:
    """A service that is ready: `restored` is its generation, with its manifest's items, `sizes` what its tables hold."""

    pid: int
    port: int
    url: str
    restored: int | None
    manifest: dict[str, int]
    sizes: dict[str, int]
    tables: dict[str, list[str]]

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"


class Forks:
    """The forking process; its services end with it.

    Args:
      log: file for what they say.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.server.forks"],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def start(self, config: dict[str, Any], insert_into: str = "") -> Running:
        """A new service, when it is ready; one that does not start is a RuntimeError with the reason.

        Args:
          config: as in YAML; the ports are chosen here.
          insert_into: a table into which the service itself inserts without end, "" for none.
        """
        answer = self._ask({"config": config, "insert_into": insert_into})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return Running(**answer)

    def end(self, running: Running, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits; the exit code, negative for a signal. One that does not end is a RuntimeError."""
        os.kill(running.pid, number)
        return self.wait(running)

    def wait(self, running: Running) -> int:
        """Waits for its end, as `end` does."""
        answer = self._ask({"wait": running.pid})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return int(answer["code"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the forking process has ended: {self.log.read_text()[-2000:]}")
        return dict(json.loads(line))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    import replay_server.service
    import reverb
    import tensorflow

    del reverb, tensorflow, replay_server
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    assert threading.active_count() == 1
    assert not any("grpc" in name or "tf_" in name for name in threads)  # a fork would lose them
    for line in sys.stdin:
        request = json.loads(line)
        answer = _ended(request["wait"]) if "wait" in request else _forked(request)
        print(json.dumps(answer), flush=True)


def _ended(pid: int) -> dict[str, Any]:
    """How it ended."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return {"code": os.waitstatus_to_exitcode(status)}
        time.sleep(0.001)
    return _killed(pid, "it did not end")


def _killed(pid: int, reason: str) -> dict[str, Any]:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return {"error": f"{reason} within {_PATIENCE_SECONDS} s, and was killed"}


def _forked(request: dict[str, Any]) -> dict[str, Any]:
    """Forks a service; what it says when it is ready, or why it is not."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        _serve(request, lambda answer: (os.write(writer, json.dumps(answer).encode()), os.close(writer)))
    os.close(writer)
    with os.fdopen(reader) as answers:
        if not select.select([answers], [], [], _PATIENCE_SECONDS)[0]:
            return _killed(pid, "it did not start")
        text = answers.read()
    answer: dict[str, Any] = json.loads(text) if text else {"error": "ended without a word"}
    if "error" in answer:
        os.waitpid(pid, 0)
    return answer


def _serve(request: dict[str, Any], tell: Callable[[dict[str, Any]], object]) -> None:
    """The child: does not return."""
    from replay_server import feasibility, logs
    from replay_server.config import decode, table_configs
    from replay_server.service import ReplayService

    port = free_port()
    config = decode({**request["config"], "grpc": {"port": port}, "http": {"port": 0}}, "config")
    logs.configure("json")
    code = 3
    try:
        tables = table_configs(config)
        feasibility.check(tables)
        service = ReplayService(config, tables)
        restored, urls = _watch(service)
        arguments = (service, request, tell, restored, urls)
        threading.Thread(target=_tell_when_ready, args=arguments, daemon=True).start()
        code = service.run()
    except Exception as error:
        tell({"error": f"{type(error).__name__}: {error}"})
    os._exit(code)


def _watch(service: Any) -> tuple[list[Any], list[str]]:
    """The generation restored (the schedule soon replaces it) and the URL, each once it is known."""
    from replay_server import service as module

    restored: list[Any] = []
    urls: list[str] = []
    note, http = service.checkpoints.restored, module.HttpServer
    service.checkpoints.restored = lambda generation: (restored.append(generation), note(generation))

    def listening(*args: Any) -> Any:
        made = http(*args)
        urls.append(made.url)
        return made

    module.HttpServer = listening
    return restored, urls


def _tell_when_ready(service: Any, request: dict[str, Any], tell: Any, restored: list[Any], urls: list[str]) -> None:
    while service.state != "ready":
        time.sleep(0.001)
    [generation] = restored
    tell(
        {
            "pid": os.getpid(),
            "port": service.config.grpc.port,
            "url": urls[0],
            "restored": None if generation is None else generation.number,
            "manifest": {} if generation is None else generation.manifest.items,
            "sizes": {name: table.current_size for name, table in _answer(service).tables.items()},
            "tables": {table.name: list(table.changes) for table in service.tables},
        }
    )
    if request["insert_into"]:
        _insert(service.config.grpc.port, request["insert_into"])


def _answer(service: Any) -> Any:
    from rlds2reverb.errors import ServerUnreachable

    while True:
        try:
            return service.ask()
        except ServerUnreachable:
            continue  # while a checkpoint is written


def _insert(port: int, table: str) -> None:
    import reverb

    with reverb.Client(f"localhost:{port}").trajectory_writer(1) as writer:
        number = 0
        while True:
            number += 1
            writer.append([float(number)])
            writer.create_item(table, 1.0, [writer.history[0][-1:]])
            if number % 20 == 0:
                writer.flush()


if __name__ == "__main__":
    main()
