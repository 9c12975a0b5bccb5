"""Sends items to a server: encodes them, fills requests, and keeps a stream open until every item is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Condition
from types import TracebackType
from typing import Protocol

from rlds2reverb.episode import Array
from rlds2reverb.errors import ServerRestarted, TransportError
from rlds2reverb.push.capacity import Budget
from rlds2reverb.push.options import SendOptions
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import PersistentStream, Reason, StreamWords
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import EncodedEpisode, EpisodeEncoder, Part, Request, RequestBuilder, RequestLimits
from rlds2reverb.wire.messages import ServerInfo, Wait, insert_wait
from rlds2reverb.wire.session import Session, SessionWindow

QUEUE_BYTES = 16 << 20  # most bytes that wait to be sent; more blocks the caller


class Sender:
    """Sends requests, confirms them, and survives a broken stream, whose user it is (`transport.stream.StreamUser`). Use as a context manager.

    Args:
      tables: that the items go to, for error messages.
      info: the server's answer before the push; another `state_id` later means a restart.
      on_wait: called with the reason when nothing was confirmed for `deadlines.notice` seconds, and with an empty reason afterwards.
    """

    words = StreamWords(
        nothing_came="nothing was confirmed",
        gave_nothing="confirmed nothing",
        without="without a confirmation",
        way_out="Start the sampling side, change the table's rate limiter, or wait longer (stall_seconds, --stall-seconds)",
    )

    def __init__(
        self,
        transport: Transport,
        tables: tuple[str, ...],
        info: ServerInfo,
        window: SessionWindow = SessionWindow(),
        deadlines: Deadlines = Deadlines(),
        on_wait: Callable[[Reason], object] = lambda _: None,
    ) -> None:
        self._transport, self._tables = transport, tables
        self._session, self._changed = Session(window), Condition()
        self._stream = PersistentStream(transport, self, info.state_id, deadlines, on_wait, self._changed)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def confirmed_items(self) -> int:
        with self._changed:
            return self._session.confirmed_items

    @property
    def awaits_nothing(self) -> bool:
        with self._changed:
            return self._session.idle

    @property
    def sent_bytes(self) -> int:
        """Resent bytes included."""
        with self._changed:
            return self._session.sent_bytes

    @property
    def reconnects(self) -> int:
        return self._stream.reconnects

    def send(self, request: Request) -> None:
        """Queues a request; waits while too much is queued.

        Raises:
          TransportError: the stream broke and could not be mended.
          Stalled: nothing was confirmed for `deadlines.stall` seconds.
        """
        self._stream.wait(lambda: self._session.queued_bytes <= QUEUE_BYTES)
        self._stream.check_silence()
        with self._changed:
            was_idle = self._session.idle
            self._session.add(request)
            self._stream.wake(was_idle)

    def check(self) -> None:
        """Gives up a stream whose silence has no reason; does not wait. Raises the TransportError of a stream that could not be mended."""
        self._stream.wait(lambda: True)
        self._stream.check_silence()

    def drain(self) -> None:
        """Waits until everything sent is confirmed; raises as `send` does."""
        self._stream.wait(lambda: self._session.idle)

    def linger(self, seconds: float) -> None:
        """Waits until everything sent is confirmed, sending has failed, or the time is over."""
        self._stream.linger(lambda: self._session.idle, seconds)

    def take_finished(self) -> list[tuple[str, int]]:
        """(id, items) of every episode stored since the last call."""
        with self._changed:
            return self._session.take_finished()

    def close(self) -> None:
        """Ends the stream. Items that are not confirmed by now may or may not be stored."""
        self._stream.close()

    # For the stream.

    def open(self, messages: Iterator[bytes]) -> Stream:
        return self._transport.insert_stream(messages)

    def next_messages(self) -> tuple[bytes, ...]:
        return self._session.next_messages()

    def decode(self, message: bytes) -> Array:
        """The keys that an answer confirms, [n] uint64."""
        return codec.decode_confirmed_keys(message)

    def take(self, answer: Array) -> bool:
        """Confirms keys; an answer without keys is no progress."""
        self._session.confirm(answer)
        return len(answer) > 0

    def lost(self) -> None:
        self._session.lost()

    def held_back(self, info: ServerInfo) -> list[Wait]:
        waits = [insert_wait(info.tables[name]) for name in self._tables if name in info.tables]
        return [wait for wait in waits if wait.blocks]

    def restarted(self, why: str, info: ServerInfo) -> None:
        """Ends the push: what was confirmed may be lost, and the same push again is right."""
        raise ServerRestarted(
            f"{why}; items confirmed earlier ({self._session.stored_items}) are there only if it restored a checkpoint. Run the "
            "same push again, or continue with a new writer: the same items under the same names are not stored twice"
        )

    def resumed(self, why: str) -> None:
        """The report counts it."""


def can_send_after(error: BaseException) -> bool:
    """Whether what was read before this error can still be sent: not if sending itself failed, nor after an interruption."""
    return isinstance(error, Exception) and not isinstance(error, TransportError)


class RequestSink(Protocol):
    """Takes the requests of a writer: a `Sender`, or a benchmark that keeps them."""

    def send(self, request: Request) -> None: ...

    def drain(self) -> None:
        """Returns when every request is stored."""


class Writer:
    """Encodes one episode after the other into requests. Used as a context manager, it drains at the end.

    Args:
      options: of the push.
      budget: limits what may be sent; None for no limit.
    """

    def __init__(self, sender: RequestSink, options: SendOptions = SendOptions(), budget: Budget | None = None) -> None:
        self._sender, self._budget = sender, budget
        self._encoder = EpisodeEncoder(options.chunk_length)
        self._builder = RequestBuilder(RequestLimits())

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.drain()
        else:
            self.drain_after(error)

    def write(
        self, episode_id: str, parts: Sequence[Part], following: Sequence[tuple[str, Sequence[Part]]] = ()
    ) -> EncodedEpisode:
        """Sends an episode that the budget has admitted; its end may wait for the next request.

        Args:
          episode_id: `Sender.take_finished` names the episode by it when all its items are confirmed.
          parts: at least one; their cuts share one `rows` mapping and have items.
          following: id and parts of each of the next episodes, see `EpisodeEncoder.encode`.

        Raises:
          ViewError: a window of a cut reaches outside its rows; nothing of the episode was sent.
          WireError: a column's dtype cannot be stored; nothing of the episode was sent.
          CapacityError: its items may evict others after all.
          TransportError: sending failed.
        """
        encoded = self._encoder.encode(episode_id, parts, following)
        if self._budget is not None:
            self._budget.expect(encoded)
            self._builder.limits = self._budget.limits
        for request in self._builder.add(encoded):
            self._send(request)
        return encoded

    def drain(self) -> None:
        """Flushes, and waits until everything is confirmed; raises as `write` does."""
        self.flush()
        self._sender.drain()

    def flush(self) -> None:
        """Sends the request in the making, and waits only while the queue is full; raises as `write` does."""
        for request in self._builder.flush():
            self._send(request)

    def drain_after(self, error: BaseException) -> None:
        """Drains after an error, unless sending failed; raises as `write` does."""
        if can_send_after(error):
            self.drain()

    def _send(self, request: Request) -> None:
        budget = self._budget
        if budget is None:
            self._sender.send(request)
            return
        budget.check(request)
        self._sender.send(request)
        # Only an answer that counts all that was sent tells how many of the items were new, and so how many places are left.
        if budget.is_tight:
            self._sender.drain()
            budget.look()
            self._builder.limits = budget.limits
