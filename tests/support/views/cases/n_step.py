"""N-step transitions, summed reward by reward."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.n_step import NStep
from tests.support.views.case import Picture, Rows, ViewCase, of_each
from tests.support.views.slow import Item, at, in_order


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


def rows(view: NStep, number: int, episode: Episode) -> list[Rows]:
    """The steps of the items; the early ones belong to the first."""
    transitions = len(episode) - 1
    early = [0] * max(0, min(view.n, transitions) - 1) if view.early else []
    return [[(number, t)] for t in [*early, *range(transitions)]]


CASE = ViewCase(
    labels={
        "n_step": "n_step:n=3,gamma=0.99,style=acme",
        "n_step:n=1,style=torchrl": "n_step:n=1,gamma=0.99,style=torchrl",
        "n_step:n=5,style=torchrl": "n_step:n=5,gamma=0.99,style=torchrl",
        "n_step:n=4,early=true": "n_step:n=4,gamma=0.99,style=acme,early=True",
    },
    more_labels={
        "n_step:n=5,gamma=1": "n_step:n=5,gamma=1.0,style=acme",
        "n_step:gamma=0.5,style=torchrl": "n_step:n=3,gamma=0.5,style=torchrl",
    },
    items=of_each(
        lambda view, episode: in_order(view, episode, n_step_items(episode, view.n, view.gamma, view.style, view.early))
    ),
    rows=rows,
    random=st.builds(NStep, st.integers(1, 6), st.floats(0.1, 1), st.sampled_from(["acme", "torchrl"]), st.booleans()),
    picture=Picture(
        "n_step:n=3,gamma=0.5",
        "observation reward steps",
        (0, 1, 4),
        replaced=lambda rows: {"reward": np.ones(rows, np.float32)},
    ),
)
