"""A persistent stream: reconnected when it breaks, replaced when it is silent for no reason, every wait bounded and explained.

Two threads run beside the caller's, under one lock. The transport iterates `_messages` in its own thread. `_receive` reads answers in
another; when the stream breaks, it waits for the server and opens a new stream. The caller's thread waits; when nothing comes, it asks
the server why, and abandons the stream if nothing explains the silence. `retry` decides when.

The stream's user (`StreamUser`) decides what is sent, what an answer means, and when silence is expected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rlds2reverb.errors import Stalled, TransportError
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.retry import BreakLog, Deadlines, IdleTimer, StallTimer, retry_until
from rlds2reverb.wire.messages import ServerInfo, Wait, sentence

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StreamWords:
    nothing_came: str  # "nothing was confirmed"
    gave_nothing: str  # of the server: "confirmed nothing"
    without: str  # of streams that ended: "without a confirmation"
    way_out: str  # what to do after a stall; a sentence


@dataclass(frozen=True)
class Reason:
    text: str = ""  # a sentence; "" once something comes again
    held_by: tuple[str, ...] = ()  # names of the tables whose rate limiters block


def noop(_: object) -> None: ...


class StreamUser(Protocol[Answer]):
    """What a persistent stream is used for. All but `decode`, `held_back` and `resumed` are called with the stream's lock held, and must not wait."""

    words: StreamWords

    def open(self, messages: Iterator[bytes]) -> Stream:
        """Opens one stream that sends these messages; raises TransportError if no call can be made."""

    def next_messages(self) -> tuple[bytes, ...]:
        """Messages to be sent now; () for none until `PersistentStream.wake`."""

    def decode(self, message: bytes) -> Answer:
        """Decodes an answer; raises WireError if it is not Reverb's."""

    def take(self, answer: Answer) -> bool:
        """Takes in an answer; returns whether it is progress. Raises WireError for an answer to nothing that was sent."""

    def lost(self) -> None:
        """The stream broke: unanswered messages must be sent again, on a new stream."""

    @property
    def awaits_nothing(self) -> bool:
        """Whether silence is expected, because the server owes no answer."""

    def held_back(self, info: ServerInfo) -> Sequence[Wait]:
        """The rate limiters that may explain the server's silence."""

    def restarted(self, why: str, info: ServerInfo) -> None:
        """Another server process answers: continues with it, or raises ServerRestarted. `why` says so without an end mark."""

    def resumed(self, why: str) -> None:
        """A new stream replaces one that broke; called in the stream's thread. `why` is a sentence without an end mark."""


