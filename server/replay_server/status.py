"""The state of a service as one document: for /status.json, and the page that shows it."""

from __future__ import annotations

import itertools
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_server.limiters import Prefill
from replay_server.monitor import Counts
from rlds2reverb.specs import flatten
from rlds2reverb.wire.limiter import explain_inserts, explain_samples, inserts_needed, samples_needed
from rlds2reverb.wire.messages import TableInfo

if TYPE_CHECKING:
    from replay_server.service import ReplayService

_POINTS = 120
"""Most points of a plot."""


def status(service: ReplayService) -> dict[str, Any]:
    """Everything that the page shows.

    `server`: state, problem (why Reverb does not answer, or ""), times and memory. `tables`: one each, with fill, limiter in
    words, signature leaves, and rates (a second) over the last minutes. `checkpoints`: the newest, and what went wrong.
    """
    history = service.monitor.history()
    return {
        "server": _server(service),
        "tables": [_table(service, table, history) for table in service.monitor.tables()],
        "checkpoints": _checkpoints(service),
    }


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell. Source: proc(5), statm."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096


def _server(service: ReplayService) -> dict[str, Any]:
    snapshot = service.monitor.snapshot
    return {
        "state": service.state,
        "problem": snapshot.error,
        "now": time.time(),
        "started_at": service.started_at,
        "answered_at": snapshot.answered_at,
        "grpc_port": service.config.grpc.port,
        "memory_bytes": resident_bytes(),
        "reverb": version("dm-reverb"),
        "rlds2reverb": version("rlds2reverb"),
    }


def _table(service: ReplayService, table: TableInfo, history: list[tuple[float, dict[str, Counts]]]) -> dict[str, Any]:
    config = next((one for one in service.table_configs if one.name == table.name), None)
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
        "limiter": {
            "inserts": _words(explain_inserts(table)),
            "samples": _words(explain_samples(table)),
            "inserts_blocked": samples_needed(table) > 0,
            "samples_blocked": inserts_needed(table) > 0,
            "prefilling": config is not None and isinstance(config.rate_limiter, Prefill),
        },
        "signature": None
        if table.signature is None
        else {path: str(leaf) for path, leaf in flatten(table.signature).items()},
        "restored": next((one.items for one in service.tables if one.name == table.name), 0),
        "rates": _rates(table.name, history),
    }


def _words(sentence: str) -> str:
    """Without the table's name in front, which stands above it on the page."""
    return sentence.partition('": ')[2]


def _rates(name: str, history: list[tuple[float, dict[str, Counts]]]) -> dict[str, list[float]]:
    """Times, and inserts and samples a second between them."""
    points = [(when, counts[name]) for when, counts in history if name in counts]
    stride = max(1, -(-len(points) // _POINTS))
    points = points[::-stride][::-1]
    pairs = list(itertools.pairwise(points))
    return {
        "time": [later for _, (later, _) in pairs],
        "inserts": [(new.inserts - old.inserts) / (later - earlier) for (earlier, old), (later, new) in pairs],
        "samples": [(new.samples - old.samples) / (later - earlier) for (earlier, old), (later, new) in pairs],
    }


def _checkpoints(service: ReplayService) -> dict[str, Any]:
    state, section = service.checkpoints.state, service.config.checkpoints
    last = None
    if state.last is not None:
        manifest = state.last.manifest
        last = {
            "generation": state.last.number,
            "created": manifest.created,
            "seconds": manifest.seconds,
            "bytes": state.last.bytes,
            "items": manifest.items,
        }
    return {
        "last": last,
        "writing_since": state.writing_since,
        "failures": state.failures,
        "last_error": state.last_error,
        "every_seconds": section.every_seconds,
        "generations": service.generation_count,
        "keep": section.keep,
        "folder": str(Path(section.folder).absolute()),
    }
