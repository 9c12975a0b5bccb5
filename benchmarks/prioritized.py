"""The loop of a prioritized learner: sample 256 items, update their 256 priorities. Beside TF-Agents' ReverbReplayBuffer.

All sides loop over one table, which draws by priority; nothing is learned. TF-Agents' side is measured with several settings, and
the ratio is to the fastest of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from benchmarks.servers import BenchServer

FULL = Size(items=60_000, reference_items=30_000, repeats=5)
SHORT = Size(items=20_000, reference_items=10_000, repeats=2)

TABLE = "prioritized"
BATCH = 256
STORED_SHARE = 4
"""One item is stored for so many samples."""

CLIENT, DATASET = "client.sample", "as_trajectory_dataset"
RIVALS: dict[str, dict[str, Any]] = {
    "tf_agents": {},
    "tf_agents, 4 streams": {"max_cycle_length": 4},
    "tf_agents, 1 stream, 4 workers": {
        "max_cycle_length": 1,
        "num_workers_per_iterator": 4,
        "dataset_buffer_size": 2 * BATCH,
    },
}
"""Settings of ReverbReplayBuffer; each dataset has a prefetch behind it."""


def run(size: Size) -> Iterator[Result]:
    """Rates in samples (2-step items) a second; `Size` counts samples."""
    columns = data.half_cheetah()
    episodes = data.episodes_for(size.items // STORED_SHARE, len(columns[0]["is_first"]))
    with BenchServer([TableConfig(TABLE, data.signature(columns), sampler="prioritized")]) as server:
        stored = writers.push(server, data.episodes(columns, episodes), TABLE).count
        server.expect(TABLE, stored)
        batches, fewer = -(-size.items // BATCH), -(-size.reference_items // BATCH)
        sides = [
            Side(CLIENT, lambda n: _client(server, n), batches),
            Side(DATASET, lambda n: _dataset(server, n), batches),
            *(
                Side(name, lambda n, options=options: _tf_agents(server, n, options), fewer)
                for name, options in RIVALS.items()
            ),  # type: ignore[misc]
        ]
        runs = alternate(sides, size.repeats)
    best = max(RIVALS, key=lambda name: statistics.median(run.rate for run in runs[name]))
    for ours, goal in ((CLIENT, Goal(3)), (DATASET, Goal(3))):
        yield comparison(
            f"prioritized/{ours}",
            runs,
            ours,
            best,
            "samples/s",
            goal,
            stored_items=stored,
            batch=BATCH,
            settings=RIVALS[best],
        )


def _priorities() -> Any:
    return np.random.default_rng(0).uniform(0.1, 2, BATCH)


def _client(server: BenchServer, batches: int) -> Run:
    priorities = _priorities()
    with server.client.sample(TABLE, BATCH) as sampler:
        next(sampler)
        with timed() as watch:
            for _ in range(batches):
                _, info = next(sampler)
                server.client.update_priorities(TABLE, info.key, priorities)
    server.settle()
    return watch.run(batches * BATCH)


def _dataset(server: BenchServer, batches: int) -> Run:
    from rlds2reverb.adapters.tf_agents import as_trajectory_dataset

    priorities = _priorities()
    reader = iter(as_trajectory_dataset(server.client, TABLE, BATCH, 2, 2).prefetch(2))
    next(reader)
    with timed() as watch:
        for _ in range(batches):
            _, info = next(reader)
            server.client.update_priorities(TABLE, info.key[:, 0].numpy(), priorities)
    del reader
    server.settle()
    return watch.run(batches * BATCH)


def _tf_agents(server: BenchServer, batches: int, options: dict[str, Any]) -> Run:
    """The clock starts with the second batch, when all workers run."""
    import tensorflow as tf

    from rlds2reverb.adapters.tf_agents import replay_buffer

    buffer = replay_buffer(server.address, TABLE, 2, **options)
    priorities = tf.constant(_priorities())
    reader = iter(buffer.as_dataset(sample_batch_size=BATCH, num_steps=2).prefetch(2))
    next(reader)
    with timed() as watch:
        for _ in range(batches):
            _, info = next(reader)
            buffer.update_priorities(info.key[:, 0], priorities)
    del reader
    server.settle()
    return watch.run(batches * BATCH)
