"""Which server an item's key came from, for the items that were sampled last."""

from __future__ import annotations

import threading

import numpy as np

from rlds2reverb.episodes import Array

LEAST_KEYS = 1 << 17
"""That are remembered: five hundred batches of 256."""


class Routes:
    """Remembers the servers of keys. Thread-safe: all samplers of a table tell one, and priorities are updated by it.

    The keys are in two halves. Once the newer half is full, the older one is forgotten, and the newer takes its place.

    Args:
      least: so many different keys are remembered for certain, those that came last; and never more than twice as many.
    """

    def __init__(self, least: int = LEAST_KEYS) -> None:
        self._least = least
        self._lock = threading.Lock()
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def __len__(self) -> int:
        """Keys that are remembered; one that came in both halves counts twice."""
        with self._lock:
            return len(self._newer) + len(self._older)

    def remember(self, keys: Array, servers: Array) -> None:
        """Takes note of a batch: [n] uint64 keys, and [n] numbers of the servers that they came from."""
        for start in range(0, len(keys), self._least):  # no half is ever fuller than it may be
            told = dict(zip(keys[start : start + self._least].tolist(), servers[start : start + self._least].tolist()))
            with self._lock:
                if len(self._newer) + sum(key not in self._newer for key in told) > self._least:
                    self._newer, self._older = {}, self._newer
                self._newer.update(told)

    def servers_of(self, keys: Array) -> Array:
        """[n] int64 number of the server that each key came from last; -1 where that is not known."""
        wanted = keys.tolist()
        with self._lock:
            found = [self._newer.get(key, self._older.get(key, -1)) for key in wanted]
        return np.array(found, np.int64)
