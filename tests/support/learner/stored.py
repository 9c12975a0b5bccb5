"""Tables in memory with items whose values tell where they are from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info

STEPS = {"episode": ArraySpec((None,), np.dtype(np.int64)), "step": ArraySpec((None,), np.dtype(np.int64))}
"""The signature of `episodes_of`."""


def server_of(signature: Nest | None, items: Sequence[Sequence[Array]], **table: Any) -> MemoryServer:
    """A server whose table "replay" holds these items, with the keys 1, 2, ..."""
    times = table.pop("max_times_sampled", 0)
    priorities = table.pop("priorities", [1.0] * len(items))
    server = MemoryServer(replace(table_info(signature=signature, **table), max_times_sampled=times))
    for number, (values, priority) in enumerate(zip(items, priorities)):
        server.put("replay", number + 1, values, priority)
    return server


def connected(server: MemoryServer) -> Client:
    return Client(MemoryTransport(server))


def episodes_of(lengths: Sequence[int]) -> list[tuple[Array, Array]]:
    """One item per length: the number of the episode, and the steps from 0."""
    return [(np.full(length, number), np.arange(length)) for number, length in enumerate(lengths)]
