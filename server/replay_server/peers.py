"""The status of other replay servers, for one status page over all of them.

Their /status.json is fetched in a thread of its own, only while somebody looks; no request waits for an answer.
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

ASK_SECONDS = 2.0  # between two rounds while somebody looks
_TIMEOUT_SECONDS = 2.0
_MOST_THREADS = 16


def fetch(address: str) -> Status:
    """The status of the peer with this "HOST:PORT" of HTTP."""
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
        self._is_asking = False
        self._asked_at = -ASK_SECONDS

    def document(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """One entry per server, this one first, and the sums of their tables. Requests newer answers, and waits for none."""
        with self._lock:
            answers = [self._answers.get(address, _unknown_entry(address)) for address in self.addresses]
            is_due = not self._is_asking and time.monotonic() - self._asked_at >= ASK_SECONDS
            self._is_asking |= is_due
        if is_due:
            threading.Thread(target=self.ask_all, name="peers", daemon=True).start()
        servers = [_entry("this server", msgspec.convert(own, Status)), *answers]
        return {"servers": servers, "tables": _sums(servers)}

    def ask_all(self) -> None:
        """Asks all at the same time, and keeps their answers."""
        answers = self._answers
        try:
            with ThreadPoolExecutor(min(_MOST_THREADS, max(1, len(self.addresses))), "peer") as threads:
                answers = dict(zip(self.addresses, threads.map(self._asked, self.addresses)))
        finally:
            with self._lock:
                self._answers, self._is_asking, self._asked_at = answers, False, time.monotonic()

    def _asked(self, address: str) -> dict[str, Any]:
        try:
            return _entry(address, self._ask(address))
        except Rlds2ReverbError as error:
            return {**_unknown_entry(address), "problem": str(error)}


def _unknown_entry(address: str) -> dict[str, Any]:
    return {"address": address, "state": "no answer", "problem": "", "memory_bytes": 0, "tables": []}


def _entry(address: str, status: Status) -> dict[str, Any]:
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
