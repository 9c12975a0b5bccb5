"""The long-running server as a process of its own: `python -m replay_server` with a config, its HTTP calls, and what it uses."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import note
from benchmarks.servers import processor_seconds

START_SECONDS = 900.0
"""Longest time to ready; ten million items take a few minutes to restore."""


_LOOK_SECONDS = 0.02


class ReplayProcess:
    """`python -m replay_server` on free ports. Use as a context manager; the end kills it.

    Attributes:
      address, url: of Reverb's port and of HTTP.
      start_seconds, start_processor_seconds: from the start of the process to ready.
    """

    def __init__(self, config: Path, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._grpc, self._http = _free_port(), _free_port()
        self._command = [sys.executable, "-m", "replay_server", "--config", str(config)]
        for name, value in (
            ("grpc.port", self._grpc),
            ("http.port", self._http),
            ("checkpoints.folder", config.parent / "checkpoints"),
            ("checkpoints.every_seconds", "null"),
        ):
            self._command += ["--set", f"{name}={value}"]
        self.address, self.url = f"localhost:{self._grpc}", f"http://127.0.0.1:{self._http}"

    def __enter__(self) -> ReplayProcess:
        began = time.monotonic()
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, env=self._environment)
        while self.ready_document()["status"] != "ready":
            if self._process.poll() is not None or time.monotonic() - began > START_SECONDS:
                self._process.kill()
                raise RuntimeError(f"the server did not start: {' '.join(self._command)}")
            time.sleep(_LOOK_SECONDS)
        self.start_seconds = time.monotonic() - began
        self.start_processor_seconds = self.processor_seconds()
        note(f"  the server was ready after {self.start_seconds:.1f} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self._process.pid

    def processor_seconds(self) -> float:
        """Of the process until now, its start included."""
        return processor_seconds(self.pid)

    def ready_document(self) -> dict[str, Any]:
        """What /readyz says."""
        return get(f"{self.url}/readyz")

    def checkpoint(self) -> dict[str, Any]:
        """Writes one; what the server says of it, `seconds` and `bytes` among it."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/checkpoint?anew=1", method="POST")) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def stop(self) -> tuple[float, int]:
        """Stops it by SIGTERM; seconds until it had ended, and its exit code."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait()
        return time.monotonic() - began, code


def get(url: str) -> dict[str, Any]:
    """The JSON of an answer, whatever its status; {"status": "unreachable"} where nothing answers."""
    try:
        with urllib.request.urlopen(url) as answer:
            document: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        document = json.load(error)
    except OSError:
        return {"status": "unreachable"}
    return document


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
