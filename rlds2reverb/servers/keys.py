"""Keys of items: on which server each is, and their priorities."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError

LEAST_KEYS = 1 << 17
"""Keys whose server is remembered: five hundred batches of 256."""


class KeyRoutes:
    """Remembers the servers of keys. Thread-safe: all samplers of a table share one, and priorities are updated by it.

    The keys are in two halves. Once the newer half is full, the older one is forgotten, and the newer takes its place.

    Args:
      least: number of different keys, the latest, that are remembered for certain; never more than twice as many are.
    """

    def __init__(self, least: int = LEAST_KEYS) -> None:
        self._least = least
        self._lock = threading.Lock()
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def __len__(self) -> int:
        """A key in both halves counts twice."""
        with self._lock:
            return len(self._newer) + len(self._older)

    def remember(self, keys: Array, servers: Array) -> None:
        """Adds [n] uint64 keys, and [n] numbers of their servers."""
        for start in range(0, len(keys), self._least):  # no half is ever fuller than it may be
            servers_by_key = dict(
                zip(keys[start : start + self._least].tolist(), servers[start : start + self._least].tolist())
            )
            with self._lock:
                if len(self._newer) + sum(key not in self._newer for key in servers_by_key) > self._least:
                    self._newer, self._older = {}, self._newer
                self._newer.update(servers_by_key)

    def servers_of(self, keys: Array) -> Array:
        """[n] int64 number of the server that each key came from last; -1 for unknown keys."""
        all_keys = keys.tolist()
        with self._lock:
            servers = [self._newer.get(key, self._older.get(key, -1)) for key in all_keys]
        return np.array(servers, np.int64)


def check_keys(keys: npt.ArrayLike) -> Array:
    """[n] uint64 keys of items, also from int64 of the same bits, as PyTorch has them; raises ConfigError for any other dtype."""
    item_keys = np.atleast_1d(np.asarray(keys))
    if item_keys.dtype == np.int64:
        item_keys = item_keys.view(np.uint64)
    if item_keys.dtype.kind != "u" and item_keys.size:
        raise ConfigError(f"keys: expected uint64, as info.key has them, got {item_keys.dtype}{list(item_keys.shape)}")
    flat: Array = item_keys.astype(np.uint64).ravel()
    return flat


def check_priorities(keys: npt.ArrayLike, priorities: npt.ArrayLike) -> tuple[Array, Array]:
    """[n] uint64 keys and [n] float64 priorities; a single priority is for all keys.

    Negative priorities are left to the server: heaps order by them, prioritized samplers and removers refuse them.

    Raises:
      ConfigError: the numbers of keys and priorities differ, or a priority is not finite.
    """
    item_keys = check_keys(keys)
    values = np.asarray(priorities, np.float64)
    values = np.full(len(item_keys), values) if values.ndim == 0 else values.ravel()
    if len(values) != len(item_keys):
        raise ConfigError(f"priorities: {len(values)} for {len(item_keys)} keys; expected one each")
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ConfigError(
            f"priorities: {values[wrong[0]]} at index {wrong[0]} ({len(wrong)} such): expected finite numbers"
        )
    return item_keys, values
