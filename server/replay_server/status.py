"""The state of a server as one document: for /status.json, and the page that shows it.

A table is one record, `TableStatus`, from which metrics, /status.json, its schema and the list of metrics in the docs follow. To add
a metric of tables: a field there with a `Metric` beside it, and its value in `table_statuses`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from replay_server.choosing import Unloaded
from replay_server.logs import under_way
from replay_server.memory import memory_limit, resident_bytes
from replay_server.monitor import Moment
from replay_server.retention import plain_keep
from replay_server.state import ServerState
from rlds2reverb.specs import spec_texts, view_in
from rlds2reverb.wire.messages import clause, insert_wait, reason, sample_wait, waiting


def status(state: ServerState) -> dict[str, Any]:
    """Everything that the page shows.

    `server`: phase (as `state`), problem (why Reverb does not answer, or ""), times and memory. `tables`: a `TableStatus`
    each. `journal`: its newest entries. `checkpoints`: the newest, the failures, `problem` (why nothing may be written to the folder, or ""), `upload` (what
    is in the bucket, null where nothing is sent to one), and those that the start passed over.
    """
    snapshot, limit = state.monitor.snapshot, memory_limit()
    section, progress, space = state.config.checkpoints, state.checkpoints.state, state.checkpoints.space()
    last, need = state.checkpoints.newest(), state.disk_need()
    return {
        "server": {
            "state": state.phase,
            "progress": under_way(),
            "problem": snapshot.error,
            "now": time.time(),
            "started_at": state.started_at,
            "ready_seconds": state.ready_seconds,
            "restored_items": 0 if state.start is None else state.start.fit.items,
            "answered_at": snapshot.answered_at,
            "grpc_port": state.config.grpc.port,
            "memory_bytes": resident_bytes(),
            "memory_limit_bytes": limit.bytes,
            "memory_limit_of": limit.of,
            "memory": state.recorder.recent_memory(),
            "reverb": version("dm-reverb"),
            "rlds2reverb": version("rlds2reverb"),
        },
        "tables": msgspec.to_builtins(table_statuses(state, with_rates=True)),
        "journal": None if state.journal is None else state.journal.document(),
        "checkpoints": {
            "last": None
            if last is None
            else {**last.summary(), "reason": progress.reason, "created": last.manifest.created},
            "writing_since": progress.writing_since,
            "failures": progress.failures,
            "last_error": progress.last_error,
            "from_clients": progress.from_clients,
            "not_needed": progress.not_needed,
            "holds_all_at": state.checkpoints.holds_all_at,
            "free_bytes": None if space is None else space.free_bytes,
            "needed_bytes": None if space is None else space.needed_bytes,
            "every_seconds": section.every_seconds,
            "generations": state.store.count(),
            "keep": plain_keep(state.store.keep),
            "need": None if need is None else {**vars(need), "is_short": need.is_short, "words": need.words()},
            "all": [listed.document(time.time()) for listed in state.listed()],
            "folder": str(Path(section.folder).absolute()),
            "problem": state.lock.problem,
            "upload": None if state.uploads is None else state.uploads.status(),
            **not_loaded(state.unloaded),
        },
    }


def not_loaded(unloaded: Sequence[Unloaded]) -> dict[str, Any]:
    """The checkpoints that a start passed over: `set_aside`, the broken ones, and `unreadable`, left in place; each if there are any.

    Each has `count`, and the `path` and `reason` of the newest one.
    """
    passed_over = {}
    for name, is_readable in (("set_aside", True), ("unreadable", False)):
        of_kind = [passed for passed in unloaded if passed.is_readable == is_readable]
        if of_kind:
            passed_over[name] = {"count": len(of_kind), "path": str(of_kind[0].path), "reason": of_kind[0].reason}
    return passed_over


_POINTS, _LEAST_POINTS, _ALL_POINTS = 120, 12, 24_000
"""Most points of a plot, the least where there are many tables, and most points of all plots of one document."""


@dataclass(frozen=True)
class Metric:
    """A metric of Prometheus; the name of a counter lacks the "_total" that Prometheus adds."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


def _metric(name: str, kind: Literal["gauge", "counter"], text: str, *labels: str) -> msgspec.Meta:
    return msgspec.Meta(description=text, extra={"metric": Metric(name, kind, text, ("table", *labels))})


class LimiterStatus(msgspec.Struct, frozen=True):
    """A rate limiter: what inserts and samples wait for in words, without the table's name; and whether it lets none through.

    Attributes:
      inserts_waiting: what inserts wait for, such as "inserting waits for 1 more sample"; "" when they wait for nothing.
      samples_waiting: what samples wait for, such as "sampling waits for 3 more inserts"; "" when they wait for nothing.
      inserts_reason: what blocks inserts in a few words, such as "64 items not sampled yet, limit 64"; "" when nothing does.
      samples_reason: what blocks samples, such as "4.55 samples per insert, limit 4"; "" when nothing does.
      samples_per_insert: that it holds the table to; None for any.
      min_size: items before the first sample.
      prefilling: it waits for a prefill.
    """

    inserts: str
    samples: str
    inserts_blocked: bool
    samples_blocked: bool
    inserts_waiting: str
    samples_waiting: str
    inserts_reason: str
    samples_reason: str
    samples_per_insert: float | None
    min_size: int
    prefilling: bool


