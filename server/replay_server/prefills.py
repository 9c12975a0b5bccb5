"""How far prefills are: a line per table when it begins to fill, every ten seconds while it does, and when it is full."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from replay_server.limiters import Prefill
from replay_server.logs import logger
from replay_server.monitor import Monitor
from replay_server.tables import TableConfig
from replay_server.telling import TELL_SECONDS


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
            if self._stopped.wait(TELL_SECONDS):
                return
