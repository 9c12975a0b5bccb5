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

from collections import Counter, deque
from dataclasses import dataclass

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire.insert import Request


@dataclass(frozen=True)
class SessionWindow:
    """How much may be unconfirmed at once.

    Attributes:
      items: most items in flight.
      bytes: most bytes in flight; one request is always let through.
    """

    items: int = 1 << 15
    bytes: int = 32 << 20


@dataclass(eq=False)
class _Flight:
    request: Request
    left: int  # items not yet confirmed
    sent: bool = False  # since the stream was opened


class Session:
    """The state of one push: outbox, window, confirmations. Not thread-safe; the sender holds a lock."""

    def __init__(self, window: SessionWindow) -> None:
        self._window = window
        self._outbox: deque[_Flight] = deque()
        self._flights: deque[_Flight] = deque()
        self._waiting: dict[int, _Flight] = {}  # by key; queued or in flight, not yet confirmed
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

    @property
    def confirmed_items(self) -> int:
        """Items whose keys came back: those of stored requests, and of requests that are confirmed in part."""
        return self.stored_items + sum(len(flight.request.item_keys) - flight.left for flight in self._flights)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
          WireError: one of its items has the key of another that is queued or in flight.
        """
        self._outbox.append(self._await(request))
        self.queued_bytes += request.nbytes

    def next_messages(self) -> tuple[bytes, ...]:
        """The messages of the next request, now in flight; () when there is none or the window is full."""
        if not self._outbox or not self._has_room(self._outbox[0].request):
            return ()
        flight = self._outbox.popleft()
        flight.sent = True
        self._flights.append(flight)
        request = flight.request
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
        flights = [self._waiting.pop(key, None) for key in item_keys.tolist()]
        unknown = 0
        for flight, count in Counter(flights).items():
            if flight is None or not flight.sent:
                unknown += count
            else:
                flight.left -= count
        if unknown:
            raise WireError(f"the server confirmed {unknown} items that were not in flight")
        while self._flights and not self._flights[0].left:
            self._store(self._flights.popleft().request)

    def lost(self) -> None:
        """The stream broke: all that is in flight will be sent again."""
        while self._flights:
            flight = self._flights.pop()
            for key in flight.request.item_keys.tolist():
                self._waiting.pop(key, None)
            self._outbox.appendleft(self._await(flight.request))
            self.queued_bytes += flight.request.nbytes
        self.flying_items = self.flying_bytes = 0
        self._stream_is_new = True

    def take_finished(self) -> list[tuple[str, int]]:
        """Id and items, over all tables, of every episode stored since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    def _has_room(self, request: Request) -> bool:
        if not self._flights:
            return True
        return (
            self.flying_items + len(request.item_keys) <= self._window.items
            and self.flying_bytes + request.nbytes <= self._window.bytes
        )

    def _await(self, request: Request) -> _Flight:
        flight = _Flight(request, len(request.item_keys))
        keys_before = len(self._waiting)
        self._waiting.update(dict.fromkeys(request.item_keys.tolist(), flight))
        if len(self._waiting) != keys_before + flight.left:
            raise WireError("two items of one push have the same key: its episodes need ids that differ")
        return flight

    def _store(self, request: Request) -> None:
        self.flying_bytes -= request.nbytes
        self.flying_items -= len(request.item_keys)
        self.stored_items += len(request.item_keys)
        self._finished.extend(request.finishes)
