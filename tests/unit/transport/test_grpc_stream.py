"""A gRPC stream: what is read of it, its errors as ours, and where its connection goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rlds2reverb.errors import TransportError
from rlds2reverb.transport.grpc import Connections, GrpcStream


class Channel:
    """A connection that only knows whether it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Broken(grpc.RpcError):
    pass


class Call:
    """A call with these messages, and an error behind them."""

    def __init__(self, messages: list[bytes], error: Exception | None = None) -> None:
        self.messages, self.error = messages, error
        self.cancelled = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.messages
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.cancelled = True


def stream_of(call: Call) -> tuple[GrpcStream, Connections, Any]:
    connections = Connections(Channel)
    connection = connections.take()
    return (
        GrpcStream(call, connection, connections, lambda error: TransportError(f"ours: {error}")),
        connections,
        connection,
    )


def test_a_stream_gives_the_servers_messages() -> None:
    call = Call([b"a", b"b"])
    stream, _, _ = stream_of(call)
    assert list(stream) == [b"a", b"b"]
    assert not call.cancelled


def test_an_error_of_grpc_comes_as_ours_after_the_messages_before_it() -> None:
    stream, _, _ = stream_of(Call([b"a"], Broken("gone")))
    messages = iter(stream)
    assert next(messages) == b"a"
    with pytest.raises(TransportError, match="ours: gone") as error:
        next(messages)
    assert isinstance(error.value.__cause__, grpc.RpcError)


def test_an_error_that_is_not_grpcs_is_not_hidden() -> None:
    stream, _, _ = stream_of(Call([], ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        list(stream)


def test_ending_it_puts_its_connection_back_and_keeps_it() -> None:
    call = Call([])
    stream, connections, connection = stream_of(call)
    stream.end()
    assert call.cancelled
    assert not connections._holders
    assert connections.take() is connection


def test_leaving_it_has_what_is_new_go_over_another_connection_and_closes_its_own_at_its_end() -> None:
    call = Call([])
    stream, connections, connection = stream_of(call)
    stream.abandon()
    assert call.cancelled
    assert connections.take() is not connection
    assert not connection.is_closed
    stream.end()
    assert connection.is_closed
