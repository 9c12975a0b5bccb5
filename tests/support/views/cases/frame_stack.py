"""Stacked frames, by a queue that moves on."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.frame_stack import FrameStack
from tests.support.views.case import Picture, ViewCase, of_each
from tests.support.views.slow import Item, at, in_order, made_up, stacked, value


def deepest(fill: Any, path: str) -> Any:
    """The fill of the longest path that leads to a column."""
    if not isinstance(fill, dict):
        return fill
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((fill[path] for path in above if path in fill), "first")


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
        item |= {path.replace("observation", "next_observation", 1): frames for path, frames in stacks[t + 1].items()}
        for name in ("action", "reward", "discount"):
            item |= at(episode, name, t)
        found.append(item)
    return found


CASE = ViewCase(
    labels={
        "frame_stack": "frame_stack:frames=4,fill=first",
        "frame_stack:frames=1": "frame_stack:frames=1,fill=first",
        "frame_stack:frames=3,fill=zero": "frame_stack:frames=3,fill=zero",
    },
    more_labels={
        "frame_stack:fill=0": "frame_stack:frames=4,fill=zero",
        "frame_stack:frames=2,fill=-1.5": "frame_stack:frames=2,fill=-1.5",
    },
    items=of_each(lambda view, episode: in_order(view, episode, frame_stack_items(episode, view.frames, view.fill))),
    random=st.builds(FrameStack, st.integers(1, 6), st.sampled_from(["first", "zero"])),
    picture=Picture("frame_stack:frames=3", "observation action"),
)
