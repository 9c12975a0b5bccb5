"""Reading an RLDS dataset: whole episodes, batched inside the pipeline as our source does, against step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import data
from benchmarks.common import Result, Run, Side, Size, alternate, comparison, timed
from rlds2reverb.sources import open_source

FULL = Size(items=400_000, reference_items=20_000, repeats=5)
SHORT = Size(items=60_000, reference_items=5_000, repeats=1)


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah, in memory; rates in steps per second."""
    dataset = data.rlds_dataset(data.half_cheetah())
    sides = [
        Side("episodes", lambda n: _episodes(dataset.take(n)), -(-size.items // data.STEPS)),
        Side("step by step", lambda n: _step_by_step(dataset.take(n)), -(-size.reference_items // data.STEPS)),
    ]
    runs = alternate(sides, size.repeats)
    yield comparison("reading", runs, "episodes", "step by step", "steps/s")


def _episodes(dataset: Any) -> Run:
    with timed() as watch:
        steps = sum(map(len, open_source(dataset)))
    return watch.run(steps)


def _step_by_step(dataset: Any) -> Run:
    with timed() as watch:
        steps = sum(1 for _ in dataset.flat_map(lambda episode: episode["steps"]).as_numpy_iterator())
    return watch.run(steps)
