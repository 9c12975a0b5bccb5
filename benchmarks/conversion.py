"""`convert_rlds_to_trajectories`, ours against TF-Agents', read in batches of 256 to the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import data
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed

FULL = Size(items=200_000, reference_items=10_000, repeats=5)
SHORT = Size(items=200_000, reference_items=3_000, repeats=3)

GOAL = Goal(40)
BATCH = 256


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah; rates in trajectories per second. `batch` is a drop-in, `batch_size` is our own argument."""
    from tf_agents.replay_buffers import rlds_to_reverb as theirs

    import rlds2reverb as ours

    dataset = data.rlds_dataset(data.half_cheetah())
    episodes, reference = -(-size.items // data.STEPS), -(-size.reference_items // data.STEPS)
    sides = [
        Side("batch", lambda n: _read(ours.convert_rlds_to_trajectories(dataset.take(n)).batch(BATCH), n), episodes),
        Side(
            "batch_size",
            lambda n: _read(ours.convert_rlds_to_trajectories(dataset.take(n), batch_size=BATCH), n),
            episodes,
        ),
        Side(
            "tf_agents",
            lambda n: _read(theirs.convert_rlds_to_trajectories(dataset.take(n)).batch(BATCH), n),
            reference,
        ),
    ]
    runs = alternate(sides, size.repeats)
    for name in ("batch", "batch_size"):
        yield comparison(f"conversion/{name}", runs, name, "tf_agents", "trajectories/s", GOAL, batch=BATCH)


def _read(batches: Any, episodes: int) -> Run:
    with timed() as watch:
        count = sum(len(batch.step_type) for batch in batches)
    if count != episodes * data.STEPS:
        raise RuntimeError(f"expected {episodes * data.STEPS} trajectories, read {count}")
    return watch.run(count)
