"""A sample stream of a server in memory, seen from both sides.

Every item comes with one chunk of its own, which holds one row per column: the item's value. Samples are taken when the client
reads, not ahead of it. Source of the rules: WIRE's SampleStream in docs/wire.md; `tests/transport/sample_contract.py` holds them to
a real server.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlds2reverb.errors import WireError
from rlds2reverb.transport.memory_stream import CANCELLED
from rlds2reverb.transport.memory_tables import MemoryTable, StoredItem
from rlds2reverb.transport.statuses import SAMPLING, stream_error
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


class ServerSamples:
    """The server's side. Thread-safe.

    Args:
      changed: the server's lock and condition.
      table: a table by name; raises `Refused` when there is none.
      plan: how it goes; may be replaced at any time.

    Attributes:
      requests: as they came.
      sent: keys of the samples, in their order.
      over: whether it has ended, on either side.
    """

    def __init__(self, changed: threading.Condition, table: Callable[[str], MemoryTable], plan: SamplePlan) -> None:
        self._changed, self._table, self.plan = changed, table, plan
        self._waiting: deque[SampleRequest] = deque()
        self._refused: Refused | None = None
        self._is_half_closed = False
        self.requests: list[SampleRequest] = []
        self.sent: list[int] = []
        self.over = False

    def read(self, messages: Iterator[bytes]) -> None:
        """Takes the client's messages to their end; in a thread of its own."""
        try:
            for message in messages:
                with self._changed:
                    if self.over:
                        return
                    self._take(served.decode_sample_request(message))
        except WireError as error:
            self.refuse(Refused("INTERNAL", str(error)))
        except Exception as error:  # as gRPC does
            self.refuse(Refused("UNKNOWN", f"Exception iterating requests! {error!r}"))
            raise
        with self._changed:
            self._is_half_closed = True
            self._changed.notify_all()

    def refuse(self, refused: Refused) -> None:
        """Ends it with a status."""
        with self._changed:
            self._refused = self._refused or refused
            self._changed.notify_all()

    def cut(self) -> None:
        """Ends it at once, from the client's side."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def next_response(self) -> bytes | None:
        """Waits for the next samples; None at the end of the stream.

        Raises:
          Refused: it ends with a status.
        """
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

    def _take(self, request: SampleRequest) -> None:
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


class MemorySampleStream:
    """The client's side; see `base.Stream`.

    Args:
      samples: the server's side.
      address: what messages call the server.
      messages: what the client sends; taken in a thread.
      ended: called by `end`.
    """

    def __init__(
        self,
        samples: ServerSamples,
        address: str,
        messages: Iterator[bytes],
        ended: Callable[[MemorySampleStream], None],
    ) -> None:
        self._samples, self._address, self._ended = samples, address, ended
        threading.Thread(target=samples.read, args=(messages,), name="rlds2reverb-memory", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        """The server's messages, until it ends the stream; see `base.Stream`."""
        try:
            while (response := self._samples.next_response()) is not None:
                yield response
        except Refused as refused:
            raise stream_error(self._address, SAMPLING, refused.status, refused.details) from refused

    def cancel(self) -> None:
        """Ends it on this side, at once."""
        self._samples.cut()

    def end(self) -> None:
        """Says that it was read to its end, or is not wanted any more. Call it once."""
        self.cancel()
        self._ended(self)

    def leave(self) -> None:
        """Cancels it; there is no connection that could be dead."""
        self.cancel()


def _sampled(table: MemoryTable, item: StoredItem, size: int) -> served.Sampled:
    """As the server tells of it; the probability is that of the moment before."""
    return served.Sampled(item.key, item.priority, item.times_sampled, table.drawn_with, size, item.values)
