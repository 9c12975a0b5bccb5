"""An open gRPC stream, and the connection that it is on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from rlds2reverb.errors import TransportError
from rlds2reverb.transport.connections import Connections


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

    def leave(self) -> None:
        """Cancels it; new calls and streams go over another connection."""
        self._connections.leave(self._connection)
        self.cancel()
