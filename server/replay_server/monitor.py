"""What the running tables look like, asked once per second, with a few minutes of history; and how far prefills are."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from replay_server.logs import PROGRESS_SECONDS, logger
from replay_server.tables import Prefill, TableConfig
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


class PrefillTeller:
    """Looks at the monitor's newest answer, in a thread of its own, until every prefill has its items.

    Args:
      monitor: asks the server.
      tables: as they run now; those whose prefill was over at the start have their other limiter already.
    """

    def __init__(self, monitor: Monitor, tables: Iterable[TableConfig]) -> None:
        self._monitor = monitor
        self._wanted = {
            table.name: table.rate_limiter.items for table in tables if isinstance(table.rate_limiter, Prefill)
        }
        self._before: dict[str, tuple[float, int]] = {}
        self._log = logger("prefill")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefills", daemon=True)

    def start(self) -> None:
        """Begins, where there is a prefill."""
        if self._wanted:
            self._thread.start()

    def stop(self) -> None:
        """Says nothing more."""
        self._stopped.set()

    def look(self, now: float) -> None:
        """Tells every table that fills.

        Args:
          now: monotonic time.
        """
        held = {table.name: table.current_size for table in self._monitor.snapshot.tables()}
        for name in [one for one in self._wanted if one in held]:
            self._tell(name, held[name], now)

    def _tell(self, name: str, items: int, now: float) -> None:
        wanted = self._wanted[name]
        if items >= wanted:
            del self._wanted[name]
            self._log.info(
                "prefill has its items", table=name, items=items, next="the limiter after it holds from the next start"
            )
            return
        if name not in self._before or self._before[name][1] != items:  # nothing new is not said again
            self._log.info("prefill", table=name, items=items, of=wanted, **self._rate(name, items, now))

    def _rate(self, name: str, items: int, now: float) -> Mapping[str, Any]:
        """Items per second since the line before, and how long it still takes at that rate."""
        before = self._before.get(name)
        self._before[name] = now, items
        if before is None or now <= before[0] or items <= before[1]:
            return {}
        rate = (items - before[1]) / (now - before[0])
        return {"items_per_second": float(f"{rate:.4g}"), "eta_seconds": round((self._wanted[name] - items) / rate)}

    def _run(self) -> None:
        while self._wanted:
            self.look(time.monotonic())
            if self._stopped.wait(PROGRESS_SECONDS):
                return
