"""The long-running server: starts, restores, serves, saves, ends.

```
starting --(generation chosen, fitted)--> restoring --(Reverb answers)--> ready --(SIGTERM, SIGINT)--> stopping
```
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from replay_server import restore
from replay_server.checkpoints import CheckpointWriter, Schedule
from replay_server.config import ServerConfig
from replay_server.fitting import TableFit
from replay_server.generations import Generations
from replay_server.http import HttpServer
from replay_server.logs import logger
from replay_server.monitor import Monitor
from replay_server.ports import check_port_is_free
from replay_server.records import CheckpointError
from replay_server.tables import TableConfig, reverb_table
from rlds2reverb.errors import ServerUnreachable
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.wire.transport import ReverbChannel

State = Literal["starting", "restoring", "ready", "stopping"]

READY_SECONDS = 0.8
"""Deadline of the ServerInfo call behind /readyz and the monitor."""

_LOOK_UP_SECONDS = 0.5
"""How late a signal may be noticed that woke nobody."""


class ReplayService:
    """One replay server in this process.

    Args:
      config: the whole configuration.
      tables: its tables, resolved and checked.

    Attributes:
      state: see the module.
      started_at: Unix time.
      tables: what became of each table at the start.
    """

    def __init__(self, config: ServerConfig, tables: Sequence[TableConfig]) -> None:
        self.config = config
        self.state: State = "starting"
        self.started_at = time.time()
        self.tables: tuple[TableFit, ...] = ()
        self.table_configs = tuple(tables)
        self._generations = Generations(Path(config.checkpoints.folder).absolute(), config.checkpoints.keep)
        self._stop = threading.Event()
        self._log = logger("service")
        address = f"localhost:{config.grpc.port}"
        self._asking = ReverbChannel(address, call_seconds=READY_SECONDS)
        self._saving = ReverbChannel(address)
        self.checkpoints = CheckpointWriter(self._generations, self._request_checkpoint)
        self._server: Any = None
        self.monitor = Monitor(self.ask)

    def run(self) -> int:
        """Serves until a signal; the exit code: 0, or 1 when the last checkpoint could not be written.

        Raises:
          ConfigError: a port is taken.
          CheckpointError: see `restore.prepare`.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        check_port_is_free(self.config.grpc.port, "grpc.port")
        http = HttpServer(self, self.config.http.host, self.config.http.port)
        http.start()
        self._log.info("http is up", url=http.url)
        self._start_reverb()
        self.monitor.start()
        schedule = self._start_schedule()
        self.state = "ready"
        self._log.info(
            "ready",
            grpc_port=self.config.grpc.port,
            tables=len(self.table_configs),
            items=sum(table.items for table in self.tables),
            seconds=round(time.time() - self.started_at, 3),
        )
        self._wait_for_stop()
        self.state = "stopping"
        if schedule is not None:
            schedule.stop()
        code = self._save_last()
        self.monitor.stop()
        http.stop()
        self._log.info("stopped", exit_code=code)
        return code

    def ask(self) -> ServerInfo:
        """A real ServerInfo call, with a deadline of `READY_SECONDS`.

        Raises:
          ServerUnreachable: no answer; says so when a checkpoint is being written, which stops Reverb's tables.
        """
        try:
            return self._asking.server_info()
        except ServerUnreachable as error:
            since = self.checkpoints.state.writing_since
            if since is None:
                raise
            raise ServerUnreachable(
                f"a checkpoint is being written for {time.time() - since:.1f} s; inserts and samples wait until it is"
            ) from error

    def stop(self) -> None:
        """What SIGTERM does."""
        self._stop.set()

    @property
    def generation_count(self) -> int:
        """Generations on disk."""
        return len(self._generations.paths())

    def _start_reverb(self) -> None:
        import reverb
        import reverb.cc.checkpointing.checkpoint_pb2  # here, not at the first checkpoint, when every thread would wait

        start = restore.prepare(self._generations, self.config.checkpoints, self.table_configs)
        self.state = "restoring"
        began = time.time()
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(str(self._generations.reverb))
        tables = [reverb_table(config) for config in start.fit.configs]
        try:
            self._server = reverb.Server(tables, port=self.config.grpc.port, checkpointer=checkpointer)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"Reverb does not start: {error}") from error
        restore.forget_staged(self._generations)
        self.tables, self.table_configs = start.fit.tables, start.fit.configs
        self.checkpoints.restored(start.generation)
        if start.staged is not None:
            self._log.info("restored", items=sum(t.items for t in self.tables), seconds=round(time.time() - began, 3))

    def _start_schedule(self) -> Schedule | None:
        if self.config.checkpoints.every_seconds is None:
            return None
        schedule = Schedule(self.checkpoints, self.config.checkpoints.every_seconds)
        schedule.start()
        return schedule

    def _wait_for_stop(self) -> None:
        """Python runs a signal's handler in the main thread, and only when that is awake: a signal that arrives just before the
        wait, or in another thread, wakes nobody. So the wait ends now and then.
        """
        while not self._stop.wait(_LOOK_UP_SECONDS):
            pass

    def _request_checkpoint(self) -> str:
        return self._saving.checkpoint(self.config.checkpoints.deadline_seconds)

    def _save_last(self) -> int:
        if not self.config.checkpoints.on_shutdown:
            self._log.warning("stopping without a checkpoint, as configured")
            return 0
        try:
            self.checkpoints.write("shutdown")
        except CheckpointError:
            return 1
        return 0

    def _on_signal(self, number: int, _: object) -> None:
        name = signal.Signals(number).name
        if self._stop.is_set():
            self._log.error("second signal, leaving without a checkpoint", signal=name)
            os._exit(1)
        self._log.info("stopping", signal=name)
        self._stop.set()
