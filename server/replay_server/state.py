"""What is known of a server: the service and its parts write it; HTTP, metrics and the status page only read it.

```
starting --(checkpoint chosen, fitted)--> restoring --(Reverb answers)--> ready --(SIGTERM, SIGINT)--> stopping
```
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from replay_server.checkpoints import CheckpointWriter
from replay_server.choosing import Unloaded
from replay_server.config import ServerConfig
from replay_server.errors import CheckpointError
from replay_server.fitting import TableFit
from replay_server.folder_lock import FolderLock
from replay_server.journal import JournalWatch
from replay_server.logs import bytes_in, under_way
from replay_server.monitor import Monitor
from replay_server.recorder import Recorder
from replay_server.restore import Start
from replay_server.retention import DiskNeed, disk_need, makes_room
from replay_server.store import PASSING, CheckpointStore, LeftOut, ListedCheckpoint
from replay_server.tables import TableConfig
from replay_server.uploads import Uploads
from rlds2reverb.wire.messages import is_own

Phase = Literal["starting", "restoring", "ready", "stopping"]


@dataclass
class ServerState:
    """The phase (see the module) and the start, which the service sets, and the parts, which report their own state.

    Attributes:
      started_at: Unix time.
      ready_seconds: from then until it was ready; None before.
      start: what the server has started from; None before.
      uploads: what sends checkpoints to a bucket; None where nothing does.
      journal: what the journal says; None where nobody reads it.
    """

    config: ServerConfig
    lock: FolderLock
    store: CheckpointStore
    checkpoints: CheckpointWriter
    monitor: Monitor
    recorder: Recorder
    started_at: float = field(default_factory=time.time)
    phase: Phase = "starting"
    ready_seconds: float | None = None
    start: Start | None = None
    uploads: Uploads | None = None
    journal: JournalWatch | None = None

    @property
    def tables(self) -> tuple[TableFit, ...]:
        """How each table of the config or of the checkpoint was fitted at the start; none before."""
        return () if self.start is None else tuple(fit for fit in self.start.fit.tables if not is_own(fit.name))

    @property
    def table_configs(self) -> tuple[TableConfig, ...]:
        """The tables that the server has started with; none before."""
        return () if self.start is None else tuple(table for table in self.start.fit.configs if not is_own(table.name))

    @property
    def unloaded(self) -> tuple[Unloaded, ...]:
        """Checkpoints that exist and were not loaded at the start."""
        return () if self.start is None else self.start.unloaded

    def left_out(self) -> list[LeftOut]:
        """What starts have not restored, while it is kept; of `start_from` what this start has not."""
        if self.start is None or self.start.checkpoint is not None:
            return self.store.left_out()
        older = self.start.older
        place = str(self.config.checkpoints.start_from) if older is None else f"checkpoint {older.number} of the bucket"
        own = [LeftOut(table.name, table.lost, table.detail, place) for table in self.tables if table.lost]
        return own + self.store.left_out()

    def listed(self) -> list[ListedCheckpoint]:
        """The kept checkpoints, newest first; none where the folder cannot be listed."""
        try:
            return self.store.listed()
        except CheckpointError:
            return []

    def disk_need(self) -> DiskNeed | None:
        """What the checkpoints that are kept take on disk; None before the first, or where the folder cannot be listed."""
        newest, space = self.checkpoints.newest(), self.checkpoints.space()
        try:
            paths = self.store.paths()
            reasons = self.store.reasons_to_keep(paths)
            sizes = [bytes_in(path) for path, words in zip(paths, reasons, strict=True) if makes_room(words, PASSING)]
        except CheckpointError:
            return None
        if newest is None:
            return None
        return disk_need(self.store.keep, sizes, newest.bytes, None if space is None else space.free_bytes)

    def obstacle(self) -> str:
        """Why the server is not ready, without asking Reverb; "" when nothing is in the way."""
        if self.phase != "ready":
            return f"the server is {self.phase}{self.how_far()}" + (self.lock.waiting and f": {self.lock.waiting}")
        return self.lock.problem

    def how_far(self) -> str:
        """How far a start is, such as " 43 %"; "" where nobody can tell."""
        shares = (
            [work["percent"] for work in under_way() if "percent" in work]
            if self.phase in ("starting", "restoring")
            else []
        )
        return f" {shares[-1]} %" if shares else ""

    def was_ready(self) -> bool:
        """Whether nothing is in the way, and Reverb has answered the newest question."""
        return not self.obstacle() and self.monitor.snapshot.is_answer
