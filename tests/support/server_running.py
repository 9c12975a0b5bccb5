"""`python -m replay_server` for the tests, on free ports."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.support.forks import Forks
from tests.support.processes import REPOSITORY, Process, eventually, free_port, started, wait_until

START_SECONDS = 180.0
"""For a Python of its own, on a busy machine."""


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    """Status and document, text where it is no JSON; (0, None) when nothing answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=60) as answer:
            status, data = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, data = error.code, error.read()
    except OSError:
        return 0, None
    try:
        return status, json.loads(data)
    except ValueError:
        return status, data.decode()


def ready(url: str) -> dict[str, Any]:
    """What /readyz tells; awaited, because on a busy machine Reverb may need longer than the service gives it."""

    def check() -> dict[str, Any]:
        status, document = get(f"{url}/readyz")
        assert status == 200, document
        return dict(document)

    return eventually(check)


class Server:
    """The command with a config of its own; the end of a `with` block kills it.

    Args:
      forks: forks it from a process that has imported all; None for a Python of its own.
      folder: for its config, checkpoints and output.
      config: plain mappings; ports and the checkpoint folder are added.
      flags: of the command.
      environment: variables of its process.
    """

    def __init__(
        self, forks: Forks | None, folder: Path, config: dict[str, Any], *flags: str, **environment: str
    ) -> None:
        self.folder, self.grpc, self.http = folder, free_port(), free_port()
        checkpoints = {"folder": str(folder / "checkpoints"), "every_seconds": None, **config.get("checkpoints", {})}
        http = {**config.get("http", {}), "port": self.http}
        document = {**config, "grpc": {"port": self.grpc}, "http": http, "checkpoints": checkpoints}
        path = folder / f"server-{self.grpc}.yaml"
        path.write_text(yaml.safe_dump(document))
        self.address, self.url = f"localhost:{self.grpc}", f"http://127.0.0.1:{self.http}"
        arguments = ("--config", str(path), *flags)
        self.process = _started(forks, folder, arguments, environment)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self.process.errors

    def until_ready(self) -> Server:
        """Waits for /readyz; itself."""
        came = lambda: self.process.poll() is not None or self.get("/readyz")[0] == 200  # noqa: E731
        wait_until(came, START_SECONDS, lambda: self.log)
        assert self.process.poll() is None, self.log
        return self

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
        """As `get` does."""
        return get(self.url + path, method, **headers)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal; the exit code."""
        return self.process.end(number)

    def result(self) -> tuple[int, str, str]:
        """Exit code, output, and errors, of one that ends by itself."""
        return self.process.result()


def _started(forks: Forks | None, folder: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> Process:
    if forks is None:
        return started(folder, "-m", "replay_server", *arguments, **environment)
    return forks.module(folder, "replay_server", *arguments, cwd=REPOSITORY, **environment)
