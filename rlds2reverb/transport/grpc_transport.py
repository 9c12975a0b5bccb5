"""The transport over gRPC: calls to Reverb with deadlines, streams, and gRPC's errors translated; none escapes.

Source of the method names: reverb_service.proto.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import grpc

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ServerUnreachable, TransportError
from rlds2reverb.transport.address import host_and_port
from rlds2reverb.transport.certificates import Certificates
from rlds2reverb.transport.connections import Connections, begin
from rlds2reverb.transport.grpc_pending import GrpcPendingInfo
from rlds2reverb.transport.grpc_stream import GrpcStream
from rlds2reverb.transport.probe import why_unavailable
from rlds2reverb.transport.question import Question
from rlds2reverb.transport.statuses import INSERTING, NO_ANSWER, SAMPLING, call_error, refused_call, stream_error
from rlds2reverb.transport.waiting import Deadlines
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
        self.metadata = self._metadata = tuple(metadata)
        self.call_seconds = self._call_seconds = call_seconds
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
        end, waits = time.monotonic() + self._call_seconds, not at_once
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
                data = call(codec.encode_checkpoint_request(), timeout=seconds, metadata=self._metadata)
        except ValueError as error:
            raise self._refused(error) from error
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
            call = self._start_server_info(False, connection, self._call_seconds)
        except ValueError as error:
            self._connections.put_back(connection)
            raise self._refused(error) from error
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
            call = begin(lambda: connection.stream_stream(f"{_SERVICE}{method}")(messages, metadata=self._metadata))
        except ValueError as error:
            self._connections.put_back(connection)
            raise self._refused(error) from error
        return GrpcStream(call, connection, self._connections, partial(self._broken_stream, doing))

    def _call(self, method: str, request: bytes, doing: str) -> None:
        """A short call whose answer has no fields."""
        try:
            with self._connections.taken() as connection:
                call = connection.unary_unary(f"{_SERVICE}{method}")
                call(request, timeout=self._call_seconds, metadata=self._metadata, wait_for_ready=True)
        except ValueError as error:
            raise self._refused(error) from error
        except grpc.RpcError as error:
            raise self._translate(error, doing) from error

    def _connect(self) -> grpc.Channel:
        if self.credentials is None:
            return grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
        given = self.credentials
        credentials = given.credentials() if isinstance(given, Certificates) else given
        return grpc.secure_channel(self.address, credentials, _CHANNEL_OPTIONS)

    def _ask_server_info(self, seconds: float, waits: bool) -> bytes:
        """The answer; `waits` for a connection: gRPC tries until the deadline, and does not say why there is none."""
        try:
            return Question(self._connections, partial(self._start_server_info, waits), seconds).answer()
        except ValueError as error:
            raise self._refused(error) from error
        except TimeoutError as error:
            raise ServerUnreachable(f"{self._unanswered()}: gRPC itself says nothing") from error

    def _start_server_info(self, waits: bool, connection: grpc.Channel, seconds: float) -> Any:
        call = connection.unary_unary(f"{_SERVICE}ServerInfo")
        request = codec.encode_server_info_request()
        return begin(lambda: call.future(request, timeout=seconds, metadata=self._metadata, wait_for_ready=waits))

    def _no_answer(self, error: grpc.RpcError) -> TransportError:
        """What it means that ServerInfo failed; looks what is there when no connection came about."""
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
        return f"server {self.address}: no answer within {self._call_seconds:g} s"

    def _refused(self, error: ValueError) -> TransportError:
        """What it means that gRPC makes no call at all, which it says with a ValueError."""
        return refused_call(self.address, error)

    def _translate(self, error: grpc.RpcError, doing: str, seconds: float | None = None) -> TransportError:
        return call_error(self.address, doing, error.code().name, error.details(), seconds or self._call_seconds)

    def _broken_stream(self, doing: str, error: grpc.RpcError) -> TransportError:
        return stream_error(self.address, doing, error.code().name, error.details())
