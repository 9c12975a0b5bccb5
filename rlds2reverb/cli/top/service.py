"""What a replay server tells over HTTP that Reverb does not: memory, phase, checkpoints. What comes is data from outside."""

from __future__ import annotations

import http.client
import json
import math
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from rlds2reverb.cli.top.texts import visible
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError, WireError

_MOST_BYTES = 8 << 20
"""Of an answer; one of a thousand tables with all their rates has 4 MB."""

_MOST_SECONDS = 86_400.0
"""For an answer; sockets take no more than some 68 years."""

_MOST_NUMBER = 1 << 63
_EXPECTED = "expected an address such as http://127.0.0.1:8080"


@dataclass(frozen=True)
class Checkpoint:
    """The newest generation.

    Attributes:
      generation: its number.
      created: Unix time, by the server's clock.
      bytes: on disk.
    """

    generation: int
    created: float
    bytes: int


@dataclass(frozen=True)
class Service:
    """What is read of /status.json; see `replay_server.status`. Times are Unix times of the server's clock.

    Attributes:
      phase: such as "ready".
      problem: why Reverb does not answer it, or "".
      now: when it said so.
      started_at: of the process.
      memory_bytes: of the process; 0 where it cannot tell.
      checkpoint: None before the first.
      writing_since: when a checkpoint is being written.
      failures: checkpoints that could not be written since the start.
      checkpoint_problem: what is wrong with the newest attempt or the folder, or "".
    """

    phase: str
    problem: str
    now: float
    started_at: float
    memory_bytes: int
    checkpoint: Checkpoint | None
    writing_since: float | None
    failures: int
    checkpoint_problem: str


class Address:
    """Where a service tells of itself.

    Args:
      url: of its HTTP, such as http://127.0.0.1:8080, with a path behind a proxy.
      authority, certificate, key: files (PEM) for https; None for the system's authorities, and for no certificate of ours.

    Raises:
      ConfigError: not an address of http or https, or a file that cannot be used.
    """

    def __init__(
        self, url: str, authority: Path | None = None, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._parts = _split(url)
        self._tls = None if self._parts.scheme == "http" else _tls(url, authority, certificate, key)

    def ask(self, seconds: float) -> Service:
        """What it tells now. No proxy and no redirect is followed.

        Raises:
          ServerUnreachable: no answer within so many seconds.
          TransportError: it refuses.
          WireError: what answers is no replay server.
        """
        seconds = min(seconds, _MOST_SECONDS)
        connection = self._connection(seconds)
        try:
            connection.request("GET", f"{self._parts.path.rstrip('/')}/status.json", headers={"Connection": "close"})
            answer = connection.getresponse()
            body = _body(answer, time.monotonic() + seconds)
        except http.client.HTTPException as error:
            raise WireError(
                f"{self.url}: what answers there does not speak HTTP; give http.port, not grpc.port"
            ) from error
        except OSError as error:
            raise ServerUnreachable(f"{self.url}: no answer ({error or type(error).__name__})") from error
        finally:
            connection.close()
        if answer.status != HTTPStatus.OK:
            raise TransportError(f"{self.url}: HTTP {answer.status}; {_way_out(answer.status)}")
        return _decoded(self.url, body)

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=seconds)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)


def read(document: Any) -> Service:
    """What is needed of a status document.

    Raises:
      WireError: it has not what a replay server tells, or not as it tells it.
    """
    server, checkpoints = _part(document, "server"), _part(document, "checkpoints")
    last, since = checkpoints.get("last"), checkpoints.get("writing_since")
    return Service(
        phase=_text(server, "state"),
        problem=_text(server, "problem"),
        now=_number(server, "now"),
        started_at=_number(server, "started_at"),
        memory_bytes=int(_number(server, "memory_bytes")),
        checkpoint=None if last is None else _checkpoint(_part(checkpoints, "last")),
        writing_since=None if since is None else _number(checkpoints, "writing_since"),
        failures=int(_number(checkpoints, "failures")),
        checkpoint_problem=_text(checkpoints, "problem") or _text(checkpoints, "last_error"),
    )


def _checkpoint(last: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(int(_number(last, "generation")), _number(last, "created"), int(_number(last, "bytes")))


def _part(document: Any, name: str) -> Mapping[str, Any]:
    part = document.get(name) if isinstance(document, dict) else None
    if not isinstance(part, dict):
        raise WireError(f'its status is not that of a replay server: expected an object "{name}"')
    return part


def _text(part: Mapping[str, Any], name: str) -> str:
    value = part.get(name)
    if not isinstance(value, str):
        raise WireError(f'its status is not that of a replay server: expected a text "{name}"')
    return visible(" ".join(value.split()))


def _number(part: Mapping[str, Any], name: str) -> float:
    value = part.get(name)
    if not isinstance(value, int | float) or not abs(value) < _MOST_NUMBER or not math.isfinite(value):
        raise WireError(f'its status is not that of a replay server: expected a number "{name}"')
    return value


def _decoded(url: str, body: bytes) -> Service:
    if len(body) > _MOST_BYTES:
        raise WireError(f"{url}: its status is larger than {_MOST_BYTES:,} bytes")
    try:
        return read(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{url}: its status is not JSON; is this the server's http.port?") from error
    except WireError as error:
        raise WireError(f"{url}: {error}") from error


def _way_out(status: int) -> str:
    if status == HTTPStatus.MISDIRECTED_REQUEST:
        return "it does not know this name of its own; add it to its http.allowed_hosts"
    return "is this the server's http.port?"


def _body(answer: http.client.HTTPResponse, until: float) -> bytes:
    """What comes of an answer until then; a little more than `_MOST_BYTES` at most.

    Raises:
      TimeoutError: its end does not.
    """
    body = b""
    while len(body) <= _MOST_BYTES and (part := answer.read1(1 << 16)):
        body += part
        if time.monotonic() > until:
            raise TimeoutError("it comes too slowly")
    return body


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f'--http "{url}": {_EXPECTED} ({error})') from error
    if not is_known or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f'--http "{url}": {_EXPECTED}')
    return parts


def _tls(url: str, authority: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f'--http "{url}": the certificates cannot be used ({error})') from error
    return context
