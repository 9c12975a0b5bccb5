"""The other views against the 2-step view on the same steps, several views in one push, and bytes of stacked frames."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure, timed
from benchmarks.servers import BenchServer
from rlds2reverb.episode import Array
from rlds2reverb.views import view_of
from rlds2reverb.views.base import View
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.requirements import Requirements

FULL = Size(items=100_000, reference_items=100_000, repeats=5)
SHORT = Size(items=20_000, reference_items=20_000, repeats=2)

GOAL = Goal(0.7)
STACK_GOAL = Goal(1.1, at_most=True)

TWO_STEP = "two_step"

VIEWS: dict[str, tuple[View, Goal | None]] = {
    "sequence": (view_of("sequence:length=8"), GOAL),
    "n_step": (view_of("n_step:n=5"), GOAL),
    "requirements": (
        Requirements(
            {
                "obs": {},
                "new_obs": {"data_col": "obs", "shift": 1},
                "actions": {},
                "rewards": {},
                "prev_actions": {"data_col": "actions", "shift": -1},
                "prev_rewards": {"data_col": "rewards", "shift": -1},
                "terminateds": {},
            }
        ),
        GOAL,
    ),
    "chunk": (view_of("chunk:history=2,horizon=16"), GOAL),
    "transition": (view_of("transition"), None),
    "frame_stack": (view_of("frame_stack:frames=4"), None),
    "goal": (view_of("goal"), None),
    "target_pair": (view_of("target_pair:mode=dynamics,offset=4"), None),
}
"""All make one item per step of the same episodes, so the rows that they store hold about as many bytes."""


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah steps; rates in items per second. `bytes_per_item` is what was sent, chunks and items."""
    columns = data.half_cheetah()
    with BenchServer([TableConfig(writers.TABLE), *map(TableConfig, VIEWS)]) as server:
        yield from _against_two_steps(server, columns, size)
        yield _several(server, columns, size)
        yield _stacks(server, size)


def _against_two_steps(server: BenchServer, columns: list[dict[str, Array]], size: Size) -> Iterator[Result]:
    sent: dict[str, float] = {}

    def push(name: str, view: str | View, episodes: int) -> Run:
        server.empty(writers.TABLE)
        with timed() as watch:
            report = server.client.push(data.episodes(columns, episodes), writers.TABLE, view, again=True)
        server.expect(writers.TABLE, report.items_confirmed)
        sent[name] = round(report.bytes / report.items_confirmed, 1)
        return watch.run(report.items_confirmed)

    episodes = data.episodes_for(size.items, data.STEPS)
    sides = [Side(TWO_STEP, partial(push, TWO_STEP, TWO_STEP), episodes)]
    sides += [Side(name, partial(push, name, view), episodes) for name, (view, _) in VIEWS.items()]
    runs = alternate(sides, size.repeats)
    for name, (view, goal) in VIEWS.items():
        bytes_per_item = {"bytes_per_item": sent[name], "bytes_per_item_two_step": sent[TWO_STEP]}
        label = view.label if name != "requirements" else "obs, new_obs, actions, rewards, prev_*, terminateds"
        yield comparison(f"views/{name}", runs, name, TWO_STEP, "items/s", goal, view=label, **bytes_per_item)


def _several(server: BenchServer, columns: list[dict[str, Array]], size: Size) -> Result:
    """Three views in one push against three pushes, one after the other; episodes per second."""
    views: dict[str, Any] = {name: VIEWS[name][0] for name in ("sequence", "n_step", "frame_stack")}
    sent: dict[str, int] = {}

    def measured(name: str, pushes: list[dict[str, Any]], episodes: int) -> Run:
        for table in views:
            server.empty(table)
        source = data.episodes(columns, episodes)
        with timed() as watch:
            reports = [server.client.push(source, tables, again=True) for tables in pushes]
        sent[name] = sum(report.bytes for report in reports)
        return watch.run(episodes)

    episodes = data.episodes_for(size.items // 2, data.STEPS)
    together, apart = "one push", "one push per view"
    sides = [
        Side(together, partial(measured, together, [views]), episodes),
        Side(apart, partial(measured, apart, [{table: view} for table, view in views.items()]), episodes),
    ]
    runs = alternate(sides, size.repeats)
    share = round(sent[together] / sent[apart], 3)
    return comparison("views/several", runs, together, apart, "episodes/s", bytes_share=share, views=", ".join(views))


def _stacks(server: BenchServer, size: Size) -> Result:
    """Bytes sent of stacks of four 84x84 frames over those of single frames, of images that do not compress."""
    pictures = [
        {**columns, "observation": columns["observation"][..., :1]} for columns in data.pictures(random_bytes=True)
    ]
    source = data.episodes(pictures, max(2, size.items // 10_000))
    sent = {}
    for frames in (1, 4):
        server.empty(writers.TABLE)
        sent[frames] = server.client.push(source, writers.TABLE, FrameStack(frames), again=True).bytes
    return figure(
        "views/stacked_bytes", sent[4] / sent[1], "of the bytes of single frames", STACK_GOAL, bytes=sent[4], frames=4
    )
