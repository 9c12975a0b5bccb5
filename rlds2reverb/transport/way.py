"""How another process gets to the server that a client is connected to: plain values, which can be sent there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rlds2reverb.errors import ConfigError
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.certificates import Certificates
from rlds2reverb.transport.grpc_transport import GrpcTransport


@dataclass(frozen=True)
class Way:
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
class Opens(Protocol):
    """What opens the way to a server."""

    def open(self) -> Transport:
        """A connection of its own; to be closed."""


def way_of(transport: Transport) -> Opens:
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
    return Way(transport.address, transport.credentials, transport.metadata, transport.call_seconds)
