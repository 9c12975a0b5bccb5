"""A session on a channel: two threads of gRPC's, one lock, every wait bounded and explained.

gRPC takes messages from `_messages` in a thread of its own; `_receive` reads confirmations in another and, when
the stream breaks, waits for the server and opens a new one. The caller's thread adds requests and waits.
All three share the session under one condition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ServerRestarted, Stalled, TransportError
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
        self._call: Any = None  # the open stream
        self._failure: Exception | None = None
        self._breaks: list[TransportError] = []  # since the last confirmation
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
            unwanted = None if self._session.idle else self._call
            self._changed.notify_all()
        if unwanted is not None:
            unwanted.cancel()  # the confirmations may never come
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
                "Start the sampling side, change the table's rate limiter, or wait longer (stall_seconds, --stall-timeout)"
            )
        self._on_wait(reason)

    def _reason(self) -> str:
        """Asks the server why. The question alone helps: it shows gRPC a dead connection (`transport._NUDGE_SECONDS`)."""
        try:
            info = self._channel.server_info()
        except TransportError as error:
            return str(error)
        tables = [info.tables[name] for name in self._tables if name in info.tables]
        if blocked := [explain_inserts(table) for table in tables if samples_needed(table)]:
            return "; ".join(blocked)
        if self._breaks:
            return f"the stream broke {len(self._breaks)} times without a confirmation, last: {self._breaks[-1]}"
        return "no rate limiter blocks: the server is busy or saves a checkpoint"

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
            while (error := self._run_stream()) is not None and self._leave_stream():
                self._reconnect(error)
        except Exception as error:  # not handled here: raised in the caller's thread
            with self._changed:
                self._failure = error
                self._stream = -1
                self._changed.notify_all()

    def _run_stream(self) -> TransportError | None:
        """Reads one stream to its end; what ended it, or None when the sender is closed."""
        with self._changed:
            if self._stream < 0:
                return None
            call = self._call = self._channel.insert_stream(self._messages(self._stream))
        try:
            for response in call:
                self._confirm(codec.decode_confirmed_keys(response))
        except grpc.RpcError as error:
            return self._channel.broken_stream(error)
        finally:
            call.cancel()  # of no effect on a stream that has ended
        return TransportError(f"server {self._channel.address}: it ended the stream", retryable=True)

    def _confirm(self, item_keys: Array) -> None:
        with self._changed:
            self._session.confirm(item_keys)
            if len(item_keys):  # an answer without a key is no progress
                self._progress_at = time.monotonic()
                self._breaks.clear()
            self._changed.notify_all()

    def _leave_stream(self) -> bool:
        """Stops the messages of the stream that ended; whether another one is wanted."""
        with self._changed:
            if self._stream < 0:
                return False
            self._stream += 1
            self._changed.notify_all()
            return True

    def _reconnect(self, error: TransportError) -> None:
        if not error.retryable:
            raise error
        self._pause(error)
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
            self._changed.notify_all()

    def _pause(self, error: TransportError) -> None:
        """Notes a break; waits longer the more streams have broken without a confirmation."""
        with self._changed:
            self._breaks.append(error)
            if len(self._breaks) == 1:
                return
            doublings = min(len(self._breaks) - 2, 30)
            pause = min(self._deadlines.backoff_first * 2**doublings, self._deadlines.backoff_most)
            self._changed.wait_for(lambda: self._stream < 0, pause)
