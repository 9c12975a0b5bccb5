"""`rlds2reverb top` over real services, in a terminal: filled and sampled, killed and started again, two at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import reverb

import rlds2reverb
from rlds2reverb.errors import Rlds2ReverbError
from tests.support.cli.shell import Shell, needs_tmux
from tests.support.forks import Forks
from tests.support.processes import QUIET, REPOSITORY, wait_until
from tests.support.server_running import Server

pytestmark = [pytest.mark.server, pytest.mark.timeout(600), needs_tmux]

TABLES = [
    {"name": "replay", "max_size": 100_000, "rate_limiter": {"kind": "min_size", "min_size": 1}},
    {"name": "queue", "rate_limiter": {"kind": "queue", "size": 5}},
]
AGED = re.compile(r"(\S+ \w+) ago: up (\S+ \w+),")
SLOWLY = 150.0
"""Seconds for a service to start and be seen, on a busy machine."""


@contextmanager
def service(forks: Forks, folder: Path) -> Iterator[Server]:
    folder.mkdir(exist_ok=True)
    with Server(forks, folder, {"tables": TABLES}).until_ready() as running:
        yield running


@contextmanager
def used(address: str) -> Iterator[None]:
    """Fills and samples a table until the end."""
    is_over = threading.Event()

    def insert() -> None:
        client = reverb.Client(address)
        while not is_over.wait(0.01):
            client.insert([0.0], {"replay": 1.0})

    def sample() -> None:
        while not is_over.is_set():
            try:
                with rlds2reverb.connect(address) as client:
                    for _ in client.sample("replay", 4, timeout_seconds=5.0):
                        if is_over.wait(0.02):
                            break
            except Rlds2ReverbError:
                is_over.wait(0.2)

    threads = [threading.Thread(target=job, daemon=True) for job in (insert, sample)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(SLOWLY)


def rates(shell: Shell, table: str) -> tuple[str, str]:
    """Inserts and samples per second, as shown."""
    line = next((line for line in shell.lines if line.lstrip().startswith(table)), "")
    cells = line.replace(" / ", "/").split()
    return (cells[3], cells[4]) if len(cells) > 4 else ("", "")


def is_busy(shell: Shell, table: str) -> bool:
    return all(text and text not in "-0" for text in rates(shell, table))


def view(size: tuple[int, int], *arguments: str) -> Shell:
    return Shell(size, "-m", "rlds2reverb", "top", "--interval", "0.5", *arguments)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_a_service_is_shown_with_rates_waits_memory_and_checkpoints(
    forks: Forks, tmp_path: Path, size: tuple[int, int]
) -> None:
    with service(forks, tmp_path) as server, used(server.address):
        for _ in range(5):
            reverb.Client(server.address).insert([0.0], {"queue": 1.0})
        with view(size, "--server", server.address, "--http", server.url) as shell:
            shell.until_shown("answers", "memory", "no checkpoint yet", "5/5" if size[0] < 100 else "5 / 5")
            shell.until_shown("inserting waits for 1 more sample")
            wait_until(lambda: is_busy(shell, "replay"), SLOWLY, lambda: shell.screen)
            written = subprocess.run(
                [sys.executable, "-m", "rlds2reverb", "checkpoint", "--http", server.url],
                cwd=REPOSITORY, env={**os.environ, **QUIET}, capture_output=True, timeout=SLOWLY, check=False,
            )  # fmt: skip
            assert written.returncode == 0, written.stderr
            shell.until_shown("checkpoint 1 (", seconds=SLOWLY)
            shell.press("?").until_shown("Columns").press("?").until_shown("replay").press("q")
            shell.until_ended(0)


def test_a_service_that_is_killed_is_told_and_taken_up_again_while_another_goes_on(
    forks: Forks, tmp_path: Path
) -> None:
    last_told: set[tuple[str, str]] = set()
    with service(forks, tmp_path / "a") as first, forks.embedded(_tables()) as second:
        with view((80, 24), "--server", f"one={first.address},two={second.address}", "--http", first.url) as shell:
            shell.until_shown("one  answers", "two  answers; memory, checkpoints: not known (no --http)")
            second.stop()
            shell.until_shown("one  answers", "two  no answer since", "nothing listens there", seconds=SLOWLY)
            with forks.embedded(_tables(), second.port):
                shell.until_shown("two  answers, restarted at", seconds=SLOWLY)
                first.process.send(signal.SIGKILL)
                shell.until_shown("one  no answer since", "two  answers", seconds=SLOWLY)
                shell.until_shown(f"{first.url}: no answer")
                wait_until(
                    lambda: len(last_told.update(AGED.findall(" ".join(shell.screen.split()))) or last_told) > 1, SLOWLY
                )
                assert len({up for _, up in last_told}) == 1, "it is dead, and its clock goes on"
                shell.press("q").until_ended(0)


def _tables() -> Any:
    from replay_server import TableConfig

    return [TableConfig("plain")]


def test_what_is_piped_ends_with_its_reader(forks: Forks, tmp_path: Path) -> None:
    with service(forks, tmp_path) as server:
        command = [sys.executable, "-m", "rlds2reverb", "top", "--server", server.address, "--interval", "0.2"]
        with (tmp_path / "errors").open("w+b") as errors:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, env={**os.environ, **QUIET}, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            process.stdout.close()
            assert process.wait(SLOWLY) == 0
            errors.seek(0)
            assert errors.read() == b""
        assert lines[1].startswith(f"server {server.address}: answers")
        assert "\x1b" not in "".join(lines)
