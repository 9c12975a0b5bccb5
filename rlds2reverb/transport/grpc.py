"""The transport over gRPC: calls to Reverb with deadlines, streams, and gRPC's errors translated; none escapes.

From top to bottom: the transport, what makes one like it in another process, its streams and calls, and its connections.

Source of the method names: reverb_service.proto.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import grpc

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError
from rlds2reverb.transport.address import host_and_port
from rlds2reverb.transport.base import INSERTING, NO_ANSWER, SAMPLING, Transport, call_error, refused_call, stream_error
from rlds2reverb.transport.probe import why_unavailable
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import ServerInfo

_SERVICE = "/deepmind.reverb.ReverbService/"
# No keepalive pings: an idle insert stream is ended for them (observed with Reverb 0.14: GOAWAY, too_many_pings).
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),  # in truth: how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # else channels to one address share a connection
)

_ASK_AGAIN_SECONDS = 0.1
"""Pause before ServerInfo is asked again on a new connection."""


class GrpcTransport:
    """A way to one server over gRPC; see `base.Transport`.

    Args:
      address: "host:port".
      credentials: `Certificates`, or `grpc.ssl_channel_credentials(...)`, for TLS; None for plain text.
      metadata: (name, value) pairs sent with every call, such as an authorization header.
      call_seconds: deadline of short calls.

    Attributes:
      address, credentials, metadata, call_seconds: as given.

    Raises:
      ConfigError: the address is not "host:port".
    """

    def __init__(
        self,
        address: str,
        credentials: Any = None,
        metadata: Sequence[tuple[str, str]] = (),
        call_seconds: float = Deadlines.call,
    ) -> None:
        host_and_port(address)  # else gRPC has meanings of its own for it
        self.address = address
        self.metadata = tuple(metadata)
        self.call_seconds = call_seconds
        self.credentials = credentials
        self._connections = Connections(self._connect)

    def server_info(self, at_once: bool = False) -> ServerInfo:
        """Asks for all tables. When the connection in use is silent, it asks over another one, too, which is used from then on.

        Args:
          at_once: do not wait where looking tells why no server can be there: refused, no such name, another protocol.

        Raises:
          ServerUnreachable: no answer within the deadline, cut connections included; says why, where that can be seen.
          TransportError: the server refuses to answer, this transport is closed, or the process was forked.
          WireError: an answer that is not Reverb's.
        """
        end, waits = time.monotonic() + self.call_seconds, not at_once
        while True:
            left_seconds = max(0.0, end - time.monotonic())
            try:
                return codec.decode_server_info(self._ask_server_info(left_seconds, waits))
            except grpc.RpcError as error:
                # Waiting for a server to come up is gRPC's part; a connection that is cut while it answers is ours.
                if error.code() is not grpc.StatusCode.UNAVAILABLE or left_seconds < _ASK_AGAIN_SECONDS:
                    raise self._no_answer(error) from error
                if not waits and (found := self._found(error, f"server {self.address}", is_final=True)):
                    raise found from error
            waits = True
            time.sleep(_ASK_AGAIN_SECONDS)

    def checkpoint(self, seconds: float) -> str:
        """Makes the server write a checkpoint; see `base.Transport`. Reverb keeps one, and deletes every other entry beside it."""
        try:
            with self._connections.taken() as connection:
                call = connection.unary_unary(f"{_SERVICE}Checkpoint")
                data = call(codec.encode_checkpoint_request(), timeout=seconds, metadata=self.metadata)
        except ValueError as error:
            raise refused_call(self.address, error) from error
        except grpc.RpcError as error:
            raise self._translate(error, "writing a checkpoint", seconds) from error
        return codec.decode_checkpoint_path(data)

    def delete_items(self, table: str, item_keys: Array) -> None:
        """Takes items out of a table; see `base.Transport`. Keys that it does not have are passed over (observed in 0.14)."""
        self._call("MutatePriorities", codec.encode_delete_items_request(table, item_keys), "taking items out")

    def update_priorities(self, table: str, item_keys: Array, priorities: Array) -> None:
        """Gives items other priorities; see `base.Transport`. Updates before one that is refused stay (observed in 0.14)."""
        request = codec.encode_update_priorities_request(table, item_keys, priorities)
        self._call("MutatePriorities", request, "updating priorities")

    def reset(self, table: str) -> None:
        """Empties a table; see `base.Transport`."""
        self._call("Reset", codec.encode_reset_request(table), "emptying a table")

    def ask_server_info(self) -> GrpcPendingInfo:
        """`server_info` without waiting for the answer, over the connection in use only.

        Raises:
          TransportError: this transport is closed, or the process was forked.
        """
        connection = self._connections.take()
        try:
            call = self._start_server_info(False, connection, self.call_seconds)
        except ValueError as error:
            self._connections.put_back(connection)
            raise refused_call(self.address, error) from error
        return GrpcPendingInfo(call, lambda: self._connections.put_back(connection))

    def insert_stream(self, messages: Iterator[bytes]) -> GrpcStream:
        """Opens an insert stream that sends `messages`; gRPC takes them in a thread of its own.

        Raises:
          TransportError: this transport is closed, or the process was forked.
        """
        return self._stream("InsertStream", messages, INSERTING)

    def sample_stream(self, messages: Iterator[bytes]) -> GrpcStream:
        """Opens a sample stream that sends `messages`; gRPC takes them in a thread of its own.

        Raises:
          TransportError: this transport is closed, or the process was forked.
        """
        return self._stream("SampleStream", messages, SAMPLING)

    def close(self) -> None:
        """Closes all connections; calls under way end with an error."""
        self._connections.close()

    def _stream(self, method: str, messages: Iterator[bytes], doing: str) -> GrpcStream:
        connection = self._connections.take()
        try:
            call = begin(lambda: connection.stream_stream(f"{_SERVICE}{method}")(messages, metadata=self.metadata))
        except ValueError as error:
            self._connections.put_back(connection)
            raise refused_call(self.address, error) from error
        return GrpcStream(call, connection, self._connections, partial(self._broken_stream, doing))

    def _call(self, method: str, request: bytes, doing: str) -> None:
        """A short call whose answer has no fields."""
        try:
            with self._connections.taken() as connection:
                call = connection.unary_unary(f"{_SERVICE}{method}")
                call(request, timeout=self.call_seconds, metadata=self.metadata, wait_for_ready=True)
        except ValueError as error:
            raise refused_call(self.address, error) from error
        except grpc.RpcError as error:
            raise self._translate(error, doing) from error

    def _connect(self) -> grpc.Channel:
        if self.credentials is None:
            return grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
        given = self.credentials
        credentials = given.credentials() if isinstance(given, Certificates) else given
        return grpc.secure_channel(self.address, credentials, _CHANNEL_OPTIONS)

    def _ask_server_info(self, seconds: float, waits: bool) -> bytes:
        """The answer. With `waits`, gRPC tries to connect until the deadline, and does not say why it failed."""
        try:
            return HedgedCall(self._connections, partial(self._start_server_info, waits), seconds).answer()
        except ValueError as error:
            raise refused_call(self.address, error) from error
        except TimeoutError as error:
            raise ServerUnreachable(f"{self._unanswered()}: gRPC itself says nothing") from error

    def _start_server_info(self, waits: bool, connection: grpc.Channel, seconds: float) -> Any:
        call = connection.unary_unary(f"{_SERVICE}ServerInfo")
        request = codec.encode_server_info_request()
        return begin(lambda: call.future(request, timeout=seconds, metadata=self.metadata, wait_for_ready=waits))

    def _no_answer(self, error: grpc.RpcError) -> TransportError:
        """The error for a failed ServerInfo; without a connection it asks again, and probes the address."""
        if error.code().name in NO_ANSWER:
            try:
                self._ask_server_info(_ASK_AGAIN_SECONDS, waits=False)
            except grpc.RpcError as reason:
                if reason.code() is grpc.StatusCode.UNAVAILABLE:
                    error = reason  # says more
                    if found := self._found(reason, self._unanswered(), is_final=False):
                        return found
        return self._translate(error, "asking for its tables")

    def _found(self, error: grpc.RpcError, before: str, is_final: bool) -> ServerUnreachable | None:
        """What looking tells; final only where a server was never seen: a restarting one may have a stand-in."""
        finding = why_unavailable(self.address, self.credentials is not None, error.details() or "")
        if finding is None:
            return None
        return ServerUnreachable(f"{before}: {finding.sentence}", retryable=finding.may_change or not is_final)

    def _unanswered(self) -> str:
        return f"server {self.address}: no answer within {self.call_seconds:g} s"

    def _translate(self, error: grpc.RpcError, doing: str, seconds: float | None = None) -> TransportError:
        return call_error(self.address, doing, error.code().name, error.details(), seconds or self.call_seconds)

    def _broken_stream(self, doing: str, error: grpc.RpcError) -> TransportError:
        return stream_error(self.address, doing, error.code().name, error.details())


@dataclass(frozen=True)
class Certificates:
    """What TLS needs; in place of `grpc.ssl_channel_credentials(...)`, which no other process can be given.

    Attributes:
      authority: certificates of those who may have signed the server's, PEM; None for the system's.
      key, certificate: the client's own, PEM; None without one.
    """

    authority: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """The same for gRPC."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


