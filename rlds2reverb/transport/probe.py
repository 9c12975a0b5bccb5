"""Why no call reaches a server, in a sentence: no such name, nobody listens, another protocol, TLS on one side only.

gRPC says UNAVAILABLE for all of them, in words that change with its versions. So a plain socket looks what is there: what does it
answer to the first bytes of HTTP/2, and to those of TLS? Nothing else is sent. Where gRPC goes through a proxy, which a
socket does not, only gRPC's own words are read.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import socket
import ssl
import time
import urllib.request
from dataclasses import dataclass

from rlds2reverb.transport.address import host_and_port

_LOOK_SECONDS = 1.0
"""Bound of all looking together, but for the name's look-up, which gRPC has done a moment before."""

_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Connection preface and an empty SETTINGS frame. Source: RFC 9113, 3.4 and 6.5."""

_FRAME_TYPE_AT, _SETTINGS = 3, 4
_TLS_RECORDS, _TLS_MAJOR_VERSION = (0x15, 0x16), 3
"""Alert or handshake, and the version: how an answer in TLS begins. Source: RFC 8446, 5.1."""

_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY_VARIABLES = ("no_grpc_proxy", "no_proxy")
"""What gRPC reads, each first to last. Source: gRPC's doc/environment_variables.md."""

_NO_NAME = re.compile(r"(?i)dns resolution|errors? resolving|address lookup")


@dataclass(frozen=True)
class Finding:
    """What is there instead of the server.

    Attributes:
      sentence: what, and how to go on.
      may_change: whether a server that is just starting looks like this.
    """

    sentence: str
    may_change: bool


class _Answer(enum.Enum):
    """What a listener has to say."""

    HTTP2 = enum.auto()
    HTTP1 = enum.auto()
    TLS = enum.auto()
    OTHER = enum.auto()
    NOTHING = enum.auto()


def why_unavailable(address: str, is_tls: bool, details: str) -> Finding | None:
    """Looks what is at an address that gRPC could not reach.

    Args:
      address: "host:port".
      is_tls: whether the client speaks TLS.
      details: what gRPC said.

    Returns:
      None when a server may well be there: it was cut off, is overloaded, or says nothing.
    """
    host, port = host_and_port(address)
    if _NO_NAME.search(details):
        return Finding(
            f'the name "{host}" is not found ({_reason(details)}); check its spelling, or give the server\'s IP address',
            True,
        )
    if is_tls and "CERTIFICATE_VERIFY_FAILED" in details:
        return Finding(
            "its certificate is not accepted: it must be signed by the authority that the client was given (--tls-ca, "
            f"credentials=) and hold the name or IP address {host}",
            False,
        )
    if proxy := _proxy(host):
        return Finding(
            f"not reached through the proxy that the environment variable {proxy} names ({details}); unset it, or list "
            f"{host} in no_proxy",
            True,
        )
    return _look(host, port, is_tls)


def _reason(details: str) -> str:
    """The last clause of gRPC's words."""
    return details.strip("[] ").rpartition(": ")[2]


def _proxy(host: str) -> str:
    """The environment variable that names a proxy for this host; "" for none."""
    unless = next(filter(None, map(os.environ.get, _NO_PROXY_VARIABLES)), "")
    if urllib.request.proxy_bypass_environment(host, {"no": unless}):  # type: ignore[attr-defined]
        return ""
    return next((name for name in _PROXY_VARIABLES if os.environ.get(name)), "")


def _look(host: str, port: int, is_tls: bool) -> Finding | None:
    end = time.monotonic() + _LOOK_SECONDS
    try:
        answer = _answer_to_tls(host, port, end) if is_tls else _answer_to_plain(host, port, end)
    except ConnectionRefusedError:
        return Finding("nothing listens there (connection refused); is it running, and is this its port?", True)
    except (OSError, UnicodeError):  # no route, no answer in time; a name that is none, which gRPC let pass
        return None
    return _finding(answer, is_tls)


def _finding(answer: _Answer, is_tls: bool) -> Finding | None:
    if answer is _Answer.HTTP1:
        return Finding(
            "not a Reverb server: a web server answers there (HTTP/1). Give the port of gRPC, not that of the status page: "
            "grpc.port of `rlds2reverb serve`, 8000 unless configured",
            False,
        )
    if answer is _Answer.OTHER:
        return Finding("not a Reverb server: what answers there does not speak HTTP/2; check the port", False)
    if answer is _Answer.TLS and not is_tls:
        return Finding(
            "it speaks TLS, and this client plain text: name the certificate authority (--tls-ca, credentials=)", False
        )
    if answer is _Answer.HTTP2 and is_tls:
        return Finding("it speaks plain text, and this client TLS: leave out --tls-ca (credentials=)", False)
    return None


def _answer_to_plain(host: str, port: int, end: float) -> _Answer:
    answer = _greet(host, port, end)
    # A server that waits for TLS closes the connection, answers with an alert, or, as nginx does, in plain HTTP/1.
    return _Answer.TLS if answer is not _Answer.HTTP2 and _speaks_tls(host, port, end) else answer


def _answer_to_tls(host: str, port: int, end: float) -> _Answer:
    return _Answer.TLS if _speaks_tls(host, port, end) else _greet(host, port, end)


def _greet(host: str, port: int, end: float) -> _Answer:
    """What is answered to the greeting of HTTP/2."""
    data = b""
    with _connect(host, port, end) as connection, contextlib.suppress(OSError):
        connection.sendall(_HTTP2_GREETING)
        while len(data) <= _FRAME_TYPE_AT:
            connection.settimeout(_left(end))
            received = connection.recv(64)
            if not received:
                break
            data += received
    return _kind(data)


def _kind(data: bytes) -> _Answer:
    if len(data) <= _FRAME_TYPE_AT:  # cut off before it told anything
        return _Answer.NOTHING
    if data.startswith((b"HTTP", b"<")):  # HTTP/0.9, with which some answer what they do not understand, is bare HTML
        return _Answer.HTTP1
    if data[0] in _TLS_RECORDS and data[1] == _TLS_MAJOR_VERSION:
        return _Answer.TLS
    return _Answer.HTTP2 if data[_FRAME_TYPE_AT] == _SETTINGS else _Answer.OTHER


def _speaks_tls(host: str, port: int, end: float) -> bool:
    """Whether a handshake goes well, or fails in the way of a server that speaks TLS. Nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # who it is does not matter here
    context.set_alpn_protocols(["h2"])
    with _connect(host, port, end) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=host):
                return True
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")
        except OSError:  # cut off, or silent
            return False


def _connect(host: str, port: int, end: float) -> socket.socket:
    """To the first of the name's addresses that takes it before the end; with the error of the last one, as gRPC has it."""
    failure = OSError("no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if isinstance(failure, TimeoutError):
            break  # one that is silent takes the time of all
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left(end))
            connection.connect(place)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _left(end: float) -> float:
    return max(0.05, end - time.monotonic())
