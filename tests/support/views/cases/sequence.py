"""Windows of trajectory rows, as `ReverbAddTrajectoryObserver` stores them."""

from __future__ import annotations

from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView
from tests.support.views.case import Picture, Rows, ViewCase, of_each
from tests.support.views.cutting import slow_sequence_items


def items(view: SequenceView, episode: Episode) -> list[list[Array]]:
    """By the calls of the observer."""
    return slow_sequence_items(episode, length=view.length, stride=view.stride, pad=view.pad_end, tile=view.tile_end)


def rows(view: SequenceView, number: int, episode: Episode) -> list[Rows]:
    """The windows; what is behind the episode is padding."""
    short = max(0, view.length - len(episode)) if view.pad_end else 0
    every = [*range(len(episode)), *[None] * (view.length - 1 if view.tile_end else short)]
    starts = range(0, len(every) - view.length + 1, view.stride)
    return [[(number, row) for row in every[start : start + view.length]] for start in starts]


def _random() -> st.SearchStrategy[View]:
    padding = st.sampled_from([(False, False), (True, False), (True, True)])
    return st.builds(
        lambda length, stride, both: SequenceView(length, stride, *both), st.integers(1, 6), st.integers(1, 4), padding
    )


CASE = ViewCase(
    labels={
        "sequence": "sequence:length=2,stride=1,pad_end=False,tile_end=False",
        "sequence:length=2,stride=2": "sequence:length=2,stride=2,pad_end=False,tile_end=False",
        "sequence:length=3,stride=2,pad_end=true": "sequence:length=3,stride=2,pad_end=True,tile_end=False",
        "sequence:length=5,pad_end=true": "sequence:length=5,stride=1,pad_end=True,tile_end=False",
        "sequence:length=4,pad_end=true,tile_end=true": "sequence:length=4,stride=1,pad_end=True,tile_end=True",
        "sequence:length=4,stride=3,pad_end=true,tile_end=true": "sequence:length=4,stride=3,pad_end=True,tile_end=True",
        "sequence:length=7": "sequence:length=7,stride=1,pad_end=False,tile_end=False",
    },
    items=of_each(items),
    rows=rows,
    random=_random(),
    picture=Picture("sequence:length=3,pad_end=true,tile_end=true", "step_type observation", (0, 1, 5)),
    extras_field="policy_info",
    is_window=True,
)
