"""Whole episodes, as `ReverbAddEpisodeObserver` stores them."""

from __future__ import annotations

from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.views.trajectory import WholeEpisode
from tests.support.views.case import Picture, Rows, ViewCase, of_each
from tests.support.views.cutting import slow_episode_items


def rows(view: WholeEpisode, number: int, episode: Episode) -> list[Rows]:
    """All rows, of an episode that is not too long."""
    is_too_long = view.max_length is not None and len(episode) > view.max_length
    return [] if is_too_long else [[(number, row) for row in range(len(episode))]]


CASE = ViewCase(
    labels={"episode": "episode", "episode:max_length=6,skip_longer=true": "episode"},
    more_labels={"episode:max_length=none,priority=reward": "episode"},
    items=of_each(lambda view, episode: slow_episode_items(episode, view.max_length)),
    rows=rows,
    random=st.builds(WholeEpisode, st.none() | st.integers(1, 9), st.just(True)),
    picture=Picture("episode", "step_type observation", (0,)),
    extras_field="policy_info",
    is_window=True,
)
