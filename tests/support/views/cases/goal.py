"""Transitions with a goal; which row was drawn as the goal is taken from the view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.goal import STRATEGIES, Goal
from tests.support.views.case import Picture, ViewCase, of_each
from tests.support.views.slow import Item, at, in_order


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


def goal_rows(view: Goal, episode: Episode) -> list[int]:
    """The rows that the view drew as goals."""
    anchors = [field.anchors for path, field in view.cut(episode).fields.items() if path.split("/")[0] == "goal"]
    assert anchors[0] is not None
    assert all(anchor is anchors[0] for anchor in anchors)
    return anchors[0].tolist()


CASE = ViewCase(
    labels={
        "goal": "goal:strategy=future,seed=0",
        "goal:strategy=final": "goal:strategy=final,seed=0",
        "goal:strategy=uniform,seed=3": "goal:strategy=uniform,seed=3",
    },
    more_labels={"goal:seed=-4": "goal:strategy=future,seed=-4"},
    items=of_each(lambda view, episode: in_order(view, episode, goal_items(episode, goal_rows(view, episode)))),
    random=st.builds(Goal, st.sampled_from(list(STRATEGIES)), st.integers(0, 20)),
    picture=Picture("goal:seed=7", "observation reward", (0, 1, 2)),
    own_columns=("reward",),
)
