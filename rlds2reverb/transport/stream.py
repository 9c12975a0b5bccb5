"""A stream that is kept open: two threads beside the caller's, one lock, every wait bounded and explained.

The transport takes messages from `_messages` in a thread of its own. `_receive` reads answers in another; when the stream breaks, it
waits for the server and opens a new one. The caller's thread waits; when nothing comes, it asks the server why, and gives up a
silent stream if nothing explains it. All three share the user's state under one condition. The rules of when are in `waiting`.

What is sent, what an answer means and why silence may be fine is the user's part (`stream_user`); nothing here knows of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from rlds2reverb.errors import Stalled, TransportError
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.closing import close_streams
from rlds2reverb.transport.silence import why_silent
from rlds2reverb.transport.stream_user import Answer, Reason, StreamUser, unheard
from rlds2reverb.transport.waiting import Breaks, Deadlines, Patience, Quiet, retry_until
from rlds2reverb.wire.limiter import Wait
from rlds2reverb.wire.messages import ServerInfo


class KeptStream(Generic[Answer]):
    """Keeps one stream of its user's open until it is closed.

    Args:
      transport: asked why, when nothing comes.
      user: what the stream is for.
      state_id: of the server process; another one later means that it was restarted.
      deadlines: bounds of all waits.
      on_wait: told the reason when nothing came for `deadlines.notice` seconds, and an empty one when something does again.
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
        on_wait: Callable[[Reason], None] = unheard,
        changed: threading.Condition | None = None,
    ) -> None:
        self.changed = threading.Condition() if changed is None else changed
        self.reconnects = 0
        self._transport, self._user = transport, user
        self._state_id, self._deadlines = state_id, deadlines
        self._on_wait = on_wait
        self._number = 0  # of the stream whose messages are wanted; -1 when closed
        self._stream: Stream | None = None  # the open one
        self._given_up: TransportError | None = None  # why the open one was
        self._failure: Exception | None = None
        self._breaks = Breaks(deadlines)
        self._patience = Patience(deadlines)
        self._quiet = Quiet(deadlines)
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
            self._quiet.over()
            self._patience.explained()
        self.changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """Waits until the claim holds.

        Raises:
          TransportError: the stream broke and could not be mended.
          Stalled: nothing came for `deadlines.stall` seconds.
          WireError: what came is not Reverb's.
        """
        began, told = time.monotonic(), False
        while True:
            with self.changed:
                is_done = self._wait_until_due(done, began, told)
                quiet_seconds = self._quiet.seconds(began)
            if not is_done and quiet_seconds > self._deadlines.notice:
                told = True
                self._explain(quiet_seconds)
            elif told:
                told = False
                self._on_wait(Reason())
            if is_done:
                return

    def linger(self, done: Callable[[], bool], seconds: float) -> None:
        """Waits until the claim holds, the stream has failed, or the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: done() or self._failure is not None, seconds)

    def check_silence(self) -> None:
        """Gives up a stream whose silence has no reason; a caller that never waits would not notice it."""
        if self.is_silent:
            why_silent(self._transport, (self,))

    @property
    def is_silent(self) -> bool:
        """Whether an answer is awaited for longer than a stream that lives would take, as far as is known."""
        with self.changed:
            return self._stream is not None and not self._user.awaits_nothing and self._patience.is_over

    def close(self) -> None:
        """Ends the stream. Nobody knows whether what is unanswered was done."""
        close_streams((self,), self._deadlines.call)

    def held_back(self, info: ServerInfo) -> Sequence[Wait]:
        """See `silence.Silent`."""
        return self._user.held_back(info)

    def explained(self) -> None:
        """See `silence.Silent`."""
        with self.changed:
            self._patience.explained()

    def unexplained(self, info: ServerInfo) -> str:
        """See `silence.Silent`."""
        self._give_up_silent_stream(is_same_server=info.state_id == self._state_id)
        with self.changed:
            if not self._breaks:
                return ""
            return (
                f"the server answers and no rate limiter blocks; streams that ended {self._user.words.without}: "
                f"{len(self._breaks)}, the last one: {self._breaks.last}"
            )

    def half_close(self) -> bool:
        """See `closing.Closable`."""
        with self.changed:
            self._number = -1
            self.changed.notify_all()
            return self._user.awaits_nothing

    def cancel(self) -> None:
        """See `closing.Closable`."""
        if (stream := self._stream) is not None:
            stream.cancel()

    def join(self, seconds: float) -> None:
        """See `closing.Closable`."""
        if self._receiver is not threading.current_thread():
            self._receiver.join(seconds)

    def _wait_until_due(self, done: Callable[[], bool], began: float, told: bool) -> bool:
        """Waits for the claim, for progress after a wait that was told, or until the wait is to be told; whether it holds.

        Raises:
          Exception: what has ended the stream for good.
        """

        def is_over() -> bool:
            came_again = told and self._quiet.seconds(began) <= self._deadlines.notice
            return done() or self._failure is not None or came_again

        while not is_over() and (seconds := self._quiet.seconds_until_due(began)) > 0:
            self.changed.wait(seconds)  # what is due may have moved meanwhile
        if self._failure is not None:
            raise self._failure
        return done()

    def _explain(self, quiet_seconds: float) -> None:
        with self.changed:
            self._quiet.told()
        reason = why_silent(self._transport, (self,))
        if quiet_seconds > self._deadlines.stall:
            words = self._user.words
            raise Stalled(
                f"server {self._transport.address}: {words.nothing_came} for {quiet_seconds:.0f} s; {reason.text}. {words.way_out}"
            )
        self._on_wait(reason)

    def _give_up_silent_stream(self, is_same_server: bool) -> None:
        """The server answers and nothing blocks: the stream may be half-open. Another one will go over another connection."""
        with self.changed:
            stream, patience = self._stream, self._patience
            if stream is None or self._given_up is not None or (is_same_server and not patience.is_over):
                return
            self._given_up = TransportError(
                f"server {self._transport.address}: it answers, and {self._user.words.gave_nothing} on its stream for "
                f"{patience.silent_seconds:.1f} s",
                retryable=True,
            )
            patience.give_up()
        stream.leave()

    # The transport's sending thread.

    def _messages(self, number: int) -> Iterator[bytes]:
        while messages := self._next_messages(number):
            for message in messages:
                yield message
                with self.changed:
                    self._patience.sign_of_life()  # the transport wants the next one: it could send this one

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
            while (error := self._run_stream()) is not None and self._leave_stream():
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
            self._patience.explained()
            stream = self._stream = self._user.open(self._messages(self._number))
        try:
            for message in stream:
                self._take(message)
            broken = TransportError(f"server {self._transport.address}: it ended the stream", retryable=True)
        except TransportError as error:
            broken = error
        finally:
            stream.end()
        with self.changed:
            self._stream = None
            broken, self._given_up = self._given_up or broken, None
        return broken

    def _take(self, message: bytes) -> None:
        answer = self._user.decode(message)
        with self.changed:
            if self._user.take(answer):
                self._quiet.over()
                self._breaks.clear()
                self._patience.progress()
            self.changed.notify_all()

    def _leave_stream(self) -> bool:
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
        told = f"server {self._transport.address}: another server process answers than before ({error})"
        with self.changed:
            if is_another := info.state_id != self._state_id:
                self._user.restarted(told, info)
                self._state_id = info.state_id
            self.reconnects += 1
            self._user.lost()
            self.changed.notify_all()
        self._user.resumed(told if is_another else str(error))

    def _ask(self) -> ServerInfo:
        if self._number < 0:
            raise TransportError(f"server {self._transport.address}: the stream was closed")
        return self._transport.server_info()

    def _pause(self, seconds: float) -> None:
        """Waits, until this is closed at most."""
        with self.changed:
            self.changed.wait_for(lambda: self._number < 0, seconds)
