"""What the running tables look like, asked once a second, with a few minutes of history."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.wire.messages import ServerInfo, TableInfo

ASK_SECONDS = 1.0
HISTORY_SECONDS = 600.0


@dataclass(frozen=True)
class Counts:
    """A table at one moment: completed inserts and samples, restored ones included, and items held."""

    inserts: int
    samples: int
    size: int


@dataclass(frozen=True)
class Snapshot:
    """The newest answer of Reverb.

    Attributes:
      info: None before the first answer.
      answered_at: Unix time of it.
      error: why the newest question was not answered, "" when it was.
    """

    info: ServerInfo | None = None
    answered_at: float = 0.0
    error: str = ""


class Monitor:
    """Asks in a thread of its own.

    Args:
      ask: one ServerInfo call with a deadline; raises `Rlds2ReverbError`.
    """

    def __init__(self, ask: Callable[[], ServerInfo]) -> None:
        self._ask = ask
        self._history: deque[tuple[float, dict[str, Counts]]] = deque(maxlen=int(HISTORY_SECONDS / ASK_SECONDS) + 1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self.snapshot = Snapshot()

    def start(self) -> None:
        """Asks at once, then every second."""
        self._thread.start()

    def stop(self) -> None:
        """Asks no more."""
        self._stopped.set()

    def tables(self) -> list[TableInfo]:
        """The newest answer, by name."""
        info = self.snapshot.info
        return [] if info is None else [info.tables[name] for name in sorted(info.tables)]

    def history(self) -> list[tuple[float, dict[str, Counts]]]:
        """(Unix time, table -> counts), oldest first."""
        return list(self._history)

    def look(self) -> None:
        """Asks once."""
        try:
            info = self._ask()
        except Rlds2ReverbError as error:
            self.snapshot = replace(self.snapshot, error=str(error))
            return
        now = time.time()
        self.snapshot = Snapshot(info, now)
        self._history.append(
            (
                now,
                {
                    name: Counts(table.rate_limiter.inserts, table.rate_limiter.samples, table.current_size)
                    for name, table in info.tables.items()
                },
            )
        )

    def _run(self) -> None:
        while True:
            self.look()
            if self._stopped.wait(ASK_SECONDS):
                return
