"""Ports held for a server that comes later."""

from __future__ import annotations

import socket

import pytest
from replay_server.embedded import held_port

from rlds2reverb.errors import ConfigError

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]


def test_a_free_port_is_held_against_everybody_and_takes_no_connection() -> None:
    with held_port(0) as first, held_port(0) as second:
        assert len({0, first, second}) == 3
        for host in ("", "127.0.0.1"):
            with pytest.raises(OSError, match="in use"):
                socket.create_server((host, first)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first)).close()
        with pytest.raises(ConfigError, match=f"grpc.port {first}: taken"), held_port(first, "grpc.port"):
            pass
    with held_port(first) as again:
        assert again == first


def test_one_of_this_process_that_shares_can_listen_on_it() -> None:
    with held_port(0) as port, socket.create_server(("", port), reuse_port=True):
        socket.create_connection(("127.0.0.1", port)).close()
