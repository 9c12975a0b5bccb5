"""What is wrong with an episode that only cutting it shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ViewError
from rlds2reverb.prepare.policy import lack_of_items, view_refused
from tests import strategies

EPISODE = strategies.episode(np.random.default_rng(0), 4)


class Made(NamedTuple):
    view_name: str
    items_per_table: int
    is_of_stream: bool


def test_a_refusal_says_what_the_view_said() -> None:
    problem = view_refused(ViewError("too long"))
    assert (problem.code, problem.path, problem.detail) == ("view_refused", "", "too long")


@given(st.lists(st.builds(Made, st.sampled_from("ab"), st.integers(0, 2), st.booleans()), min_size=1, max_size=4))
def test_items_are_lacking_where_no_view_makes_any_and_no_stream_may(made: list[Made]) -> None:
    lacking = not any(one.items_per_table or one.is_of_stream for one in made)
    assert (lack_of_items(EPISODE, made) is not None) == lacking


@pytest.mark.parametrize("names", [["two_step"], ["sequence:length=8", "episode"]])
def test_it_names_all_views_and_the_steps(names: list[str]) -> None:
    problem = lack_of_items(EPISODE, [Made(name, 0, False) for name in names])
    assert str(problem) == f"no_items: {', '.join(names)} makes no item of 4 steps"
