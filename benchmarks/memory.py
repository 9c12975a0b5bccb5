"""Server memory of an item: ours against those of TF-Agents' observer, a fresh server process for each.

The observer is called with ready numpy trajectories, not through TF-Agents' converter: what is stored is the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Size, figure, note
from benchmarks.servers import BenchServer
from rlds2reverb.episode import Array

FULL = Size(items=200_000, reference_items=100_000, repeats=2)
SHORT = Size(items=60_000, reference_items=20_000, repeats=1)

GOAL = Goal(0.6, at_most=True)
IMAGE_GOAL = Goal(1.0, at_most=True)

IMAGE_SHARE = 10
"""Images are this many times fewer than `Size` says."""


def run(size: Size) -> Iterator[Result]:
    """2-step items of half-cheetah, and of 64x64x3 images; growth of the server's resident memory over the number of items."""
    yield _case("memory", data.half_cheetah(), size, GOAL)
    few = Size(size.items // IMAGE_SHARE, size.reference_items // IMAGE_SHARE, size.repeats)
    yield _case("memory/images", data.camera_pictures(), few, IMAGE_GOAL)


def _case(name: str, columns: list[dict[str, Array]], size: Size, goal: Goal) -> Result:
    steps = data.trajectory_steps(columns)
    episode_steps = len(columns[0]["is_first"])
    episodes = data.episodes_for(size.items, episode_steps)
    reference = data.episodes_for(size.reference_items, episode_steps)
    ours, theirs = [], []
    for _ in range(size.repeats):
        ours.append(_bytes_per_item(columns, lambda server: _push(server, columns, episodes)))
        theirs.append(_bytes_per_item(columns, lambda server: _observe(server, writers.repeated(steps, reference))))
        note(f"  rlds2reverb: {ours[-1]:,.0f} B, tf_agents: {theirs[-1]:,.0f} B an item")
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    return figure(
        name,
        ratio,
        "ours / theirs, bytes per item",
        goal,
        bytes_a=round(statistics.median(ours)),
        bytes_b=round(statistics.median(theirs)),
        items_a=size.items,
        items_b=size.reference_items,
        repeats=size.repeats,
    )


def _bytes_per_item(columns: list[dict[str, Array]], fill: Callable[[BenchServer], int]) -> float:
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:
        return growth_per_item(server, fill)


def growth_per_item(server: BenchServer, fill: Callable[[BenchServer], int]) -> float:
    """Bytes by which `fill`, which returns a number of items, makes an empty server grow, for each item."""
    server.settle()
    before = server.rss_bytes()
    items = fill(server)
    server.settle()
    return (server.rss_bytes() - before) / items


def _push(server: BenchServer, columns: list[dict[str, Array]], episodes: int) -> int:
    return writers.push(server, data.episodes(columns, episodes)).count


def _observe(server: BenchServer, steps: writers.TrajectorySteps) -> int:
    from tf_agents.replay_buffers import reverb_utils

    observer = reverb_utils.ReverbAddTrajectoryObserver(server.reverb, writers.TABLE, sequence_length=2)
    writers.observe(observer, steps)
    items = sum(len(episode) - 1 for episode in steps)
    server.expect(writers.TABLE, items)
    observer.close()
    return items
