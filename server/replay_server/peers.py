"""What other replay servers tell of themselves, for one status page over all of them.

They are asked for their /status.json, in a thread of its own and only while somebody looks; nobody waits for an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.transport.http import ServerHttp, Status

ASK_SECONDS = 2.0
"""How often peers are asked while somebody looks."""

_TIMEOUT_SECONDS = 2.0
_MOST_THREADS = 16


def fetch(address: str) -> Status:
    """A peer's status.

    Args:
      address: "HOST:PORT" of its HTTP.

    Raises:
      Rlds2ReverbError: it does not come.
    """
    return ServerHttp(f"http://{address}").status(_TIMEOUT_SECONDS)


class Peers:
    """The newest answers of all peers.

    Args:
      addresses: "HOST:PORT" of their HTTP.
      ask: gets one's status; raises `Rlds2ReverbError`.
    """

    def __init__(self, addresses: Sequence[str], ask: Callable[[str], Status] = fetch) -> None:
        self.addresses, self._ask = tuple(addresses), ask
        self._lock = threading.Lock()
        self._answers: dict[str, dict[str, Any]] = {}
        self._asking_since: float | None = None
        self._asked_at = -ASK_SECONDS

    def document(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """What stands in a row, this server first, and the tables of all together. Asks for newer answers, and waits for none.

        Args:
          own: this server's status document.
        """
        self._refresh()
        with self._lock:
            answers = [self._answers.get(address, _unknown(address)) for address in self.addresses]
        servers = [_entry("this server", msgspec.convert(own, Status)), *answers]
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
                answers = dict(zip(self.addresses, threads.map(self._asked, self.addresses)))
        finally:
            with self._lock:
                self._asking_since, self._asked_at = None, time.monotonic()
        with self._lock:
            self._answers = answers

    def _asked(self, address: str) -> dict[str, Any]:
        try:
            return _entry(address, self._ask(address))
        except Rlds2ReverbError as error:
            return {**_unknown(address), "problem": str(error)}


def _unknown(address: str) -> dict[str, Any]:
    return {"address": address, "state": "no answer", "problem": "", "memory_bytes": 0, "tables": []}


def _entry(address: str, status: Status) -> dict[str, Any]:
    """What the page shows of one server."""
    server = status.server
    return {
        "address": address,
        "state": server.state,
        "problem": server.problem,
        "memory_bytes": server.memory_bytes,
        "tables": msgspec.to_builtins(status.tables),
    }


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
