"""The metrics for Prometheus; the values are the monitor's newest answer, so that reading them asks nothing of Reverb.

Metrics of tables are fields of `status.TableStatus`; those of the server stand below. `METRICS` lists all of them, for the
docs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from replay_server import status
from replay_server.state import ServerState
from replay_server.status import Metric

_Value = float | Mapping[str, float] | None
"""One, or one per value of the label; without any the metric is left out."""


def _items_set_aside(state: ServerState) -> dict[str, float]:
    items: Counter[str] = Counter()
    for left_out in state.left_out():
        items[left_out.table] += left_out.items
    return dict(items)


def _of(part: Callable[[ServerState], Any], value: Callable[[Any], float]) -> Callable[[ServerState], _Value]:
    """A value of a part of the state, where there is such a part now."""
    return lambda state: None if (found := part(state)) is None else value(found)


_of_newest = partial(_of, lambda state: state.checkpoints.newest())
_of_uploads = partial(_of, lambda state: state.uploads and state.uploads.state)
_of_disk = partial(_of, lambda state: state.checkpoints.space())

_SERVER_METRICS: tuple[tuple[Metric, Callable[[ServerState], _Value]], ...] = (
    (
        Metric(
            "replay_ready", "gauge", "1 when Reverb answered the newest question, and the checkpoint folder is ours"
        ),
        lambda state: float(state.was_ready()),
    ),
    (Metric("replay_start_time_seconds", "gauge", "Unix time of the start"), lambda state: state.started_at),
    (
        Metric("replay_checkpoint_writing", "gauge", "1 while one is written"),
        lambda state: float(state.checkpoints.state.writing_since is not None),
    ),
    (
        Metric("replay_checkpoint_failures", "counter", "checkpoints that could not be written"),
        lambda state: state.checkpoints.state.failures,
    ),
    (
        Metric(
            "replay_checkpoint_not_needed",
            "counter",
            "checkpoints not written, because nothing had changed since the newest",
        ),
        lambda state: state.checkpoints.state.not_needed,
    ),
    (Metric("replay_checkpoint_generations", "gauge", "checkpoints on disk"), lambda state: state.store.count()),
    (
        Metric("replay_checkpoint_from_clients", "counter", "checkpoints kept that a client asked Reverb for"),
        lambda state: state.checkpoints.state.from_clients,
    ),
    (
        Metric("replay_checkpoint_free_bytes", "gauge", "free on the disk of the folder"),
        _of_disk(lambda space: space.free_bytes),
    ),
    (
        Metric("replay_checkpoint_needed_bytes", "gauge", "of the next one, as of the newest"),
        _of_disk(lambda space: space.needed_bytes),
    ),
    (Metric("replay_items_set_aside", "gauge", "items that a start has not restored", ("table",)), _items_set_aside),
    (
        Metric("replay_generations_not_loaded", "gauge", "newer ones that the start passed over"),
        lambda state: len(state.unloaded),
    ),
    (
        Metric("replay_checkpoint_timestamp_seconds", "gauge", "Unix time of the newest"),
        _of_newest(lambda newest: newest.manifest.created),
    ),
    (
        Metric(
            "replay_checkpoint_holds_all_timestamp_seconds",
            "gauge",
            "Unix time at which the newest was last known to hold all that the tables hold",
        ),
        lambda state: (
            None
            if (newest := state.checkpoints.newest()) is None
            else state.checkpoints.holds_all_at or newest.manifest.created
        ),
    ),
    (
        Metric("replay_checkpoint_duration_seconds", "gauge", "time to write the newest"),
        _of_newest(lambda newest: newest.manifest.seconds),
    ),
    (Metric("replay_checkpoint_bytes", "gauge", "size of the newest"), _of_newest(lambda newest: newest.bytes)),
    (
        Metric(
            "replay_upload_behind_seconds",
            "gauge",
            "age of the oldest checkpoint that is newer than all in the bucket; 0 when the newest is there",
        ),
        _of_uploads(lambda uploads: uploads.behind_seconds),
    ),
    (
        Metric("replay_upload_failures", "counter", "attempts to send a checkpoint to the bucket that failed"),
        _of_uploads(lambda uploads: uploads.failures),
    ),
    (
        Metric("replay_upload_generations", "gauge", "checkpoints in the bucket"),
        _of(lambda state: None if state.uploads is None else state.uploads.state.count, float),
    ),
)

METRICS: tuple[Metric, ...] = (*status.METRICS.values(), *(metric for metric, _ in _SERVER_METRICS))


def registry(state: ServerState) -> Any:
    """All metrics of one server, and those of its process, as a `prometheus_client.CollectorRegistry`."""
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

    registry = CollectorRegistry()
    registry.register(_Server(state))  # asked for nothing but `collect`
    for standard in (ProcessCollector, PlatformCollector, GCCollector):
        standard(registry=registry)
    return registry


class _Server:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        """The family of every metric that has a value now."""
        tables = status.table_statuses(self._state, with_rates=False)
        for field, metric in status.METRICS.items():
            values = [(table.name, getattr(table, field)) for table in tables]
            yield _family(
                metric, [((name, *labels), value) for name, found in values for labels, value in _split(found)]
            )
        for metric, value in _SERVER_METRICS:
            if (found := value(self._state)) is not None:
                yield _family(metric, _split(found))


def _split(value: float | Mapping[str, float]) -> list[tuple[tuple[str, ...], float]]:
    """The labels and the value of each series of a metric."""
    if isinstance(value, Mapping):
        return [((label,), float(number)) for label, number in value.items()]
    return [((), float(value))]


def _family(metric: Metric, values: Iterable[tuple[tuple[str, ...], float]]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
