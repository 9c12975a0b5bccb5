"""Whole-episode items: `push_rlds_to_reverb`, ours against TF-Agents', with a `ReverbAddEpisodeObserver`."""

from __future__ import annotations

from collections.abc import Iterator

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison
from benchmarks.servers import BenchServer

FULL = Size(items=400, reference_items=10, repeats=5)
SHORT = Size(items=150, reference_items=4, repeats=2)

GOAL = Goal(100)


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah episodes of 1,000 steps, one item each; rates in steps per second."""
    from tf_agents.replay_buffers import reverb_utils
    from tf_agents.replay_buffers import rlds_to_reverb as theirs

    import rlds2reverb as ours

    columns = data.half_cheetah()
    dataset = data.rlds_dataset(columns)
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:
        observer = reverb_utils.ReverbAddEpisodeObserver(server.reverb, writers.TABLE, data.STEPS)

        def push(function: object, episodes: int) -> Run:
            return writers.observer_push(server, function, dataset.take(episodes), observer, episodes)

        sides = [
            Side("rlds2reverb", lambda n: push(ours.push_rlds_to_reverb, n), size.items),
            Side("tf_agents", lambda n: push(theirs.push_rlds_to_reverb, n), size.reference_items),
        ]
        runs = alternate(sides, size.repeats)
        observer.close()
    yield comparison("episodes", runs, "rlds2reverb", "tf_agents", "steps/s", GOAL, episode_steps=data.STEPS)
