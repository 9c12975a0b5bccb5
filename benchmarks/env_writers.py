"""Writing from an environment loop: `client.writer`, one append per step, against Reverb's TrajectoryWriter, one append and one item per step.

Ours gets observation, action and reward as the environment's loop has them; TrajectoryWriter gets ready numpy trajectories, which TF-Agents'
observers have to make first. Both store the same 2-step items. Timed is all from the first append to the end of `flush`, the environment's
steps left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from benchmarks.servers import BenchServer

FULL = Size(items=100_000, reference_items=30_000, repeats=5)
SHORT = Size(items=30_000, reference_items=6_000, repeats=1)

GOAL, SHORT_GOAL = Goal(5), Goal(5, fails_at=0.5)  # short episodes are known to be far from it

SHORT_STEPS = 20
"""Rows of a short episode, such as those of a cart-pole that falls."""

OURS, TRAJECTORY = "rlds2reverb", "TrajectoryWriter"

LoopSteps = Sequence[Sequence[Mapping[str, Any]]]
"""Episodes of steps as a loop has them; the last one has the observation only."""


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah 2-step items; rates in items per second, of which a step makes one. `short`: episodes of 20 steps."""
    columns = data.half_cheetah()
    yield _compared("", columns, data.STEPS, size, GOAL)
    short = [{name: column[:SHORT_STEPS] for name, column in episode.items()} for episode in columns]
    yield _compared("/short", [_ended(episode) for episode in short], SHORT_STEPS, size, SHORT_GOAL)


def _compared(name: str, columns: Sequence[dict[str, Any]], steps_of_episode: int, size: Size, goal: Goal) -> Result:
    steps, loop_steps = data.trajectory_steps(columns), [_loop_steps(episode) for episode in columns]
    counts = [data.episodes_for(items, steps_of_episode) for items in (size.items, size.reference_items)]
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:
        ours = Side(OURS, lambda n: _write(server, writers.repeated(loop_steps, n)), counts[0])
        theirs = Side(TRAJECTORY, lambda n: writers.trajectory_writer(server, writers.repeated(steps, n)), counts[1])
        runs = alternate([ours, theirs], size.repeats)
    return comparison(f"env_writers{name}/{TRAJECTORY}", runs, OURS, TRAJECTORY, "items/s", goal)


def _ended(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with an end after the last row."""
    return {**columns, "is_last": np.arange(len(columns["is_last"])) == len(columns["is_last"]) - 1}


def _write(server: BenchServer, episodes: LoopSteps) -> Run:
    """Our `client.writer`; the number of items."""
    server.empty(writers.TABLE)
    with timed() as watch, server.client.writer(writers.TABLE) as writer:
        for *steps, last in episodes:
            for step in steps:
                writer.append(step)
            writer.end_episode(last, terminal=False)
        writer.flush()
    items = sum(len(episode) - 1 for episode in episodes)
    server.expect(writers.TABLE, items)
    return watch.run(items)


def _loop_steps(columns: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    *paths, last = [("observation", "action", "reward")] * (len(columns["reward"]) - 1) + [("observation",)]
    return [{name: columns[name][row] for name in names} for row, names in enumerate((*paths, last))]
