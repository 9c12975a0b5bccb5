"""Pushes by several workers: what they cost beside one pusher, and how much faster two are than one. No server: a sink confirms.

Rates and processor times are those of the parts, so that the start of a process is not in them; the driver's are its own.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from benchmarks import datasets
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure, timed
from benchmarks.sink import TABLE, Sink, SinkWay
from rlds2reverb.fleet.push import DistributedPush
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan, plan_push
from rlds2reverb.push.run import Push
from rlds2reverb.transport.base import Transport
from rlds2reverb.workers.driver import Executor, Job, Outcome, SendProgress, Task, Work
from rlds2reverb.workers.processes import Processes

FULL = Size(items=10_000_000, reference_items=500_000, repeats=3)
SHORT = Size(items=200_000, reference_items=200_000, repeats=1)

LENGTH = 100
"""Steps of an episode."""

IMAGE_EPISODES = (16, 64)
"""Of the dataset with images: in short runs, and in full ones."""

COST_GOAL, SPEED_GOAL, DRIVER_GOAL = Goal(1.15, at_most=True), Goal(1.7), Goal(0.02, at_most=True)


def run(size: Size) -> Iterator[Result]:
    """2-step items from TFDS files: half-cheetah in episodes of 100 steps, and RT-1's images, decoded; rates in steps per second.

    `Size.items` counts the steps of the run that the driver is measured in, `Size.reference_items` those of the others.
    """
    yield from _case("steps", _named(size.reference_items), size)
    images = datasets.open_x("rt1", IMAGE_EPISODES[size.repeats > 1])
    yield from _case("images", f"tfds:{images}", size)
    yield _driver(_divided(_named(size.items), 2))


def _driver(shares: _Shares) -> Result:
    """What the driver takes beside its workers, and for each part."""
    seconds, workers_seconds = shares.driver.processor_seconds, shares.workers.processor_seconds
    return figure(
        "scale/driver",
        seconds / workers_seconds,
        "of the workers' processor time",
        DRIVER_GOAL,
        episodes=shares.workers.count // LENGTH,
        parts=shares.parts,
        milliseconds_per_part=round(1e3 * seconds / shares.parts, 3),
        driver_seconds=round(seconds, 3),
        workers_seconds=round(workers_seconds, 3),
    )


def _case(name: str, source: str, size: Size) -> Iterator[Result]:
    """Two workers against one, and both against one pusher."""
    sides = [
        Side("one pusher", lambda _: _alone(source), 1),
        Side("1 worker", lambda _: _divided(source, 1).workers, 1),
        Side("2 workers", lambda _: _divided(source, 2).workers, 1),
    ]
    runs = alternate(sides, size.repeats)
    yield comparison(f"scale/{name}", runs, "2 workers", "1 worker", "steps/s", SPEED_GOAL)
    for count, side in enumerate(("1 worker", "2 workers"), 1):
        costs = [a.processor_microseconds / b.processor_microseconds for a, b in zip(runs[side], runs["one pusher"])]
        unit = f"of one pusher's processor time per step, {side}"
        yield figure(f"scale/{name}_cost_{count}", statistics.median(costs), unit, COST_GOAL)


def _named(steps: int) -> str:
    return f"tfds:{datasets.short_episodes(steps, LENGTH)}"


def _plan(source: str) -> PushPlan:
    return plan_push(source, PushOptions(TABLE, allow=("last_reward",)), lambda: {"sink": Sink().server_info()})


def _alone(source: str) -> Run:
    plan = _plan(source)
    with timed() as watch:
        report = Push({"sink": cast(Transport, Sink())}, plan).run()
    return watch.run(report.steps_pushed)


class _Shares(NamedTuple):
    """What the workers did, and the driver beside them; the number of parts."""

    workers: Run
    driver: Run
    parts: int


def _divided(source: str, workers: int) -> _Shares:
    plan = _plan(source)
    with tempfile.TemporaryDirectory() as folder:

        def executor(job: Job) -> Executor:
            return Processes(_Watched(job, Path(folder)), workers)

        with timed() as watch:
            report = DistributedPush({"sink": cast(Transport, Sink())}, plan, {"sink": SinkWay()}, executor).run()
        parts = [json.loads(line) for path in Path(folder).iterdir() for line in path.read_text().splitlines()]
    seconds = max(part["ended"] for part in parts) - min(part["began"] for part in parts)
    done = Run(report.steps_pushed, seconds, sum(part["processor_seconds"] for part in parts))
    return _Shares(done, watch.run(report.steps_pushed), len(parts))


@dataclass(frozen=True)
class _Watched:
    """A job whose workers write down what every task took."""

    job: Job
    folder: Path

    @contextmanager
    def open(self) -> Iterator[_WatchedWork]:
        with self.job.open() as work:
            yield _WatchedWork(work, self.folder)


@dataclass(frozen=True)
class _WatchedWork:
    work: Work
    folder: Path

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        began, processor = time.monotonic(), time.process_time()
        outcome = self.work.run(task, on_progress)
        took = {"began": began, "ended": time.monotonic(), "processor_seconds": time.process_time() - processor}
        (self.folder / str(task.number)).write_text(json.dumps(took))
        return outcome
