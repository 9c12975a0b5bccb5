"""An insert stream of a server in memory, from the server's side."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from rlds2reverb.transport.memory_side import CANCELLED, ServerSide
from rlds2reverb.transport.memory_tables import MemoryTable
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert.receiving import ReceivedStream, Refused, Stored


@dataclass
class StreamPlan:
    """How one insert stream goes.

    Attributes:
      items: it ends after so many confirmed items; None: when the client ends it.
      status: with this status; None: without an error.
      response: sent in place of the first confirmation.
      empty_answers: while there is nothing to confirm, confirmations without a key come again and again.
      silent_after: after so many confirmed items nothing is taken or confirmed any more, as on a half-open connection.
    """

    items: int | None = None
    status: str | None = None
    response: bytes | None = None
    empty_answers: bool = False
    silent_after: int | None = None


class Gate:
    """What all streams of a server have in common. Under the server's lock.

    Args:
      tables: by name.
      batch: most items that one answer confirms.

    Attributes:
      admitted: items that are let in yet; None for no bound.
      requests: messages with items that were taken.
      fails_after: so many are taken, and every later one ends its stream with `failure`; None for no bound.
      failure: see there.
    """

    def __init__(self, tables: Mapping[str, MemoryTable], batch: int) -> None:
        self.tables = tables
        self.admitted: int | None = None
        self.requests = 0
        self.fails_after: int | None = None
        self.failure = Refused("DATA_LOSS", "as planned")
        self.batch = batch

    def check(self, stored: list[Stored]) -> None:
        """Takes note of a message.

        Raises:
          Refused: no such table, or requests fail by now.
        """
        for item, _ in stored:
            if item.table not in self.tables:
                raise Refused("NOT_FOUND", f"Priority table {item.table} was not found")
        if stored:
            if self.requests == self.fails_after:
                raise self.failure
            self.requests += 1

    def insert(self, waiting: deque[Stored], most: int) -> list[int]:
        """Stores what comes first and is let in; its keys."""
        keys: list[int] = []
        most = min(most, self.batch, self.batch if self.admitted is None else self.admitted)
        allowed: dict[str, int] = {}
        while waiting and len(keys) < most:
            item, values = waiting[0]
            table = self.tables[item.table]
            left = allowed.setdefault(item.table, table.inserts_allowed)
            if not left:
                break
            allowed[item.table] = left - (item.key not in table.items)
            table.put(item.key, values, item.priority)
            keys.append(item.key)
            waiting.popleft()
        if self.admitted is not None:
            self.admitted -= len(keys)
        return keys


class ServerStream(ServerSide):
    """The server's side. Thread-safe.

    Args:
      changed: the server's lock and condition.
      gate: the server's.
      plan: how it goes; may be replaced at any time.

    Attributes:
      messages: as they came.
      confirmed: keys in the order in which they were confirmed.
      waiting: items that came and are not confirmed.
      most_waiting: the largest number of them so far.
    """

    def __init__(self, changed: threading.Condition, gate: Gate, plan: StreamPlan) -> None:
        super().__init__(changed)
        self._gate, self.plan = gate, plan
        self._rules = ReceivedStream()
        self.messages: list[bytes] = []
        self.confirmed: list[int] = []
        self.waiting: deque[Stored] = deque()
        self.most_waiting = 0

    def next_response(self) -> bytes | None:
        """Waits for the next answer; see `ServerSide`."""
        with self._changed:
            while not self.over:
                if (response := self._response()) is not None:
                    self._changed.notify_all()
                    return response
                if self._is_at_end():
                    self.over = True
                    self._changed.notify_all()
                    self._end()
                    return None
                self._changed.wait(0.01 if self.plan.empty_answers else None)
                if self.plan.empty_answers and not self.over:
                    return b""
        raise CANCELLED

    def _take(self, message: bytes) -> None:
        self.messages.append(message)
        if self._is_silent:
            return
        stored = self._rules.feed(message)
        self._gate.check(stored)
        self.waiting.extend(stored)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        self._changed.notify_all()

    def _response(self) -> bytes | None:
        """What can be answered now."""
        if self._is_silent or self._is_planned_end():
            return None
        if self.plan.response is not None and self.waiting:
            response, self.plan.response = self.plan.response, None
            return response
        ends = (end for end in (self.plan.items, self.plan.silent_after) if end is not None)
        keys = self._gate.insert(
            self.waiting, min((end - len(self.confirmed) for end in ends), default=len(self.waiting))
        )
        self.confirmed += keys
        return codec.encode_confirmed_keys(keys) if keys else None

    @property
    def _is_silent(self) -> bool:
        return self.plan.silent_after is not None and len(self.confirmed) >= self.plan.silent_after

    def _is_planned_end(self) -> bool:
        return self.plan.items is not None and len(self.confirmed) >= self.plan.items

    def _is_at_end(self) -> bool:
        if self._is_planned_end() or self._refused is not None:
            return True
        return self._is_half_closed and not self.waiting and not self._is_silent

    def _end(self) -> None:
        """Raises the status with which it ends, if it does."""
        if self._refused is not None:
            raise self._refused
        if self._is_planned_end() and self.plan.status is not None:
            raise Refused(self.plan.status, "as planned")
