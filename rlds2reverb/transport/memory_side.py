"""A stream of a server in memory, of whatever kind, seen from both sides."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from rlds2reverb.errors import WireError
from rlds2reverb.transport.statuses import stream_error
from rlds2reverb.wire.insert.receiving import Refused

CANCELLED = Refused("CANCELLED", "Locally cancelled by application!")


class ServerSide(ABC):
    """What the server does with a stream. Thread-safe.

    Args:
      changed: the server's lock and condition.

    Attributes:
      over: whether it has ended, on either side.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._refused: Refused | None = None
        self._is_half_closed = False
        self.over = False

    @abstractmethod
    def next_response(self) -> bytes | None:
        """Waits for the next answer; None at the end of the stream.

        Raises:
          Refused: it ends with a status.
        """

    @abstractmethod
    def _take(self, message: bytes) -> None:
        """Takes a message of the client. With the lock held.

        Raises:
          Refused: it breaks the rules.
          WireError: it is no such message.
        """

    def read(self, messages: Iterator[bytes]) -> None:
        """Takes the client's messages to their end; in a thread of its own."""
        try:
            for message in messages:
                with self._changed:
                    if self.over:
                        return
                    self._take(message)
        except Refused as refused:
            self.refuse(refused)
        except WireError as error:
            self.refuse(Refused("INTERNAL", str(error)))
        except Exception as error:  # as gRPC does
            self.refuse(Refused("UNKNOWN", f"Exception iterating requests! {error!r}"))
            raise
        with self._changed:
            self._is_half_closed = True
            self._changed.notify_all()

    def refuse(self, refused: Refused) -> None:
        """Ends it with a status, after what can be answered."""
        with self._changed:
            self._refused = self._refused or refused
            self._changed.notify_all()

    def cut(self) -> None:
        """Ends it at once, from the client's side."""
        with self._changed:
            self.over = True
            self._changed.notify_all()


class MemoryStream:
    """The client's side; see `base.Stream`.

    Args:
      side: the server's.
      address: what messages call the server.
      doing: what the stream is for, such as `statuses.INSERTING`.
      messages: what the client sends; taken in a thread.
      ended: called by `end`.
    """

    def __init__(
        self,
        side: ServerSide,
        address: str,
        doing: str,
        messages: Iterator[bytes],
        ended: Callable[[MemoryStream], None],
    ) -> None:
        self._side, self._address, self._doing, self._ended = side, address, doing, ended
        threading.Thread(target=side.read, args=(messages,), name="rlds2reverb-memory", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        """The server's messages, until it ends the stream; see `base.Stream`."""
        try:
            while (response := self._side.next_response()) is not None:
                yield response
        except Refused as refused:
            raise stream_error(self._address, self._doing, refused.status, refused.details) from refused

    def cancel(self) -> None:
        """Ends it on this side, at once."""
        self._side.cut()

    def end(self) -> None:
        """Says that it was read to its end, or is not wanted any more. Call it once."""
        self.cancel()
        self._ended(self)

    def leave(self) -> None:
        """Cancels it; there is no connection that could be dead."""
        self.cancel()
