"""Whole episodes agree with a step-by-step simulation of TF-Agents' episode observer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.cuts import Window
from rlds2reverb.errors import ViewError
from rlds2reverb.views.trajectory import WholeEpisode
from tests.support import reference, strategies
from tests.support.views.cutting import ordered_items, slow_episode_items


def an_episode(rows: int) -> Episode:
    return strategies.episode(np.random.default_rng(rows), rows)


@settings(max_examples=40)
@given(strategies.episodes(min_steps=1, max_steps=12), st.none() | st.integers(1, 14))
def test_items_are_those_of_tf_agents_observer(episode: Episode, max_length: int | None) -> None:
    view = WholeEpisode(max_length, skip_longer=True)
    reference.assert_same_items(ordered_items(view, episode), slow_episode_items(episode, max_length))


def test_the_table_of_the_docstring_is_true() -> None:
    table = re.findall(r"^ *\| ([a-d ]+) \| ([a-d]+) \|$", str(WholeEpisode.__doc__), re.MULTILINE)
    assert table == [("a b c d", "abcd"), ("a", "a")]
    for steps, item in table:
        cut = WholeEpisode().cut(an_episode(len(steps.split())))
        assert cut.anchors.tolist() == [0]
        assert {field.windows for field in cut.fields.values()} == {(Window(0, len(item)),)}


@given(st.integers(1, 8), st.integers(1, 8))
def test_a_longer_episode_is_an_error_unless_it_is_skipped(rows: int, max_length: int) -> None:
    episode = an_episode(rows)
    assert len(WholeEpisode(max_length, skip_longer=True).cut(episode).anchors) == (rows <= max_length)
    if rows <= max_length:
        assert len(WholeEpisode(max_length).cut(episode).anchors) == 1
    else:
        with pytest.raises(ViewError, match=f"episode of {rows} steps: longer than max_length {max_length}; raise it"):
            WholeEpisode(max_length).cut(episode)


def test_the_item_has_the_views_priority() -> None:
    assert WholeEpisode(priority=0.5).cut(an_episode(3)).priorities.tolist() == [0.5]


def test_rows_are_not_copied() -> None:
    episode = an_episode(5)
    assert np.shares_memory(WholeEpisode().cut(episode).rows["observation"], episode.columns["observation"])


@pytest.mark.parametrize("max_length", [0, -3, 2.0, "3"])
def test_a_length_that_makes_no_sense_is_refused(max_length: Any) -> None:
    with pytest.raises(ViewError, match=f"episode: max_length {max_length!r}: expected a whole number"):
        WholeEpisode(max_length)


def test_a_priority_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ViewError, match="episode: priority nan: expected a finite number"):
        WholeEpisode(priority=float("nan"))
