"""What TLS needs, as plain bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc


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
