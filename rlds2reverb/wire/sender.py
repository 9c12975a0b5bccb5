"""A session on a channel: two threads of gRPC's, one lock, every wait bounded and explained.

gRPC takes messages from `_messages` in a thread of its own; `_receive` reads confirmations in another and, when
the stream breaks, waits for the server and opens a new one. The caller's thread adds requests and waits.
All three share the session under one condition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import grpc

from rlds2reverb.errors import Rlds2ReverbError, ServerRestarted, Stalled, TransportError
from rlds2reverb.wire import codec
from rlds2reverb.wire.limiter import explain_inserts, samples_needed
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.wire.requests import Request
from rlds2reverb.wire.session import Session, SessionWindow
from rlds2reverb.wire.transport import Deadlines, ReverbChannel, retry_until

QUEUE_BYTES = 16 << 20
"""Most bytes that wait to be sent; more blocks the caller."""

_POLL_SECONDS = 0.5


class Sender:
    """Sends requests, confirms them, and survives a broken stream. Use as a context manager.

    Args:
      channel: an open channel.
      tables: the tables the items go to, for explanations.
      info: what the server said before the push; another `state_id` later means it was restarted.
      window: bound of what is in flight.
      deadlines: bounds of all waits.
      on_wait: called with a sentence when nothing was confirmed for `deadlines.notice` seconds, and with ""
        when confirmations come again.
    """

    def __init__(
        self,
        channel: ReverbChannel,
        tables: tuple[str, ...],
        info: ServerInfo,
        window: SessionWindow = SessionWindow(),
        deadlines: Deadlines = Deadlines(),
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._channel = channel
        self._tables = tables
        self._state_id = info.state_id
        self._deadlines = deadlines
        self._on_wait = on_wait
        self._session = Session(window)
        self._changed = threading.Condition()
        self._stream = 0  # number of the stream whose messages are wanted; -1 when closed
        self._failure: Rlds2ReverbError | None = None
        self._progress_at = time.monotonic()
        self._explained_at = 0.0
        self.reconnects = 0
        self._receiver = threading.Thread(target=self._receive, name="rlds2reverb-receive", daemon=True)
        self._receiver.start()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def stored_items(self) -> int:
        """Items confirmed by the server."""
        with self._changed:
            return self._session.stored_items

    @property
    def sent_bytes(self) -> int:
        """Bytes handed to gRPC, resent ones included."""
        with self._changed:
            return self._session.sent_bytes

    def send(self, request: Request) -> None:
        """Queues a request; waits while too much is queued.

        Raises:
          TransportError: the stream broke and could not be mended.
          Stalled: nothing was confirmed for `deadlines.stall` seconds.
        """
        self._wait(lambda: self._session.queued_bytes <= QUEUE_BYTES)
        with self._changed:
            if self._session.idle:
                self._progress_at = time.monotonic()
            self._session.add(request)
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until everything sent is confirmed; raises as `send` does."""
        self._wait(lambda: self._session.idle)

    def take_finished(self) -> list[tuple[str, int]]:
        """Tag and items of every episode stored since the last call."""
        with self._changed:
            return self._session.take_finished()

    def close(self) -> None:
        """Ends the stream. What is not confirmed by now may or may not be stored."""
        with self._changed:
            self._stream = -1
            self._changed.notify_all()
        self._receiver.join(self._deadlines.call)

    # The caller's thread.

    def _wait(self, done: Callable[[], bool]) -> None:
        noticed = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: done() or self._failure is not None, _POLL_SECONDS)
                if self._failure is not None:
                    raise self._failure
                if done():
                    break
                quiet_seconds = time.monotonic() - self._progress_at
            if quiet_seconds > self._deadlines.notice:
                noticed = True
                self._explain(quiet_seconds)
            elif noticed:
                noticed = False
                self._on_wait("")
        if noticed:
            self._on_wait("")

    def _explain(self, quiet_seconds: float) -> None:
        stalled = quiet_seconds > self._deadlines.stall
        if not stalled and time.monotonic() - self._explained_at < self._deadlines.notice:
            return
        self._explained_at = time.monotonic()
        reason = self._reason()
        if stalled:
            raise Stalled(
                f"server {self._channel.address}: nothing was confirmed for {quiet_seconds:.0f} s; {reason}. "
                "Start the sampling side, change the table's rate limiter, or wait longer (stall_seconds)"
            )
        self._on_wait(reason)

    def _reason(self) -> str:
        try:
            info = self._channel.server_info()
        except TransportError as error:
            return str(error)
        tables = [info.tables[name] for name in self._tables if name in info.tables]
        blocked = [explain_inserts(table) for table in tables if samples_needed(table)]
        return "; ".join(blocked) if blocked else "no rate limiter blocks: the server is busy or saves a checkpoint"

    # gRPC's sending thread.

    def _messages(self, stream: int) -> Iterator[bytes]:
        while True:
            with self._changed:
                messages: tuple[bytes, ...] = ()
                while self._stream == stream and not messages:
                    messages = self._session.next_messages()
                    if messages:
                        self._changed.notify_all()
                    else:
                        self._changed.wait()
                if self._stream != stream:
                    return
            yield from messages

    # The receiving thread.

    def _receive(self) -> None:
        try:
            while self._stream >= 0:
                error = self._run_stream()
                with self._changed:
                    if self._stream < 0:
                        return
                    self._stream += 1
                    self._changed.notify_all()
                self._reconnect(error)
        except Rlds2ReverbError as error:
            with self._changed:
                self._failure = error
                self._stream = -1
                self._changed.notify_all()

    def _run_stream(self) -> TransportError:
        """Reads one stream to its end; what ended it."""
        stream = self._stream
        call = self._channel.insert_stream(self._messages(stream))
        try:
            for response in call:
                with self._changed:
                    self._session.confirm(codec.decode_confirmed_keys(response))
                    self._progress_at = time.monotonic()
                    self._changed.notify_all()
        except grpc.RpcError as error:
            return self._channel.broken_stream(error)
        return TransportError(f"server {self._channel.address}: it ended the stream", retryable=True)

    def _reconnect(self, error: TransportError) -> None:
        if not error.retryable:
            raise error
        info = retry_until(self._deadlines.reconnect, self._deadlines, self._channel.server_info)
        if info.state_id != self._state_id:
            raise ServerRestarted(
                f"server {self._channel.address}: another server process answers than before ({error}); items "
                f"confirmed earlier ({self._session.stored_items}) are there only if it restored a checkpoint. Run the "
                "same push again: item keys are deterministic, nothing is stored twice"
            )
        self.reconnects += 1
        with self._changed:
            self._session.lost()
            self._progress_at = time.monotonic()
            self._changed.notify_all()
