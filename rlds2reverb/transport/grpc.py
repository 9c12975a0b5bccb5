"""The transport over gRPC: calls to Reverb with deadlines, streams, and gRPC's errors translated.

Source of the method names: reverb_service.proto.
"""

from __future__ import annotations

import _thread
import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import grpc

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError
from rlds2reverb.transport.base import (
    CHECKPOINT_ATTEMPTS,
    INSERTING,
    NO_ANSWER,
    SAMPLING,
    Transport,
    call_error,
    host_and_port,
    refused_call,
    stream_error,
)
from rlds2reverb.transport.probe import why_unavailable
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import ServerInfo

_SERVICE = "/deepmind.reverb.ReverbService/"
# No keepalive pings: an idle insert stream is ended for them (observed with Reverb 0.14: GOAWAY, too_many_pings).
_CHANNEL_OPTIONS = (
    # By default gRPC refuses messages over 4 MiB, and one large step may be larger.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),  # in truth: how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # else channels to one address share a connection
)

_ASK_AGAIN_SECONDS = 0.1  # pause before ServerInfo is asked again on a new connection


class GrpcTransport:
    """`base.Transport` to one server over gRPC. Connects when the first call is made.

    Args:
      address: "host:port".
      credentials: `Certificates`, or `grpc.ssl_channel_credentials(...)`, for TLS; None for plain text.
      metadata: (name, value) pairs sent with every call, such as an authorization header.
      call_seconds: deadline of short calls.

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
        end, waits = time.monotonic() + self.call_seconds, not at_once
        while True:
            left_seconds = max(0.0, end - time.monotonic())
            try:
                return codec.decode_server_info(self._ask_server_info(left_seconds, waits))
            except grpc.RpcError as error:
                # gRPC waits for a server to come up; asking again after a cut connection is up to us.
                if error.code() is not grpc.StatusCode.UNAVAILABLE or left_seconds < _ASK_AGAIN_SECONDS:
                    raise self._no_answer(error) from error
                if not waits and (unreachable := self._probe(error, f"server {self.address}", is_final=True)):
                    raise unreachable from error
            waits = True
            time.sleep(_ASK_AGAIN_SECONDS)

    def checkpoint(self, seconds: float, attempts: int = CHECKPOINT_ATTEMPTS) -> str:
        # Reverb keeps one checkpoint, and deletes every other entry of its folder: when two are written at once, as by the server's own
        # schedule, one of the calls may fail with NOT_FOUND.
        while True:
            attempts -= 1
            try:
                return codec.decode_checkpoint_path(self._call("Checkpoint", b"", "writing a checkpoint", seconds))
            except TransportError as error:
                reason = error.__cause__
                was_deleted = isinstance(reason, grpc.Call) and reason.code() is grpc.StatusCode.NOT_FOUND
                if attempts <= 0 or not was_deleted:
                    raise

    def delete_items(self, table: str, item_keys: Array) -> None:
        # Unknown keys are skipped (observed in 0.14).
        self._call("MutatePriorities", codec.encode_delete_items_request(table, item_keys), "taking items out")

    def update_priorities(self, table: str, item_keys: Array, priorities: Array) -> None:
        # Updates before one that is refused stay (observed in 0.14).
        request = codec.encode_update_priorities_request(table, item_keys, priorities)
        self._call("MutatePriorities", request, "updating priorities")

    def reset(self, table: str) -> None:
        self._call("Reset", codec.encode_reset_request(table), "emptying a table")

    def ask_server_info(self) -> GrpcPendingInfo:
        connection, call = self._begin_over(lambda channel: self._start_server_info(False, channel, self.call_seconds))
        return GrpcPendingInfo(call, lambda: self._connections.put_back(connection))

    def insert_stream(self, messages: Iterator[bytes]) -> GrpcStream:
        return self._stream("InsertStream", messages, INSERTING)

    def sample_stream(self, messages: Iterator[bytes]) -> GrpcStream:
        return self._stream("SampleStream", messages, SAMPLING)

    def close(self) -> None:
        self._connections.close()

    def _stream(self, method: str, messages: Iterator[bytes], doing: str) -> GrpcStream:
        def start(connection: grpc.Channel) -> Any:
            return begin(lambda: connection.stream_stream(f"{_SERVICE}{method}")(messages, metadata=self.metadata))

        def translate(error: grpc.RpcError) -> TransportError:
            return stream_error(self.address, doing, error.code().name, error.details())

        connection, call = self._begin_over(start)
        return GrpcStream(call, connection, self._connections, translate)

    def _begin_over(self, start: Callable[[grpc.Channel], Any]) -> tuple[grpc.Channel, Any]:
        """Starts a call over the connection in use; returns that connection, to be put back, and the call."""
        connection = self._connections.take()
        try:
            return connection, start(connection)
        except ValueError as error:
            self._connections.put_back(connection)
            raise refused_call(self.address, error) from error

    def _call(self, method: str, request: bytes, doing: str, seconds: float | None = None) -> bytes:
        """A short call, or a long one of so many `seconds`, which does not wait for a server that is not there."""
        try:
            with self._connections.taken() as connection:
                call = connection.unary_unary(f"{_SERVICE}{method}")
                timeout, waits = self.call_seconds if seconds is None else seconds, seconds is None
                data: bytes = call(request, timeout=timeout, metadata=self.metadata, wait_for_ready=waits)
                return data
        except ValueError as error:
            raise refused_call(self.address, error) from error
        except grpc.RpcError as error:
            raise self._translate(error, doing, seconds) from error

    def _connect(self) -> grpc.Channel:
        if self.credentials is None:
            return grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
        own = self.credentials
        credentials = own.credentials() if isinstance(own, Certificates) else own
        return grpc.secure_channel(self.address, credentials, _CHANNEL_OPTIONS)

    def _ask_server_info(self, seconds: float, waits: bool) -> bytes:
        # With `waits`, gRPC tries to connect until the deadline, and does not say why it failed.
        try:
            return HedgedCall(self._connections, partial(self._start_server_info, waits), seconds).answer()
        except ValueError as error:
            raise refused_call(self.address, error) from error
        except TimeoutError as error:
            raise ServerUnreachable(f"{self._unanswered()}: gRPC itself says nothing") from error

    def _start_server_info(self, waits: bool, connection: grpc.Channel, seconds: float) -> Any:
        call = connection.unary_unary(f"{_SERVICE}ServerInfo")
        # A ServerInfoRequest has no fields that this package sets.
        return begin(lambda: call.future(b"", timeout=seconds, metadata=self.metadata, wait_for_ready=waits))

    def _no_answer(self, error: grpc.RpcError) -> TransportError:
        """The error for a failed ServerInfo; if nothing answered, asks once more without waiting, and probes the address."""
        if error.code().name in NO_ANSWER:
            try:
                self._ask_server_info(_ASK_AGAIN_SECONDS, waits=False)
            except grpc.RpcError as reason:
                if reason.code() is grpc.StatusCode.UNAVAILABLE:
                    error = reason  # says more
                    if unreachable := self._probe(reason, self._unanswered(), is_final=False):
                        return unreachable
        return self._translate(error, "asking for its tables")

    def _probe(self, error: grpc.RpcError, before: str, is_final: bool) -> ServerUnreachable | None:
        """What a probe of the address finds; not retryable only if no server was seen before: while one restarts, another may answer."""
        finding = why_unavailable(self.address, self.credentials is not None, error.details() or "")
        if finding is None:
            return None
        return ServerUnreachable(f"{before}: {finding.sentence}", retryable=finding.may_change or not is_final)

    def _unanswered(self) -> str:
        return f"server {self.address}: no answer within {self.call_seconds:g} s"

    def _translate(self, error: grpc.RpcError, doing: str, seconds: float | None = None) -> TransportError:
        return call_error(self.address, doing, error.code().name, error.details(), seconds or self.call_seconds)


@dataclass(frozen=True)
class Certificates:
    """Certificates for TLS. Unlike `grpc.ssl_channel_credentials(...)` they can be sent to workers.

    Attributes:
      authority: certificates of the authorities that may have signed the server's, PEM; None for those of the system.
      key, certificate: of the client, PEM; None without one.
    """

    authority: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials for gRPC."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


@dataclass(frozen=True)
class GrpcEndpoint:
    """Arguments of a `GrpcTransport`, to be sent to another process."""

    address: str
    certificates: Certificates | None
    metadata: tuple[tuple[str, str], ...]
    call_seconds: float

    def open(self) -> Transport:
        return GrpcTransport(self.address, self.certificates, self.metadata, self.call_seconds)


@runtime_checkable
class Endpoint(Protocol):
    """Opens a transport to a server, in any process."""

    def open(self) -> Transport:
        """A transport of its own, which the caller closes."""


def endpoint_of(transport: Transport) -> Endpoint:
    """How another process reaches the same server."""
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
    """`base.Stream` over gRPC's call; `end` puts the connection back, `translate` makes our error of gRPC's."""

    def __init__(
        self,
        call: Any,
        connection: grpc.Channel,
        connections: Connections,
        translate: Callable[[grpc.RpcError], TransportError],
    ) -> None:
        self._call, self._connection, self._connections, self._translate = call, connection, connections, translate

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise self._translate(error) from error

    def cancel(self) -> None:
        self._call.cancel()

    def end(self) -> None:
        self.cancel()  # of no effect on one that has ended
        self._connections.put_back(self._connection)

    def abandon(self) -> None:
        self._connections.abandon(self._connection)
        self.cancel()


class GrpcPendingInfo:
    """`base.PendingInfo` over gRPC's future; `ended` is called when the call is not needed any more."""

    def __init__(self, call: Any, ended: Callable[[], None]) -> None:
        self._call, self._ended = call, ended

    @property
    def is_over(self) -> bool:
        return bool(self._call.done())

    def answer(self) -> ServerInfo | None:
        self._ended()
        if self._call.cancelled() or self._call.exception() is not None:
            return None
        return codec.decode_server_info(self._call.result())

    def drop(self) -> None:
        self._call.cancel()
        self._ended()


