"""The server that benchmarks push to: a process of its own, empty before every run, quiet before the clock starts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from replay_server import EmbeddedServer, TableConfig

from rlds2reverb import Client, connect

_QUIET_SECONDS = 0.01
"""Processor time in one look that still counts as quiet: one clock tick."""

_LOOK_SECONDS = 0.1
_QUIET_WITHIN_SECONDS = 20.0


class BenchServer:
    """An embedded server with the clients that benchmarks need. Use as a context manager.

    Attributes:
      client: ours.
      reverb: Reverb's own, made when first asked for (it imports TensorFlow).
    """

    client: Client

    def __init__(self, tables: Sequence[TableConfig]) -> None:
        self._server = EmbeddedServer(tables)
        self._reverb: Any = None

    def __enter__(self) -> BenchServer:
        self._server.start()
        self.client = connect(self._server.address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._reverb = None
        self._server.stop()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._server.address

    @property
    def reverb(self) -> Any:
        """A `reverb.Client`."""
        if self._reverb is None:
            import reverb

            self._reverb = reverb.Client(self.address)
        return self._reverb

    def size(self, table: str) -> int:
        """Items in a table."""
        return self.client.server_info().tables[table].current_size

    def expect(self, table: str, items: int) -> None:
        """Raises unless the table holds exactly so many items: a run that lost some must not be measured."""
        if self.size(table) != items:
            raise RuntimeError(f'table "{table}": expected {items} items after the run, found {self.size(table)}')

    def empty(self, table: str) -> None:
        """Empties a table and waits until the server has freed the items and does nothing."""
        self.reverb.reset(table)
        self.settle()

    def settle(self) -> None:
        """Waits until the server process uses no processor time to speak of; bounded."""
        settle(self._server.pid)

    def rss_bytes(self) -> int:
        """Memory of the server process."""
        return rss_bytes(self._server.pid)

    def processor_seconds(self) -> float:
        """Of the server process, all threads."""
        return processor_seconds(self._server.pid)


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, this one by default."""
    return _status_bytes(pid, "VmRSS")


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that is no file's: what it has asked for. Pages of files come and go as the system likes."""
    return _status_bytes(pid, "RssAnon")


def peak_bytes(pid: int) -> int:
    """The most resident memory that a process has had since `forget_peak`, or its start."""
    return _status_bytes(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    """Has `peak_bytes` begin at what is resident now. Source: proc(5), /proc/PID/clear_refs."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_bytes(pid: int | None, name: str) -> int:
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no {name}: it has ended")


def processor_seconds(pid: int) -> float:
    """Processor time of a process until now, all its threads, in steps of 10 ms. Source: proc(5), /proc/PID/stat, utime and stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settle(pid: int) -> None:
    """Waits until a process uses no processor time to speak of; bounded."""
    end = time.monotonic() + _QUIET_WITHIN_SECONDS
    before = processor_seconds(pid)
    while time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
        now = processor_seconds(pid)
        if now - before < 1.5 * _QUIET_SECONDS:
            return
        before = now