class PersistentStream(Generic[Answer]):
    """Keeps one stream of its user open until it is closed.

    Args:
      transport: asked for the reason when nothing comes.
      state_id: of the server process; another one later means a restart.
      on_wait: called with the reason when nothing came for `deadlines.notice` seconds, and with an empty reason afterwards.
      changed: lock and condition over the user's state, which streams may share; by default each has its own.

    Attributes:
      reconnects: streams opened after the first.
    """

    def __init__(
        self,
        transport: Transport,
        user: StreamUser[Answer],
        state_id: int,
        deadlines: Deadlines,
        on_wait: Callable[[Reason], object] = noop,
        changed: threading.Condition | None = None,
    ) -> None:
        self.changed = threading.Condition() if changed is None else changed
        self.reconnects = 0
        self._transport, self._user = transport, user
        self._state_id, self._deadlines = state_id, deadlines
        self._on_wait = on_wait
        self._number = 0  # of the stream whose messages are wanted; -1 when closed
        self._stream: Stream | None = None  # the open one
        self._abandoned: TransportError | None = None  # why the open one is abandoned
        self._failure: Exception | None = None
        self._breaks = BreakLog(deadlines)
        self._stall = StallTimer(deadlines)
        self._idle = IdleTimer(deadlines)
        self._receiver = threading.Thread(target=self._receive, name="rlds2reverb-receive", daemon=True)
        self._receiver.start()

    @property
    def failure(self) -> Exception | None:
        """The error that has ended the stream for good. With the lock held."""
        return self._failure

    # The caller's thread.

    def wake(self, was_idle: bool) -> None:
        """There is more to send. With the lock held. Silence counts from now on if nothing was awaited before."""
        if was_idle:
            self._idle.over()
            self._stall.explained()
        self.changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """Waits until `done()`.

        Raises:
          TransportError: the stream broke, and the server cannot be reached again.
          Stalled: nothing came for `deadlines.stall` seconds.
          WireError: an answer that is not Reverb's.
        """
        began, is_notified = time.monotonic(), False
        while True:
            with self.changed:
                is_done = self._wait_until_due(done, began, is_notified)
                idle_seconds = self._idle.seconds(began)
            if not is_done and idle_seconds > self._deadlines.notice:
                is_notified = True
                self._explain(idle_seconds)
            elif is_notified:
                is_notified = False
                self._on_wait(Reason())
            if is_done:
                return

    def linger(self, done: Callable[[], bool], seconds: float) -> None:
        """Waits until `done()`, the stream has failed, or the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: done() or self._failure is not None, seconds)

    def check_silence(self) -> None:
        """Abandons a stream that is silent for no reason; a caller that never waits would not notice it."""
        if self.is_silent:
            why_silent(self._transport, (self,))

    @property
    def is_silent(self) -> bool:
        """Whether an answer is awaited for longer than a live stream should take."""
        with self.changed:
            return self._stream is not None and not self._user.awaits_nothing and self._stall.is_over

    def close(self) -> None:
        """Ends the stream. Unanswered messages may or may not have been acted on."""
        close_streams((self,), self._deadlines.call)

    def held_back(self, info: ServerInfo) -> Sequence[Wait]:
        return self._user.held_back(info)

    def explained(self) -> None:
        """There is a reason for the silence."""
        with self.changed:
            self._stall.explained()

    def unexplained(self, info: ServerInfo) -> str:
        """There is no reason: abandons the stream if it was silent for too long; returns which streams broke, in words, or ""."""
        self._abandon_silent_stream(is_same_server=info.state_id == self._state_id)
        with self.changed:
            if not self._breaks:
                return ""
            return (
                f"the server answers and no rate limiter blocks; streams that ended {self._user.words.without}: "
                f"{len(self._breaks)}, the last one: {self._breaks.last}"
            )

    def half_close(self) -> bool:
        """Sends nothing more, and opens no new stream; returns whether the server should end this one by itself."""
        with self.changed:
            self._number = -1
            self.changed.notify_all()
            return self._user.awaits_nothing

    def cancel(self) -> None:
        """Ends the stream at once; after `half_close`, so that no new one is opened."""
        if (stream := self._stream) is not None:
            stream.cancel()

    def join(self, seconds: float) -> None:
        if self._receiver is not threading.current_thread():  # which runs a user's `resumed`, and that may close
            self._receiver.join(seconds)

    def _wait_until_due(self, done: Callable[[], bool], began: float, is_notified: bool) -> bool:
        """Waits for `done()`, for progress after a notified wait, or until the next notice is due; returns `done()`. Raises the failure."""

        def is_over() -> bool:
            came_again = is_notified and self._idle.seconds(began) <= self._deadlines.notice
            return done() or self._failure is not None or came_again

        # Not `wait_for`: what is due may have moved meanwhile, because something came.
        while not is_over() and (seconds := self._idle.seconds_until_due(began)) > 0:
            self.changed.wait(seconds)
        if self._failure is not None:
            raise self._failure
        return done()

    def _explain(self, idle_seconds: float) -> None:
        with self.changed:
            self._idle.notified()
        reason = why_silent(self._transport, (self,))
        if idle_seconds > self._deadlines.stall:
            words = self._user.words
            raise Stalled(
                f"server {self._transport.address}: {words.nothing_came} for {idle_seconds:.0f} s; {reason.text}. {words.way_out}"
            )
        self._on_wait(reason)

    def _abandon_silent_stream(self, is_same_server: bool) -> None:
        """The server answers and nothing blocks: the stream may be half-open. The next one will use another connection."""
        with self.changed:
            stream, stall = self._stream, self._stall
            if stream is None or self._abandoned is not None or (is_same_server and not stall.is_over):
                return
            self._abandoned = TransportError(
                f"server {self._transport.address}: it answers, and {self._user.words.gave_nothing} on its stream for "
                f"{stall.silent_seconds:.1f} s",
                retryable=True,
            )
            stall.give_up()
        stream.abandon()  # without the lock: the receiving thread needs it to take the error in

    # The transport's sending thread.

    def _messages(self, number: int) -> Iterator[bytes]:
        while messages := self._next_messages(number):
            for message in messages:
                yield message
                with self.changed:
                    self._stall.sign_of_life()  # the transport wants the next one: it could send this one

    def _next_messages(self, number: int) -> tuple[bytes, ...]:
        """Messages to be sent next; () when the stream is not wanted any more."""
        # gRPC's thread of a broken stream may still iterate: the number tells it from the stream that replaced it.
        with self.changed:
            while self._number == number:
                if messages := self._user.next_messages():
                    self.changed.notify_all()
                    return messages
                self.changed.wait()
        return ()

    # The receiving thread.

    def _receive(self) -> None:
        try:
            while (error := self._run_stream()) is not None and self._is_wanted():
                self._reconnect(error)
        except Exception as error:  # raised in the caller's thread
            with self.changed:
                if self._number >= 0:  # else it was closed
                    self._failure = error
                self._number = -1
                self.changed.notify_all()

    def _run_stream(self) -> TransportError | None:
        """Reads one stream to its end; returns the error that ended it, or None when this is closed."""
        with self.changed:
            if self._number < 0:
                return None
            self._stall.explained()
            stream = self._stream = self._user.open(self._messages(self._number))
        try:
            for message in stream:
                answer = self._user.decode(message)  # without the lock: a sampler decodes batches here
                with self.changed:
                    if self._user.take(answer):
                        self._idle.over()
                        self._breaks.clear()
                        self._stall.progress()
                    self.changed.notify_all()
            if self._number < 0:
                return None
            broken = TransportError(f"server {self._transport.address}: it ended the stream", retryable=True)
        except TransportError as error:
            broken = error
        finally:
            stream.end()
        with self.changed:
            self._stream = None
            broken, self._abandoned = self._abandoned or broken, None
        return broken

    def _is_wanted(self) -> bool:
        """Stops the messages of the stream that ended; returns whether a new one is wanted."""
        with self.changed:
            if self._number < 0:
                return False
            self._number += 1
            self.changed.notify_all()
            return True

    def _reconnect(self, error: TransportError) -> None:
        if not error.retryable:
            raise error
        with self.changed:
            pause = self._breaks.add(error)
        self._pause(pause)
        info = retry_until(self._deadlines.reconnect, self._deadlines, self._ask, self._pause)
        restarted = f"server {self._transport.address}: another server process answers than before ({error})"
        with self.changed:
            # The user decides about another server before it hears of the loss: it may refuse, and then nothing is sent again.
            if is_another := info.state_id != self._state_id:
                self._user.restarted(restarted, info)
                self._state_id = info.state_id
            self.reconnects += 1
            self._user.lost()
            self.changed.notify_all()
        self._user.resumed(restarted if is_another else str(error))

    def _ask(self) -> ServerInfo:
        if self._number < 0:
            raise TransportError(f"server {self._transport.address}: the stream was closed")
        return self._transport.server_info()

    def _pause(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._number < 0, seconds)


_UNEXPLAINED = "no rate limiter blocks: the server is busy or saves a checkpoint; if the connection is dead, another one is opened soon"


def why_silent(transport: Transport, streams: Sequence[PersistentStream[Any]]) -> Reason:
    """Asks the server why nothing comes, and replaces streams that are silent for no reason.

    Raises:
      WireError: an answer that is not Reverb's.
    """
    try:
        info = transport.server_info()
    except TransportError as error:
        return _explained(streams, Reason(str(error)))
    waits = {wait.table.name: wait for stream in streams for wait in stream.held_back(info)}
    if waits:
        return _explained(streams, Reason("; ".join(map(sentence, waits.values())), tuple(waits)))
    broken = [words for stream in streams if (words := stream.unexplained(info))]
    return Reason(broken[0] if broken else _UNEXPLAINED)


def _explained(streams: Sequence[PersistentStream[Any]], reason: Reason) -> Reason:
    for stream in streams:
        stream.explained()
    return reason


_FAREWELL_SECONDS = 1.0  # for the server to end a stream on which nothing is awaited; a half-open one never ends


def close_streams(streams: Sequence[PersistentStream[Any]], seconds: float) -> None:
    """Ends streams together, in the time of one. Streams that await no answer are half-closed, so that the server ends them itself.

    Waits at most `seconds` for threads that are busy, as in a call.
    """
    ending = [stream for stream in streams if stream.half_close()]
    _join(ending, _FAREWELL_SECONDS)
    for stream in streams:
        stream.cancel()
    _join(streams, seconds)


def _join(streams: Sequence[PersistentStream[Any]], seconds: float) -> None:
    end = time.monotonic() + seconds
    for stream in streams:
        stream.join(max(0.0, end - time.monotonic()))
