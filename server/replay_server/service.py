"""The long-running server: starts, restores, serves, saves, ends. See `state` for the phases of its life."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from replay_server import restore
from replay_server.alerts import AlertWatch
from replay_server.checkpoints import SHUTDOWN, CheckpointWriter, Outcome, Schedule, Shared
from replay_server.choosing import missing
from replay_server.clients import ClientCheckpoints
from replay_server.config import ServerConfig
from replay_server.embedded import held_port
from replay_server.errors import CheckpointError, StartStopped
from replay_server.folder_lock import FolderLock
from replay_server.history import HistoryFile
from replay_server.http import HttpServer, make_app
from replay_server.journal import JournalWatch
from replay_server.library import library, start_server
from replay_server.logs import Reading, bytes_in, log_progress, logger
from replay_server.monitor import Monitor, PrefillTeller
from replay_server.own_tables import OWN_TABLES
from replay_server.recorder import Recorder
from replay_server.repeating import Repeating
from replay_server.state import ServerState
from replay_server.store import CheckpointStore
from replay_server.tables import TableConfig
from replay_server.uploads import uploads_of
from rlds2reverb.errors import ServerUnreachable
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.wire.messages import ServerInfo

READY_SECONDS = 0.8  # deadline of the ServerInfo call behind /readyz and the monitor
_SPACING_SECONDS = 600.0  # between kept checkpoints of clients, where there is no schedule
_STDERR = 2
_LOOK_UP_SECONDS = 0.5  # how late a signal that woke nobody may be noticed


def serve(config: ServerConfig, tables: Sequence[TableConfig]) -> int:
    """Runs a service until a signal; with `grpc.port` 0 on a free port, which the log and the status name.

    Returns:
      The exit code, see `ReplayService.run`.

    Raises:
      ConfigError: a port is taken, or the HTTP token cannot be read.
      CheckpointError: see `restore.prepare`.
    """
    with held_port(config.grpc.port, "grpc.port") as port:
        chosen = msgspec.structs.replace(config, grpc=msgspec.structs.replace(config.grpc, port=port))
        return ReplayService(chosen, tables).run()


class ReplayService:
    """One replay server in this process.

    Args:
      config: the whole configuration; its `grpc.port` is one that Reverb can have, not 0.
      tables: its tables, resolved and checked.

    Attributes:
      state: what HTTP, metrics and the status page read.
      requested_checkpoint: writes a checkpoint, one for all who ask at the same time.
    """

    def __init__(self, config: ServerConfig, tables: Sequence[TableConfig]) -> None:
        self.config, self._tables = config, tuple(tables)
        address = f"localhost:{config.grpc.port}"
        self._asking = GrpcTransport(address, call_seconds=READY_SECONDS)
        self._saving = GrpcTransport(address)
        section, started_at = config.checkpoints, time.time()
        folder = Path(section.folder).absolute()
        self.lock, self.monitor = FolderLock(folder, started_at), Monitor(self.ask)
        self._store = CheckpointStore(folder, section.keep, self.lock.check)
        spacing = section.every_seconds or _SPACING_SECONDS
        # A transport without the short deadline of `ask`: writing a checkpoint may take an hour.
        request = partial(self._saving.checkpoint, section.deadline_seconds)
        self.checkpoints = CheckpointWriter(self._store, request, spacing, self._items)
        self._recorder = Recorder(HistoryFile(self._store), self._known_items, started_at)
        self._uploads = uploads_of(section, self._store)
        self.checkpoints.tell = self._note
        self.state = ServerState(
            config,
            self.lock,
            self._store,
            self.checkpoints,
            self.monitor,
            self._recorder,
            started_at,
            uploads=self._uploads,
            journal=JournalWatch(self.monitor, self._saving),
        )
        self.requested_checkpoint = Shared(lambda: self.checkpoints.write("request"), self.checkpoints.turn)
        self._stop = _Stop()
        self._log = logger("service")
        self._server: Any = None

    def run(self) -> int:
        """A server's life: serves until a signal; the exit code is 0, or 1 when the last checkpoint could not be written.

        Raises:
          ConfigError: the HTTP port is taken, or its token cannot be read.
          CheckpointError: another server uses the checkpoint folder; or see `restore.prepare`.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop.on_signal)
        state = self.state
        try:
            self.lock.take()  # one server per checkpoint folder
            alerts = AlertWatch(state)
            http = HttpServer(make_app(state, self.requested_checkpoint, alerts), self.config.http)
            http.start()
            self._log.info("http is up", url=http.url)
            if not self.lock.settle(self._stop.wait):
                self._log.info("stopped before the start")
                return 0
            state.recorder.start()
            alerts.start()

            try:
                self._start_reverb()  # restores what the folder holds
            except StartStopped as stopped:
                self._log.info("stopped before the start", reason=str(stopped))
                return 0
            self.monitor.start()
            helpers: list[Repeating] = [
                ClientCheckpoints(self.checkpoints),
                PrefillTeller(self.monitor, state.table_configs),
                *([] if state.journal is None else [state.journal]),
            ]
            if self.config.checkpoints.every_seconds is not None:
                helpers.append(Schedule(self.checkpoints, self.config.checkpoints.every_seconds))
            for helper in helpers:
                helper.start()
            if self._uploads is not None:
                self._uploads.start(self.checkpoints.state.last)
            state.phase = "ready"
            self._log.info(
                "ready",
                grpc_port=self.config.grpc.port,
                tables=len(state.table_configs),
                items=sum(table.items for table in state.tables),
                seconds=round(time.time() - state.started_at, 3),
            )

            # Python runs a signal's handler in the main thread, and only when that is awake: a signal that arrives just
            # before the wait, or in another thread, wakes nobody.
            while not self._stop.wait(_LOOK_UP_SECONDS):
                pass
            self._log.info("stopping", signal=self._stop.signal)

            state.phase = "stopping"
            self.checkpoints.stop()
            for helper in helpers:
                helper.stop()
            code = self._save_last()
            if self._uploads is not None:
                self._uploads.finish(self.config.checkpoints.upload_on_shutdown_seconds)
            alerts.stop()
            self.monitor.stop()
            http.stop()
            state.recorder.stop()
            self._log.info("stopped", exit_code=code)
            return code
        finally:
            self.lock.release()

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
        """Does what SIGTERM does."""
        self._stop.set()

    def _start_reverb(self) -> None:
        self._log.info("loading Reverb")
        library()
        try:
            start = restore.prepare(
                self._store, self.config.checkpoints, (*self._tables, *OWN_TABLES), self._stop.is_set
            )
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {self._store.folder}: {error}; clear what is in the way there, or set checkpoints.folder to another one"
            ) from error
        self.state.phase = "restoring"
        began = time.time()
        loading: AbstractContextManager[None] = nullcontext()
        if start.staged is not None:
            total = bytes_in(start.staged)
            loading = log_progress(self._log, "loading the checkpoint", Reading(total).far, bytes=total)
        try:
            with loading:
                self._server = start_server(start.fit.configs, self.config.grpc.port, str(self._store.reverb))
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"Reverb does not start: {error}") from error
        restore.forget_staged(self._store)
        self.state.start = start
        self.checkpoints.restored(start.checkpoint)
        last = self.state.recorder.history().newest_checkpoint()
        if start.checkpoint is None and missing(self._store.folder, last):
            self.state.recorder.forget_checkpoints()  # this start has done without them, and the next one need not look
        if start.staged is not None:
            self._log.info("restored", items=start.fit.items, seconds=round(time.time() - began, 3))

    def _note(self, outcome: Outcome) -> None:
        self._recorder.note(outcome)
        if self._uploads is not None:
            self._uploads.note(outcome.checkpoint)

    def _items(self) -> int | None:
        """Number of items in all tables now; None without an answer."""
        try:
            return sum(table.current_size for table in self.ask().tables.values())
        except ServerUnreachable:
            return None

    def _known_items(self) -> int | None:
        """Items in all tables by Reverb's newest answer; asks nothing."""
        snapshot = self.monitor.snapshot
        return None if snapshot.info is None else sum(table.current_size for table in snapshot.tables())

    def _save_last(self) -> int:
        """Writes the last checkpoint, or keeps at least what Reverb has confirmed to clients; the exit code."""
        code = 0
        if self.config.checkpoints.on_shutdown:
            try:
                self.checkpoints.write(SHUTDOWN)
                return 0
            except CheckpointError:
                code = 1
        else:
            self._log.warning("stopping without a checkpoint, as configured")
        try:
            self.checkpoints.keep_clients()
        except CheckpointError:
            code = 1
        return code


class _Stop:
    """Like `threading.Event`, and safe to set in the handler of a signal.

    A handler runs in the middle of anything, of a log line or of a wait: it must neither write one nor take the lock of an `Event`.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self._is_set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def on_signal(self, number: int, _: object) -> None:
        if self._is_set:
            with suppress(OSError):
                os.write(_STDERR, b"second signal, leaving without a checkpoint\n")
            os._exit(1)
        self.signal = signal.Signals(number).name
        self.set()

    def set(self) -> None:
        self._is_set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Whether it is set, after at most `seconds`; for one thread."""
        if not self._is_set:
            with suppress(Empty):
                self._wake.get(timeout=seconds)
        return self._is_set
