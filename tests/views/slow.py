"""The slow, obvious way from an episode to the items of every view: one item and one row at a time, any columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array, Episode
from rlds2reverb.views.base import View
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.fragments import Fragments
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.goal import Goal
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.sequence import SequenceView as SequenceView
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.target_pair import TargetPair
from rlds2reverb.views.transition import Transition
from tests.views.cutting import columns_of, slow_episode_items, slow_sequence_items

Item = dict[str, Array]
"""Field path -> what an item holds."""


def value(column: Array, row: int) -> Array:
    """One row of a column, an array even where it is one text."""
    return column[row : row + 1].reshape(column.shape[1:])


def one_wide(row: int, column: Array) -> Array:
    """One row of a column with an axis of size 1 behind it."""
    return column[row][..., None]


def zeros(column: Array) -> Array:
    """What stands where there is no row: zeros, or empty text."""
    return (
        np.full(column.shape[1:], b"", object) if column.dtype == object else np.zeros(column.shape[1:], column.dtype)
    )


def stacked(values: list[Array], column: Array) -> Array:
    """Rows -> one array with a leading axis."""
    found = np.empty((len(values), *column.shape[1:]), column.dtype)
    for number, one in enumerate(values):
        found[number : number + 1] = one.reshape(1, *one.shape)
    return found


def read(episode: Episode, name: str, field: str, get: Callable[[Array], Array]) -> Item:
    """`get` of every column of a step field, nested or not, under the name `field`."""
    paths = [path for path in episode.columns if path.split("/")[0] == name]
    return {field + path[len(name) :]: get(episode.columns[path]) for path in paths}


def at(episode: Episode, name: str, row: int, field: str = "") -> Item:
    """One row of a step field."""
    return read(episode, name, field or name, lambda column: value(column, row))


def transition_items(episode: Episode) -> list[Item]:
    """What a TorchRL collector writes for every step taken."""
    found = []
    for t in range(len(episode) - 1):
        ended = bool(episode.columns["is_last"][t + 1])
        terminal = bool(episode.columns["is_terminal"][t + 1])
        found.append(
            {
                **at(episode, "observation", t),
                **at(episode, "action", t),
                **at(episode, "observation", t + 1, "next/observation"),
                **read(episode, "reward", "next/reward", partial(one_wide, t)),
                "next/done": np.array([ended]),
                "next/terminated": np.array([ended and terminal]),
                "next/truncated": np.array([ended and not terminal]),
            }
        )
    return found


def n_step_items(episode: Episode, n: int, gamma: float, style: str, early: bool = False) -> list[Item]:
    """Returns summed reward by reward; fewer where the episode ends, and where an early item says so."""
    starts = [(0, k) for k in range(1, min(n, len(episode) - 1))] if early else []
    starts += [(t, n) for t in range(len(episode) - 1)]
    return [_n_step_item(episode, t, most, gamma, style) for t, most in starts]


def _n_step_item(episode: Episode, t: int, most: int, gamma: float, style: str) -> Item:
    rewards, discounts = episode.columns["reward"], episode.columns["discount"]
    total, scale, k = 0.0, 1.0, 0
    while k < most and t + k < len(episode) - 1:
        if k:
            scale *= gamma
        total += scale * float(rewards[t + k])
        if style == "acme":
            scale *= float(discounts[t + k])
        k += 1
    if style == "torchrl":
        scale *= gamma
    return {
        **at(episode, "observation", t),
        **at(episode, "action", t),
        "reward": np.array(total, rewards.dtype),
        "discount": np.array(scale, discounts.dtype),
        **at(episode, "observation", t + k, "next_observation"),
        "steps": np.array(k, np.int32),
    }


def made_up(column: Array, fill: Any) -> Array:
    """A row that the episode does not have: the first one, zeros, or a number everywhere."""
    if fill == "first":
        return value(column, 0)
    return zeros(column) if fill == "zero" else np.full(column.shape[1:], fill, column.dtype)


def deepest(fill: Any, path: str) -> Any:
    """The fill of the longest path that leads to a column."""
    if not isinstance(fill, dict):
        return fill
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((fill[one] for one in above if one in fill), "first")


def frame_stack_items(episode: Episode, frames: int, fill: Any) -> list[Item]:
    """A queue of frames, full from the start, that moves on with every step."""
    found = []
    stacks: list[Item] = []
    for t in range(len(episode)):
        stack: Item = {}
        for path, column in episode.columns.items():
            if path.split("/")[0] == "observation":
                queue = [made_up(column, deepest(fill, path))] * frames
                for row in range(t + 1):
                    queue = [*queue[1:], value(column, row)]
                stack[path] = stacked(queue, column)
        stacks.append(stack)
    for t in range(len(episode) - 1):
        item = dict(stacks[t])
        item |= {path.replace("observation", "next_observation", 1): one for path, one in stacks[t + 1].items()}
        for name in ("action", "reward", "discount"):
            item |= at(episode, name, t)
        found.append(item)
    return found


def slice_items(episode: Episode, starts: Sequence[int], length: int, truncated: bool) -> list[Item]:
    """All columns over `length` rows from each start, fewer where the episode is shorter; perhaps a flag on the last one."""
    found = []
    for start in starts:
        rows = range(start, min(start + length, len(episode)))
        item = {path: stacked([value(column, row) for row in rows], column) for path, column in episode.columns.items()}
        if truncated:
            item["truncated"] = np.array([row == rows[-1] for row in rows])
        found.append(item)
    return found


def target_pair_items(episode: Episode, mode: str, offset: int) -> list[Item]:
    """A ring of the last `offset` steps, and a pair for every step that finds it full."""
    ring: list[int] = []
    found = []

    def actions(field: str) -> Item:
        return read(episode, "action", field, lambda column: stacked([value(column, t) for t in ring], column))

    for t in range(len(episode) - 1):
        item: Item = {}
        if mode == "identity":
            item = {**at(episode, "observation", t, "context"), **at(episode, "observation", t, "target")}
        elif len(ring) == offset:
            item = at(episode, "observation", ring[0], "context")
            if mode in ("none", "dynamics"):
                item |= at(episode, "observation", t, "target")
            if mode in ("inverse_dynamics", "action_prediction"):
                item |= actions("target")
            if mode == "dynamics":
                item |= actions("extra_context")
            if mode == "inverse_dynamics":
                item |= at(episode, "observation", t, "extra_context")
        if item:
            found.append({**item, "timestep": np.array(t, np.int64)})
        ring = [*ring, t][-offset:]
    return found


def jigsaw_items(episode: Episode, view: Jigsaw, classes: Sequence[int]) -> list[Item]:
    """Puzzles laid pixel by pixel; the class of every item is given."""
    (images,) = (column for path, column in episode.columns.items() if path.split("/")[0] == "observation")
    side = round(view.tiles**0.5)
    found = []
    for t, number in enumerate(classes):
        image = images[t].transpose(1, 2, 0) if view.channels == "first" else images[t]
        height, width = image.shape[0] // side, image.shape[1] // side
        puzzle = np.empty((side * (height - 2), side * (width - 2), image.shape[2]), image.dtype)
        for place, tile in enumerate(view.orders[number]):
            for y in range(height - 2):
                for x in range(width - 2):
                    seen = image[tile // side * height + y, tile % side * width + x]
                    puzzle[place // side * (height - 2) + y, place % side * (width - 2) + x] = seen
        context = puzzle.transpose(2, 0, 1) if view.channels == "first" else puzzle
        found.append({"context": context, "target": np.array([number], np.int64), "timestep": np.array(t, np.int64)})
    return found


def goal_items(episode: Episode, goals: Sequence[int]) -> list[Item]:
    """Every transition with the goal's row given."""
    return [
        {
            **at(episode, "observation", t),
            **at(episode, "action", t),
            **at(episode, "observation", t + 1, "next_observation"),
            **at(episode, "observation", goal, "goal"),
            "reward": np.array(0 if goal == t + 1 else -1, np.float32),
            "reached": np.array(goal == t + 1),
        }
        for t, goal in enumerate(goals)
    ]


