"""Slices: all columns over some rows; which rows were drawn is taken from the view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.slices import Slices
from tests.support.views.case import Picture, Rows, ViewCase, of_each
from tests.support.views.slow import Item, in_order, stacked, value


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


def starts_of(view: Slices, episode: Episode) -> list[int]:
    """The first rows that the view drew."""
    starts: list[int] = view.cut(episode).anchors.tolist()
    return starts


def rows(view: Slices, number: int, episode: Episode) -> list[Rows]:
    """The rows of the slices."""
    return [
        [(number, row) for row in range(start, min(start + view.length, len(episode)))]
        for start in starts_of(view, episode)
    ]


CASE = ViewCase(
    labels={
        "slices": "slices:length=32,per_episode=1,strict=True,seed=0",
        "slices:length=3,per_episode=4": "slices:length=3,per_episode=4,strict=True,seed=0",
        "slices:length=4,per_episode=2,strict=false,seed=7": "slices:length=4,per_episode=2,strict=False,seed=7",
        "slices:length=8,per_episode=3,strict=false": "slices:length=8,per_episode=3,strict=False,seed=0",
        "slices:length=3,per_episode=4,truncated=true": "slices:length=3,per_episode=4,strict=True,seed=0,truncated=True",
        "slices:length=4,per_episode=2,strict=false,truncated=true": "slices:length=4,per_episode=2,strict=False,seed=0,truncated=True",
    },
    items=of_each(
        lambda view, episode: in_order(
            view, episode, slice_items(episode, starts_of(view, episode), view.length, view.truncated)
        )
    ),
    rows=rows,
    random=st.builds(Slices, st.integers(1, 6), st.integers(1, 6), st.booleans(), st.integers(0, 20), st.booleans()),
    picture=Picture("slices:length=3,per_episode=2", "observation action", rows=(9,)),
    is_window=True,
    holds_all=True,
)
