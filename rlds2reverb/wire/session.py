"""What has been sent, what is confirmed, what must be sent again: rules only, no sockets, no threads.

Theory of operation. Requests wait in the outbox, go into flight when the window has room, and leave it when all
their items are confirmed. An item counts as stored only when its key came back. When a stream breaks, everything
in flight goes back to the head of the outbox, in order; the first request on the new stream is sent with its
prelude, because a new stream holds no chunks. Sending an item again is harmless: its key is the same, and
Reverb assigns instead of inserting.

| request is | event | becomes |
| --- | --- | --- |
| new | add | queued |
| queued | next_messages, window has room | in flight |
| in flight | confirm, keys left | in flight |
| in flight | confirm, no key left, all before it stored | stored: its episodes are reported |
| in flight | lost | queued, whole |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire.requests import Request


@dataclass(frozen=True)
class SessionWindow:
    """How much may be unconfirmed at once.

    Attributes:
      items: most items in flight.
      bytes: most bytes in flight; one request is always let through.
    """

    items: int = 1 << 15
    bytes: int = 32 << 20


@dataclass
class _Flight:
    request: Request
    left: Array  # [n] uint64, keys not yet confirmed, in order


class Session:
    """The state of one push: outbox, window, confirmations. Not thread-safe; the sender holds a lock."""

    def __init__(self, window: SessionWindow) -> None:
        self._window = window
        self._outbox: deque[Request] = deque()
        self._flights: deque[_Flight] = deque()
        self._stream_is_new = True
        self._finished: list[tuple[str, int]] = []
        self.queued_bytes = 0
        self.flying_items = 0
        self.flying_bytes = 0
        self.stored_items = 0
        self.sent_bytes = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent or confirmed."""
        return not self._outbox and not self._flights

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._outbox.append(request)
        self.queued_bytes += request.nbytes

    def next_messages(self) -> tuple[bytes, ...]:
        """The messages of the next request, now in flight; () when there is none or the window is full."""
        if not self._outbox or not self._has_room(self._outbox[0]):
            return ()
        request = self._outbox.popleft()
        self._flights.append(_Flight(request, request.item_keys))
        self.queued_bytes -= request.nbytes
        self.flying_bytes += request.nbytes
        self.flying_items += len(request.item_keys)
        messages = (*request.prelude, *request.messages) if self._stream_is_new else request.messages
        self._stream_is_new = False
        self.sent_bytes += sum(len(message) for message in messages)
        return messages

    def confirm(self, item_keys: Array) -> None:
        """Takes note of confirmed keys ([n] uint64).

        Raises:
          WireError: a key that is not in flight.
        """
        for flight in self._flights:
            if not len(item_keys):
                break
            item_keys = _strike(flight, item_keys)
        if len(item_keys):
            raise WireError(f"the server confirmed {len(item_keys)} items that were not in flight")
        while self._flights and not len(self._flights[0].left):
            self._store(self._flights.popleft().request)

    def lost(self) -> None:
        """The stream broke: all that is in flight will be sent again."""
        while self._flights:
            request = self._flights.pop().request
            self._outbox.appendleft(request)
            self.queued_bytes += request.nbytes
        self.flying_items = self.flying_bytes = 0
        self._stream_is_new = True

    def take_finished(self) -> list[tuple[str, int]]:
        """Tag and items of every episode stored since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    def _has_room(self, request: Request) -> bool:
        if not self._flights:
            return True
        return (
            self.flying_items + len(request.item_keys) <= self._window.items
            and self.flying_bytes + request.nbytes <= self._window.bytes
        )

    def _store(self, request: Request) -> None:
        self.flying_bytes -= request.nbytes
        self.flying_items -= len(request.item_keys)
        self.stored_items += len(request.item_keys)
        self._finished.extend(request.finishes)


def _strike(flight: _Flight, item_keys: Array) -> Array:
    """Strikes confirmed keys off a flight; the keys that were not in it."""
    count = min(len(flight.left), len(item_keys))
    if np.array_equal(flight.left[:count], item_keys[:count]):
        flight.left = flight.left[count:]
        return item_keys[count:]
    known = np.isin(item_keys, flight.left)
    flight.left = flight.left[~np.isin(flight.left, item_keys)]
    return item_keys[~known]