@dataclass(frozen=True)
class GrpcEndpoint:
    """A way to one server.

    Attributes:
      address: "host:port", as that process sees it.
      certificates: for TLS; None for plain text.
      metadata: (name, value) pairs sent with every call.
      call_seconds: deadline of short calls.
    """

    address: str
    certificates: Certificates | None
    metadata: tuple[tuple[str, str], ...]
    call_seconds: float

    def open(self) -> Transport:
        """A connection of its own; to be closed."""
        return GrpcTransport(self.address, self.certificates, self.metadata, self.call_seconds)


@runtime_checkable
class Endpoint(Protocol):
    """What opens the way to a server."""

    def open(self) -> Transport:
        """A connection of its own; to be closed."""


def endpoint_of(transport: Transport) -> Endpoint:
    """The way by which another process gets to the same server.

    Raises:
      ConfigError: there is none that can be sent to it.
    """
    if not isinstance(transport, GrpcTransport):
        raise ConfigError(
            "workers (--workers, --ray) need a server that other processes can reach; this one is in the memory of this process"
        )
    if transport.credentials is not None and not isinstance(transport.credentials, Certificates):
        raise ConfigError(
            "workers (--workers, --ray) open connections of their own, and credentials of gRPC cannot be sent to them; connect with "
            "rlds2reverb.Certificates(authority, key, certificate) in place of grpc.ssl_channel_credentials(...)"
        )
    return GrpcEndpoint(transport.address, transport.credentials, transport.metadata, transport.call_seconds)


