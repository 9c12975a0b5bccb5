"""Why no call reaches a server, in a sentence: unknown name, nothing listens, another protocol, TLS on one side only.

gRPC says UNAVAILABLE for all of them, in words that change with its versions. So a plain socket sends the first bytes of HTTP/2, and
those of TLS, and nothing else. If gRPC goes through a proxy, only gRPC's own words are read.
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

from rlds2reverb.transport.base import host_and_port

_LOOK_SECONDS = 1.0  # of the whole probe; without the lookup of the name, which gRPC has just done

# Connection preface and an empty SETTINGS frame. Source: RFC 9113, 3.4 and 6.5.
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_TYPE_AT, _SETTINGS = 3, 4
# How an answer in TLS begins: alert or handshake, and the version. Source: RFC 8446, 5.1.
_TLS_RECORDS, _TLS_MAJOR_VERSION = (0x15, 0x16), 3
# What gRPC reads, in this order. Source: gRPC's doc/environment_variables.md.
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY_VARIABLES = ("no_grpc_proxy", "no_proxy")

# gRPC's words for a name that is not found, which differ between its versions.
_NO_NAME = re.compile(r"(?i)dns resolution|errors? resolving|address lookup")


@dataclass(frozen=True)
class Finding:
    sentence: str  # what was found, and how to go on
    may_change: bool  # whether a server that is just starting looks like this


class _Answer(enum.Enum):
    HTTP2 = enum.auto()
    HTTP1 = enum.auto()
    TLS = enum.auto()
    OTHER = enum.auto()
    NOTHING = enum.auto()


def why_unavailable(address: str, is_tls: bool, details: str) -> Finding | None:
    """Probes an address that gRPC could not reach.

    Args:
      address: "host:port".
      is_tls: whether the client speaks TLS.
      details: gRPC's message.

    Returns:
      None when a server may be there: cut off, overloaded, or silent.
    """
    host, port = host_and_port(address)
    if _NO_NAME.search(details):
        return Finding(
            f'the name "{host}" is not found ({details.strip("[] ").rpartition(": ")[2]}); check its spelling, or give the server\'s IP address',
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


def _proxy(host: str) -> str:
    """The environment variable that names a proxy for this host; "" without one."""
    unless = next(filter(None, map(os.environ.get, _NO_PROXY_VARIABLES)), "")
    if urllib.request.proxy_bypass_environment(host, {"no": unless}):  # type: ignore[attr-defined]
        return ""
    return next((name for name in _PROXY_VARIABLES if os.environ.get(name)), "")


def _look(host: str, port: int, is_tls: bool) -> Finding | None:
    end = time.monotonic() + _LOOK_SECONDS
    try:
        # A server that waits for TLS closes a plain connection, answers with an alert, or, as nginx does, in plain HTTP/1.
        answer = _Answer.TLS if is_tls and _speaks_tls(host, port, end) else _greet(host, port, end)
        if not is_tls and answer is not _Answer.HTTP2 and _speaks_tls(host, port, end):
            answer = _Answer.TLS
    except ConnectionRefusedError:
        return Finding("nothing listens there (connection refused); is it running, and is this its port?", True)
    except (OSError, UnicodeError):  # no route, no answer in time; or a name that is not valid, which gRPC let pass
        return None
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


def _greet(host: str, port: int, end: float) -> _Answer:
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
    if len(data) <= _FRAME_TYPE_AT:
        return _Answer.NOTHING
    # Bare HTML is HTTP/0.9, with which some servers answer what they do not understand.
    if data.startswith((b"HTTP", b"<")):
        return _Answer.HTTP1
    if data[0] in _TLS_RECORDS and data[1] == _TLS_MAJOR_VERSION:
        return _Answer.TLS
    return _Answer.HTTP2 if data[_FRAME_TYPE_AT] == _SETTINGS else _Answer.OTHER


def _speaks_tls(host: str, port: int, end: float) -> bool:
    """Whether a handshake succeeds, or fails as with a server that speaks TLS. Nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # its identity does not matter here
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
    """Connects to the first address of the name that accepts; raises the error of the last one, as gRPC does."""
    failure = OSError("no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if isinstance(failure, TimeoutError):
            break  # no time left for the rest
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
