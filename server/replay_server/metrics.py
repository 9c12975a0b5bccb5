"""What Prometheus reads; the values are the monitor's newest answer, so that reading them asks nothing of Reverb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from replay_server.generation import Generation
from replay_server.state import ServerState
from rlds2reverb.wire.limiter import insert_wait, sample_wait
from rlds2reverb.wire.messages import TableInfo

_Values = dict[tuple[str, ...], float]
"""Value of each label beside the table's; of () where there is none."""


@dataclass(frozen=True)
class _PerTable:
    """A metric with one value or more per table."""

    family: Callable[..., Any]
    name: str
    help: str
    values: Callable[[TableInfo], _Values]
    labels: tuple[str, ...] = ()

    def metric(self, tables: list[TableInfo]) -> Any:
        """With the values of all tables."""
        made = self.family(self.name, self.help, labels=["table", *self.labels])
        for table in tables:
            for labels, value in self.values(table).items():
                made.add_metric([table.name, *labels], value)
        return made


def _blocked(table: TableInfo) -> _Values:
    return {(wait.of,): float(wait.blocks) for wait in (insert_wait(table), sample_wait(table))}


def _waited(table: TableInfo) -> _Values:
    return {("insert",): table.worker.waiting_for_samples, ("sample",): table.worker.waiting_for_inserts}


def _worked(table: TableInfo) -> _Values:
    return {(state,): getattr(table.worker, state) for state in ("running", "sampling", "inserting", "sleeping")}


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
_TABLE_METRICS = (
    _PerTable(_GAUGE, "replay_table_size", "items held", lambda table: {(): table.current_size}),
    _PerTable(_GAUGE, "replay_table_max_size", "items it may hold", lambda table: {(): table.max_size}),
    _PerTable(
        _COUNTER,
        "replay_table_inserts",
        "inserts since the first start",
        lambda table: {(): table.rate_limiter.inserts},
    ),
    _PerTable(
        _COUNTER,
        "replay_table_samples",
        "samples since the limiter began",
        lambda table: {(): table.rate_limiter.samples},
    ),
    _PerTable(
        _COUNTER,
        "replay_table_unique_samples",
        "items sampled at least once",
        lambda table: {(): table.unique_samples},
    ),
    _PerTable(_GAUGE, "replay_table_episodes", "episodes that items point into", lambda table: {(): table.episodes}),
    _PerTable(_GAUGE, "replay_limiter_blocked", "1 when the limiter lets none through", _blocked, ("side",)),
    _PerTable(_COUNTER, "replay_limiter_wait_seconds", "time the table waited for its limiter", _waited, ("side",)),
    _PerTable(_COUNTER, "replay_worker_seconds", "what the table's thread did", _worked, ("state",)),
)


def registry(state: ServerState) -> CollectorRegistry:
    """All metrics of one server, and those of its process."""
    made = CollectorRegistry()
    made.register(_Server(state))
    for standard in (ProcessCollector, PlatformCollector, GCCollector):
        standard(registry=made)
    return made


class _Server(Collector):
    """The tables and the checkpoints of a server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield _GAUGE(
            "replay_ready",
            "1 when Reverb answered the newest question, and the checkpoint folder is ours",
            float(self._state.was_ready()),
        )
        yield _GAUGE("replay_start_time_seconds", "Unix time of the start", self._state.started_at)
        tables = self._state.monitor.snapshot.tables()
        yield from (one.metric(tables) for one in _TABLE_METRICS)
        yield from self._checkpoints()
        yield from self._space()
        yield from self._not_restored()
        if (last := self._state.checkpoints.newest()) is not None:
            yield from _newest(last)

    def _checkpoints(self) -> Iterator[Metric]:
        state, count = self._state.checkpoints.state, self._state.generations.count()
        yield _GAUGE("replay_checkpoint_writing", "1 while one is written", float(state.writing_since is not None))
        yield _COUNTER("replay_checkpoint_failures", "checkpoints that could not be written", state.failures)
        if count is not None:
            yield _GAUGE("replay_checkpoint_generations", "generations on disk", count)
        yield _COUNTER(
            "replay_checkpoint_from_clients", "checkpoints kept that a client asked Reverb for", state.from_clients
        )

    def _space(self) -> Iterator[Metric]:
        if (space := self._state.checkpoints.space()) is not None:
            yield _GAUGE("replay_checkpoint_free_bytes", "free on the disk of the folder", space.free_bytes)
            yield _GAUGE("replay_checkpoint_needed_bytes", "of the next one, as of the newest", space.needed_bytes)

    def _not_restored(self) -> Iterator[Metric]:
        items: Counter[str] = Counter()
        for one in self._state.left_out():
            items[one.table] += one.items
        left_out = _GAUGE("replay_items_set_aside", "items that a start has not restored", labels=["table"])
        for table, count in items.items():
            left_out.add_metric([table], count)
        yield left_out
        yield _GAUGE(
            "replay_generations_not_loaded", "newer ones that the start passed over", len(self._state.unloaded)
        )


def _newest(generation: Generation) -> Iterator[Metric]:
    manifest = generation.manifest
    yield _GAUGE("replay_checkpoint_timestamp_seconds", "Unix time of the newest", manifest.created)
    yield _GAUGE("replay_checkpoint_duration_seconds", "time to write the newest", manifest.seconds)
    yield _GAUGE("replay_checkpoint_bytes", "size of the newest", generation.bytes)