class GrpcStream:
    """See `base.Stream`.

    Args:
      call: gRPC's call, which is iterated.
      connection: the one that it is on; put back by `end`.
      connections: where that comes from.
      translate: what an error of gRPC means.
    """

    def __init__(
        self,
        call: Any,
        connection: grpc.Channel,
        connections: Connections,
        translate: Callable[[grpc.RpcError], TransportError],
    ) -> None:
        self._call, self._connection, self._connections, self._translate = call, connection, connections, translate

    def __iter__(self) -> Iterator[bytes]:
        """The server's messages, until it ends the stream; see `base.Stream`."""
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise self._translate(error) from error

    def cancel(self) -> None:
        """Ends it on this side, at once."""
        self._call.cancel()

    def end(self) -> None:
        """Says that it was read to its end, or is not wanted any more. Call it once."""
        self.cancel()
        self._connections.put_back(self._connection)

    def abandon(self) -> None:
        """Cancels it; new calls and streams go over another connection."""
        self._connections.abandon(self._connection)
        self.cancel()


class GrpcPendingInfo:
    """See `base.PendingInfo`.

    Args:
      call: gRPC's future.
      ended: called when the call is not needed any more.
    """

    def __init__(self, call: Any, ended: Callable[[], None]) -> None:
        self._call, self._ended = call, ended

    @property
    def is_over(self) -> bool:
        """Whether the answer is there, or none will come."""
        return bool(self._call.done())

    def answer(self) -> ServerInfo | None:
        """What the server said; None when it gave no answer. Call it only when `is_over`.

        Raises:
          WireError: an answer that is not Reverb's.
        """
        self._ended()
        if self._call.cancelled() or self._call.exception() is not None:
            return None
        return codec.decode_server_info(self._call.result())

    def drop(self) -> None:
        """Says that the answer is not wanted any more."""
        self._call.cancel()
        self._ended()


_DOUBT_SECONDS = 1.0
"""How long to wait for an answer before asking again, twice as long each time: over the same connection, and over another one.

The first because of what was observed with grpcio 1.74: a reset that comes together with data stays unseen until the
connection is next written to. The second because the first connection may be half-open."""

_GRACE_SECONDS = 1.0
"""How much later than a call's deadline gRPC may say so."""


class HedgedCall:
    """One call, made over the connection in use, and over others while no answer comes: the first answer counts.

    Is the connection dead, or does the server not answer? Asking over another connection tells. The connection that answered is
    used from then on. Call `answer`, once.

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


# Which connection calls go over, and when one is closed.
#
# A connection may be dead and not look it: something between swallows what is sent (half-open). No call on it tells; a call on
# another one does. So new calls go over one connection at a time. Another one takes its place when that has answered first. The old
# one is closed when the last call or stream on it has ended.
#
# What is open when the interpreter ends is closed while its threads still run: gRPC reads in one per connection, and a process whose
# interpreter took that away in the middle of a call may hang in gRPC (seen with grpcio 1.74, after a stream was cancelled).
#
# Ctrl-C raises in the main thread, between any two lines. Between those of gRPC that begin a call it leaves a call that nothing ends,
# and closing the connection waits for that one for ever (seen with grpcio 1.74). So calls are begun by `begin`.


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

    def abandon(self, connection: grpc.Channel) -> None:
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


# gRPC does not survive a fork: said at once, in place of a hang or a crash.
#
# A process that is forked from one that has used gRPC inherits its locks and its files, and none of its threads. Observed with
# grpcio 1.74 and 1.85, with GRPC_ENABLE_FORK_SUPPORT unset, 1 and 0: some children work, some hang in their first call, some
# crash, and one that used gRPC in the middle of a push took its parent with it. gRPC's own documentation (doc/fork_support.md)
# promises it only where gRPC is first used after the fork; so does this module.

_users: set[int] = set()
"""Processes that have used gRPC: this one, or the one that it was forked from. A fork copies it; that is how it tells."""


def check_not_forked() -> None:
    """Call it before gRPC is touched.

    Raises:
      TransportError: this process was forked from one that had used gRPC.
    """
    process = os.getpid()
    if not _users:
        _users.add(process)
    if process not in _users:
        raise TransportError(
            "this process was forked from one that had already connected to a server, which gRPC does not survive. Start "
            'it another way (multiprocessing.get_context("spawn") or "forkserver"), or fork before the first connection '
            "and connect in each child"
        )
