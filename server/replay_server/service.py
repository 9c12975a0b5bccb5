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
from replay_server.admission import names_of
from replay_server.alerts import AlertWatch
from replay_server.checkpoints import REQUEST, SHUTDOWN, CheckpointWriter, Outcome, RestWatch, Schedule, Shared
from replay_server.choosing import missing
from replay_server.clients import ClientCheckpoints
from replay_server.config import ServerConfig
from replay_server.embedded import held_port
from replay_server.errors import CheckpointError, StartStopped
from replay_server.folder_lock import FolderLock
from replay_server.history import HistoryFile
from replay_server.http import PAGE_HEADERS, HttpServer, make_app, page_files
from replay_server.journal import JournalWatch
from replay_server.library import library, start_server
from replay_server.loading import EVENT, FROM_BYTES, stand_in
from replay_server.logs import bytes_in, logger
from replay_server.monitor import Monitor, PrefillTeller
from replay_server.own_tables import OWN_TABLES
from replay_server.recorder import Recorder
from replay_server.repeating import Repeating
from replay_server.start_from import OlderStart
from replay_server.state import ServerState
from replay_server.status import status
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


def serve(config: ServerConfig, tables: Sequence[TableConfig], older: OlderStart | None = None) -> int:
    """Runs a service until a signal; with `grpc.port` 0 on a free port, which the log and the status name.

    Returns:
      The exit code, see `ReplayService.run`.

    Raises:
      ConfigError: a port is taken, or the HTTP token cannot be read.
      CheckpointError: see `restore.prepare`.
    """
    with held_port(config.grpc.port, "grpc.port") as port:
        chosen = msgspec.structs.replace(config, grpc=msgspec.structs.replace(config.grpc, port=port))
        return ReplayService(chosen, tables, older).run()