class Rates(msgspec.Struct, frozen=True):
    """Unix times, and inserts and samples per second between each and the one before."""

    time: list[float] = []
    inserts: list[float] = []
    samples: list[float] = []


class TableStatus(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
      signature: text of each leaf by its path; None without a signature.
      view: that its items are made by, where the signature tells.
      restored: items that the start has restored.
      last_insert_at: Unix time, seen to a second; None without an insert since the start.
      age_seconds: since Reverb's answer.
      rates: over the last minutes; none when they were not asked for.
    """

    name: str
    size: Annotated[int, _metric("replay_table_size", "gauge", "items held")]
    max_size: Annotated[int, _metric("replay_table_max_size", "gauge", "items it may hold")]
    sampler: str
    remover: str
    max_times_sampled: int
    episodes: Annotated[int, _metric("replay_table_episodes", "gauge", "episodes that items point into")]
    unique_samples: Annotated[int, _metric("replay_table_unique_samples", "counter", "items sampled at least once")]
    inserts: Annotated[int, _metric("replay_table_inserts", "counter", "inserts since the first start")]
    samples: Annotated[int, _metric("replay_table_samples", "counter", "samples since the limiter began")]
    limiter: LimiterStatus
    blocked: Annotated[
        dict[str, bool], _metric("replay_limiter_blocked", "gauge", "1 when the limiter lets none through", "side")
    ]
    wait_seconds: Annotated[
        dict[str, float],
        _metric("replay_limiter_wait_seconds", "counter", "time the table waited for its limiter", "side"),
    ]
    worker_seconds: Annotated[
        dict[str, float], _metric("replay_worker_seconds", "counter", "what the table's thread did", "state")
    ]
    signature: dict[str, str] | None
    view: str | None
    restored: int
    last_insert_at: float | None
    age_seconds: float
    rates: Rates


def _metrics_of(record: type) -> dict[str, Metric]:
    hints = get_type_hints(record, include_extras=True)
    metas = ((name, meta) for name, hint in hints.items() for meta in getattr(hint, "__metadata__", ()))
    return {name: meta.extra["metric"] for name, meta in metas if meta.extra}


METRICS = _metrics_of(TableStatus)
"""Those of tables, by the field that holds their values."""


def table_statuses(state: ServerState, with_rates: bool) -> list[TableStatus]:
    """All tables by name, as the newest answer of Reverb has them; asks nothing. Rates take a while to compute."""
    snapshot = state.monitor.snapshot
    tables, history = snapshot.tables(), state.monitor.history() if with_rates else []
    points = max(_LEAST_POINTS, min(_POINTS, _ALL_POINTS // max(1, len(tables))))
    restored = {table.name: table.items for table in state.tables}
    prefilling = {config.name for config in state.table_configs if config.rate_limiter.is_prefill}
    age_seconds = max(0.0, time.time() - snapshot.answered_at)
    return [
        TableStatus(
            name=table.name,
            size=table.current_size,
            max_size=table.max_size,
            sampler=table.sampler,
            remover=table.remover,
            max_times_sampled=table.max_times_sampled,
            episodes=table.episodes,
            unique_samples=table.unique_samples,
            inserts=table.rate_limiter.inserts,
            samples=table.rate_limiter.samples,
            limiter=LimiterStatus(
                inserts=clause(inserts),
                samples=clause(samples),
                inserts_blocked=inserts.blocks,
                samples_blocked=samples.blocks,
                inserts_waiting=waiting(inserts),
                samples_waiting=waiting(samples),
                inserts_reason=reason(inserts),
                samples_reason=reason(samples),
                samples_per_insert=table.rate_limiter.wanted_ratio,
                min_size=table.rate_limiter.min_size_to_sample,
                prefilling=table.name in prefilling,
            ),
            blocked={inserts.of: inserts.blocks, samples.of: samples.blocks},
            wait_seconds={"insert": table.worker.waiting_for_samples, "sample": table.worker.waiting_for_inserts},
            worker_seconds={
                name: getattr(table.worker, name) for name in ("running", "sampling", "inserting", "sleeping")
            },
            signature=None if table.signature is None else spec_texts(table.signature),
            view=view_in(table.signature) or None,
            restored=restored.get(table.name, 0),
            last_insert_at=state.monitor.inserted_at.get(table.name),
            age_seconds=age_seconds,
            rates=rates_of(table.name, history, points),
        )
        for table, inserts, samples in ((table, insert_wait(table), sample_wait(table)) for table in tables)
    ]


def rates_of(name: str, history: Sequence[Moment], most: int = _POINTS) -> Rates:
    """A table's rates over a history, at no more than `most` points; none across a clock that was set back."""
    points = [(when, counts[name]) for when, counts in history if name in counts]
    stride = max(1, -(-len(points) // most))
    rates = Rates([], [], [])
    for (earlier, old), (later, new) in itertools.pairwise(points[::-stride][::-1]):
        if (seconds := later - earlier) > 0:
            rates.time.append(round(later, 2))
            rates.inserts.append(round((new.inserts - old.inserts) / seconds, 2))
            rates.samples.append(round((new.samples - old.samples) / seconds, 2))
    return rates
