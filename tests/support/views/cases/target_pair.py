"""Pairs for representation learning, by a ring of the last steps."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.target_pair import MODES, TargetPair
from tests.support.views.case import Picture, Rows, ViewCase, of_each
from tests.support.views.slow import Item, at, in_order, read, stacked, value


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


def rows(view: TargetPair, number: int, episode: Episode) -> list[Rows]:
    """The steps of the targets."""
    first = 0 if view.mode == "identity" else view.offset
    return [[(number, t)] for t in range(first, len(episode) - 1)]


CASE = ViewCase(
    labels={
        "target_pair": "target_pair:mode=none,offset=1",
        "target_pair:mode=identity": "target_pair:mode=identity,offset=0",
        "target_pair:mode=dynamics,offset=2": "target_pair:mode=dynamics,offset=2",
        "target_pair:mode=inverse_dynamics,offset=3": "target_pair:mode=inverse_dynamics,offset=3",
        "target_pair:mode=action_prediction": "target_pair:mode=action_prediction,offset=1",
    },
    more_labels={"target_pair:mode=identity,offset=3": "target_pair:mode=identity,offset=0"},
    items=of_each(lambda view, episode: in_order(view, episode, target_pair_items(episode, view.mode, view.offset))),
    rows=rows,
    random=st.builds(TargetPair, st.sampled_from(MODES), st.integers(1, 6)),
    picture=Picture("target_pair:mode=dynamics,offset=2", "observation action"),
)
