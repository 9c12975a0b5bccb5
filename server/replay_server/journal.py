"""The journal as the status shows it."""

from __future__ import annotations

from typing import Any

import msgspec

from replay_server.logs import logger
from replay_server.monitor import Monitor
from replay_server.repeating import Repeating
from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.servers.journal import JOURNAL, JournalEntry, process_text, read_journal
from rlds2reverb.transport.base import Transport

_LOOK_SECONDS = 2.0
_SHOWN = 20  # entries of the status


class JournalWatch(Repeating):
    """Reads the journal whenever entries have come, in a thread of its own.

    Attributes:
      problem: why it cannot be read, on one line; "" when it can.
    """

    def __init__(self, monitor: Monitor, transport: Transport) -> None:
        super().__init__("journal", _LOOK_SECONDS)
        self._monitor, self._transport = monitor, transport
        self._entries: list[JournalEntry] = []
        self._seen = (0, 0)
        self._log = logger("journal")
        self.problem = ""

    def repeat(self) -> None:
        info = self._monitor.snapshot.info
        table = None if info is None else info.own_tables.get(JOURNAL)
        if table is None or (counts := (table.rate_limiter.inserts, table.current_size)) == self._seen:
            return
        try:
            self._entries = read_journal(self._transport)
        except Rlds2ReverbError as error:
            if not self.problem:
                self._log.warning("the journal cannot be read", reason=str(error))
            self.problem = str(error)
        else:
            self._seen, self.problem = counts, ""

    def document(self) -> dict[str, Any]:
        """For /status.json: the number of entries, and the newest ones, newest first, each with its `state` and without its options."""
        entries, info = self._entries, self._monitor.snapshot.info
        process = "" if info is None else process_text(info.state_id)
        newest = [
            {**msgspec.to_builtins(entry), "options": {}, "state": entry.find_state(process)}
            for entry in entries[: -_SHOWN - 1 : -1]
        ]
        return {"count": len(entries), "problem": self.problem, "newest": newest}
