"""Priorities from a column or a function: every item of every view gets that of its step, found again from what it holds."""

from __future__ import annotations

import doctest
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views import prioritized, view_from, view_of
from rlds2reverb.views.base import View
from rlds2reverb.views.prioritized import Prioritized, by_return, return_of
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.trajectory import AcrossEpisodes, WholeEpisode, two_step
from rlds2reverb.views.transition import Transition
from tests.support import strategies
from tests.support.views.cutting import Streamed, field_value

STEP_OF = {
    "two_step": ("observation", 0),
    "sequence:length=3,stride=2": ("observation", 0),
    "sequence:length=4,pad_end=true,tile_end=true": ("observation", 0),
    "episode": ("observation", 0),
    "transition": ("observation", None),
    "n_step:n=3": ("observation", None),
    "frame_stack:frames=3": ("observation", -1),
    "goal": ("observation", None),
    "slices:length=3,per_episode=4": ("observation", 0),
    "slices:length=30,strict=false": ("observation", 0),
    "target_pair:mode=identity": ("timestep", None),
    "target_pair:mode=dynamics,offset=2": ("timestep", None),
}
"""View -> the field that tells an item's step when observations are step numbers, and its element."""
REQUIREMENTS = Requirements(
    {"t": {}, "before": {"data_col": "obs", "shift": "-4:-1"}, "after": {"data_col": "obs", "shift": 2}}
)


def numbered(rows: int, **more: Array) -> Episode:
    """Observations are step numbers."""
    row = np.arange(rows)
    flags = {"is_first": row == 0, "is_last": row == rows - 1, "is_terminal": row == rows - 1}
    ones = {name: np.ones(rows) for name in ("action", "reward", "discount")}
    return Episode({"observation": row, **ones, **flags, **more}, {}, "e")


def steps_of(view: View, cut: Cut, field: str, element: int | None) -> list[int]:
    """Step of each item, from what it holds."""
    found = [field_value(cut, cut.fields[field], number) for number in range(len(cut.anchors))]
    return [int(value if element is None else value[element]) for value in found]


@pytest.mark.parametrize("kind", ["float64", "float16", "int32", "uint8", "bfloat16"])
@pytest.mark.parametrize("text", [*STEP_OF, "requirements"])
@settings(max_examples=15)
@given(rows=st.integers(1, 12), seed=st.integers(0, 1000))
def test_every_item_has_the_priority_of_its_step(text: str, kind: str, rows: int, seed: int) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    errors = np.random.default_rng(seed).integers(0, 100, rows).astype(dtype)
    inner = REQUIREMENTS if text == "requirements" else view_of(text)
    episode = numbered(rows, td_error=errors)
    plain, cut = inner.cut(episode), Prioritized(inner, "td_error").cut(episode)
    field, element = STEP_OF.get(text, ("t", None))
    assert cut.priorities.dtype == np.float64
    assert cut.priorities.tolist() == [float(errors[step]) for step in steps_of(inner, plain, field, element)]
    assert cut.anchors.tolist() == plain.anchors.tolist()
    assert list(cut.fields) == list(plain.fields)
    assert cut.rows.keys() == plain.rows.keys()


@pytest.mark.parametrize("text", [*STEP_OF, "requirements"])
@settings(max_examples=15)
@given(rows=st.integers(1, 12))
def test_a_function_gets_all_steps_at_once_and_agrees_with_the_column(text: str, rows: int) -> None:
    inner = REQUIREMENTS if text == "requirements" else view_of(text)
    episode = numbered(rows, td_error=np.arange(rows) * 0.5)
    calls: list[list[int]] = []

    def half(given: Episode, steps: Array) -> Array:
        assert given is episode
        assert steps.dtype == np.int64
        calls.append(steps.tolist())
        return steps * np.float32(0.5)

    found = Prioritized(inner, half).cut(episode).priorities
    assert found.tolist() == Prioritized(inner, "td_error").cut(episode).priorities.tolist()
    assert len(calls) == 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 6))
def test_a_stream_says_how_many_rows_it_carries(lengths: list[int], length: int) -> None:
    cut = Streamed(AcrossEpisodes(length).stream())
    seen = 0
    for rows in lengths:
        found = cut(numbered(rows))
        assert found.origin == min(length - 1, seen)
        assert found.row_count == found.origin + rows
        assert found.rows["observation"][found.origin :].tolist() == list(range(rows))
        seen += rows


def test_items_and_their_keys_are_those_of_the_view() -> None:
    spec = spec_of(numbered(4, td_error=np.ones(4)))
    ways: tuple[Any, ...] = ("td_error", lambda episode, steps: steps)
    for by in ways:
        view = Prioritized(two_step(), by)
        assert view.label == two_step().label
        assert view.signature(spec) == two_step().signature(spec)


def test_a_word_for_a_priority_is_a_column() -> None:
    wanted = Prioritized(view_of("sequence:length=8"), "info/td_error")
    assert view_of("sequence:length=8,priority=info/td_error") == wanted
    assert view_from(yaml.safe_load("{view: sequence, length: 8, priority: info/td_error}")) == wanted
    assert view_of("two_step:priority=td_error") == Prioritized(two_step(), "td_error")
    made = view_from({"view": "requirements", "requirements": {"obs": {}}, "priority": "td_error"})
    assert isinstance(made, Prioritized)
    assert made.cut(numbered(3, td_error=np.array([3, 4, 5]))).priorities.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (None, r"expected a column of the steps, which have \['action', 'discount'"),
        (np.ones((4, 1)), r"expected one number per step, got float64\[1\]"),
        (np.ones(4, bool), r"expected one number per step, got bool\[\]"),
        (np.array([b"a"] * 4, object), r"expected one number per step, got string\[\]"),
        (np.ones(4, np.complex64), r"expected one number per step, got complex64\[\]"),
    ],
)
def test_columns_that_are_no_number_a_step_are_refused(column: Any, message: str) -> None:
    episode = numbered(4) if column is None else numbered(4, td_error=column)
    view = view_of("two_step:priority=td_error")
    with pytest.raises(ViewError, match=f'^two_step: priority by column "td_error": {message}'):
        view.signature(spec_of(episode))
    with pytest.raises(ViewError, match=f'^two_step: priority by column "td_error": {message}'):
        view.cut(episode)


