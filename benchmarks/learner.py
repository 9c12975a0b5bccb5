"""Sampling for learners: our `client.sample` against Reverb's own ways, against the wire, and the memory that it takes.

The rivals: `reverb.TrajectoryDataset`, batched inside its pipeline, with prefetch, in that of `VARIANTS` which is fastest with these
data; and `reverb.Client.sample`. All sample one uniform table of a server in a process of its own. Ours stays open between runs,
as a learner's does, so that its chunks are decoded; the first run of all does that, and does not count.

"received": the same samples, taken by gRPC in Python and dropped. Nothing in Python can be faster.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import grpc
import numpy as np
from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure, note, timed
from benchmarks.servers import BenchServer, rss_bytes
from rlds2reverb import connect
from rlds2reverb.episode import Array
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from rlds2reverb.wire.codec import encode_sample_request
from rlds2reverb.wire.messages import SampleRequest

FULL = Size(items=200_000, reference_items=200_000, repeats=5)
SHORT = Size(items=30_000, reference_items=30_000, repeats=2)

OURS, DATASET, CLIENT, RECEIVED = "rlds2reverb", "TrajectoryDataset", "Client.sample", "received"
TABLE = "replay"
BATCH = 256
SMALL_BATCH = 16
"""For items of hundreds of steps."""

STEP_SECONDS = 0.005

LARGE = 8
"""A table that is large holds so many times the arena."""

WARM_BATCHES = 8
MEGABYTE = 1e6
ARENA_BYTES = 64 << 20

VARIANTS = tuple(itertools.product((512, 2048), ((1, 1), (4, 1), (1, 4))))
"""Samples in flight per worker; workers, and datasets that are interleaved."""

Variant = tuple[int, tuple[int, int]]


class Case(NamedTuple):
    """What is stored and sampled; `share`: so many times fewer samples than `Size` says."""

    name: str
    columns: list[dict[str, Array]]
    view: View
    steps: int
    batch: int
    share: int
    goal: float
    received: float | None = None  # the goal against what gRPC receives
    arena_share: int = 0  # the arena holds this part of the table; 0: all of it


def run(size: Size) -> Iterator[Result]:
    """Rates in samples (items) a second; `Size` counts samples."""
    cheetah, pictures, noise = data.half_cheetah(), data.pictures(), data.pictures(random_bytes=True)
    yield from _case(Case("half_cheetah", cheetah, two_step(), 100_000, BATCH, 1, 1.8, received=0.65), size)
    yield from _case(Case("images", pictures, two_step(), 4_000, BATCH, 8, 2.2), size)
    yield from _case(Case("images_of_noise", noise, two_step(), 3_000, BATCH, 16, 1.2), size)
    yield from _case(Case("images_of_a_camera", data.camera_pictures(), two_step(), 8_000, BATCH, 8, 1.2), size)
    yield from _case(Case("steps_100", cheetah, SequenceView(100), 100_000, BATCH, 16, 1.5), size)
    yield from _case(Case("episodes", cheetah, WholeEpisode(), 100_000, SMALL_BATCH, 100, 1.2), size)
    yield from _case(Case("large_table", cheetah, two_step(), 250_000, BATCH, 2, 1.2, arena_share=LARGE), size)
    yield from _case(
        Case("large_table_of_images", pictures, two_step(), 8_000, BATCH, 16, 1.2, arena_share=LARGE), size
    )
    yield from _streams(cheetah, size)
    yield _beside(cheetah, size)
    yield _memory(size)


def _case(case: Case, size: Size) -> Iterator[Result]:
    episodes = data.episodes_for(case.steps, len(case.columns[0]["is_first"]))
    batches = max(4, size.items // case.share // case.batch)
    with BenchServer([TableConfig(TABLE, data.signature(case.columns))]) as server:
        stored = writers.push(server, data.episodes(case.columns, episodes), TABLE, case.view).count
        server.settle()
        best = _best_variant(server, case, max(2, batches // 5))
        decoded = case.steps * sum(column[0].nbytes for column in case.columns[0].values())
        arena = {"arena_bytes": decoded // case.arena_share} if case.arena_share else {}
        with connect(server.address) as client, client.sample(TABLE, case.batch, **arena) as sampler:
            sides = [
                Side(OURS, lambda n: _ours(server, sampler, case.batch, n), batches),
                Side(
                    DATASET,
                    lambda n: _dataset(server, case, best, n),
                    max(4, size.reference_items // case.share // case.batch),
                ),
                Side(RECEIVED, lambda n: _received(server, n), batches * case.batch),
            ]
            if case.name == "half_cheetah":
                sides.append(Side(CLIENT, lambda n: _client_sample(server, n), batches * case.batch // 20))
            runs = alternate(sides, size.repeats)
    parameters = {
        "stored_items": stored,
        "batch": case.batch,
        **arena,
        "rival": dict(zip(("in_flight", "workers", "datasets"), (best[0], *best[1]))),
    }
    yield comparison(f"learner/{case.name}", runs, OURS, DATASET, "samples/s", Goal(case.goal), **parameters)
    of_received = None if case.received is None else Goal(case.received)
    yield comparison(f"learner/{case.name}_of_received", runs, OURS, RECEIVED, "samples/s", of_received, **parameters)
    if case.arena_share:
        cost = statistics.median(
            ours.processor_microseconds / theirs.processor_microseconds
            for ours, theirs in zip(runs[OURS], runs[DATASET])
        )
        yield figure(f"learner/{case.name}_processor", cost, "of the rival's", Goal(1.0, at_most=True), **parameters)
    if CLIENT in runs:
        yield comparison("learner/client_sample", runs, OURS, CLIENT, "samples/s", Goal(8.0), **parameters)


def _streams(columns: list[dict[str, Array]], size: Size) -> Iterator[Result]:
    """More streams against one, of the table of `half_cheetah`."""
    batches = max(4, size.items // BATCH)
    with BenchServer([TableConfig(TABLE, data.signature(columns))]) as server, ExitStack() as stack:
        episodes = data.episodes_for(100_000, len(columns[0]["is_first"]))
        stored = writers.push(server, data.episodes(columns, episodes), TABLE).count
        server.settle()
        client = stack.enter_context(connect(server.address))
        sides = []
        for streams in (1, 2, 4):
            sampler = stack.enter_context(client.sample(TABLE, BATCH, streams=streams))
            sides.append(Side(str(streams), partial(_ours, server, sampler, BATCH), batches))
        runs = alternate(sides, size.repeats)
    for many in ("2", "4"):
        yield comparison(
            f"learner/streams_{many}", runs, many, "1", "samples/s", Goal(1.0), stored_items=stored, batch=BATCH
        )


def _beside(columns: list[dict[str, Array]], size: Size) -> Result:
    """Training steps of 5 ms on one core, each with the next batch of a sampler, against steps with batches from memory."""
    steps = max(20, size.items // BATCH // 2)
    values = np.linspace(0, 1, 1 << 18, dtype=np.float32)
    with timed() as watch:
        for _ in range(10):
            np.tanh(values)
    rounds = max(1, round(STEP_SECONDS / (watch.run(10).seconds / 10)))

    def train(batch: Any) -> None:
        for _ in range(rounds):
            np.tanh(values)  # without the interpreter's lock, as a step on tensors
        np.add.reduce(batch.data[1])

    with BenchServer([TableConfig(TABLE, data.signature(columns))]) as server:
        episodes = data.episodes_for(100_000, len(columns[0]["is_first"]))
        stored = writers.push(server, data.episodes(columns, episodes), TABLE).count
        server.settle()
        with connect(server.address) as client, client.sample(TABLE, BATCH) as sampler:
            kept = sampler.next_batch()

            def run(next_batch: Callable[[], Any], count: int) -> Run:
                for _ in range(WARM_BATCHES):
                    train(sampler.next_batch())
                with timed() as watch:
                    for _ in range(count):
                        train(next_batch())
                server.settle()
                return watch.run(count)

            sides = [
                Side(OURS, partial(run, sampler.next_batch), steps),
                Side("from memory", partial(run, lambda: kept), steps),
            ]
            runs = alternate(sides, size.repeats)
    return comparison(
        "learner/beside_a_step", runs, OURS, "from memory", "steps/s", Goal(0.9), stored_items=stored, batch=BATCH
    )


def _received(server: BenchServer, samples: int) -> Run:
    """Takes samples as messages, and reads nothing of them."""
    with grpc.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)]) as channel:
        stream = channel.stream_stream("/deepmind.reverb.ReverbService/SampleStream")
        for count in (WARM_BATCHES * BATCH, samples):
            with timed() as watch:
                for _ in stream(iter([encode_sample_request(SampleRequest(TABLE, count))])):
                    pass
    server.settle()
    return watch.run(samples)


def _ours(server: BenchServer, sampler: Any, batch: int, batches: int) -> Run:
    for _ in range(WARM_BATCHES):
        sampler.next_batch()
    with timed() as watch:
        for _ in range(batches):
            sampler.next_batch()
    server.settle()
    return watch.run(batches * batch)


def _best_variant(server: BenchServer, case: Case, batches: int) -> Variant:
    rates = {variant: _dataset(server, case, variant, batches).rate for variant in VARIANTS}
    for variant, rate in rates.items():
        note(f"  {DATASET} in_flight, (workers, datasets) {variant}: {rate:,.0f}/s")
    return max(rates, key=rates.__getitem__)


def _dataset(server: BenchServer, case: Case, variant: Variant, batches: int) -> Run:
    reader = iter(_pipeline(server.address, case, variant))
    in_flight, (workers, datasets) = variant
    for _ in range(
        WARM_BATCHES + in_flight * workers * datasets // case.batch
    ):  # no sample that was there before counts
        next(reader)
    with timed() as watch:
        for _ in range(batches):
            next(reader)
    del reader
    server.settle()
    return watch.run(batches * case.batch)


def _pipeline(address: str, case: Case, variant: Variant) -> Any:
    import reverb
    import tensorflow as tf

    in_flight, (workers, datasets) = variant

    def one(_: Any = None) -> Any:
        made = reverb.TrajectoryDataset.from_table_signature(
            address, TABLE, in_flight, num_workers_per_iterator=workers
        )
        return made if case.name == "episodes" else made.batch(case.batch, drop_remainder=True)

    if datasets == 1:
        whole = one()
    else:
        whole = tf.data.Dataset.range(datasets).interleave(
            one, cycle_length=datasets, num_parallel_calls=datasets, deterministic=False
        )
    if case.name == "episodes":
        whole = whole.batch(case.batch, drop_remainder=True)
    return whole.prefetch(4).as_numpy_iterator()


def _client_sample(server: BenchServer, samples: int) -> Run:
    reader = iter(server.reverb.sample(TABLE, samples + BATCH, emit_timesteps=False))
    for _ in range(BATCH):
        next(reader)
    with timed() as watch:
        for _ in range(samples):
            next(reader)
    for _ in reader:
        pass
    server.settle()
    return watch.run(samples)


def _memory(size: Size) -> Result:
    """What the client grows by when the table is several times larger than its arena, which is full then."""
    columns = data.pictures()
    with BenchServer([TableConfig(TABLE, data.signature(columns))]) as server:
        stored = writers.push(server, data.episodes(columns, data.episodes_for(8_000, data.IMAGE_STEPS)), TABLE).count
        command = [sys.executable, "-m", "benchmarks.learner", server.address, str(max(300, size.items // 200))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None  # we asked for a pipe
            grown = [float(line) for line in child.stdout]
    if child.returncode:
        raise RuntimeError(f"the sampling process ended with exit code {child.returncode}")
    bound = ARENA_BYTES / MEGABYTE + 50
    return figure(
        "learner/memory",
        max(grown),
        "MB",
        Goal(bound, at_most=True),
        arena_mb=ARENA_BYTES / MEGABYTE,
        stored_items=stored,
        batches=len(grown),
        last_mb=grown[-1],
    )


def sample_and_tell(address: str, batches: int) -> None:
    """Samples, and prints by how many MB this process has grown after each batch."""
    with connect(address) as client:
        before = rss_bytes()
        with client.sample(TABLE, SMALL_BATCH, arena_bytes=ARENA_BYTES) as sampler:
            for _ in range(batches):
                sampler.next_batch()
                print((rss_bytes() - before) / MEGABYTE, flush=True)


if __name__ == "__main__":
    sample_and_tell(sys.argv[1], int(sys.argv[2]))
