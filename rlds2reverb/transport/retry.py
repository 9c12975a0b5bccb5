"""When to retry, how long a wait may last, and when a silent stream counts as dead: rules, no sockets.

- A call failed and may succeed later: `retry_until` pauses, twice as long each time, until a deadline.
- A stream broke: `BreakLog` gives the pause before the next one, longer with each that broke without progress.
- A stream is silent for no known reason: `StallTimer` says when to replace it, later each time that this brought nothing.
- The caller waits and nothing comes: `IdleTimer` says when to notify the caller, and when to give up.

Resending what was not confirmed is harmless (same keys) but costs time and bytes, so each rule bounds how often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rlds2reverb.errors import TransportError

T = TypeVar("T")


@dataclass(frozen=True)
class Deadlines:
    """How long each kind of wait may last, in seconds.

    Attributes:
      call: one short call (ServerInfo).
      reconnect: from a broken stream to a server that answers again.
      notice: without a confirmation, until the caller is notified of the reason.
      silence: without a sign of life or a reason, until the stream is opened anew on another connection; a quarter of `stall` if
        that is less.
      stall: without a confirmation, until the push gives up; broken streams and reconnecting count. If the server does not answer at
        all, the last call and the end of the stream take up to one `call` each beyond it.
      backoff_first, backoff_most: first and longest pause between two attempts; doubled in between.
    """

    call: float = 10.0
    reconnect: float = 60.0
    notice: float = 2.0
    silence: float = 5.0
    stall: float = 300.0
    backoff_first: float = 0.1
    backoff_most: float = 5.0


def retry_until(
    deadline_seconds: float,
    deadlines: Deadlines,
    attempt: Callable[[], T],
    rest: Callable[[float], object] | None = None,
) -> T:
    """Calls `attempt` with growing pauses until it succeeds. `rest` makes a pause; by default it sleeps.

    Raises:
      TransportError: the last one, if it is not retryable or the deadline has passed.
    """
    end = time.monotonic() + deadline_seconds
    pause = deadlines.backoff_first
    while True:
        try:
            return attempt()
        except TransportError as error:
            # No pause that ends behind the deadline: the attempt after it would come too late.
            if not error.retryable or time.monotonic() + pause > end:
                raise
        (rest or time.sleep)(pause)
        pause = min(2 * pause, deadlines.backoff_most)


class BreakLog:
    """The streams that broke since the last progress. Not thread-safe."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._errors: list[TransportError] = []

    def __len__(self) -> int:
        return len(self._errors)

    @property
    def last(self) -> TransportError:
        return self._errors[-1]

    def add(self, error: TransportError) -> float:
        """Adds a break; returns the pause before the next stream, in seconds."""
        self._errors.append(error)
        if len(self._errors) == 1:  # one cut connection: another works at once
            return 0.0
        # Beyond 30 the pause is the longest in any case, and a float would overflow.
        doublings = min(len(self._errors) - 2, 30)
        return min(self._deadlines.backoff_first * 2.0**doublings, self._deadlines.backoff_most)

    def clear(self) -> None:
        self._errors.clear()


class StallTimer:
    """When a silent stream is replaced. Not thread-safe.

    Signs of life are progress and messages that the transport could send. A slow network is silent as well while one message takes long:
    so silences that ended well lengthen the patience, up to half of the time after which the push gives up.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._first = min(deadlines.silence, deadlines.stall / 4)
        self._most = deadlines.stall / 2  # so that there is time for another stream
        self._longest = 0.0  # silence that ended in a sign of life
        self._fruitless = 0  # streams given up since the last progress
        self._silent_since = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last sign of life, or since something explained its absence."""
        return time.monotonic() - self._silent_since

    @property
    def is_over(self) -> bool:
        patience = max(self._first, 2 * self._longest) * 2.0 ** min(self._fruitless, 30)
        return self.silent_seconds > min(patience, self._most)

    def sign_of_life(self) -> None:
        """A message could be sent."""
        self._longest = max(self._longest, self.silent_seconds)
        self.explained()

    def progress(self) -> None:
        self.sign_of_life()
        self._fruitless = 0

    def explained(self) -> None:
        """There is a reason for the silence: a limiter, no answer of the server at all, nothing to send, a new stream."""
        self._silent_since = time.monotonic()

    def give_up(self) -> None:
        """Gives up the stream; the next one gets twice the time."""
        self._fruitless += 1
        self.explained()


class IdleTimer:
    """How long nothing has come, and when the caller is to be notified. Not thread-safe."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._since = time.monotonic()
        self._notified_at = -math.inf

    def over(self) -> None:
        """Something came, or is awaited only from now on."""
        self._since = time.monotonic()

    def notified(self) -> None:
        self._notified_at = time.monotonic()

    def seconds(self, since: float) -> float:
        """Seconds without progress in a wait that began at `since`."""
        return time.monotonic() - max(since, self._since)

    def seconds_until_due(self, since: float) -> float:
        """Seconds until the caller is to be notified of a wait that began at `since`, again or a last time; 0 or less for now."""
        quiet_since = max(since, self._since)
        again_at = min(self._notified_at + self._deadlines.notice, quiet_since + self._deadlines.stall)
        return max(quiet_since + self._deadlines.notice, again_at) - time.monotonic()
