"""Reverb's own C++ sampler over our items against the same sampler over the items of TF-Agents' observer.

Both tables are on one server, hold the same steps as 2-step items, and are sampled uniformly, in batches, into `tf.data`.
"""

from __future__ import annotations

from collections.abc import Iterator

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from benchmarks.servers import BenchServer
from rlds2reverb.episode import Array

FULL = Size(items=150_000, reference_items=150_000, repeats=5)
SHORT = Size(items=40_000, reference_items=40_000, repeats=2)

OURS, THEIRS = "rlds2reverb", "tf_agents"
BATCH = 256
IN_FLIGHT = 2 * BATCH
STORED_SHARE = 8
"""One item is stored for so many samples."""

STORED_IMAGES = 4_000
IMAGE_SHARE = 10
"""Images are sampled this many times fewer than `Size` says."""


def run(size: Size) -> Iterator[Result]:
    """Rates in samples (2-step items) a second; `Size` counts samples."""
    stored = size.items // STORED_SHARE
    yield _case("half_cheetah", data.half_cheetah(), stored, size, Goal(1.5))
    fewer = Size(size.items // IMAGE_SHARE, size.reference_items // IMAGE_SHARE, size.repeats)
    yield _case("images", data.pictures(), min(stored, STORED_IMAGES), fewer, Goal(0.95))


def _case(name: str, columns: list[dict[str, Array]], stored: int, size: Size, goal: Goal) -> Result:
    from tf_agents.replay_buffers import reverb_utils

    episodes = data.episodes_for(stored, len(columns[0]["is_first"]))
    tables = [TableConfig(table, data.signature(columns)) for table in (OURS, THEIRS)]
    with BenchServer(tables) as server:
        items = writers.push(server, data.episodes(columns, episodes), OURS).count
        observer = reverb_utils.ReverbAddTrajectoryObserver(server.reverb, THEIRS, sequence_length=2)
        writers.observe(observer, writers.repeated(data.trajectory_steps(columns), episodes))
        server.expect(THEIRS, items)
        server.settle()
        sides = [
            Side(OURS, lambda n: sample(server, OURS, n), -(-size.items // BATCH)),
            Side(THEIRS, lambda n: sample(server, THEIRS, n), -(-size.reference_items // BATCH)),
        ]
        runs = alternate(sides, size.repeats)
        observer.close()
    return comparison(
        f"sampling/{name}", runs, OURS, THEIRS, "samples/s", goal, stored_items=items, batch=BATCH, in_flight=IN_FLIGHT
    )


def sample(server: BenchServer, table: str, batches: int) -> Run:
    """Samples so many batches; the clock starts with the second, when all workers run."""
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(server.address, table, IN_FLIGHT)
    reader = iter(dataset.batch(BATCH))
    next(reader)
    with timed() as watch:
        for _ in range(batches):
            next(reader)
    del reader
    server.settle()
    return watch.run(batches * BATCH)
