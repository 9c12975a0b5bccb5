"""A side of a benchmark in a process of its own, often in another Python: lines of JSON in, lines of JSON back."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import note

_ROOT = Path(__file__).parent.parent


def python_with(library: str, environment: str) -> Path | None:
    """The Python that has a library to compare with: of `make setup-ENVIRONMENT`, or as RLDS2REVERB_ENVIRONMENT_PYTHON says; None, and a note, without one."""
    variable = f"RLDS2REVERB_{environment.upper()}_PYTHON"
    path = Path(os.environ.get(variable) or _ROOT / f".venv-{environment}" / "bin" / "python")
    if path.exists():
        return path
    note(
        f"no {library}: what is compared with it is left out (make setup-{environment}, or {variable}=a Python that has it)"
    )
    return None


def learners_environment() -> dict[str, str]:
    """One thread for PyTorch's own loops: two wait for each other where other processes use the cores, and in-process buffers get many times slower."""
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "server")])
    return {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


class Child:
    """`PYTHON -m MODULE DESCRIPTION`. It ends when its input does: use it as a context manager.

    Args:
      python: of the process.
      module: which reads lines of its input until they end, and answers each with a line.
      environment: of the process.
      description: what it is to be, its only argument, as JSON.
    """

    def __init__(
        self, python: Path, module: str, environment: Mapping[str, str], description: Mapping[str, Any]
    ) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [str(python), "-m", module, json.dumps(description)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def ask(self, request: Any) -> Any:
        """The answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"a process has ended: {self._process.args!r}\n{self._errors.read()[-2000:]}")
        return json.loads(line)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()
