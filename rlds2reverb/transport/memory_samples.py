"""A sample stream of a server in memory, from the server's side.

Every item comes with one chunk of its own, which holds one row per column: the item's value. Samples are taken when the client
reads, not ahead of it. Source of the rules: WIRE's SampleStream in docs/wire.md; `tests/transport/sample_contract.py` holds them to
a real server.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rlds2reverb.transport.memory_side import CANCELLED, ServerSide
from rlds2reverb.transport.memory_tables import MemoryTable, StoredItem
from rlds2reverb.wire.insert.receiving import Refused
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.sample import served

_TIMED_OUT = Refused("DEADLINE_EXCEEDED", served.TIMED_OUT)


@dataclass
class SamplePlan:
    """How one sample stream goes.

    Attributes:
      samples: it ends after so many; None: when the client ends it.
      status: with this status; None: without an error.
      response: sent in place of the first samples.
      silent_after: after so many samples nothing is taken or sent any more, as on a half-open connection.
      at_once: samples in one answer at most.
    """

    samples: int | None = None
    status: str | None = None
    response: bytes | None = None
    silent_after: int | None = None
    at_once: int = 128


class ServerSamples(ServerSide):
    """The server's side. Thread-safe.

    Args:
      changed: the server's lock and condition.
      table: a table by name; raises `Refused` when there is none.
      plan: how it goes; may be replaced at any time.

    Attributes:
      requests: as they came.
      sent: keys of the samples, in their order.
    """

    def __init__(self, changed: threading.Condition, table: Callable[[str], MemoryTable], plan: SamplePlan) -> None:
        super().__init__(changed)
        self._table, self.plan = table, plan
        self._waiting: deque[SampleRequest] = deque()
        self.requests: list[SampleRequest] = []
        self.sent: list[int] = []

    def next_response(self) -> bytes | None:
        """Waits for the next samples; see `ServerSide`."""
        with self._changed:
            self._wait(lambda: self._is_planned_end or bool(self._waiting) or self._is_half_closed)
            if self._is_planned_end or not self._waiting:
                self._end()
                return None
            if self.plan.response is not None:
                response: bytes = self.plan.response
                self.plan.response = None
                return response
            return served.encode_samples(self._next_samples())

    def _take(self, message: bytes) -> None:
        request = served.decode_sample_request(message)
        self.requests.append(request)
        self._waiting.append(request)
        self._changed.notify_all()

    def _next_samples(self) -> list[served.Sampled]:
        request = self._waiting[0]
        if request.samples < 1:
            raise Refused("INVALID_ARGUMENT", "`num_samples` must be > 0.")
        self._table(request.table)  # else refused
        self._wait(lambda: self._table(request.table).may_be_sampled, request.timeout_seconds)
        taken = self._taken(self._table(request.table), min(request.samples, self._most))
        self._waiting.popleft()
        if request.samples > len(taken):
            self._waiting.appendleft(request.without(len(taken)))
        self._changed.notify_all()
        return taken

    @property
    def _most(self) -> int:
        """Samples of the next answer at most."""
        ends = (end for end in (self.plan.samples, self.plan.silent_after) if end is not None)
        return min([self.plan.at_once, *(end - len(self.sent) for end in ends)])

    def _taken(self, table: MemoryTable, most: int) -> list[served.Sampled]:
        taken: list[served.Sampled] = []
        while len(taken) < most and table.may_be_sampled:
            size, item = len(table.items), table.sample()
            taken.append(_sampled(table, item, size))
            self.sent.append(item.key)
        return taken

    @property
    def _is_silent(self) -> bool:
        return self.plan.silent_after is not None and len(self.sent) >= self.plan.silent_after

    @property
    def _is_planned_end(self) -> bool:
        return self.plan.samples is not None and len(self.sent) >= self.plan.samples

    def _end(self) -> None:
        """The end that the server gives it, which may be a status."""
        self.over = True
        self._changed.notify_all()
        if self._is_planned_end and self.plan.status is not None:
            raise Refused(self.plan.status, "as planned")

    def _wait(self, claim: Callable[[], bool], seconds: float | None = None) -> None:
        end = None if seconds is None else time.monotonic() + seconds

        def is_over() -> bool:
            return self.over or self._refused is not None or (claim() and not self._is_silent)

        while not is_over():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise _TIMED_OUT
            self._changed.wait(left)
        if self.over:
            raise CANCELLED
        if self._refused is not None:
            raise self._refused


def _sampled(table: MemoryTable, item: StoredItem, size: int) -> served.Sampled:
    """As the server tells of it; the probability is that of the moment before."""
    return served.Sampled(item.key, item.priority, item.times_sampled, table.drawn_with, size, item.values)
