"""Tables and servers as the tests of the live view need them."""

from __future__ import annotations

from typing import Any

from rlds2reverb.cli.top.watching import Moment, WatchedServer
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo

UNBOUNDED = 1.7976931348623157e308
NOW = 1_700_000_000.0

STATUS: dict[str, Any] = {
    "server": {"state": "ready", "problem": "", "now": NOW, "started_at": NOW - 7200, "memory_bytes": 1_234_000_000},
    "checkpoints": {
        "last": {"generation": 42, "created": NOW - 300, "bytes": 5_000_000},
        "writing_since": None,
        "failures": 0,
        "last_error": "",
        "problem": "",
    },
    "tables": [],
}
"""What is read of a status document."""


def table(name: str, size: int = 10, calls: tuple[int, int] = (10, 20), **changes: Any) -> TableInfo:
    """A table that holds `size` of 100 items, after so many inserts and samples; nothing waits unless `changes` say so."""
    bounds = {"samples_per_insert": 1.0, "min_diff": -UNBOUNDED, "max_diff": UNBOUNDED, "min_size_to_sample": 1}
    bounds |= {key: changes.pop(key) for key in list(changes) if key in bounds}
    limiter = RateLimiter(**bounds, inserts=calls[0], samples=calls[1])  # type: ignore[arg-type]
    plain = {"sampler": "uniform", "remover": "fifo", "max_size": 100, "max_times_sampled": 0, "signature": None}
    counts = {"episodes": 1, "deleted_episodes": 0, "unique_samples": 1}
    return TableInfo(name=name, current_size=size, rate_limiter=limiter, **{**plain, **counts, **changes})


def info(*tables: TableInfo, state_id: int = 1) -> ServerInfo:
    return ServerInfo(state_id, {table.name: table for table in tables})


def known(*tables: TableInfo, name: str = "localhost:8000", grown: int = 0, **changes: Any) -> WatchedServer:
    """A server that answers; each table had `grown` inserts and samples less two seconds before."""
    counts = {table.name: (table.rate_limiter.inserts, table.rate_limiter.samples) for table in tables}
    history = tuple(
        Moment(seconds, 1, {name: (max(0, i - less), max(0, s - less)) for name, (i, s) in counts.items()})
        for seconds, less in ((0.0, grown), (2.0, 0))
    )
    tables_by_name = {table.name: table for table in tables}
    given: dict[str, Any] = {"tables": tables_by_name, "history": history, "answered_at": NOW - 1, **changes}
    return WatchedServer(name, NOW - 100, **given)