NAMES = {"obs": "observation", "actions": "action", "rewards": "reward"}


def requirement_items(episode: Episode, requirements: dict[str, dict[str, Any]]) -> list[Item]:
    """RLlib's columns; a requirement has `data_col`, `offsets` (a list), `repeat` and perhaps `fill`."""
    count = len(episode) - 1
    found = []
    for t in range(count):
        item: Item = {}
        for name, one in requirements.items():
            column_name, start = one["data_col"], t // one["repeat"] * one["repeat"]
            rows = [start + offset for offset in one["offsets"]]
            fill = one.get("fill") or ("zero" if f"prev_{column_name}" in requirements else "first")
            known = len(episode) if column_name == "obs" else count
            is_time = column_name == "t" and not one.get("fill")

            def pick(
                column: Array, rows: Any = rows, fill: Any = fill, known: int = known, is_time: bool = is_time
            ) -> Array:
                column = column.astype(np.float32) if column.dtype == np.float64 else column
                values = []
                for row in rows:
                    if 0 <= row < known:
                        values.append(value(column, row))
                    elif row < 0 and is_time:  # of RLlib's reset observation
                        values.append(np.array(-1))
                    else:
                        values.append(made_up(column, "zero" if row >= known and fill == "first" else fill))
                return values[0] if len(values) == 1 else stacked(values, column)

            item |= read(episode, NAMES.get(column_name, column_name), name, pick)
        found.append(item)
    return found


