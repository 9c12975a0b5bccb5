"""Ports of this host."""

from __future__ import annotations

import socket

from rlds2reverb.errors import ConfigError


def check_port_is_free(port: int, name: str = "port") -> None:
    """Refuses what gRPC does not: to share a port with a server that allows it (SO_REUSEPORT); clients would meet either.

    Raises:
      ConfigError: something listens on the port.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6).close()
    except OSError as error:
        raise ConfigError(
            f"{name} {port}: taken, or not allowed ({error}); choose another, or none for a free one"
        ) from error