@pytest.mark.parametrize(("value", "told"), [(-0.5, "-0.5"), (np.nan, "nan"), (np.inf, "inf")])
def test_priorities_that_make_no_sense_are_refused(value: float, told: str) -> None:
    episode = numbered(5, td_error=np.array([1.0, value, value, 1.0, value]))
    message = rf"step 1: expected a finite number of at least 0, got {told} \(2 of 4 items\)"
    with pytest.raises(ViewError, match=f'column "td_error": {message}'):
        Prioritized(Transition(), "td_error").cut(episode)
    with pytest.raises(ViewError, match=message):
        Prioritized(Transition(), lambda episode, steps: episode.columns["td_error"][steps]).cut(episode)


@pytest.mark.parametrize(
    ("result", "told"),
    [(np.ones(3), r"float64\[3\]"), (np.ones((4, 1)), r"float64\[4, 1\]"), (1.0, r"float64\[\]"),
     (["a"] * 4, r"<U1\[4\]"), ([True] * 4, r"bool\[4\]"), (None, r"object\[\]")],
)  # fmt: skip
def test_what_a_function_gives_must_be_one_number_an_item(result: Any, told: str) -> None:
    def mine(episode: Episode, steps: Array) -> Any:
        return result

    with pytest.raises(ViewError, match=rf"priority by mine: expected \[4\] numbers, one per item, got {told}"):
        Prioritized(Transition(), mine).cut(numbered(5))


def test_what_cannot_have_such_priorities_is_refused() -> None:
    with pytest.raises(ViewError, match="items hold steps of earlier episodes"):
        view_of("across_episodes:priority=td_error")
    with pytest.raises(ViewError, match="expected a view to give priorities to, got 3"):
        Prioritized(3, "td_error")  # type: ignore[arg-type]
    for by in ("", None, 1.5, ["td_error"]):
        with pytest.raises(ViewError, match="expected a column's path or a function, got"):
            Prioritized(two_step(), by)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Shifted:
    """A view that puts a row before and does not say so."""

    label = "shifted"

    def signature(self, step_spec: Any, metadata_spec: Any = ()) -> Any:
        return step_spec

    def reads(self, step_spec: Any) -> tuple[str, ...]:
        return tuple(step_spec)

    def cut(self, episode: Episode) -> Cut:
        cut = Slices(1, 99).cut(episode)
        return replace(cut, anchors=cut.anchors + 1)


def test_items_outside_the_episode_are_refused() -> None:
    with pytest.raises(ViewError, match=r"expected items at steps 0 to 3, got 1 to 4; .*Cut\.origin"):
        Prioritized(Shifted(), "observation").cut(numbered(4))


def test_the_examples_of_the_docstring_run() -> None:
    results = doctest.testmod(prioritized)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_table_of_the_docstring_is_true() -> None:
    episode = numbered(4, td_error=np.array([0.5, 2, 0, 1]))
    cut = Prioritized(two_step(), "td_error").cut(episode)
    lines = [f"| {n} | r{n} r{n + 1} | {priority:g} |" for n, priority in enumerate(cut.priorities)]
    assert all(line in str(prioritized.__doc__) for line in lines)


# Priorities by return: their order is that of the returns.

RETURNS = st.floats(-1e9, 1e9)


def episode(total: float) -> Episode:
    """Two steps; the last reward counts for nothing."""
    return Episode({"reward": np.array([total, 7.0])}, {}, "e")


def priority(total: float) -> float:
    (found,) = by_return(episode(total), np.array([0]))
    return float(found)


@given(RETURNS, RETURNS)
def test_a_higher_return_has_a_higher_priority(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < priority(low) <= priority(high)
    if high - low > 1e-9 * max(1, abs(low), abs(high)):
        assert priority(low) < priority(high)


@given(RETURNS)
def test_a_priority_tells_the_return(total: float) -> None:
    np.testing.assert_allclose(return_of(priority(total)), total, rtol=1e-6, atol=1e-9)


def test_views_take_it() -> None:
    given_episode = strategies.episode(np.random.default_rng(0), 5)
    (found,) = Prioritized(WholeEpisode(), by_return).cut(given_episode).priorities
    np.testing.assert_allclose(return_of(found), given_episode.columns["reward"][:-1].astype(float).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": np.zeros(2)}, "have no reward"),
        ({"reward": np.zeros((2, 2))}, "not one number"),
        ({"reward/a": np.zeros(2)}, "not one"),
    ],
)
def test_rewards_that_are_no_numbers_are_refused(columns: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises((LookupError, ValueError), match=words):
        by_return(Episode(columns, {}, "e"), np.array([0]))


def test_a_push_is_told_by_the_view() -> None:
    bad = strategies.episode(np.random.default_rng(0), 5).with_columns(reward=np.zeros((5, 2)))
    with pytest.raises(ViewError, match="priority by by_return: ValueError"):
        Prioritized(WholeEpisode(), by_return).cut(bad)
