"""84x84x4 uint8 observations, 2-step items: `client.push` against TrajectoryWriter with ready numpy trajectories."""

from __future__ import annotations

from collections.abc import Iterator

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Side, Size, alternate, comparison
from benchmarks.servers import BenchServer
from rlds2reverb.episode import Array

FULL = Size(items=20_000, reference_items=10_000, repeats=5)
SHORT = Size(items=8_000, reference_items=4_000, repeats=2)

GOAL = Goal(2.5)


def run(size: Size) -> Iterator[Result]:
    """Episodes of 250 steps; rates in items per second. `scene` compresses, `random` does not."""
    for name, random_bytes in (("scene", False), ("random", True)):
        yield _case(name, data.pictures(random_bytes), size)


def _case(name: str, columns: list[dict[str, Array]], size: Size) -> Result:
    steps = data.trajectory_steps(columns)
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:
        sides = [
            Side(
                "rlds2reverb",
                lambda n: writers.push(server, data.episodes(columns, n)),
                data.episodes_for(size.items, data.IMAGE_STEPS),
            ),
            Side(
                "TrajectoryWriter",
                lambda n: writers.trajectory_writer(server, writers.repeated(steps, n)),
                data.episodes_for(size.reference_items, data.IMAGE_STEPS),
            ),
        ]
        runs = alternate(sides, size.repeats)
    step_bytes = columns[0]["observation"][0].nbytes
    return comparison(
        f"images/{name}", runs, "rlds2reverb", "TrajectoryWriter", "items/s", GOAL, image_bytes=step_bytes
    )
