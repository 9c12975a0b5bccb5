"""Rollout fragments, sampled one step at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.fragments import Fragments
from tests.support.views.case import Picture, Rows, ViewCase
from tests.support.views.slow import Item, at, in_order, stacked


def fragment_items(view: Fragments, episodes: Sequence[Episode]) -> list[Item]:
    """What RLlib's workers sample of a stream of episodes, one step at a time."""
    found: list[list[Item]] = []
    waiting: list[Item] = []
    for episode in episodes:
        weight = _weight(view, episode)
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


def rows(view: Fragments, episodes: Sequence[Episode]) -> list[Rows]:
    """The steps of the fragments."""
    found: list[Rows] = []
    waiting: Rows = []
    for number, episode in enumerate(episodes):
        weight = _weight(view, episode)
        for t in range(len(episode) - 1):
            waiting.append((number, t))
            if view.batch_mode == "truncate_episodes" and len(waiting) * weight >= view.length:
                found, waiting = [*found, waiting], []
        if view.batch_mode == "complete_episodes" and waiting and len(waiting) * weight >= view.length:
            found, waiting = [*found, waiting], []
    return found


def _weight(view: Fragments, episode: Episode) -> int:
    """Steps that one step of the episode counts for."""
    agents = len({path.split("/")[1] for path in episode.columns if path.startswith("action/")}) or 1
    return 1 if view.count_steps_by == "env_steps" else view.agents or agents


CASE = ViewCase(
    labels={
        "fragments": "fragments:length=200,batch_mode=truncate_episodes,count_steps_by=env_steps,agents=None,new_obs=True",
        "fragments:length=3": "fragments:length=3,batch_mode=truncate_episodes,count_steps_by=env_steps,agents=None,new_obs=True",
        "fragments:length=4,batch_mode=complete_episodes,new_obs=false": (
            "fragments:length=4,batch_mode=complete_episodes,count_steps_by=env_steps,agents=None,new_obs=False"
        ),
        "fragments:length=5,count_steps_by=agent_steps,agents=2": (
            "fragments:length=5,batch_mode=truncate_episodes,count_steps_by=agent_steps,agents=2,new_obs=True"
        ),
    },
    more_labels={
        "fragments:new_obs=false,length=2": (
            "fragments:length=2,batch_mode=truncate_episodes,count_steps_by=env_steps,agents=None,new_obs=False"
        )
    },
    items=lambda view, episodes: in_order(view, episodes[0], fragment_items(view, episodes)),
    rows_of_stream=rows,
    random=st.builds(
        lambda length, mode, counts, new_obs: Fragments(length, mode, counts[0], counts[1], new_obs),
        st.integers(1, 9),
        st.sampled_from(["truncate_episodes", "complete_episodes"]),
        st.sampled_from([("env_steps", None), ("agent_steps", None), ("agent_steps", 3)]),
        st.booleans(),
    ),
    picture=Picture("fragments:length=2", "obs new_obs t", rows=(4, 4)),
    is_window=True,
    narrows=True,
)