class ReplayService:
    """One replay server in this process.

    Args:
      config: the whole configuration; its `grpc.port` is one that Reverb can have, not 0.
      tables: its tables, resolved and checked.
      older: the checkpoint that `--start-from` names; None to start from the newest one.

    Attributes:
      state: what HTTP, metrics and the status page read.
      requested_checkpoint: writes a checkpoint if anything has changed, one for all who ask at the same time.
      requested_anew: writes one whatever has changed, likewise.
    """

    def __init__(self, config: ServerConfig, tables: Sequence[TableConfig], older: OlderStart | None = None) -> None:
        self.config, self._tables, self._older = config, tuple(tables), older
        address = f"localhost:{config.grpc.port}"
        self._asking = GrpcTransport(address, call_seconds=READY_SECONDS)
        self._saving = GrpcTransport(address)
        section, started_at = config.checkpoints, time.time()
        folder = Path(section.folder).absolute()
        self.lock, self.monitor = FolderLock(folder, started_at), Monitor(self.ask)
        self._store = CheckpointStore(folder, section.keep, self.lock.check)
        spacing = section.every_seconds or _SPACING_SECONDS
        # A transport without the short deadline of `ask`: writing a checkpoint may take an hour.
        # It asks once: when a client's checkpoint has deleted its own, the writer keeps the client's, and asks again only without one.
        request = partial(self._saving.checkpoint, section.deadline_seconds, attempts=1)
        look = self._look if section.skip_unchanged else None
        self.checkpoints = CheckpointWriter(self._store, request, spacing, self._items, look)
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
        write, turn = self.checkpoints.write, self.checkpoints.turn
        self.requested_checkpoint = Shared(lambda: write(REQUEST), turn)
        self.requested_anew = Shared(lambda: write(REQUEST, is_anew=True), turn)
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
            http = HttpServer(make_app(state, self.requested_checkpoint, alerts, self.requested_anew), self.config.http)
            http.start()
            self._log.info("http is up", url=http.url)
            if not self.lock.settle(self._stop.wait):
                self._log.info("stopped before the start")
                return 0
            state.recorder.start()
            alerts.start()

            try:
                self._start_reverb(http.sockets())  # restores what the folder holds
            except StartStopped as stopped:
                self._log.info("stopped before the start", reason=str(stopped))
                return 0
            self.monitor.start()
            helpers: list[Repeating] = [
                ClientCheckpoints(self.checkpoints),
                PrefillTeller(self.monitor, state.table_configs),
                RestWatch(self.checkpoints, self.monitor.answer),
                *([] if state.journal is None else [state.journal]),
            ]
            if self.config.checkpoints.every_seconds is not None:
                helpers.append(Schedule(self.checkpoints, self.config.checkpoints.every_seconds))
            for helper in helpers:
                helper.start()
            if self._uploads is not None:
                self._uploads.start(self.checkpoints.state.last)
            state.phase, state.ready_seconds = "ready", time.time() - state.started_at
            self._log.info(
                "ready",
                grpc_port=self.config.grpc.port,
                tables=len(state.table_configs),
                items=sum(table.items for table in state.tables),
                seconds=round(state.ready_seconds, 3),
            )

            self._tell_need()

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

    def _start_reverb(self, sockets: Sequence[int]) -> None:
        """Restores, and starts Reverb; `sockets` are those on which HTTP listens."""
        self._log.info("loading Reverb")
        library()
        try:
            start = restore.prepare(
                self._store, self.config.checkpoints, (*self._tables, *OWN_TABLES), self._stop.is_set, self._older
            )
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {self._store.folder}: {error}; clear what is in the way there, or set checkpoints.folder to another one"
            ) from error
        try:
            self._start_from(start, sockets)
        except Exception:
            restore.take_back(self._store, start)
            raise

    def _start_from(self, start: restore.Start, sockets: Sequence[int]) -> None:
        self.state.phase = "restoring"
        began = time.time()
        loading: AbstractContextManager[None] = nullcontext()
        if start.staged is not None:
            total = bytes_in(start.staged)
            self._log.info(EVENT, bytes=total)
            if total >= FROM_BYTES:
                loading = self._stand_in(total, sockets)
        try:
            with loading:
                self._server = start_server(start.fit.configs, self.config.grpc.port, str(self._store.reverb))
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"Reverb does not start: {error}") from error
        restore.forget_staged(self._store)
        self.state.start = start
        if start.older is None:
            self.checkpoints.restored(start.checkpoint)
        else:
            self.checkpoints.start_over(start.checkpoint)
        last = self.state.recorder.history().newest_checkpoint()
        if start.checkpoint is None and missing(self._store.folder, last):
            self.state.recorder.forget_checkpoints()  # this start has done without them, and the next one need not look
        self.state.recorder.note_started()
        if start.staged is not None:
            self._log.info("restored", items=start.fit.items, seconds=round(time.time() - began, 3))

    def _stand_in(self, total: int, sockets: Sequence[int]) -> AbstractContextManager[None]:
        """Has another process answer and log while this one cannot, see `loading`."""
        http, log = self.config.http, self.config.log
        document = {**status(self.state), "alerts": [], "together": None}
        names = names_of(http.host, http.allowed_hosts)
        return stand_in(
            total, sockets, names, page_files(), PAGE_HEADERS, document, {"form": log.format, "level": log.level}
        )

    def _tell_need(self) -> None:
        """Logs what the kept checkpoints take on disk, once there is one to go by."""
        need = self.state.disk_need()
        if need is not None:
            keep = self._store.keep
            tell = self._log.warning if need.is_short else self._log.info if keep.needs_times else self._log.debug
            tell("checkpoints on disk", keep=keep.words(), meaning=need.words())

    def _note(self, outcome: Outcome) -> None:
        self._recorder.note(outcome)
        if self._uploads is not None and outcome.checkpoint is not None and outcome.checkpoint.is_new:
            self._uploads.note(outcome.checkpoint)

    def _look(self) -> ServerInfo | None:
        """What Reverb tells of the tables now; None without an answer."""
        try:
            return self.ask()
        except ServerUnreachable:
            return None

    def _items(self) -> int | None:
        """Number of items in all tables now; None without an answer."""
        info = self._look()
        return None if info is None else sum(table.current_size for table in info.tables.values())

    def _known_items(self) -> int | None:
        """Items in all tables by Reverb's newest answer; asks nothing."""
        snapshot = self.monitor.snapshot
        return None if snapshot.info is None else sum(table.current_size for table in snapshot.tables())

    def _save_last(self) -> int:
        """Writes the last checkpoint, or keeps at least what Reverb has confirmed to clients; the exit code."""
        code = 0
        if self.config.checkpoints.on_shutdown:
            try:
                if self.checkpoints.write(SHUTDOWN).is_new:
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
