"""The only place with a socket: gRPC calls to Reverb, with deadlines, and gRPC's errors translated.

Source of the method names: reverb_service.proto.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import ServerInfo

_ADDRESS = re.compile(r"[^\s/]+:([0-9]{1,5})")
_SERVICE = "/deepmind.reverb.ReverbService/"
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),  # in truth: how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)

RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)
"""Status codes after which the same call may succeed: a cut connection, a proxy's or server's restart."""


@dataclass(frozen=True)
class Deadlines:
    """How long each kind of wait may last, in seconds.

    Attributes:
      call: one short call (ServerInfo).
      reconnect: from a broken stream to a server that answers again.
      notice: without a confirmation, until the wait is explained to the caller.
      stall: without a confirmation, until the push gives up; broken streams and reconnecting count. Of a server that does not
        answer at all, the last question and the end of the stream take up to a `call` each beyond it.
      backoff_first, backoff_most: first and longest pause between two attempts; doubled in between.
    """

    call: float = 10.0
    reconnect: float = 60.0
    notice: float = 2.0
    stall: float = 300.0
    backoff_first: float = 0.1
    backoff_most: float = 5.0


_ASK_AGAIN_SECONDS = 0.1
"""Pause before ServerInfo is asked again on a new connection."""


_NUDGE_SECONDS = 1.0
"""When a call without an answer gets another one behind it. Observed with grpcio 1.74: a reset that comes together
with data stays unseen until the connection is next written to, and the calls on it wait until their deadline."""


class ReverbChannel:
    """A channel to one server.

    Args:
      address: "host:port".
      credentials: `grpc.ssl_channel_credentials(...)` for TLS; None for plain text.
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
        host_and_port = _ADDRESS.fullmatch(address)
        if host_and_port is None or not 0 < int(host_and_port[1]) < 1 << 16:
            raise ConfigError(f'server address "{address}": expected HOST:PORT, such as localhost:8000')
        self.address = address
        self._metadata = tuple(metadata)
        self._call_seconds = call_seconds
        if credentials is None:
            self._channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, _CHANNEL_OPTIONS)

    def server_info(self) -> ServerInfo:
        """Asks for all tables.

        Raises:
          ServerUnreachable: no answer within the deadline, cut connections included.
          TransportError: the server refuses to answer, or this channel is closed.
          WireError: an answer that is not Reverb's.
        """
        end = time.monotonic() + self._call_seconds
        while True:
            left_seconds = max(0.0, end - time.monotonic())
            try:
                data = self._ask_server_info(left_seconds)
            except grpc.RpcError as error:
                # Waiting for a server to come up is gRPC's part; a connection that is cut while it answers is ours.
                if error.code() is not grpc.StatusCode.UNAVAILABLE or left_seconds < _ASK_AGAIN_SECONDS:
                    raise self._translate(error, "asking for its tables") from error
                time.sleep(_ASK_AGAIN_SECONDS)
            else:
                return codec.decode_server_info(data)

    def checkpoint(self, seconds: float) -> str:
        """Has the server write a checkpoint; inserts, samples and updates wait meanwhile.

        Args:
          seconds: deadline; the server goes on writing after it.

        Returns:
          The folder on the server's machine. Reverb keeps one checkpoint and deletes every other entry beside it.

        Raises:
          ServerUnreachable: no answer within the deadline.
          TransportError: the server has no checkpointer, or could not write.
          WireError: an answer that is not Reverb's.
        """
        call = self._channel.unary_unary(f"{_SERVICE}Checkpoint")
        try:
            data = call(codec.encode_checkpoint_request(), timeout=seconds, metadata=self._metadata)
        except ValueError as error:
            raise self._refused(error) from error
        except grpc.RpcError as error:
            raise self._translate(error, "writing a checkpoint", seconds) from error
        return codec.decode_checkpoint_path(data)

    def insert_stream(self, messages: Iterator[bytes]) -> Any:
        """Opens an insert stream that sends `messages`; iterate the result for responses (bytes).

        Raises:
          TransportError: this channel is closed.
        """
        try:
            return self._channel.stream_stream(f"{_SERVICE}InsertStream")(messages, metadata=self._metadata)
        except ValueError as error:
            raise self._refused(error) from error

    def broken_stream(self, error: grpc.RpcError) -> TransportError:
        """What an error of an insert stream means."""
        return self._translate(error, "inserting")

    def close(self) -> None:
        """Closes the channel; calls under way end with an error."""
        self._channel.close()

    def _ask_server_info(self, seconds: float) -> bytes:
        first = self._start_server_info(seconds)
        try:
            data: bytes = first.result(_NUDGE_SECONDS)
        except grpc.FutureTimeoutError:
            nudge = self._start_server_info(seconds)
            try:
                data = first.result()
            finally:
                nudge.cancel()
        return data

    def _start_server_info(self, seconds: float) -> Any:
        request, call = codec.encode_server_info_request(), self._channel.unary_unary(f"{_SERVICE}ServerInfo")
        try:
            return call.future(request, timeout=seconds, metadata=self._metadata, wait_for_ready=True)
        except ValueError as error:
            raise self._refused(error) from error

    def _refused(self, error: ValueError) -> TransportError:
        """What it means that gRPC makes no call at all, which it says with a ValueError."""
        return TransportError(
            f"server {self.address}: no call can be made ({error}): the client was closed, or its metadata are no headers"
        )

    def _translate(self, error: grpc.RpcError, doing: str, seconds: float | None = None) -> TransportError:
        code, details = error.code(), error.details()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) and doing != "inserting":
            return ServerUnreachable(
                f"server {self.address}: no answer within {seconds or self._call_seconds:g} s ({code.name}: {details}); "
                "is it running, and is it a Reverb server (TLS or plain as this client expects)?"
            )
        return TransportError(f"server {self.address}, {doing}: {code.name}: {details}", retryable=code in RETRYABLE)


def retry_until(deadline_seconds: float, deadlines: Deadlines, attempt: Callable[[], ServerInfo]) -> ServerInfo:
    """Calls `attempt` with growing pauses until it succeeds.

    Raises:
      TransportError: the last one, when it is not retryable or the deadline has passed.
    """
    end = time.monotonic() + deadline_seconds
    pause = deadlines.backoff_first
    while True:
        try:
            return attempt()
        except TransportError as error:
            if not error.retryable or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, deadlines.backoff_most)
