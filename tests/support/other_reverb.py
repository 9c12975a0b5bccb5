"""A real Reverb server of another Python: whichever Reverb is installed there, behind our `replay_server.library`."""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from replay_server import TableConfig

from tests.support.project import ROOT

PYTHON = "RLDS2REVERB_FACTS_PYTHON"
"""Environment variable: the Python whose Reverb is tried; by default the one that runs the tests."""

START_SECONDS = 120.0


def python() -> str:
    return os.environ.get(PYTHON) or sys.executable


class ReverbServer:
    """A server in a process of its own; the end of a `with` block kills it.

    Args:
      tables: of the server.
      folder: its checkpoint folder; None for one that goes at once.

    Attributes:
      address: "localhost:PORT".
      errors: what the process has said when it did not start.
    """

    def __init__(self, *tables: TableConfig, folder: Path | None = None) -> None:
        self._request: Any = (tables, None, None if folder is None else str(folder))
        self.address = self.errors = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ReverbServer:
        path = os.pathsep.join([str(ROOT), str(ROOT / "server")])
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": path}
        with tempfile.TemporaryFile() as errors:  # not a pipe: nobody reads it meanwhile
            self._process = subprocess.Popen(
                [python(), "-c", "from replay_server.embedded import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **quiet},
            )
            assert self._process.stdin is not None
            payload = pickle.dumps(self._request)
            self._process.stdin.write(len(payload).to_bytes(8, "little") + payload)
            self._process.stdin.flush()
            port = self._read_port()
            if not port:
                self._end()
                errors.seek(0)
                self.errors = errors.read().decode(errors="replace")
            self.address = f"localhost:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def has_started(self) -> bool:
        return self._process is not None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _read_port(self) -> int:
        """0 where the process has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, end - time.monotonic())):
                line = self._process.stdout.readline()
                if line.startswith(b"port "):
                    return int(line.split()[1])
                if not line:
                    break
        return 0
