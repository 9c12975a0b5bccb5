"""How many items a table has on each of several servers; asked now and then, and never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.learner.several.servers import Servers
from rlds2reverb.transport.base import PendingInfo
from rlds2reverb.wire.messages import ServerInfo

ASK_SECONDS = 1.0
"""How often each server is asked."""


class Sizes:
    """The sizes of one table, by the server's number. Any thread may close it.

    Args:
      servers: of the group.
      table: its name.
      infos: what was told of the servers just now; of those that can be reached.
      ask_seconds: how often to ask.

    Attributes:
      infos: what was told last.
    """

    def __init__(
        self, servers: Servers, table: str, infos: Mapping[int, ServerInfo], ask_seconds: float = ASK_SECONDS
    ) -> None:
        self._servers, self._table, self._ask_seconds = servers, table, ask_seconds
        self.infos = dict(infos)
        self._away = set(range(len(servers.transports))) - set(infos)
        self._asked: dict[int, PendingInfo] = {}
        self._asked_at = time.monotonic()
        self._lock = threading.Lock()  # of the questions
        self._is_closed = False

    def now(self) -> Array:
        """[n] float64 items of each server, as far as that is known; 0 for one that is away, or has no such table."""
        with self._lock:
            self._look()
            if time.monotonic() - self._asked_at >= self._ask_seconds and not self._is_closed:
                self._asked_at = time.monotonic()
                for number, transport in enumerate(self._servers.transports):
                    if number not in self._asked:
                        self._asked[number] = transport.ask_server_info()
                self._look()
        return np.array([self._size(number) for number in range(len(self._servers.transports))], np.float64)

    def asked(self, number: int) -> int:
        """Items of one server, asked for now; 0 for one that is away, or cannot be reached. Raises as `Servers.each`."""
        if number not in self._away:
            self.put(self._servers.each(lambda transport: transport.server_info(), [number]))
            self._away |= {number} if self._servers.addresses[number] in self._servers.missing else set()
        return self._size(number)

    def put(self, infos: Mapping[int, ServerInfo]) -> None:
        """Takes note of what was told in another way."""
        self.infos.update(infos)
        self._away -= set(infos)

    def lose(self, number: int) -> None:
        """Takes note that a server is away; the next answer brings it back."""
        self._away.add(number)
        with self._lock:
            if number in self._asked:
                self._asked.pop(number).drop()

    def is_away(self, number: int) -> bool:
        """Whether a server is known to be away."""
        return number in self._away

    def close(self) -> None:
        """Drops what was asked and is not answered, and asks for no more."""
        with self._lock:
            self._is_closed = True
            for question in self._asked.values():
                question.drop()
            self._asked.clear()

    def _look(self) -> None:
        for number in [number for number, question in self._asked.items() if question.is_over]:
            info = self._asked.pop(number).answer()
            if info is not None:
                self.put({number: info})
                self._servers.found(number)

    def _size(self, number: int) -> int:
        if number in self._away or self._table not in self.infos[number].tables:
            return 0
        return self.infos[number].tables[self._table].current_size
