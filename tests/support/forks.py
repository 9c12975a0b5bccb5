"""Processes without the seconds that Python needs to import TensorFlow: one process imports all, and forks the others.

python -m tests.support.forks reads a request a line and answers each with a line. Nothing of TensorFlow or gRPC runs before
the fork; importing them starts no thread.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pickle
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import QUIET, REPOSITORY, Process, output_files

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
    """The forking process; what it has forked ends with it.

    Args:
      log: file for what services and servers say.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self._lock = threading.Lock()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forks"],
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
        return Running(**self._asked({"config": config, "insert_into": insert_into}))

    def embedded(self, tables: Sequence[Any], port: int | None = None, checkpoint_dir: Path | None = None) -> Embedded:
        """As `replay_server.EmbeddedServer`: to be started, or used as a context manager."""
        return Embedded(self, pickle.dumps((tuple(tables), port, checkpoint_dir and str(checkpoint_dir))))

    def serve(self, request: bytes) -> tuple[int, int]:
        """Starts an embedded server; its process and its port.

        Args:
          request: what `replay_server.embedded.serve` reads.
        """
        answer = self._asked({"embedded": base64.b64encode(request).decode()})
        return int(answer["pid"]), int(answer["port"])

    def module(self, folder: Path, name: str, *arguments: str, cwd: Path = REPOSITORY, **environment: str) -> Process:
        """python -m NAME ARGUMENTS, as a process of its own.

        Args:
          folder: for its output.
          cwd: where it runs.
        """
        output, errors = output_files(folder)
        request = {"module": name, "arguments": arguments, "cwd": str(cwd), "environment": environment}
        answer = self._asked({**request, "output": str(output), "errors": str(errors)})
        return Process(Forked(self, answer["pid"]), output, errors)

    def end(self, running: Running, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits; the exit code, negative for a signal. One that does not end is a RuntimeError."""
        os.kill(running.pid, number)
        return self.wait(running)

    def wait(self, running: Running) -> int:
        """Waits for its end, as `end` does."""
        return int(self._asked({"wait": running.pid})["code"])

    def poll(self, pid: int) -> int | None:
        """The exit code of a forked process; None while it runs."""
        code = self._asked({"poll": pid})["code"]
        return None if code is None else int(code)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer; an error is a RuntimeError."""
        with self._lock:
            answer = self._ask(request)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the forking process has ended: {self.log.read_text()[-2000:]}")
        return dict(json.loads(line))


class Forked:
    """A handle of a forked process.

    Args:
      forks: which forked it.
      pid: of the process.
    """

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks, self.pid = forks, pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            self._code = self._forks.poll(self.pid)
        return self._code


class Embedded:
    """A plain Reverb server, as `replay_server.EmbeddedServer` starts one.

    Attributes (while it runs):
      port: the port it listens on.
      address: "localhost:PORT".
      pid: of the server's process.
    """

    def __init__(self, forks: Forks, request: bytes) -> None:
        self._forks, self._request = forks, request
        self._process: Forked | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def __enter__(self) -> Embedded:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Embedded:
        """Starts it; returns when it listens."""
        pid, self.port = self._forks.serve(self._request)
        self._process = Forked(self._forks, pid)
        return self

    def stop(self) -> None:
        """Ends it as a crash would; does nothing when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        os.kill(process.pid, signal.SIGKILL)
        while process.poll() is None:
            time.sleep(0.001)


def main() -> None:
    os.environ |= QUIET
    import replay_server.service
    import reverb
    import tensorflow

    import rlds2reverb.cli.serve
    import tests.support.faults.tools

    del reverb, tensorflow, replay_server, rlds2reverb, tests
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    assert threading.active_count() == 1
    assert not any("grpc" in name or "tf_" in name for name in threads)  # a fork would lose them
    for line in sys.stdin:
        print(json.dumps(_answer_to(json.loads(line))), flush=True)


def _answer_to(request: dict[str, Any]) -> dict[str, Any]:
    if "wait" in request:
        return _ended(request["wait"])
    if "poll" in request:
        return {"code": _code(request["poll"])}
    if "embedded" in request:
        return _embedded(base64.b64decode(request["embedded"]))
    if "module" in request:
        return {"pid": _fork(lambda: _run(request), request["output"], request["errors"])}
    return _forked(request)


def _code(pid: int) -> int | None:
    """Its exit code; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _ended(pid: int) -> dict[str, Any]:
    """How it ended."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        code = _code(pid)
        if code is not None:
            return {"code": code}
        time.sleep(0.001)
    return _killed(pid, "it did not end")


def _killed(pid: int, reason: str) -> dict[str, Any]:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return {"error": f"{reason} within {_PATIENCE_SECONDS} s, and was killed"}


def _fork(job: Callable[[], object], output: int | str, errors: str = "", reads: int | str = os.devnull) -> int:
    """A child that does a job and ends as Python does; its files are given by name or, when open, by number.

    Args:
      errors: "" for the log.
    """
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        _use(0, reads, os.O_RDONLY)
        _use(1, output, os.O_WRONLY | os.O_CREAT)
        if errors:
            _use(2, errors, os.O_WRONLY | os.O_CREAT)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        _end(job)
    return pid


def _use(number: int, file: int | str, flags: int) -> None:
    os.dup2(os.open(file, flags, 0o600) if isinstance(file, str) else file, number)


def _end(job: Callable[[], object]) -> None:
    """Does a job and ends the process with the code that Python would end it with."""
    code: Any = 0
    try:
        job()
        threading._shutdown()  # type: ignore[attr-defined]  # waits for its threads, as the end of Python does
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(request: dict[str, Any]) -> None:
    """A module, as `python -m` does."""
    os.chdir(request["cwd"])
    os.environ |= request["environment"]
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _embedded(payload: bytes) -> dict[str, Any]:
    """A server as `EmbeddedServer` starts one: it reads its tables, and tells its port."""
    from replay_server.embedded import serve

    reads, tables = os.pipe()
    told, tells = os.pipe()
    pid = _fork(serve, tells, reads=reads)
    os.close(tells)
    os.close(reads)
    with (
        os.fdopen(tables, "wb") as request,
        os.fdopen(told) as answer,
    ):  # the child has the writing end, too: no end of file
        request.write(len(payload).to_bytes(8, "little") + payload)
        request.flush()
        line = answer.readline()
    if not line.startswith("port "):
        os.waitpid(pid, 0)
        return {"error": "the server did not start; the log has the reason"}
    return {"pid": pid, "port": int(line.split()[1])}


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
    from replay_server import logs
    from replay_server.config import check, decode, table_configs
    from replay_server.embedded import held_port
    from replay_server.service import ReplayService

    logs.configure("json")
    code = 3
    try:
        with held_port(0) as port:
            http = {**request["config"].get("http", {}), "port": 0}
            config = decode({**request["config"], "grpc": {"port": port}, "http": http}, "config")
            tables = table_configs(config)
            check(tables)
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
    from replay_server import service as replay_service

    module: Any = replay_service

    restored: list[Any] = []
    urls: list[str] = []
    note, http = service.checkpoints.restored, module.HttpServer
    service.checkpoints.restored = lambda checkpoint: (restored.append(checkpoint), note(checkpoint))

    def listening(*args: Any) -> Any:
        made = http(*args)
        urls.append(made.url)
        return made

    module.HttpServer = listening
    return restored, urls


def _tell_when_ready(service: Any, request: dict[str, Any], tell: Any, restored: list[Any], urls: list[str]) -> None:
    while service.state.phase != "ready":
        time.sleep(0.001)
    [checkpoint] = restored
    tell(
        {
            "pid": os.getpid(),
            "port": service.config.grpc.port,
            "url": urls[0],
            "restored": None if checkpoint is None else checkpoint.number,
            "manifest": {} if checkpoint is None else checkpoint.manifest.items,
            "sizes": {name: table.current_size for name, table in _answer(service).tables.items()},
            "tables": {table.name: list(table.changes) for table in service.state.tables},
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
