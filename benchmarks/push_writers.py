"""`client.push` against Reverb's own writers fed with ready numpy trajectories, one call per step."""

from __future__ import annotations

from collections.abc import Iterator

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Result, Side, Size, alternate, comparison
from benchmarks.servers import BenchServer

FULL = Size(items=200_000, reference_items=30_000, repeats=5)
SHORT = Size(items=60_000, reference_items=6_000, repeats=1)

OURS, TRAJECTORY, STRUCTURED = "rlds2reverb", "TrajectoryWriter", "StructuredWriter"


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah 2-step items; rates in items per second. Making the trajectories is not timed, sending them is."""
    columns = data.half_cheetah()
    steps = data.trajectory_steps(columns)
    reference_episodes = data.episodes_for(size.reference_items, data.STEPS)
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:
        sides = [
            Side(
                OURS,
                lambda n: writers.push(server, data.episodes(columns, n)),
                data.episodes_for(size.items, data.STEPS),
            ),
            Side(
                TRAJECTORY,
                lambda n: writers.trajectory_writer(server, writers.repeated(steps, n)),
                reference_episodes,
            ),
            Side(
                STRUCTURED,
                lambda n: writers.structured_writer(server, writers.repeated(steps, n)),
                reference_episodes,
            ),
        ]
        runs = alternate(sides, size.repeats)
    for reference in (TRAJECTORY, STRUCTURED):
        yield comparison(f"push_writers/{reference}", runs, OURS, reference, "items/s")
