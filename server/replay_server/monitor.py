"""The tables as Reverb describes them, asked once per second, with a few minutes of history; and the progress of prefills."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from replay_server.logs import PROGRESS_SECONDS, logger
from replay_server.repeating import Repeating
from replay_server.tables import Prefill, TableConfig
from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.wire.messages import ServerInfo, TableInfo

ASK_SECONDS = 1.0
HISTORY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class TableCounts:
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
class ServerSnapshot:
    """The newest answer of Reverb, and whether it answers the newest question.

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
        return self.info is not None and not self.error

    def tables(self) -> list[TableInfo]:
        """The tables by name; empty before Reverb's first answer."""
        return [] if self.info is None else [self.info.tables[name] for name in sorted(self.info.tables)]


Moment = tuple[float, dict[str, TableCounts]]
"""Unix time, and table -> counts then."""


class Monitor(Repeating):
    """Asks in a thread of its own, and for every other part of the server.

    Args:
      ask: one ServerInfo call with a deadline; raises `Rlds2ReverbError`.

    Attributes:
      snapshot: the answer to the newest question that has ended.
      inserted_at: by table, the Unix time at which its inserts were last seen to grow; none before.
    """

    def __init__(self, ask: Callable[[], ServerInfo]) -> None:
        super().__init__("monitor", ASK_SECONDS)
        self._ask = ask
        self._history: deque[Moment] = deque(maxlen=int(HISTORY_SECONDS / ASK_SECONDS) + 1)
        self._questions, self._newest = itertools.count(1), 0
        self._changing = threading.Lock()
        self.snapshot = ServerSnapshot()
        self.inserted_at: dict[str, float] = {}

    def start(self) -> None:
        """Asks at once, so that tables are known when this returns and Reverb answers; then every second, in the thread."""
        self.repeat()
        super().start()

    def answer(self) -> tuple[ServerInfo, float] | None:
        """The answer to the newest question and its Unix time; None where Reverb has not answered that."""
        seen = self.snapshot
        return (seen.info, seen.answered_at) if seen.info is not None and not seen.error else None

    def history(self) -> list[Moment]:
        """About one moment per second, oldest first."""
        return list(self._history)

    def look(self) -> ServerSnapshot:
        """Asks once, from any thread, and returns the answer to this question.

        `snapshot` has it as well, unless a later question ended before: so nobody finds less there than was returned here.
        """
        number = next(self._questions)
        try:
            seen = ServerSnapshot(self._ask(), time.time())
        except Rlds2ReverbError as error:
            seen = replace(self.snapshot, error=str(error))
        with self._changing:
            if number > self._newest:
                self._newest, self.snapshot = number, seen
        return seen

    def repeat(self) -> None:
        seen = self.look()
        if seen.is_answer:
            counts = {
                table.name: TableCounts(
                    table.rate_limiter.inserts,
                    table.rate_limiter.samples,
                    table.current_size,
                    table.worker.waiting_for_samples,
                    table.worker.waiting_for_inserts,
                )
                for table in seen.tables()
            }
            before = self._history[-1][1] if self._history else {}
            grown = [name for name, now in counts.items() if name in before and now.inserts > before[name].inserts]
            self.inserted_at = {**self.inserted_at, **dict.fromkeys(grown, seen.answered_at)}
            self._history.append((seen.answered_at, counts))


class PrefillTeller(Repeating):
    """Logs the progress of prefills, from the monitor's newest answer, in a thread of its own, until each has its items.

    Args:
      tables: as they run now; those whose prefill was over at the start have their other limiter already.
    """

    def __init__(self, monitor: Monitor, tables: Iterable[TableConfig]) -> None:
        super().__init__("prefills", PROGRESS_SECONDS)
        self._monitor = monitor
        self._wanted = {
            table.name: table.rate_limiter.items for table in tables if isinstance(table.rate_limiter, Prefill)
        }
        self._before: dict[str, tuple[float, int]] = {}
        self._log = logger("prefill")

    def start(self) -> None:
        self.repeat()
        if self._wanted:
            super().start()

    def repeat(self) -> None:
        self.look(time.monotonic())
        if not self._wanted:
            self.stop()

    def look(self, now: float) -> None:
        """Logs every table that is being filled; `now` is monotonic time."""
        held = {table.name: table.current_size for table in self._monitor.snapshot.tables()}
        for name in [name for name in self._wanted if name in held]:
            self._tell(name, held[name], now)

    def _tell(self, name: str, items: int, now: float) -> None:
        items_wanted, before = self._wanted[name], self._before.get(name)
        if items >= items_wanted:
            del self._wanted[name]
            self._log.info(
                "prefill has its items", table=name, items=items, next="the limiter after it holds from the next start"
            )
            return
        if before is not None and before[1] == items:  # nothing new
            return
        self._before[name] = now, items
        speed: dict[str, Any] = {}  # since the line before
        if before is not None and now > before[0] and items > before[1]:
            rate = (items - before[1]) / (now - before[0])
            speed = {"items_per_second": float(f"{rate:.4g}"), "eta_seconds": round((items_wanted - items) / rate)}
        self._log.info("prefill", table=name, items=items, of=items_wanted, **speed)
