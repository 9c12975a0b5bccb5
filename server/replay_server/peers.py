"""What other replay servers tell of themselves, for one status page over all of them.

They are asked for their /status.json, in a thread of its own and only while somebody looks; nobody waits for an answer. What they
say is data from outside: bounded in size, and of the types that the page needs, or an error.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import msgspec

ASK_SECONDS = 2.0
"""How often peers are asked while somebody looks."""

_TIMEOUT_SECONDS = 2.0
_MOST_BYTES = 4 << 20
"""Of an answer; one of a thousand tables with their curves has less than half of it."""

_MOST_THREADS = 16


class _Limiter(msgspec.Struct):
    inserts_blocked: bool
    samples_blocked: bool


class _Table(msgspec.Struct):
    name: str
    size: int
    max_size: int
    episodes: int
    inserts: int
    samples: int
    limiter: _Limiter


class _Server(msgspec.Struct):
    state: str
    problem: str
    memory_bytes: int


class _Status(msgspec.Struct):
    """What is read of a peer's status document; see `replay_server.status`."""

    server: _Server
    tables: list[_Table]


class PeerError(Exception):
    """A peer does not answer, or with something else than its status."""


def fetch(address: str) -> Any:
    """A peer's status document. No proxy and no redirect is followed.

    Args:
      address: "HOST:PORT" of its HTTP.

    Raises:
      PeerError: it does not come.
    """
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/status.json", headers={"Connection": "close"})
        answer = connection.getresponse()
        body = _body(answer, time.monotonic() + _TIMEOUT_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        raise PeerError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
        raise PeerError("it does not know this name of its own; add it to its http.allowed_hosts")
    if answer.status != HTTPStatus.OK:
        raise PeerError(f"HTTP {answer.status}")
    if len(body) > _MOST_BYTES:
        raise PeerError(f"its status is larger than {_MOST_BYTES:,} bytes")
    try:
        return json.loads(body)
    except ValueError as error:
        raise PeerError("its status is not JSON") from error


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


class Peers:
    """The newest answers of all peers.

    Args:
      addresses: "HOST:PORT" of their HTTP.
      ask: gets one's status document; raises `PeerError`.
    """

    def __init__(self, addresses: Sequence[str], ask: Callable[[str], Any] = fetch) -> None:
        self.addresses, self._ask = tuple(addresses), ask
        self._lock = threading.Lock()
        self._told: dict[str, dict[str, Any]] = {}
        self._asking_since: float | None = None
        self._asked_at = -ASK_SECONDS

    def document(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """What stands in a row, this server first, and the tables of all together. Asks for newer answers, and waits for none.

        Args:
          own: this server's status document.
        """
        self._refresh()
        with self._lock:
            told = [self._told.get(address, _unknown(address)) for address in self.addresses]
        servers = [_entry("this server", own), *told]
        return {"servers": servers, "tables": _sums(servers)}

    def _refresh(self) -> None:
        with self._lock:
            is_due = self._asking_since is None and time.monotonic() - self._asked_at >= ASK_SECONDS
            if not is_due:
                return
            self._asking_since = time.monotonic()
        threading.Thread(target=self.ask_all, name="peers", daemon=True).start()

    def ask_all(self) -> None:
        """Asks all, at the same time, and keeps what they say."""
        try:
            with ThreadPoolExecutor(min(_MOST_THREADS, max(1, len(self.addresses))), "peer") as threads:
                told = dict(zip(self.addresses, threads.map(self._asked, self.addresses)))
        finally:
            with self._lock:
                self._asking_since, self._asked_at = None, time.monotonic()
        with self._lock:
            self._told = told

    def _asked(self, address: str) -> dict[str, Any]:
        try:
            return _entry(address, self._ask(address))
        except PeerError as error:
            return {**_unknown(address), "problem": str(error)}


def _unknown(address: str) -> dict[str, Any]:
    return {"address": address, "state": "no answer", "problem": "", "memory_bytes": 0, "tables": []}


def _entry(address: str, document: Any) -> dict[str, Any]:
    """What the page shows of one server.

    Raises:
      PeerError: the document is none of ours.
    """
    try:
        status = msgspec.convert(document, _Status, strict=True)
    except msgspec.ValidationError as error:
        raise PeerError(f"its status is not that of a replay server: {error}") from error
    return {"address": address, **msgspec.to_builtins(status.server), "tables": msgspec.to_builtins(status.tables)}


_SUMMED = ("size", "max_size", "episodes", "inserts", "samples")


def _sums(servers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tables of one name added up, over the servers that answer; by name."""
    sums: dict[str, dict[str, Any]] = {}
    for table in (table for server in servers for table in server["tables"]):
        added = sums.setdefault(table["name"], {"name": table["name"], "servers": 0, **dict.fromkeys(_SUMMED, 0)})
        added["servers"] += 1
        for name in _SUMMED:
            added[name] += table[name]
    return [sums[name] for name in sorted(sums)]
