"""Servers in memory with one table of whole numbers, and a client of several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlds2reverb import Client
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import TableInfo

SIGNATURE = {"x": ArraySpec((), np.dtype(np.int64))}


def table(**options: Any) -> TableInfo:
    return table_info("replay", **{"signature": SIGNATURE, "max_size": 10_000, **options})


def filled(server: MemoryServer, *keys: int, name: str = "replay", priority: float = 1.0) -> MemoryServer:
    for key in keys:
        server.put(name, key, (np.array(key, np.int64),), priority)
    return server


def server_of(*keys: int, number: int = 0, **options: Any) -> MemoryServer:
    return filled(MemoryServer(table(**options), state_id=100 + number), *keys)


@contextmanager
def group_of(*servers: MemoryServer, **options: Any) -> Iterator[Client]:
    transports = [MemoryTransport(server, f"{chr(97 + number)}:8000") for number, server in enumerate(servers)]
    with Client(transports, **options) as group:
        yield group


def priorities(server: MemoryServer) -> dict[int, float]:
    return {key: item.priority for key, item in server.tables["replay"].items.items()}
