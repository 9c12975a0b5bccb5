"""What Prometheus reads; the values are the monitor's newest answer, so that reading them asks nothing of Reverb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlds2reverb.wire.limiter import inserts_needed, samples_needed

if TYPE_CHECKING:
    from replay_server.service import ReplayService


def registry(service: ReplayService) -> CollectorRegistry:
    """All metrics of one service, and those of its process."""
    made = CollectorRegistry()
    made.register(_Service(service))
    for standard in (ProcessCollector, PlatformCollector, GCCollector):
        standard(registry=made)
    return made


class _Service(Collector):
    """The tables and the checkpoints of a service."""

    def __init__(self, service: ReplayService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        snapshot = self._service.monitor.snapshot
        ready = self._service.state == "ready" and not snapshot.error and snapshot.info is not None
        yield GaugeMetricFamily("replay_ready", "1 when Reverb answered the newest question", float(ready))
        yield GaugeMetricFamily("replay_start_time_seconds", "Unix time of the start", self._service.started_at)
        yield from self._tables()
        yield from self._checkpoints()

    def _tables(self) -> Iterator[Metric]:
        size = GaugeMetricFamily("replay_table_size", "items held", labels=["table"])
        max_size = GaugeMetricFamily("replay_table_max_size", "items it may hold", labels=["table"])
        inserts = CounterMetricFamily("replay_table_inserts", "inserts since the first start", labels=["table"])
        samples = CounterMetricFamily("replay_table_samples", "samples since the limiter began", labels=["table"])
        unique = CounterMetricFamily("replay_table_unique_samples", "items sampled at least once", labels=["table"])
        episodes = GaugeMetricFamily("replay_table_episodes", "episodes that items point into", labels=["table"])
        blocked = GaugeMetricFamily(
            "replay_limiter_blocked", "1 when the limiter lets none through", labels=["table", "side"]
        )
        waits = CounterMetricFamily(
            "replay_limiter_wait_seconds", "time the table waited for its limiter", labels=["table", "side"]
        )
        worker = CounterMetricFamily("replay_worker_seconds", "what the table's thread did", labels=["table", "state"])
        for table in self._service.monitor.tables():
            size.add_metric([table.name], table.current_size)
            max_size.add_metric([table.name], table.max_size)
            inserts.add_metric([table.name], table.rate_limiter.inserts)
            samples.add_metric([table.name], table.rate_limiter.samples)
            unique.add_metric([table.name], table.unique_samples)
            episodes.add_metric([table.name], table.episodes)
            blocked.add_metric([table.name, "insert"], float(samples_needed(table) > 0))
            blocked.add_metric([table.name, "sample"], float(inserts_needed(table) > 0))
            waits.add_metric([table.name, "insert"], table.worker.waiting_for_samples)
            waits.add_metric([table.name, "sample"], table.worker.waiting_for_inserts)
            for state in ("running", "sampling", "inserting", "sleeping"):
                worker.add_metric([table.name, state], getattr(table.worker, state))
        yield from (size, max_size, inserts, samples, unique, episodes, blocked, waits, worker)

    def _checkpoints(self) -> Iterator[Metric]:
        state = self._service.checkpoints.state
        yield GaugeMetricFamily(
            "replay_checkpoint_writing", "1 while one is written", float(state.writing_since is not None)
        )
        yield CounterMetricFamily("replay_checkpoint_failures", "checkpoints that could not be written", state.failures)
        yield GaugeMetricFamily("replay_checkpoint_generations", "generations on disk", self._service.generation_count)
        if state.last is not None:
            manifest = state.last.manifest
            yield GaugeMetricFamily("replay_checkpoint_timestamp_seconds", "Unix time of the newest", manifest.created)
            yield GaugeMetricFamily("replay_checkpoint_duration_seconds", "time to write the newest", manifest.seconds)
            yield GaugeMetricFamily("replay_checkpoint_bytes", "size of the newest", state.last.bytes)
