"""`rlds2reverb record` with random actions, against a bare loop over the same environment, which keeps nothing.

- `record/half_cheetah`: HalfCheetah-v5, episodes of 1,000 steps, into a dataset of TFDS and of Minari.
- `record/cartpole`: CartPole-v1, episodes of some 20 steps, where the episode costs as much as its steps.

The bare loop calls `action_space.sample`, `step`, and `reset` at an episode's end, without seeds. Ours resets every episode by a seed of its own, draws
its random actions many at a time, checks the episodes and writes the dataset whole. So it can be faster than the bare loop, whose own time is the
environment's and that of `action_space.sample`; beside it `given` is a loop whose actions were drawn before.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import datasets
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from rlds2reverb.adapters.gymnasium import DataCollector, episodes_of
from rlds2reverb.conversion.convert import convert

FULL = Size(items=20_000, reference_items=20_000, repeats=5)
SHORT = Size(items=3_000, reference_items=3_000, repeats=1)

GOAL = Goal(0.8)
BARE, GIVEN = "bare loop", "actions given"
CASES = (
    ("half_cheetah", "HalfCheetah-v5", GOAL),
    # Short episodes: what an episode costs, its seeds included, is told.
    ("cartpole", "CartPole-v1", None),
)


def run(size: Size) -> Iterator[Result]:
    """Rates in steps per second."""
    for name, environment, goal in CASES:
        yield from _compared(name, environment, goal, size)


def _compared(name: str, environment: str, goal: Goal | None, size: Size) -> Iterator[Result]:
    datasets.KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=datasets.KEPT) as kept:
        folder = Path(kept)
        sides = [
            Side("tfds", lambda n: _record(environment, n, f"tfds:{folder / 'recorded'}"), size.items),
            Side("minari", lambda n: _record(environment, n, f"minari:{folder / 'own-v0'}"), size.items),
            Side("collector", lambda n: _collect(environment, n, folder), size.items),
            Side(BARE, lambda n: _loop(environment, n), size.reference_items),
            Side(GIVEN, lambda n: _loop(environment, n, is_given=True), size.reference_items),
        ]
        runs = alternate(sides, size.repeats)
    yield comparison(f"record/{name}", runs, "tfds", BARE, "steps/s", goal)
    yield comparison(f"record/{name}_of_actions_given", runs, "tfds", GIVEN, "steps/s")
    yield comparison(f"record/{name}_minari", runs, "minari", BARE, "steps/s", goal)
    yield comparison(f"record/{name}_collector", runs, "collector", BARE, "steps/s", goal)


def _record(environment: str, steps: int, destination: str) -> Run:
    with timed() as watch:
        report = convert(episodes_of(environment, steps=steps), destination)
    shutil.rmtree(report.path)
    return watch.run(report.steps_written - report.episodes_written)


def _collect(environment: str, steps: int, folder: Path) -> Run:
    """The bare loop in a collector that writes a dataset of TFDS."""
    import gymnasium

    collector = DataCollector(gymnasium.make(environment), f"tfds:{folder / 'collected'}")
    with timed() as watch:
        _step(collector, steps, None)
        collector.close()
    shutil.rmtree(folder / "collected")
    return watch.run(steps)


def _loop(environment: str, steps: int, is_given: bool = False) -> Run:
    import gymnasium

    bare = gymnasium.make(environment)
    actions = [bare.action_space.sample() for _ in range(steps)] if is_given else None
    with timed() as watch:
        _step(bare, steps, actions)
    bare.close()
    return watch.run(steps)


def _step(environment: Any, steps: int, actions: list[Any] | None) -> None:
    environment.reset(seed=0)
    for number in range(steps):
        action = environment.action_space.sample() if actions is None else actions[number]
        _, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            environment.reset()
