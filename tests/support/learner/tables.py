"""Tables in memory for tests of samplers: every item's value is its key."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.learner.batch import Batch
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer, table_info
from rlds2reverb.wire.messages import TableInfo

SIGNATURE = {"x": ArraySpec((), np.dtype(np.int64))}
PATIENCE_SECONDS = 20.0
"""Bound of every wait of a test; reached only by a failing one."""


def table(name: str = "replay", max_times_sampled: int = 0, **limits: Any) -> TableInfo:
    """First in first out; `limits` are those of the rate limiter."""
    plain = table_info(name, SIGNATURE, max_size=1_000_000, sampler="fifo")
    return replace(plain, max_times_sampled=max_times_sampled, rate_limiter=replace(plain.rate_limiter, **limits))


def once(name: str = "replay", **limits: Any) -> TableInfo:
    """A table whose items leave with their first sample, in the order of insertion."""
    return table(name, 1, **limits)


def fill(server: MemoryServer, keys: Iterable[int], name: str = "replay") -> None:
    """Items with these keys and values."""
    with server.changed:
        for key in keys:
            server.put(name, key, [np.array(key, np.int64)])


def keys_of(batches: Iterable[Batch]) -> list[int]:
    """The keys of all samples; that the values are those of the keys is seen to."""
    keys: list[int] = []
    for data, info in batches:
        assert isinstance(data, dict)
        np.testing.assert_array_equal(np.asarray(data["x"]), info.key.astype(np.int64))
        keys += info.key.tolist()
    return keys


_of_others: set[threading.Thread] = set()


def set_threads_aside() -> None:
    """The threads that there are now are of tests before."""
    _of_others.clear()
    _of_others.update(threading.enumerate())


def our_threads() -> list[str]:
    """Threads of streams that are open, and that this test opened."""
    now = [thread for thread in threading.enumerate() if thread not in _of_others]
    return [thread.name for thread in now if thread.name.startswith("rlds2reverb-")]
