"""A persistent stream: reconnected when it breaks, abandoned when it is silent for no reason, every wait bounded and explained.

Two threads run beside the caller's, under one lock. The transport takes messages from `_messages` in a thread of its own.
`_receive` reads answers in another; when the stream breaks, it waits for the server and opens a new one. The caller's thread
waits; when nothing comes, it asks the server why, and abandons the stream if nothing explains the silence. When each of these
happens is decided in `retry`.

What is sent, what an answer means and why silence may be fine is the part of the stream's user (`StreamUser`).
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
from rlds2reverb.wire.limiter import Wait, sentence
from rlds2reverb.wire.messages import ServerInfo

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StreamWords:
    """How messages tell of a stream.

    Attributes:
      nothing_came: "nothing was confirmed".
      gave_nothing: of the server, "confirmed nothing".
      without: of streams that ended, "without a confirmation".
      way_out: how to go on after a stall; a sentence.
    """

    nothing_came: str
    gave_nothing: str
    without: str
    way_out: str


@dataclass(frozen=True)
class Reason:
    """Why nothing comes.

    Attributes:
      text: a sentence; "" once something comes again.
      held_by: names of the tables whose rate limiters hold it back.
    """

    text: str = ""
    held_by: tuple[str, ...] = ()


def noop(_: object) -> None:
    """The callback of a caller who wants none."""


class StreamUser(Protocol[Answer]):
    """What a persistent stream is for. Everything but `decode`, `held_back` and `resumed` is called with the stream's lock held, and must not wait.

    Attributes:
      words: for messages.
    """

    words: StreamWords

    def open(self, messages: Iterator[bytes]) -> Stream:
        """Opens one stream that sends these messages. With the lock held.

        Raises:
          TransportError: no call can be made.
        """
        ...

    def next_messages(self) -> tuple[bytes, ...]:
        """What is to be sent now, one after the other; () when there is nothing, until the stream is told to `wake`."""
        ...

    def decode(self, message: bytes) -> Answer:
        """An answer of the server, understood; without the lock.

        Raises:
          WireError: it is not Reverb's.
        """
        ...

    def take(self, answer: Answer) -> bool:
        """Takes an answer in; whether it is progress.

        Raises:
          WireError: an answer to what was not asked.
        """
        ...

    def lost(self) -> None:
        """The stream broke: what is unanswered must be sent again, on a stream that knows nothing."""
        ...

    @property
    def awaits_nothing(self) -> bool:
        """Whether silence is as it should be, because the server owes no answer."""
        ...

    def held_back(self, info: ServerInfo) -> Sequence[Wait]:
        """The rate limiters by which the server may rightly say nothing. Without the lock."""
        ...

    def restarted(self, why: str, info: ServerInfo) -> None:
        """Another server process answers: takes it as it is, or refuses to go on. With the lock held.

        Args:
          why: says so, without an end mark.
          info: what the new process answers.

        Raises:
          ServerRestarted: to go on makes no sense; says what it means for what was done.
        """
        ...

    def resumed(self, why: str) -> None:
        """Another stream takes the place of one that broke. In the stream's thread, without the lock.

        Args:
          why: what broke it, or that another server process answers; a sentence without an end mark.
        """
        ...


class PersistentStream(Generic[Answer]):
    """Keeps one stream of its user open until it is closed.

    Args:
      transport: asked why, when nothing comes.
      user: what the stream is for.
      state_id: of the server process; another one later means that it was restarted.
      deadlines: bounds of all waits.
      on_wait: called with the reason when nothing came for `deadlines.notice` seconds, and with an empty one when something
        comes again.
      changed: several streams may share one; by default each has its own.

    Attributes:
      changed: the lock and condition over the user's state.
      reconnects: streams opened after the first.
    """

    def __init__(
        self,
        transport: Transport,
        user: StreamUser[Answer],
        state_id: int,
        deadlines: Deadlines,
        on_wait: Callable[[Reason], None] = noop,
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
        """What has ended the stream for good. With the lock held."""
        return self._failure

    # The caller's thread.

    def wake(self, was_idle: bool) -> None:
        """Says that there is more to send. Call it with the lock held. Silence counts from now on if nothing was awaited before."""
        if was_idle:
            self._idle.over()
            self._stall.explained()
        self.changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """Waits until the claim holds.

        Raises:
          TransportError: the stream broke and could not be mended.
          Stalled: nothing came for `deadlines.stall` seconds.
          WireError: what came is not Reverb's.
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
        """Waits until the claim holds, the stream has failed, or the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: done() or self._failure is not None, seconds)

    def check_silence(self) -> None:
        """Abandons a stream whose silence has no reason; a caller that never waits would not notice it."""
        if self.is_silent:
            why_silent(self._transport, (self,))

    @property
    def is_silent(self) -> bool:
        """Whether an answer is awaited for longer than a stream that lives would take, as far as is known."""
        with self.changed:
            return self._stream is not None and not self._user.awaits_nothing and self._stall.is_over

    def close(self) -> None:
        """Ends the stream. Nobody knows whether what is unanswered was done."""
        close_streams((self,), self._deadlines.call)

    def held_back(self, info: ServerInfo) -> Sequence[Wait]:
        """The rate limiters by which the server may rightly say nothing."""
        return self._user.held_back(info)

    def explained(self) -> None:
        """There is a reason for the silence."""
        with self.changed:
            self._stall.explained()

    def unexplained(self, info: ServerInfo) -> str:
        """There is none: what broke, in words, or "" when nothing did."""
        self._abandon_silent_stream(is_same_server=info.state_id == self._state_id)
        with self.changed:
            if not self._breaks:
                return ""
            return (
                f"the server answers and no rate limiter blocks; streams that ended {self._user.words.without}: "
                f"{len(self._breaks)}, the last one: {self._breaks.last}"
            )

    def half_close(self) -> bool:
        """Sends nothing more, and opens no other stream; whether the server may end this one by itself."""
        with self.changed:
            self._number = -1
            self.changed.notify_all()
            return self._user.awaits_nothing

    def cancel(self) -> None:
        """Ends the stream at once. After `half_close`, so that no other one is opened."""
        if (stream := self._stream) is not None:
            stream.cancel()

    def join(self, seconds: float) -> None:
        """Waits for the end of its thread, except in that thread."""
        if self._receiver is not threading.current_thread():
            self._receiver.join(seconds)

    def _wait_until_due(self, done: Callable[[], bool], began: float, is_notified: bool) -> bool:
        """Waits for the claim, for progress after a notified wait, or until the next notice is due; whether the claim holds.

        Raises:
          Exception: what has ended the stream for good.
        """

        def is_over() -> bool:
            came_again = is_notified and self._idle.seconds(began) <= self._deadlines.notice
            return done() or self._failure is not None or came_again

        while not is_over() and (seconds := self._idle.seconds_until_due(began)) > 0:
            self.changed.wait(seconds)  # what is due may have moved meanwhile
        if self._failure is not None:
            raise self._failure
        return done()

    def _explain(self, idle_seconds: float) -> None:
        with self.changed:
            self._idle.told()
        reason = why_silent(self._transport, (self,))
        if idle_seconds > self._deadlines.stall:
            words = self._user.words
            raise Stalled(
                f"server {self._transport.address}: {words.nothing_came} for {idle_seconds:.0f} s; {reason.text}. {words.way_out}"
            )
        self._on_wait(reason)

    def _abandon_silent_stream(self, is_same_server: bool) -> None:
        """The server answers and nothing blocks: the stream may be half-open. Another one will go over another connection."""
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
        stream.abandon()

    # The transport's sending thread.

    def _messages(self, number: int) -> Iterator[bytes]:
        while messages := self._next_messages(number):
            for message in messages:
                yield message
                with self.changed:
                    self._stall.sign_of_life()  # the transport wants the next one: it could send this one

    def _next_messages(self, number: int) -> tuple[bytes, ...]:
        """What is to be sent next; () when the stream is not wanted any more."""
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
        except Exception as error:  # not handled here: raised in the caller's thread
            with self.changed:
                if self._number >= 0:  # else nobody wants to know
                    self._failure = error
                self._number = -1
                self.changed.notify_all()

    def _run_stream(self) -> TransportError | None:
        """Reads one stream to its end; what ended it, or None when this is closed."""
        with self.changed:
            if self._number < 0:
                return None
            self._stall.explained()
            stream = self._stream = self._user.open(self._messages(self._number))
        try:
            for message in stream:
                self._take(message)
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

    def _take(self, message: bytes) -> None:
        answer = self._user.decode(message)
        with self.changed:
            if self._user.take(answer):
                self._idle.over()
                self._breaks.clear()
                self._stall.progress()
            self.changed.notify_all()

    def _is_wanted(self) -> bool:
        """Stops the messages of the stream that ended; whether another one is wanted."""
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
        """Waits, until this is closed at most."""
        with self.changed:
            self.changed.wait_for(lambda: self._number < 0, seconds)


_UNEXPLAINED = "no rate limiter blocks: the server is busy or saves a checkpoint; if the connection is dead, another one is opened soon"


def why_silent(transport: Transport, streams: Sequence[PersistentStream[Any]]) -> Reason:
    """Asks the server why nothing comes. A stream whose silence has no reason is abandoned for another one.

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
    """Ends streams together, in the time of one. Those on which nothing is awaited are half-closed, so that the server ends them itself.

    Args:
      streams: which.
      seconds: how long to wait at most for threads that are in the middle of something else, such as a call.
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
