"""One push by each of the ways into Reverb. All return when the server has confirmed every item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Run, timed
from benchmarks.servers import BenchServer
from rlds2reverb.views.base import View

TABLE = "replay"

TrajectorySteps = Sequence[Sequence[Any]]
"""Episodes of TF-Agents trajectories, one per step, as `data.trajectory_steps` makes them."""


def push(server: BenchServer, source: Any, table: str = TABLE, view: str | View = "two_step", **options: Any) -> Run:
    """Our `client.push`; the number of items."""
    server.empty(table)
    with timed() as watch:
        report = server.client.push(source, table, view, again=True, **options)
    server.expect(table, report.items_confirmed)
    return watch.run(report.items_confirmed)


def observer_push(server: BenchServer, push_function: Any, dataset: Any, observer: Any, items: int) -> Run:
    """A `push_rlds_to_reverb`, ours or TF-Agents', flushed; the number of steps."""
    server.empty(TABLE)
    with timed() as watch:
        steps = push_function(dataset, observer)
        observer.flush()
    server.expect(TABLE, items)
    return watch.run(steps)


def observe(observer: Any, episodes: TrajectorySteps) -> Run:
    """A TF-Agents observer called with ready numpy trajectories; the number of steps."""
    with timed() as watch:
        for episode in episodes:
            for step in episode:
                observer(step)
        observer.flush()
    return watch.run(sum(map(len, episodes)))


def trajectory_writer(server: BenchServer, episodes: TrajectorySteps) -> Run:
    """Reverb's TrajectoryWriter, one append and one 2-step item per step; the number of items."""
    server.empty(TABLE)
    with timed() as watch, server.reverb.trajectory_writer(num_keep_alive_refs=2, validate_items=False) as writer:
        for episode in episodes:
            for number, step in enumerate(episode):
                writer.append(step)
                if number:
                    writer.create_item(TABLE, 1.0, _last_two(writer.history))
            writer.end_episode()
        writer.flush()
    items = sum(len(episode) - 1 for episode in episodes)
    server.expect(TABLE, items)
    return watch.run(items)


def structured_writer(server: BenchServer, episodes: TrajectorySteps) -> Run:
    """Reverb's StructuredWriter with a pattern for 2-step items, one append per step; the number of items."""
    import tree
    from reverb import structured_writer as patterns

    structure = tree.map_structure(lambda _: None, episodes[0][0])
    config = patterns.create_config(patterns.pattern_from_transform(structure, _last_two), TABLE)
    server.empty(TABLE)
    writer = server.reverb.structured_writer([config])
    with timed() as watch:
        for episode in episodes:
            for step in episode:
                writer.append(step)
            writer.end_episode()
        writer.flush()
    items = sum(len(episode) - 1 for episode in episodes)
    server.expect(TABLE, items)
    return watch.run(items)


def repeated(episodes: TrajectorySteps, count: int) -> list[Sequence[Any]]:
    """So many episodes; the steps are shared."""
    return [episodes[number % len(episodes)] for number in range(count)]


def _last_two(history: Any) -> Any:
    """The last two rows of every column of a Trajectory; policy_info is empty."""
    return history._replace(
        step_type=history.step_type[-2:],
        observation=history.observation[-2:],
        action=history.action[-2:],
        next_step_type=history.next_step_type[-2:],
        reward=history.reward[-2:],
        discount=history.discount[-2:],
    )
