"""The journal as the status shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from replay_server.logs import logger
from replay_server.monitor import Monitor
from replay_server.repeating import Repeating
from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.servers.journal import JournalEntry, entries_of, join_entries, process_text
from rlds2reverb.servers.own_tables import read_records
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.messages import JOURNAL

_LOOK_SECONDS = 2.0
_SHOWN = 20  # entries of the status
_PAUSE = 50  # times as long as a look took, the next one waits: looking takes at most 2 % of a core, however long the journal is


class JournalWatch(Repeating):
    """Reads the journal whenever entries have come, in a thread of its own.

    It keeps the entries that are shown and the ids of all others, and decodes each item once: a long journal takes little memory here.

    Args:
      clock: seconds.

    Attributes:
      problem: why it cannot be read, on one line; "" when it can.
    """

    def __init__(self, monitor: Monitor, transport: Transport, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("journal", _LOOK_SECONDS)
        self._monitor, self._transport, self._clock = monitor, transport, clock
        self._newest: list[JournalEntry] = []  # in the order of their beginnings
        self._ids = set[str]()
        self._read = frozenset[int]()  # keys of items
        self._seen, self._next_look = (0, 0), 0.0
        self._log = logger("journal")
        self.problem = ""

    def repeat(self) -> None:
        info = self._monitor.snapshot.info
        table = None if info is None else info.own_tables.get(JOURNAL)
        if table is None or (counts := (table.rate_limiter.inserts, table.current_size)) == self._seen:
            return
        if (began := self._clock()) < self._next_look:
            return
        try:
            self._look()
        except Rlds2ReverbError as error:
            if not self.problem:
                self._log.warning("the journal cannot be read", reason=str(error))
            self.problem = str(error)
        else:
            self._seen, self.problem = counts, ""
        self._next_look = (ended := self._clock()) + _PAUSE * (ended - began)

    def _look(self) -> None:
        """Takes in the items that are new; entries of items that are gone stay, for others have them."""
        items = read_records(self._transport, JOURNAL, read_before=self._read)
        for key in items.keys() - self._read:
            entries = entries_of(items[key], self._transport.address)
            self._ids.update(entry.id for entry in entries)
            self._newest = join_entries([*self._newest, *entries])[-_SHOWN:]
        self._read = frozenset(items)

    def document(self) -> dict[str, Any]:
        """For /status.json: the number of entries, and the newest ones, newest first, each with its `state` and without its options."""
        newest, info = self._newest, self._monitor.snapshot.info
        process = "" if info is None else process_text(info.state_id)
        shown = [
            {**msgspec.to_builtins(entry), "options": {}, "state": entry.find_state(process)}
            for entry in reversed(newest)
        ]
        return {"count": len(self._ids), "problem": self.problem, "newest": shown}
