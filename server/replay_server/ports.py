"""Ports of this host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from rlds2reverb.errors import ConfigError


def check_port_is_free(port: int, name: str = "port") -> None:
    """Refuses a port that a server listens on. gRPC would share it with one that allows that (SO_REUSEPORT): clients would meet either.

    Raises:
      ConfigError: something listens on the port.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6).close()
    except OSError as error:
        raise ConfigError(f"{name} {port}: taken, or not allowed ({error}); choose another one") from error


@contextmanager
def held_port(port: int, name: str = "port") -> Iterator[int]:
    """A port that is kept, inside the `with` block, for a gRPC server of this process to listen on.

    It is bound and does not listen, so it takes no connection away; gRPC, which shares ports, can listen on it beside, and nobody
    else can. So a free port stays free until Reverb has it. Reverb could not tell which port it chose by itself.

    Args:
      port: 0 for a free one.
      name: of the option, for messages.

    Raises:
      ConfigError: something listens on the port.
    """
    if port:
        check_port_is_free(port, name)
    with socket.socket(
        socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_STREAM
    ) as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if holding.family == socket.AF_INET6:
            holding.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            holding.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"{name} {port}: taken meanwhile ({error}); choose another, or 0 for a free one"
            ) from error
        yield int(holding.getsockname()[1])
