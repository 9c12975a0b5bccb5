"""`push_rlds_to_reverb`, ours against TF-Agents': the same dataset, observer, table and 2-step items."""

from __future__ import annotations

from collections.abc import Iterator

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison
from benchmarks.servers import BenchServer

FULL = Size(items=200_000, reference_items=10_000, repeats=5)
SHORT = Size(items=60_000, reference_items=4_000, repeats=2)

GOAL = Goal(30)
STRETCH = 40


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah steps in 1,000-step episodes; rates in steps per second."""
    from tf_agents.replay_buffers import reverb_utils
    from tf_agents.replay_buffers import rlds_to_reverb as theirs

    import rlds2reverb as ours

    columns = data.half_cheetah()
    dataset = data.rlds_dataset(columns)
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:
        observer = reverb_utils.ReverbAddTrajectoryObserver(server.reverb, writers.TABLE, sequence_length=2)

        def push(function: object, episodes: int) -> Run:
            items = episodes * (data.STEPS - 1)
            return writers.observer_push(server, function, dataset.take(episodes), observer, items)

        sides = [
            Side("rlds2reverb", lambda n: push(ours.push_rlds_to_reverb, n), data.episodes_for(size.items, data.STEPS)),
            Side("tf_agents", lambda n: push(theirs.push_rlds_to_reverb, n), -(-size.reference_items // data.STEPS)),
        ]
        runs = alternate(sides, size.repeats)
        observer.close()
    result = comparison(
        "push_tf_agents", runs, "rlds2reverb", "tf_agents", "steps/s", GOAL, episode_steps=data.STEPS, sequence_length=2
    )
    yield {**result, "stretch_goal": STRETCH, "stretch_met": result["ratio"] >= STRETCH}
