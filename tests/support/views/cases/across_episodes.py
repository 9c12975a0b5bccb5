"""Windows over a stream of episodes, as `ReverbTrajectorySequenceObserver` stores them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views.trajectory import AcrossEpisodes
from tests.support import reference
from tests.support.views.case import Picture, Rows, ViewCase
from tests.support.views.cutting import observed_rows


def items(view: AcrossEpisodes, episodes: Sequence[Episode]) -> list[list[Array]]:
    """Windows over all rows."""
    rows = [row for episode in episodes for row in observed_rows(episode)[0]]
    starts = range(0, len(rows) - view.length + 1, view.stride)
    return [reference.stack(rows[start : start + view.length]) for start in starts]


def rows(view: AcrossEpisodes, episodes: Sequence[Episode]) -> list[Rows]:
    """The same of the rows' numbers."""
    stream: Rows = [(number, row) for number, episode in enumerate(episodes) for row in range(len(episode))]
    starts = range(0, len(stream) - view.length + 1, view.stride)
    return [stream[start : start + view.length] for start in starts]


CASE = ViewCase(
    labels={"across_episodes": "across_episodes:length=2,stride=1"},
    more_labels={"across_episodes:length=5,stride=3,priority=2": "across_episodes:length=5,stride=3"},
    items=items,
    rows_of_stream=rows,
    random=st.builds(AcrossEpisodes, st.integers(1, 6), st.integers(1, 4)),
    picture=Picture("across_episodes:length=3", "step_type observation", (0, 1, 2), (4, 4)),
    extras_field="policy_info",
    is_window=True,
)
