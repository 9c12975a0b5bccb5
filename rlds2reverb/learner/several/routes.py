"""Which server an item's key came from, for the items that were sampled last."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from rlds2reverb.episodes import Array

MOST_KEYS = 1 << 18
"""That are remembered: a thousand batches of 256, in 4 MiB."""


class _Seen(NamedTuple):
    keys: Array  # [n] uint64, sorted
    servers: Array  # [n] int64


class Routes:
    """Remembers the servers of keys, the newest first, and never more than so many. Not thread-safe.

    Args:
      most: keys.
    """

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most, self._held = most, 0
        self._seen: deque[_Seen] = deque()

    def __len__(self) -> int:
        """Keys that are remembered, those that came twice counted twice."""
        return self._held

    def remember(self, keys: Array, servers: Array) -> None:
        """Takes note of a batch: [n] uint64 keys, and [n] numbers of the servers that they came from."""
        keys, servers = keys[-self._most :], servers[-self._most :]
        order = np.argsort(keys, kind="stable")
        self._seen.appendleft(_Seen(keys[order], servers[order]))
        self._held += len(keys)
        while self._held > self._most:
            self._held -= len(self._seen.pop().keys)

    def servers_of(self, keys: Array) -> Array:
        """[n] int64 number of the server that each key came from last; -1 where that is not known."""
        servers = np.full(len(keys), -1, np.int64)
        for seen in self._seen:
            open_at = np.flatnonzero(servers < 0)
            if not len(open_at):
                break
            if len(seen.keys):
                wanted = keys[open_at]
                at = np.minimum(np.searchsorted(seen.keys, wanted), len(seen.keys) - 1)
                found = seen.keys[at] == wanted
                servers[open_at[found]] = seen.servers[at[found]]
        return servers
