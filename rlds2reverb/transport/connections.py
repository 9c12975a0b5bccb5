"""Which connection calls go over, and when one is closed.

A connection may be dead and not look it: something between swallows what is sent (half-open). No call on it tells; a call on
another one does. So new calls go over one connection at a time. Another one takes its place when that has answered first. The old
one is closed when the last call or stream on it has ended.

What is open when the interpreter ends is closed while its threads still run: gRPC reads in one per connection, and a process whose
interpreter took that away in the middle of a call may hang in gRPC (seen with grpcio 1.74, after a stream was cancelled).

Ctrl-C raises in the main thread, between any two lines. Between those of gRPC that begin a call it leaves a call that nothing ends,
and closing the connection waits for that one for ever (seen with grpcio 1.74). So calls are begun by `begin`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol, TypeVar

import grpc

from rlds2reverb.transport.forks import check_not_forked


class _Call(Protocol):
    def cancel(self) -> object: ...


C = TypeVar("C", bound=_Call)


class Connections:
    """The connections to one server. Thread-safe.

    Args:
      connect: opens one; gRPC connects when the first call is made.

    Raises:
      TransportError (construction, `take`, `fresh`): see `forks.check_not_forked`.
    """

    def __init__(self, connect: Callable[[], grpc.Channel]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._holders: Counter[grpc.Channel] = Counter()  # calls and streams
        self._is_closed = False
        self._current = self.fresh()
        self._at_exit = weakref.finalize(self, _close_left, weakref.ref(self))

    def take(self) -> grpc.Channel:
        """The connection for the next call or stream; `put_back` it when that has ended."""
        check_not_forked()
        with self._lock:
            self._holders[self._current] += 1
            return self._current

    def put_back(self, connection: grpc.Channel) -> None:
        """What went over it has ended."""
        with self._lock:
            self._holders[connection] -= 1
            self._close_unused(connection)

    @contextmanager
    def taken(self) -> Iterator[grpc.Channel]:
        """`take`, and `put_back`."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.put_back(connection)

    def fresh(self) -> grpc.Channel:
        """Another connection, which belongs to the caller: `adopt` it or close it."""
        check_not_forked()
        return self._connect()

    def adopt(self, fresh: grpc.Channel, instead_of: grpc.Channel) -> None:
        """New calls go over the fresh connection, unless somebody has replaced the old one already."""
        with self._lock:
            unwanted = fresh
            if self._current is instead_of and not self._is_closed:
                self._current, unwanted = fresh, instead_of
            self._close_unused(unwanted)

    def leave(self, connection: grpc.Channel) -> None:
        """The connection may be dead: new calls go over another one."""
        if connection is self._current:
            self.adopt(self.fresh(), connection)

    def close(self) -> None:
        """Ends every call and stream. In a forked process it does nothing: the connections are the other process's."""
        if self._process != os.getpid():
            return
        self._at_exit.detach()
        with self._lock:
            self._is_closed = True
            for connection in {self._current, *self._holders}:
                connection.close()

    def _close_unused(self, connection: grpc.Channel) -> None:
        if not self._holders[connection]:
            del self._holders[connection]
            if connection is not self._current:
                connection.close()


def _close_left(left: weakref.ref[Connections]) -> None:
    """Closes them at the end of the interpreter. Those that nobody holds any more gRPC closes by itself: then they are gone here."""
    if (connections := left()) is not None:
        connections.close()


def begin(start: Callable[[], C]) -> C:
    """The call that `start` begins, whole or not at all: an interruption cancels what was begun.

    Raises:
      KeyboardInterrupt: in the main thread.
      Whatever `start` raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return start()  # nothing interrupts it
    begun: Future[C] = Future()
    try:
        threading.Thread(target=_begin_apart, args=(begun, start), name="rlds2reverb-begin", daemon=True).start()
        return begun.result()
    except BaseException:
        begun.add_done_callback(_cancel)
        raise


def _begin_apart(begun: Future[C], start: Callable[[], C]) -> None:
    try:
        begun.set_result(start())
    except BaseException as error:
        begun.set_exception(error)


def _cancel(begun: Future[C]) -> None:
    if begun.exception() is None:
        begun.result().cancel()
