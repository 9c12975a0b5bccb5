"""A real `python -m replay_server` for the tests, on free ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

START_SECONDS = 180.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Running:
    """A server process; ended at the end of the `with` block, however that ends.

    Args:
      folder: for its config, checkpoints and log.
      config: plain mappings; ports and the checkpoint folder are added.
      wait: until it is ready.
    """

    def __init__(self, folder: Path, config: dict[str, Any], *flags: str, wait: bool = True) -> None:
        self.folder, self._wait = folder, wait
        self.grpc, self.http = free_port(), free_port()
        checkpoints = {"folder": str(folder / "checkpoints"), "every_seconds": None, **config.get("checkpoints", {})}
        document = {**config, "grpc": {"port": self.grpc}, "http": {"port": self.http}, "checkpoints": checkpoints}
        path = folder / "server.yaml"
        path.write_text(yaml.safe_dump(document))
        self.log = folder / "log.txt"
        self._command = [sys.executable, "-m", "replay_server", "--config", str(path), *flags]
        self.address, self.url = f"localhost:{self.grpc}", f"http://127.0.0.1:{self.http}"

    def __enter__(self) -> Running:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
        if self._wait:
            self.until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def generations(self) -> list[Path]:
        """Finished ones, oldest first."""
        kept = self.folder / "checkpoints" / "generations"
        return sorted(path for path in kept.iterdir() if path.name.isdecimal())

    def until_ready(self) -> None:
        """Waits for /readyz."""
        end = time.monotonic() + START_SECONDS
        while self.get("/readyz")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
        """Status and document; (0, None) when nothing answers."""
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, data = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, data = error.code, error.read()
        except OSError:
            return 0, None
        try:
            return status, json.loads(data)
        except ValueError:
            return status, data.decode()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=120)
