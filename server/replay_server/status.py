"""The state of a server as one document: for /status.json, and the page that shows it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replay_server.choosing import Unloaded
from replay_server.memory import memory_limit, resident_bytes
from replay_server.monitor import Counts, Moment
from replay_server.state import ServerState
from rlds2reverb.specs import spec_texts, view_in
from rlds2reverb.wire.limiter import clause, insert_wait, sample_wait
from rlds2reverb.wire.messages import TableInfo

_POINTS, _LEAST_POINTS, _ALL_POINTS = 120, 12, 24_000
"""Most points of a plot, and of all plots of one document: of many tables each has fewer, but so many at least."""


def status(state: ServerState) -> dict[str, Any]:
    """Everything that the page shows.

    `server`: phase (as `state`), problem (why Reverb does not answer, or ""), times and memory. `tables`: one entry per
    table, with fill, limiter in words, signature leaves, the view that it is for, and rates (per second) over the last minutes. `checkpoints`: the
    newest, what went wrong, `problem` (why nothing may be written to the folder, or ""), and what the start passed over.
    """
    history, tables = state.monitor.history(), state.monitor.snapshot.tables()
    points = max(_LEAST_POINTS, min(_POINTS, _ALL_POINTS // max(1, len(tables))))
    return {
        "server": _server(state),
        "tables": [_table(state, table, history, points) for table in tables],
        "checkpoints": _checkpoints(state),
    }


def _server(state: ServerState) -> dict[str, Any]:
    snapshot, limit = state.monitor.snapshot, memory_limit()
    return {
        "state": state.phase,
        "problem": snapshot.error,
        "now": time.time(),
        "started_at": state.started_at,
        "answered_at": snapshot.answered_at,
        "grpc_port": state.config.grpc.port,
        "memory_bytes": resident_bytes(),
        "memory_limit_bytes": limit.bytes,
        "memory_limit_of": limit.of,
        "memory": state.recorder.recent_memory(),
        "reverb": version("dm-reverb"),
        "rlds2reverb": version("rlds2reverb"),
    }


def _table(state: ServerState, table: TableInfo, history: Sequence[Moment], points: int) -> dict[str, Any]:
    is_prefilling = any(one.name == table.name and one.rate_limiter.is_prefill for one in state.table_configs)
    return {
        **_counts(table),
        "limiter": {**_limiter(table), "prefilling": is_prefilling},
        "signature": _leaves(table),
        "view": view_in(table.signature) or None,
        "restored": next((one.items for one in state.tables if one.name == table.name), 0),
        "rates": _rates(table.name, history, points),
    }


def _counts(table: TableInfo) -> dict[str, Any]:
    return {
        "name": table.name,
        "size": table.current_size,
        "max_size": table.max_size,
        "sampler": table.sampler,
        "remover": table.remover,
        "max_times_sampled": table.max_times_sampled,
        "episodes": table.episodes,
        "unique_samples": table.unique_samples,
        "inserts": table.rate_limiter.inserts,
        "samples": table.rate_limiter.samples,
    }


def _limiter(table: TableInfo) -> dict[str, Any]:
    """In words without the table's name, which stands above them on the page."""
    inserts, samples = insert_wait(table), sample_wait(table)
    return {
        "inserts": clause(inserts),
        "samples": clause(samples),
        "inserts_blocked": inserts.blocks,
        "samples_blocked": samples.blocks,
    }


def _leaves(table: TableInfo) -> dict[str, str] | None:
    if table.signature is None:
        return None
    return spec_texts(table.signature)


def _rates(name: str, history: Sequence[Moment], most: int = _POINTS) -> dict[str, list[float]]:
    """Times, and inserts and samples per second between them."""
    spans = list(_spans(name, history, most))
    return {
        "time": [round(when, 2) for when, _, _, _ in spans],
        "inserts": [round((new.inserts - old.inserts) / seconds, 2) for _, seconds, old, new in spans],
        "samples": [round((new.samples - old.samples) / seconds, 2) for _, seconds, old, new in spans],
    }


def _spans(name: str, history: Sequence[Moment], most: int) -> Iterator[tuple[float, float, Counts, Counts]]:
    """End, seconds, and counts at both ends, of at most so many spans as a plot has points; none across a clock set back."""
    points = [(when, counts[name]) for when, counts in history if name in counts]
    stride = max(1, -(-len(points) // most))
    for (earlier, old), (later, new) in itertools.pairwise(points[::-stride][::-1]):
        if later > earlier:
            yield later, later - earlier, old, new


def _checkpoints(state: ServerState) -> dict[str, Any]:
    section, progress = state.config.checkpoints, state.checkpoints.state
    return {
        "last": _last(state),
        "writing_since": progress.writing_since,
        "failures": progress.failures,
        "last_error": progress.last_error,
        "from_clients": progress.from_clients,
        **_space(state),
        "every_seconds": section.every_seconds,
        "generations": state.generations.count(),
        "keep": section.keep,
        "folder": str(Path(section.folder).absolute()),
        "problem": state.lock.problem,
        **not_loaded(state.unloaded),
    }


def _last(state: ServerState) -> dict[str, Any] | None:
    last = state.checkpoints.newest()
    if last is None:
        return None
    return {**last.summary(), "reason": state.checkpoints.state.reason, "created": last.manifest.created}


def _space(state: ServerState) -> dict[str, int | None]:
    space = state.checkpoints.space()
    return {
        "free_bytes": None if space is None else space.free_bytes,
        "needed_bytes": None if space is None else space.needed_bytes,
    }


def not_loaded(unloaded: Sequence[Unloaded]) -> dict[str, Any]:
    """What a start passed over: `set_aside`, broken and moved away, and `unreadable`, left in place; each if there are any.

    Each has `count`, and the `path` and `reason` of the newest one.
    """
    told = {}
    for name, is_readable in (("set_aside", True), ("unreadable", False)):
        found = [one for one in unloaded if one.is_readable == is_readable]
        if found:
            told[name] = {"count": len(found), "path": str(found[0].path), "reason": found[0].reason}
    return told
