"""What a server makes of one insert stream, message by message: what it holds, what it stores, what it refuses.

The other side of `session` and `requests`; servers in memory keep these rules. Source: reverb_service_impl.cc, and what was
observed with 0.14.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import Chunk, Item

Stored = tuple[Item, tuple[Array, ...]]
"""An item and its values, one array per column."""


class Refused(Exception):
    """The server would end the stream, or answer the call, with this status.

    Attributes:
      status: gRPC's name of it.
      details: a sentence.
    """

    def __init__(self, status: str, details: str) -> None:
        super().__init__(f"{status}: {details}")
        self.status, self.details = status, details


class ReceivedStream:
    """One stream: chunks are held until a request with items that does not keep them.

    Attributes:
      held: chunks by key.
    """

    def __init__(self) -> None:
        self.held: dict[int, Chunk] = {}

    def feed(self, message: bytes) -> list[Stored]:
        """The items of one message with their values, in order.

        Raises:
          Refused: the message breaks the rules.
          WireError: it is no such message.
        """
        request = codec.decode_insert_request(message)
        if not request.chunks and not request.items:
            raise Refused("INVALID_ARGUMENT", "a request with neither chunks nor items")
        self.held.update({chunk.key: chunk for chunk in request.chunks})
        try:
            stored = [(item, codec.item_values(item, self.held)) for item in request.items]
        except WireError as error:
            raise Refused("INTERNAL", str(error)) from error
        if not set(request.keep_chunk_keys) <= set(self.held):
            raise Refused("FAILED_PRECONDITION", "kept chunks that the stream does not hold")
        if request.items:
            self.held = {key: self.held[key] for key in request.keep_chunk_keys}
        return stored

    def feed_all(self, messages: Iterable[bytes]) -> list[Stored]:
        """The items of several messages; raises as `feed` does."""
        return [stored for message in messages for stored in self.feed(message)]
