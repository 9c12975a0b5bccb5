"""Kept streams are ended together: in the time of one, however many there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

_FAREWELL_SECONDS = 1.0  # for the server to end a stream on which nothing is awaited; a half-open one never ends


class Closable(Protocol):
    """What is asked of a stream; see `stream.KeptStream`."""

    def half_close(self) -> bool:
        """Sends nothing more, and opens no other stream; whether the server may end this one by itself."""
        ...

    def cancel(self) -> None:
        """Ends the stream at once. After `half_close`: then no other one is opened."""
        ...

    def join(self, seconds: float) -> None:
        """Waits for the end of its thread, except in that thread."""
        ...


def close_streams(streams: Sequence[Closable], seconds: float) -> None:
    """Ends streams. Those on which nothing is awaited are half-closed, so that the server ends them itself.

    Args:
      streams: which.
      seconds: how long to wait at most for threads that are in the middle of something else, such as a call.
    """
    ending = [stream for stream in streams if stream.half_close()]
    _join(ending, _FAREWELL_SECONDS)
    for stream in streams:
        stream.cancel()
    _join(streams, seconds)


def _join(streams: Sequence[Closable], seconds: float) -> None:
    end = time.monotonic() + seconds
    for stream in streams:
        stream.join(max(0.0, end - time.monotonic()))
