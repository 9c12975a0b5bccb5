"""The one way of items to the server: takes parts of episodes, encodes them, fills requests, hands them on, and drains.

When something stops the reading, what was sent before is still waited for; not when sending itself failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

from rlds2reverb.errors import TransportError
from rlds2reverb.wire.insert.encoder import EpisodeEncoder, Part
from rlds2reverb.wire.insert.requests import EncodedEpisode, Request, RequestBuilder, RequestLimits


class RequestSender(Protocol):
    """What takes requests to the server."""

    def send(self, request: Request) -> None:
        """Takes a request.

        Raises:
          TransportError: sending failed.
        """

    def drain(self) -> None:
        """Waits until everything sent is confirmed; raises as `send` does."""


def can_send_after(error: BaseException) -> bool:
    """Whether sending goes on after this error: not when sending itself failed, nor after an interruption."""
    return isinstance(error, Exception) and not isinstance(error, TransportError)


class Writer:
    """Takes parts of episodes, one episode after the other. Used as a context manager, it drains at the end.

    Args:
      sender: takes the requests.
      chunk_length: chunk length in rows, or None to choose it from the bytes of a row.
      limits_for: told every encoded episode before its requests; says when a request of it is full.
    """

    def __init__(
        self,
        sender: RequestSender,
        chunk_length: int | None = None,
        limits_for: Callable[[EncodedEpisode], RequestLimits] | None = None,
    ) -> None:
        self._sender = sender
        self._encoder = EpisodeEncoder(chunk_length)
        self._builder = RequestBuilder(RequestLimits())
        self._limits_for = limits_for

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.drain()
        else:
            self.drain_after(error)

    def write(self, episode_id: str, parts: Sequence[Part]) -> None:
        """Sends what some tables get of an episode; the end of it may be kept for the next request.

        Args:
          episode_id: what the sender calls the episode when all its items are confirmed.
          parts: at least one; their cuts share one `rows` mapping and have items.

        Raises:
          ViewError: a window of a cut reaches outside its rows; nothing of the episode was sent.
          WireError: a column's dtype cannot be stored; nothing of the episode was sent.
          TransportError: sending failed.
        """
        encoded = self._encoder.encode(episode_id, parts)
        if self._limits_for is not None:
            self._builder.limits = self._limits_for(encoded)
        for request in self._builder.add(encoded):
            self._sender.send(request)

    def drain(self) -> None:
        """Sends what is kept, and waits until everything is confirmed.

        Raises:
          TransportError: sending failed.
        """
        self.flush()
        self._sender.drain()

    def flush(self) -> None:
        """Sends what is kept, and waits for nothing but room in the queue.

        Raises:
          TransportError: sending failed.
        """
        for request in self._builder.flush():
            self._sender.send(request)

    def drain_after(self, error: BaseException) -> None:
        """Drains after what stopped the reading, where sending goes on; raises as `drain` does."""
        if can_send_after(error):
            self.drain()
