"""Fragments: agreement with the slow, obvious way, RLlib's documented example, and what is left over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import flatten
from rlds2reverb.views.fragments import Fragments
from tests.support import reference, strategies
from tests.support.views.cases.fragments import fragment_items
from tests.support.views.cutting import Streamed, columns_of, items_of

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)
MODES = ("truncate_episodes", "complete_episodes")
TEAM: strategies.Columns = {
    "observation": (np.dtype(np.float64), (2,)),
    "action/one": (np.dtype(np.int32), ()),
    "action/two": (np.dtype(np.float32), (2,)),
    "action/three/deep": (np.dtype(bool), ()),
}
"""The actions of three agents."""


def pieces(view: Fragments, episodes: list[Episode]) -> tuple[list[dict[str, np.ndarray]], Any]:
    """Every item as name -> array, and the stream that made them."""
    cut = Streamed(view.stream())
    return [
        dict(zip(columns_of(view, episode), item))
        for episode in episodes
        for item in items_of(cut(episode).in_order(columns_of(view, episode)))
    ], cut.stream


def lengths_of(view: Fragments, episodes: list[Episode]) -> tuple[list[int], int]:
    found, stream = pieces(view, episodes)
    return [len(item["t"]) for item in found], stream.left_over


def of(*transitions: Any, **options: Any) -> list[Episode]:
    return [strategies.episode(np.random.default_rng(n), count + 1, **options) for n, count in enumerate(transitions)]


@given(
    LENGTHS,
    st.integers(1, 12),
    st.sampled_from(MODES),
    st.sampled_from(("env_steps", "agent_steps")),
    st.none() | st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_items_are_the_steps_taken_one_after_the_other(
    lengths: list[int], length: int, mode: str, unit: str, agents: int | None, new_obs: bool, team: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    spec = TEAM if team else None
    episodes = [
        strategies.episode(rng, rows, spec, terminal=bool(rows % 2), episode_id=f"e{n}")
        for n, rows in enumerate(lengths)
    ]
    view = Fragments(length, mode, unit, agents if unit == "agent_steps" else None, new_obs)
    found, stream = pieces(view, episodes)
    wanted = fragment_items(view, episodes)
    names = sorted(wanted[0]) if wanted else []
    reference.assert_same_items(
        [[item[name] for name in names] for item in found], [[item[name] for name in names] for item in wanted]
    )
    taken = sum(rows - 1 for rows in lengths)
    assert stream.left_over == taken - sum(len(item["t"]) for item in wanted)
    for item in found:
        for leaf in flatten(view.signature(filled_spec(spec_of(episodes[0])))).values():
            assert leaf.shape[0] in (None, len(item["t"]))


def test_rllibs_example_of_complete_episodes() -> None:
    """Episodes of 98 steps and a fragment length of 100: two of them, 196 steps."""
    assert lengths_of(Fragments(100, "complete_episodes"), of(98, 98, 98, 98)) == ([196, 196], 0)
    assert lengths_of(Fragments(100, "complete_episodes"), of(98, 98, 98)) == ([196], 98)
    assert lengths_of(Fragments(98, "complete_episodes"), of(98, 98)) == ([98, 98], 0)


def test_truncated_fragments_have_exactly_their_length_wherever_episodes_end() -> None:
    assert lengths_of(Fragments(100), of(98, 98, 98, 98)) == ([100, 100, 100], 92)
    assert lengths_of(Fragments(10), of(35)) == ([10, 10, 10], 5)


@pytest.mark.parametrize(
    ("options", "lengths", "left"),
    [
        ({"count_steps_by": "env_steps"}, [10, 10], 4),
        ({"count_steps_by": "agent_steps"}, [4, 4, 4, 4, 4, 4], 0),  # three agents: 12 agent steps reach 10
        ({"count_steps_by": "agent_steps", "agents": 2}, [5, 5, 5, 5], 4),
        ({"count_steps_by": "agent_steps", "batch_mode": "complete_episodes"}, [8, 8, 8], 0),
    ],
)
def test_agents_are_the_entries_of_the_action_unless_their_number_is_given(
    options: dict[str, Any], lengths: list[int], left: int
) -> None:
    assert lengths_of(Fragments(10, **options), of(8, 8, 8, columns=TEAM)) == (lengths, left)


def test_episodes_are_told_apart_and_numbered_alike_in_every_push() -> None:
    episodes = of(3, 3)
    episodes = [strategies.episode(np.random.default_rng(n), 4, episode_id=f"e{n}") for n in range(2)]
    (item,), _ = pieces(Fragments(6), episodes)
    (again,), _ = pieces(Fragments(6), episodes)
    assert len(set(item["eps_id"].tolist())) == 2
    assert item["eps_id"].tolist() == again["eps_id"].tolist()
    assert item["t"].tolist() == [0, 1, 2, 0, 1, 2]
    assert min(item["eps_id"]) >= 0


def test_no_row_is_stored_twice() -> None:
    cut = Streamed(Fragments(7).stream())
    stored = sum(cut(episode).row_count for episode in of(5, 11, 3, 9))
    assert stored == 28
    assert cut.stream.left_over == 0


@pytest.mark.parametrize(
    "options",
    [
        {"length": 0},
        {"batch_mode": "episodes"},
        {"count_steps_by": "steps"},
        {"agents": 0},
        {"agents": 3},
        {"new_obs": 1},
        {"priority": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ViewError, match="fragments"):
        Fragments(**options)


def test_steps_that_lack_a_field_are_refused() -> None:
    with pytest.raises(ViewError, match="fragments: the steps lack reward"):
        Fragments().signature({"observation": flatten, "action": flatten})
