"""Processes of the tests: free ports, waits with a deadline, and programs that end with the test that started them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

REPOSITORY = Path(__file__).parents[2]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONFAULTHANDLER": "1"}
PATIENCE_SECONDS = 60.0
"""For what takes a moment; only a test that fails waits so long."""

END_SECONDS = 120.0
"""For a process to end that imports TensorFlow before, on a busy machine."""

T = TypeVar("T")
_numbers = itertools.count()
_reservations: list[socket.socket] = []
"""Names of the ports given out, open until this process ends."""


def free_port() -> int:
    """A free port that no other test process takes, and that the system gives to no outgoing connection.

    The system hands out ports from 32768 on to whoever connects, so a free one of those may be taken a moment later. Ray gives its
    workers those from 10002 to 19999.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_768), 1_000):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0rlds2reverb-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            reservation.close()
            continue
        _reservations.append(reservation)
        return port
    raise RuntimeError("no free port between 20000 and 32768")


def answers(port: int) -> bool:
    """Whether something on this machine listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def dead_port() -> Iterator[int]:
    """A port of this machine that is taken and refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def wait_until(
    condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS, reason: Callable[[], object] = str
) -> None:
    """Waits for what another thread or process brings about.

    Args:
      reason: what to say when it does not come.

    Raises:
      TimeoutError: it did not come true in time.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s {reason()}".rstrip())
        time.sleep(0.002)


def eventually(check: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """The result of `check`, once none of its assertions fails; the last failure when the time is over."""
    end = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


class Handle(Protocol):
    """What there is of a process: a `subprocess.Popen`, or one that another process has forked."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""


class Process:
    """A process that writes into files, so that nobody must read; the end of a `with` block kills it.

    Args:
      handle: of the process.
      output, errors: files of what it writes.
    """

    def __init__(self, handle: Handle, output: Path, errors: Path) -> None:
        self._handle, self._output, self._errors = handle, output, errors
        self.pid = handle.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._output.read_text()

    @property
    def errors(self) -> str:
        """What it has written so far, as errors."""
        return self._errors.read_text()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._handle.poll()

    def send(self, number: int) -> None:
        """Sends a signal; one that has ended gets none."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Waits for its end: the exit code."""
        wait_until(lambda: self.poll() is not None, seconds, lambda: f"ended process {self.pid}: {self._last_words()}")
        code = self.poll()
        assert code is not None
        return code

    def _last_words(self) -> str:
        """Ends one that does not end; its errors, and where each thread of a Python was."""
        threads = [
            f"{task.name} {(task / 'comm').read_text().strip()}" for task in Path(f"/proc/{self.pid}/task").glob("*")
        ]
        self.send(signal.SIGABRT)
        with suppress(TimeoutError):
            wait_until(lambda: self.poll() is not None, 5.0)
        return f"{self.errors[-6000:]} (threads: {', '.join(threads)})"

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits: the exit code."""
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """Ends it, however it is."""
        self.end(signal.SIGKILL)

    def result(self, seconds: float = END_SECONDS) -> tuple[int, str, str]:
        """Exit code, output and errors of one that ends by itself."""
        return self.wait(seconds), self.output, self.errors


def read_to_end(terminal: int) -> bytes:
    """All that comes on our side of a pseudo-terminal until the other side is closed."""
    seen = b""
    with suppress(OSError):  # EIO: it is closed
        while part := os.read(terminal, 65536):
            seen += part
    return seen


def output_files(folder: Path) -> tuple[Path, Path]:
    """New files for output and errors."""
    number = next(_numbers)
    return folder / f"output-{os.getpid()}-{number}", folder / f"errors-{os.getpid()}-{number}"


def started(folder: Path, *arguments: str, **environment: str) -> Process:
    """A Python of its own: python ARGUMENTS, in the repository.

    Args:
      folder: for its output.
    """
    return started_command(folder, [sys.executable, *arguments], **environment)


def started_command(folder: Path, command: Sequence[str], **environment: str) -> Process:
    """Any program, in the repository."""
    files = output_files(folder)
    with files[0].open("wb") as output, files[1].open("wb") as errors:
        handle = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=REPOSITORY,
            env={**os.environ, **QUIET, **environment},
        )
    return Process(handle, *files)