# How long to wait for an answer before asking again, doubled each time: over the same connection, since a reset that comes together
# with data stays unseen until the connection is written to (grpcio 1.74), and over another one, since the first may be half-open.
_DOUBT_SECONDS = 1.0
_GRACE_SECONDS = 1.0  # gRPC may report a passed deadline this much later


class HedgedCall:
    """One call, made over the connection in use, and again over new ones while no answer comes: the first answer counts.

    So a dead connection is not mistaken for a server that does not answer. The connection that answered is used from then on.

    Args:
      start: starts a call over a connection with a deadline in seconds; returns gRPC's future.
      seconds: deadline of all calls.
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
        """Uses the best connection from now on, and closes the rest."""
        for call in self._over:
            call.cancel()  # of no effect on one that has ended
        for connection in set(self._over.values()) - {self._first, best}:
            connection.close()
        if best is not self._first:
            self._connections.adopt(best, self._first)
        self._connections.put_back(self._first)


# A connection may be dead without a sign (half-open); only a call over another one tells. So new calls go over one connection at a time,
# and another takes its place when it has answered first. The old one is closed when the last call or stream on it has ended.
#
# Connections that are open when the interpreter ends are closed while its threads still run: gRPC reads in a thread per connection, and
# without it a process may hang in gRPC (seen with grpcio 1.74, after a stream was cancelled).


class _Call(Protocol):
    def cancel(self) -> object: ...


C = TypeVar("C", bound=_Call)


class Connections:
    """The connections to one server. Thread-safe.

    Args:
      connect: opens one; gRPC connects when the first call is made.

    Raises:
      TransportError (construction, `take`, `fresh`): see `check_not_forked`.
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
        """The connection for the next call or stream; `put_back` it afterwards."""
        check_not_forked()
        with self._lock:
            self._holders[self._current] += 1
            return self._current

    def put_back(self, connection: grpc.Channel) -> None:
        with self._lock:
            self._holders[connection] -= 1
            self._close_unused(connection)

    @contextmanager
    def taken(self) -> Iterator[grpc.Channel]:
        connection = self.take()
        try:
            yield connection
        finally:
            self.put_back(connection)

    def fresh(self) -> grpc.Channel:
        """A new connection; the caller passes it to `adopt`, or closes it."""
        check_not_forked()
        return self._connect()

    def adopt(self, fresh: grpc.Channel, instead_of: grpc.Channel) -> None:
        """Uses the fresh connection for new calls, unless the old one was replaced already."""
        with self._lock:
            unwanted = fresh
            if self._current is instead_of and not self._is_closed:
                self._current, unwanted = fresh, instead_of
            self._close_unused(unwanted)

    def abandon(self, connection: grpc.Channel) -> None:
        """Uses a new connection for new calls, since this one may be dead."""
        if connection is self._current:
            self.adopt(self.fresh(), connection)

    def close(self) -> None:
        """Ends every call and stream. In a forked process it does nothing: the connections belong to the parent."""
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
    """Closes connections when the interpreter ends; those without references gRPC has closed."""
    if (connections := left()) is not None:
        connections.close()


