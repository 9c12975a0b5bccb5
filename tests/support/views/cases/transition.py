"""TorchRL's transitions, as a collector writes them."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.transition import Transition
from tests.support.views.case import Picture, ViewCase, of_each
from tests.support.views.slow import Item, at, in_order, one_wide, read


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


CASE = ViewCase(
    labels={"transition": "transition"},
    items=of_each(lambda view, episode: in_order(view, episode, transition_items(episode))),
    random=st.just(Transition()),
    picture=Picture("transition", "observation action next/reward next/terminated", (0, 1, 4)),
)