REFERENCES: dict[type, Callable[[Any, Episode], list[Item]]] = {
    Transition: lambda view, episode: transition_items(episode),
    NStep: lambda view, episode: n_step_items(episode, view.n, view.gamma, view.style, view.early),
    FrameStack: lambda view, episode: frame_stack_items(episode, view.frames, view.fill),
    Slices: lambda view, episode: slice_items(episode, view.cut(episode).anchors.tolist(), view.length, view.truncated),
    TargetPair: lambda view, episode: target_pair_items(episode, view.mode, view.offset),
    Goal: lambda view, episode: goal_items(episode, goal_rows(view, episode)),
    Jigsaw: lambda view, episode: jigsaw_items(episode, view, view.cut(episode).rows["target"][:, 0].tolist()),
}
"""View -> its items, step by step; of views that draw, what they drew is taken from them."""


def goal_rows(view: Goal, episode: Episode) -> list[int]:
    """The rows that the view drew as goals."""
    anchors = [field.anchors for path, field in view.cut(episode).fields.items() if path.split("/")[0] == "goal"]
    assert anchors[0] is not None
    assert all(one is anchors[0] for one in anchors)
    return anchors[0].tolist()


def in_order(view: View, episode: Episode, items: list[Item]) -> list[list[Array]]:
    """Items as lists, in the order of the view's signature."""
    order = columns_of(view, episode)
    assert all(set(item) == set(order) for item in items)
    return [[item[path] for path in order] for item in items]


def slow_items(view: Any, episode: Episode) -> list[list[Array]]:
    """The items of any view of one episode, columns in the order of its signature."""
    if isinstance(view, SequenceView):
        options = {"length": view.length, "stride": view.stride, "pad": view.pad_end, "tile": view.tile_end}
        return slow_sequence_items(episode, **options)
    if isinstance(view, WholeEpisode):
        return slow_episode_items(episode, view.max_length)
    return in_order(view, episode, REFERENCES[type(view)](view, episode))


def fragment_items(view: Fragments, episodes: Sequence[Episode]) -> list[Item]:
    """What RLlib's workers sample of a stream of episodes, one step at a time."""
    found: list[list[Item]] = []
    waiting: list[Item] = []
    for episode in episodes:
        agents = len({path.split("/")[1] for path in episode.columns if path.startswith("action/")}) or 1
        weight = 1 if view.count_steps_by == "env_steps" else view.agents or agents
        for t in range(len(episode) - 1):
            waiting.append(_sampled(episode, t, view.new_obs))
            if view.batch_mode == "truncate_episodes" and len(waiting) * weight >= view.length:
                found.append(waiting)
                waiting = []
        if view.batch_mode == "complete_episodes" and waiting and len(waiting) * weight >= view.length:
            found.append(waiting)
            waiting = []
    return [
        {name: stacked([step[name] for step in fragment], fragment[0][name][None]) for name in fragment[0]}
        for fragment in found
    ]


def _sampled(episode: Episode, t: int, new_obs: bool) -> Item:
    """One step taken, in RLlib's columns."""
    last = t == len(episode) - 2
    terminal = bool(episode.columns["is_terminal"][-1])
    step = {
        **at(episode, "observation", t, "obs"),
        **at(episode, "action", t, "actions"),
        **at(episode, "reward", t, "rewards"),
        "terminateds": np.array(last and terminal),
        "truncateds": np.array(last and not terminal),
        "t": np.array(t),
        "eps_id": np.array(int.from_bytes(hashlib.blake2b(episode.id.encode(), digest_size=8).digest(), "little") >> 1),
    }
    if new_obs:
        step |= at(episode, "observation", t + 1, "new_obs")
    return {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in step.items()}
