"""The one way of items to the server: takes parts of episodes, encodes them, fills requests, hands them on, and drains.

When something stops the reading, what was sent before is still waited for; not when sending itself failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rlds2reverb.errors import TransportError
from rlds2reverb.push.room import Budget
from rlds2reverb.push.sender import Sender
from rlds2reverb.wire.insert.encoder import EpisodeEncoder, Part
from rlds2reverb.wire.insert.requests import EncodedEpisode, Request, RequestBuilder, RequestLimits


def can_send_after(error: BaseException) -> bool:
    """Whether sending goes on after this error: not when sending itself failed, nor after an interruption."""
    return isinstance(error, Exception) and not isinstance(error, TransportError)


class Writer:
    """Takes parts of episodes, one episode after the other. Used as a context manager, it drains at the end.

    Args:
      sender: takes the requests.
      chunk_length: chunk length in rows, or None to choose it from the bytes of a row.
      budget: what may be sent; None for all.
    """

    def __init__(self, sender: Sender, chunk_length: int | None = None, budget: Budget | None = None) -> None:
        self._sender, self._budget = sender, budget
        self._encoder = EpisodeEncoder(chunk_length)
        self._builder = RequestBuilder(RequestLimits())

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.drain()
        else:
            self.drain_after(error)

    def write(self, episode_id: str, parts: Sequence[Part]) -> EncodedEpisode:
        """Sends what some tables get of an episode; the end of it may be kept for the next request. The budget has admitted it.

        Args:
          episode_id: what the sender calls the episode when all its items are confirmed.
          parts: at least one; their cuts share one `rows` mapping and have items.

        Returns:
          The episode as it was sent.

        Raises:
          ViewError: a window of a cut reaches outside its rows; nothing of the episode was sent.
          WireError: a column's dtype cannot be stored; nothing of the episode was sent.
          CapacityError: it turned out that its items may evict others.
          TransportError: sending failed.
        """
        encoded = self._encoder.encode(episode_id, parts)
        if self._budget is not None:
            self._budget.expect(encoded)
            self._builder.limits = self._budget.limits
        for request in self._builder.add(encoded):
            self._send(request)
        return encoded

    def drain(self) -> None:
        """Sends what is kept, and waits until everything is confirmed; raises as `write` does."""
        self.flush()
        self._sender.drain()

    def flush(self) -> None:
        """Sends what is kept, and waits for nothing but room in the queue; raises as `write` does."""
        for request in self._builder.flush():
            self._send(request)

    def drain_after(self, error: BaseException) -> None:
        """Drains after what stopped the reading, where sending goes on; raises as `write` does."""
        if can_send_after(error):
            self.drain()

    def _send(self, request: Request) -> None:
        budget = self._budget
        if budget is None:
            self._sender.send(request)
            return
        budget.check(request)
        self._sender.send(request)
        if budget.is_tight:
            self._sender.drain()
            budget.look()
            self._builder.limits = budget.limits