def begin(start: Callable[[], C]) -> C:
    """Starts a call, and cancels it if Ctrl-C comes meanwhile.

    Ctrl-C raises in the main thread between any two lines. Between those of gRPC that start a call it would leave a call that nothing
    ends, and closing the connection would wait for it for ever (seen with grpcio 1.74). So another thread starts it.
    """
    if threading.current_thread() is not threading.main_thread():
        return start()
    calls: list[C] = []
    errors: list[BaseException] = []
    is_interrupted = False
    has_begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def begin_apart() -> None:
        try:
            calls.append(start())
        except BaseException as error:
            errors.append(error)
        if is_interrupted:
            _cancel(calls)
        has_begun.put(None)

    try:
        # Thread.start and Future.result wait with a Condition, whose lines Ctrl-C breaks ("release unlocked lock"); these two do not.
        _thread.start_new_thread(begin_apart, ())
        has_begun.get()
    except BaseException:
        is_interrupted = True  # before the calls are looked at, so that whichever thread comes second cancels
        _cancel(calls)
        raise
    if errors:
        raise errors.pop()
    return calls[0]


def _cancel(calls: list[C]) -> None:
    for call in calls:
        call.cancel()


# gRPC does not survive a fork. The child has the parent's locks and files, and none of its threads. Observed with grpcio 1.74 and 1.85,
# with GRPC_ENABLE_FORK_SUPPORT unset, 1 and 0: some children work, some hang in their first call, some crash, and one took its parent
# with it in the middle of a push. gRPC's doc/fork_support.md promises it only where gRPC is first used after the fork; so does this module.
_users: set[int] = set()
"""Processes that have used gRPC: this one, or the one that it was forked from, since a fork copies the set."""


def check_not_forked() -> None:
    """Raises TransportError if this process was forked from one that had used gRPC."""
    process = os.getpid()
    if not _users:
        _users.add(process)
    if process not in _users:
        raise TransportError(
            "this process was forked from one that had already connected to a server, which gRPC does not survive. Start "
            'it another way (multiprocessing.get_context("spawn") or "forkserver"), or fork before the first connection '
            "and connect in each child"
        )
