"""The state of a server as one document: for /status.json, and the page that shows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from replay_server.choosing import Unloaded
from replay_server.memory import memory_limit, resident_bytes
from replay_server.state import ServerState
from replay_server.table_status import table_statuses


def status(state: ServerState) -> dict[str, Any]:
    """Everything that the page shows.

    `server`: phase (as `state`), problem (why Reverb does not answer, or ""), times and memory. `tables`: a
    `TableStatus` each. `checkpoints`: the
    newest, what went wrong, `problem` (why nothing may be written to the folder, or ""), and what the start passed over.
    """
    return {
        "server": _server(state),
        "tables": msgspec.to_builtins(table_statuses(state, with_rates=True)),
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
        "generations": state.store.count(),
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
