"""A sample stream of a server in memory, seen from both sides.

Every item comes with one chunk of its own, which holds one row per column: the item's value. Source of the rules: WIRE's
SampleStream in docs/wire.md.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from rlds2reverb.errors import WireError
from rlds2reverb.transport.memory_stream import CANCELLED
from rlds2reverb.transport.memory_tables import MemoryTable, StoredItem
from rlds2reverb.transport.statuses import SAMPLING, stream_error
from rlds2reverb.wire.insert.receiving import Refused
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.sample import served

_TIMED_OUT = Refused("DEADLINE_EXCEEDED", served.TIMED_OUT)

_MOST_AT_ONCE = 128
"""Samples in one answer at most."""


class SampledServer(Protocol):
    """What a sample stream needs of the server."""

    changed: threading.Condition

    def table(self, name: str) -> MemoryTable:
        """A table by name; raises `Refused` when there is none."""
        ...


class MemorySampleStream:
    """The client's side; see `base.Stream`.

    Args:
      server: where the samples come from.
      address: what messages call the server.
      messages: what the client sends; taken in a thread.
      ended: called by `end`.
    """

    def __init__(
        self,
        server: SampledServer,
        address: str,
        messages: Iterator[bytes],
        ended: Callable[[MemorySampleStream], None],
    ) -> None:
        self._server, self._changed = server, server.changed
        self._address, self._ended = address, ended
        self._requests: deque[SampleRequest] = deque()
        self._refused: Refused | None = None
        self._is_cancelled = self._is_half_closed = False
        threading.Thread(target=self._read, args=(messages,), name="rlds2reverb-memory", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        """The server's messages, until it ends the stream; see `base.Stream`."""
        try:
            while (response := self._next_response()) is not None:
                yield response
        except Refused as refused:
            raise stream_error(self._address, SAMPLING, refused.status, refused.details) from refused

    def refuse(self, refused: Refused) -> None:
        """Ends it with a status."""
        with self._changed:
            self._refused = self._refused or refused
            self._changed.notify_all()

    def cancel(self) -> None:
        """Ends it on this side, at once."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def end(self) -> None:
        """Says that it was read to its end, or is not wanted any more. Call it once."""
        self.cancel()
        self._ended(self)

    def leave(self) -> None:
        """Cancels it; there is no connection that could be dead."""
        self.cancel()

    def _read(self, messages: Iterator[bytes]) -> None:
        """Takes the client's messages to their end; in a thread of its own."""
        try:
            for message in messages:
                with self._changed:
                    self._requests.append(served.decode_sample_request(message))
                    self._changed.notify_all()
        except WireError as error:
            self.refuse(Refused("INTERNAL", str(error)))
        with self._changed:
            self._is_half_closed = True
            self._changed.notify_all()

    def _next_response(self) -> bytes | None:
        """Waits for the next samples; None at the end of the stream."""
        with self._changed:
            self._wait(lambda: bool(self._requests) or self._is_half_closed, None)
            if not self._requests:
                return None
            request = self._requests[0]
            if request.samples < 1:
                raise Refused("INVALID_ARGUMENT", "`num_samples` must be > 0.")
            table = self._server.table(request.table)
            self._wait(lambda: table.may_be_sampled, request.timeout_seconds)
            taken = self._take(table, min(request.samples, _MOST_AT_ONCE))
            self._requests.popleft()
            if request.samples > len(taken):
                self._requests.appendleft(request.without(len(taken)))
            self._changed.notify_all()
            return served.encode_samples(taken)

    def _take(self, table: MemoryTable, most: int) -> list[served.Sampled]:
        taken: list[served.Sampled] = []
        while len(taken) < most and table.may_be_sampled:
            size, item = len(table.items), table.sample()
            taken.append(_sampled(table, item, size))
        return taken

    def _wait(self, claim: Callable[[], bool], seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds

        def is_over() -> bool:
            return claim() or self._is_cancelled or self._refused is not None

        while not is_over():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise _TIMED_OUT
            self._changed.wait(left)
        if self._is_cancelled:
            raise CANCELLED
        if self._refused is not None:
            raise self._refused


def _sampled(table: MemoryTable, item: StoredItem, size: int) -> served.Sampled:
    """As the server tells of it; the probability is that of the moment before."""
    return served.Sampled(item.key, item.priority, item.times_sampled, table.drawn_with, size, item.values)
