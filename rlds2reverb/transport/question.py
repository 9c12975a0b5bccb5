"""One question, asked over the connection in use, and over others while no answer comes: the first answer counts.

Is the connection dead, or does the server not answer? Asking over another connection tells. The connection that answered is used
from then on.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import grpc

from rlds2reverb.transport.connections import Connections

_DOUBT_SECONDS = 1.0
"""How long to wait for an answer before asking again, twice as long each time: over the same connection, and over another one.

The first because of what was observed with grpcio 1.74: a reset that comes together with data stays unseen until the
connection is next written to. The second because the first connection may be half-open."""

_GRACE_SECONDS = 1.0
"""How much later than a call's deadline gRPC may say so."""


class Question:
    """Calls under way that ask the same. Call `answer`, once.

    Args:
      connections: the one in use, and others.
      start: starts a call over a connection that may last so many seconds; gives gRPC's future.
      seconds: deadline of all.
    """

    def __init__(self, connections: Connections, start: Callable[[grpc.Channel, float], Any], seconds: float) -> None:
        self._connections = connections
        self._start = start
        self._end = time.monotonic() + seconds
        self._first = connections.take()
        self._over: dict[Any, grpc.Channel] = {}  # call -> connection, in the order of asking
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._failed = 0

    def answer(self) -> bytes:
        """Asks until there is an answer.

        Raises:
          grpc.RpcError: all calls have failed; of the one that was made last.
          TimeoutError: gRPC says nothing of them.
        """
        best = self._first
        try:
            self._ask_over(self._first)
            call = self._first_answered()
            data: bytes = call.result()
            best = self._over[call]
        finally:
            self._settle(best)
        return data

    def _first_answered(self) -> Any:
        """The first call that ended well; without one, the last one made."""
        pause = _DOUBT_SECONDS
        while (call := self._next_answered(min(pause, self._left))) is None and self._is_open and self._left:
            self._ask_over(self._first)
            self._ask_over(self._connections.fresh())
            pause *= 2
        if call is None and self._is_open:
            call = self._next_answered(_GRACE_SECONDS)
            if call is None and self._is_open:
                raise TimeoutError
        return list(self._over)[-1] if call is None else call

    @property
    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @property
    def _is_open(self) -> bool:
        """Whether a call may still be answered."""
        return self._failed < len(self._over)

    def _ask_over(self, connection: grpc.Channel) -> None:
        try:
            call = self._start(connection, self._left)
        except BaseException:
            if connection is not self._first:
                connection.close()
            raise
        self._over[call] = connection
        call.add_done_callback(self._ended.put)

    def _next_answered(self, seconds: float) -> Any:
        """Waits for the next call that ends well; None when the time is over, or all have failed."""
        end = time.monotonic() + seconds
        while self._is_open:
            try:
                call = self._ended.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return None
            if call.code() is grpc.StatusCode.OK:
                return call
            self._failed += 1
        return None

    def _settle(self, best: grpc.Channel) -> None:
        """The best connection is the one in use from now on; the others that were opened are closed."""
        for call in self._over:
            call.cancel()  # of no effect on one that has ended
        for connection in set(self._over.values()) - {self._first, best}:
            connection.close()
        if best is not self._first:
            self._connections.adopt(best, self._first)
        self._connections.put_back(self._first)
