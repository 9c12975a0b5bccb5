"""What the running tables look like, asked once per second, with a few minutes of history."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.wire.messages import ServerInfo, TableInfo

ASK_SECONDS = 1.0
HISTORY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Counts:
    """A table at one moment.

    Attributes:
      inserts, samples: completed ones, restored ones included.
      size: items held.
      insert_waits, sample_waits: seconds for which its limiter has kept some waiting, since the start.
    """

    inserts: int
    samples: int
    size: int
    insert_waits: float = 0.0
    sample_waits: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """The newest answer of Reverb, and whether it is one to the newest question.

    Attributes:
      info: None before the first answer.
      answered_at: Unix time of it.
      error: why the newest question was not answered, "" when it was.
    """

    info: ServerInfo | None = None
    answered_at: float = 0.0
    error: str = ""

    @property
    def is_answer(self) -> bool:
        """Whether the newest question was answered."""
        return self.info is not None and not self.error

    def tables(self) -> list[TableInfo]:
        """By name; none before the first answer."""
        return [] if self.info is None else [self.info.tables[name] for name in sorted(self.info.tables)]


Moment = tuple[float, dict[str, Counts]]
"""Unix time, and table -> counts then."""


class Monitor:
    """Asks in a thread of its own, and for everyone else who wants to know.

    Args:
      ask: one ServerInfo call with a deadline; raises `Rlds2ReverbError`.

    Attributes:
      snapshot: the answer to the newest question that has come to its end.
    """

    def __init__(self, ask: Callable[[], ServerInfo]) -> None:
        self._ask = ask
        self._history: deque[Moment] = deque(maxlen=int(HISTORY_SECONDS / ASK_SECONDS) + 1)
        self._questions, self._newest = itertools.count(1), 0
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self.snapshot = Snapshot()

    def start(self) -> None:
        """Asks at once, so that tables are known when this returns and Reverb answers; then every second, in the thread."""
        self._record()
        self._thread.start()

    def stop(self) -> None:
        """Asks no more by itself."""
        self._stopped.set()

    def history(self) -> list[Moment]:
        """About one moment per second, oldest first."""
        return list(self._history)

    def look(self) -> Snapshot:
        """Asks once, from any thread.

        Returns:
          What came of this question. `snapshot` has it as well, unless a later question came to its end before: so nobody
          who was told something here finds less there.
        """
        number = next(self._questions)
        try:
            seen = Snapshot(self._ask(), time.time())
        except Rlds2ReverbError as error:
            seen = replace(self.snapshot, error=str(error))
        with self._changing:
            if number > self._newest:
                self._newest, self.snapshot = number, seen
        return seen

    def _record(self) -> None:
        seen = self.look()
        if seen.is_answer:
            counts = {table.name: _counts(table) for table in seen.tables()}
            self._history.append((seen.answered_at, counts))

    def _run(self) -> None:
        while not self._stopped.wait(ASK_SECONDS):
            self._record()


def _counts(table: TableInfo) -> Counts:
    limiter, worker = table.rate_limiter, table.worker
    waits = worker.waiting_for_samples, worker.waiting_for_inserts
    return Counts(limiter.inserts, limiter.samples, table.current_size, *waits)
