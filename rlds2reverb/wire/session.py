"""The rules of an insert stream: what is sent, what is confirmed, what must be sent again. No sockets, no threads.

Requests wait in the outbox, go into flight when the window allows it, and leave it when all
their items are confirmed. An item counts as stored only when its key came back. When a stream breaks, everything
in flight goes back to the head of the outbox, in order; the first request on the new stream is sent with its
prelude, because a new stream holds no chunks. Sending an item again is harmless: its key is the same, and
Reverb assigns instead of inserting.

| request is | event | becomes |
| --- | --- | --- |
| new | add | queued |
| queued | next_messages, window allows it | in flight |
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
    """The most that may be unconfirmed at once."""

    items: int = 1 << 15  # most items in flight
    bytes: int = 32 << 20  # most bytes in flight; one request is always let through


@dataclass(eq=False)  # by identity: flights are counted in a dict
class _Flight:
    """A request on its way, from the outbox until it is stored."""

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
        return not self._outbox and not self._flights

    @property
    def confirmed_items(self) -> int:
        """Items whose keys came back: those of stored requests, and of requests that are confirmed in part."""
        return self.stored_items + sum(len(flight.request.item_keys) - flight.left for flight in self._flights)

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._outbox.append(self._await(request))
        self.queued_bytes += request.nbytes

    def next_messages(self) -> tuple[bytes, ...]:
        """The messages of the next request, now in flight; () when there is none or the window is full."""
        if not self._outbox:
            return ()
        request = self._outbox[0].request
        # With nothing in flight any request goes out: one larger than the window would wait for ever.
        if self._flights and (
            self.flying_items + len(request.item_keys) > self._window.items
            or self.flying_bytes + request.nbytes > self._window.bytes
        ):
            return ()
        flight = self._outbox.popleft()
        flight.sent = True
        self._flights.append(flight)
        self.queued_bytes -= request.nbytes
        self.flying_bytes += request.nbytes
        self.flying_items += len(request.item_keys)
        messages = (*request.prelude, *request.messages) if self._stream_is_new else request.messages
        self._stream_is_new = False
        self.sent_bytes += sum(len(message) for message in messages)
        return messages

    def confirm(self, item_keys: Array) -> None:
        """Notes confirmed keys ([n] uint64)."""
        # Counted by flight: one confirmation has hundreds of keys, nearly all of one request.
        flights = [self._waiting.pop(key, None) for key in item_keys.tolist()]
        unknown = 0
        for flight, count in Counter(flights).items():
            # A key that waits in the outbox counts as unknown, too: this stream has not carried its item.
            if flight is None or not flight.sent:
                unknown += count
            else:
                flight.left -= count
        if unknown:
            raise WireError(f"the server confirmed {unknown} items that were not in flight")
        # In order: a request is stored when those before it are, so an episode is reported after all of its requests.
        while self._flights and not self._flights[0].left:
            request = self._flights.popleft().request
            self.flying_bytes -= request.nbytes
            self.flying_items -= len(request.item_keys)
            self.stored_items += len(request.item_keys)
            self._finished.extend(request.finishes)

    def lost(self) -> None:
        """The stream broke: all that is in flight will be sent again."""
        while self._flights:
            # From behind, so that the outbox has them in the order in which they were sent.
            flight = self._flights.pop()
            # Resent whole, also where some keys came back: its items refer to its chunks, and a new stream has none.
            for key in flight.request.item_keys.tolist():
                self._waiting.pop(key, None)
            self._outbox.appendleft(self._await(flight.request))
            self.queued_bytes += flight.request.nbytes
        self.flying_items = self.flying_bytes = 0
        self._stream_is_new = True

    def take_finished(self) -> list[tuple[str, int]]:
        """Id and number of items, over all tables, of every episode stored since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    def _await(self, request: Request) -> _Flight:
        flight = _Flight(request, len(request.item_keys))
        # Two items with one key would be one item of the table, and the second confirmation would be of nothing.
        keys_before = len(self._waiting)
        self._waiting.update(dict.fromkeys(request.item_keys.tolist(), flight))
        if len(self._waiting) != keys_before + flight.left:
            raise WireError("two items of one push have the same key: its episodes need ids that differ")
        return flight
