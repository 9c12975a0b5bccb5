"""Cuts on shared rows hold what they held alone, and what several have in common stands there once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.cuts import Cut, Window, share
from rlds2reverb.episode import Episode
from rlds2reverb.views import VIEWS, view_of
from rlds2reverb.views.requirements import Requirements
from tests.support import strategies
from tests.support.views.cutting import items_of
from tests.support.wire import insert_cuts as cuts
from tests.support.wire.insert_replay import assert_all_same, wire_form

REQUIREMENTS = Requirements({"obs": {"shift": "-2:1"}, "prev_actions": {"data_col": "actions", "shift": -1}})
EVERY_VIEW = [
    REQUIREMENTS,
    view_of("fragments:length=3"),
    *(view_of(name) for name in VIEWS if name not in ("requirements", "jigsaw")),
]
"""Jigsaw needs images."""


def assert_same_items(shared: list[Cut], alone: list[Cut]) -> None:
    assert len(shared) == len(alone)
    for of_shared, other in zip(shared, alone):
        assert of_shared.rows is shared[0].rows
        assert list(of_shared.fields) == list(other.fields)
        assert of_shared.priorities.tolist() == other.priorities.tolist()
        for mine, theirs in zip(items_of(of_shared), items_of(other), strict=True):
            assert_all_same(tuple(map(wire_form, mine)), tuple(map(wire_form, theirs)))


def stored_bytes(cut: Cut) -> int:
    return sum(column.nbytes for column in cut.rows.values())


@given(st.lists(st.sampled_from(EVERY_VIEW), min_size=1, max_size=4), st.integers(2, 12), st.integers(0, 99))
@settings(max_examples=60)
def test_views_of_one_episode_hold_the_same_items_on_shared_rows(views: list[Any], steps: int, seed: int) -> None:
    episode = strategies.episode(np.random.default_rng(seed), steps)
    alone = [view.cut(episode) for view in views]
    shared = share(alone)
    assert_same_items(shared, alone)
    if len(alone) > 1:
        assert len(shared[0].rows) <= sum(len(cut.rows) for cut in alone)


@given(st.lists(cuts.hand_made(), min_size=1, max_size=3), st.data())
@settings(max_examples=60)
def test_unrelated_cuts_of_any_dtype_and_origin_keep_their_items(some: list[Cut], data: st.DataObject) -> None:
    alone = [replace(cut, origin=data.draw(st.integers(0, cut.row_count))) for cut in some]
    assert_same_items(share(alone), alone)


def test_columns_of_the_same_values_are_stored_once_whatever_their_names() -> None:
    episode = of_wide_observations()
    alone = [view_of(name).cut(episode) for name in ("two_step", "transition", "n_step", "sequence:length=4")]
    shared = share(alone)
    observations = [column for column in shared[0].rows.values() if column.shape[1:] == (100,)]
    assert len(observations) == 1
    assert stored_bytes(shared[0]) < 1.1 * stored_bytes(alone[0])


def test_rows_before_the_first_are_shared_with_a_view_that_has_none() -> None:
    episode = of_wide_observations()
    alone = [view_of("two_step").cut(episode), view_of("frame_stack:frames=4").cut(episode)]
    pairs, stacks = share(alone)
    assert (pairs.origin, stacks.origin, pairs.row_count) == (3, 3, 53)
    assert pairs.anchors.tolist() == list(range(3, 52))
    assert stored_bytes(pairs) < 1.1 * stored_bytes(alone[1])


def of_wide_observations() -> Episode:
    rng = np.random.default_rng(0)
    return strategies.episode(rng, 50).with_columns(observation=rng.normal(size=(50, 100)).astype(np.float32))


def cut_of(values: np.ndarray, origin: int = 0) -> Cut:
    anchors = np.arange(len(values), dtype=np.int64)
    return Cut.of_columns({"x": values}, (Window(0, 1),), anchors, np.ones(len(values)), origin)


@pytest.mark.parametrize(
    ("other", "origin", "columns"),
    [
        (np.array([1.0, 2.0, 3.0]), 0, 1),
        (np.array([2.0, 3.0, 4.0]), 0, 2),
        (np.array([9.0, 1.0, 2.0]), 1, 1),  # a row before
        (np.array([1.0, 2.0, 3.0, 4.0]), 0, 1),  # a row after
        (np.array([1.0]), 0, 1),
        (np.array([7.0]), 1, 2),  # no row in common
        (np.array([1.0, 2.0, 3.0], np.float32), 0, 2),
        (np.array([[1.0], [2.0], [3.0]]), 0, 2),
    ],
)
def test_two_columns_are_one_when_they_agree_in_all_rows_that_both_have(
    other: np.ndarray, origin: int, columns: int
) -> None:
    alone = [cut_of(np.array([1.0, 2.0, 3.0])), cut_of(other, origin)]
    shared = share(alone)
    assert len(shared[0].rows) == columns
    assert_same_items(shared, alone)


@pytest.mark.parametrize(
    ("one", "other", "columns"),
    [
        (np.array([0.0, np.nan]), np.array([0.0, np.nan]), 1),
        (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), 2),
        (np.array([1.0, 0.0]), np.array([1.0, -0.0]), 2),
        (np.array([b"a", b"b"], object), np.array([b"a", b"b"], object), 1),
        (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object), 2),
    ],
)
def test_values_are_compared_to_the_byte(one: np.ndarray, other: np.ndarray, columns: int) -> None:
    alone = [cut_of(one), cut_of(other)]
    assert len(share(alone)[0].rows) == columns
    assert_same_items(share(alone), alone)


def test_the_columns_of_one_view_are_told_apart_after_a_third_joined_them() -> None:
    """Of rows that only one of two columns has, a third view must not be told the other's."""
    first, second = cut_of(np.array([1.0, 2.0])), cut_of(np.array([1.0, 2.0, 5.0]))
    third = cut_of(np.array([1.0, 2.0, 6.0]))
    alone = [first, second, third]
    assert_same_items(share(alone), alone)
