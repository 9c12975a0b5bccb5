"""Trajectory rows agree with TF-Agents' rules applied one step at a time, for any flags and any columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.cuts import Window
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.push.options import PushOptions
from rlds2reverb.specs import ArraySpec, flatten, named_tuple_type
from rlds2reverb.views.trajectory import (
    FIELDS,
    FIRST,
    LAST,
    MID,
    AcrossEpisodes,
    RowStream,
    WholeEpisode,
    padding_rows,
    step_types,
    table_signature,
    trajectory_rows,
    trajectory_spec,
    with_window,
)
from tests.support import reference, strategies
from tests.support.views.cutting import Streamed, columns_of, items_of, observed_rows, ordered_items, slow_episode_items

FLAGS = st.tuples(st.booleans(), st.booleans(), st.booleans())
FLOAT = ArraySpec((), np.dtype(np.float32))

STEPS = {
    "action": FLOAT,
    "discount": FLOAT,
    "is_first": FLOAT,
    "observation": {"b": FLOAT, "a": ArraySpec((3,), np.dtype(np.uint8))},
    "reward": FLOAT,
}


def slow_type(is_first: int, is_last: int) -> int:
    if is_first:
        return FIRST
    return LAST if is_last else MID


def slow_row(
    flags: tuple[int, int, int], following: tuple[int, int, int], discount: np.float32
) -> tuple[int, int, np.float32]:
    """step_type, next_step_type and discount of one step; flags are is_first, is_last, is_terminal."""
    kind, next_kind = slow_type(*flags[:2]), slow_type(*following[:2])
    if (kind, next_kind) == (FIRST, FIRST):
        kind, next_kind = LAST, LAST
    return kind, next_kind, discount * 0 if flags[1] and flags[2] else discount


def columns(flags: Sequence[tuple[int, int, int]], **others: Any) -> dict[str, np.ndarray]:
    first, last, terminal = np.array(flags, bool).reshape(-1, 3).T
    rows = len(flags)
    return {
        "observation": np.arange(rows),
        "action": np.arange(rows) * 2,
        "reward": np.arange(rows) * 3.0,
        "discount": np.linspace(0.5, 1, rows, dtype=np.float32),
        "is_first": first,
        "is_last": last,
        "is_terminal": terminal,
        **others,
    }


def test_the_types_of_steps_have_dm_envs_numbers() -> None:
    assert (FIRST, MID, LAST) == (0, 1, 2)
    kinds = step_types(np.array([1, 0, 0, 1], bool), np.array([0, 0, 1, 1], bool))
    assert kinds.tolist() == [FIRST, MID, LAST, FIRST]
    assert kinds.dtype == np.int32


@given(st.lists(FLAGS, max_size=8), FLAGS)
def test_rows_of_any_flags_are_those_of_single_steps(
    flags: Sequence[tuple[int, int, int]], following: tuple[bool, bool, bool]
) -> None:
    steps = columns(flags)
    rows = trajectory_rows(steps, following[0], following[1])
    expected = [
        slow_row(flag, other, discount)
        for flag, other, discount in zip(flags, [*flags[1:], following], steps["discount"])
    ]
    found = list(zip(rows["step_type"].tolist(), rows["next_step_type"].tolist(), rows["discount"]))
    assert found == expected
    assert rows["step_type"].dtype == rows["next_step_type"].dtype == np.int32
    assert rows["discount"].dtype == np.float32
    for name in ("observation", "action", "reward"):
        assert rows[name] is steps[name]


def test_a_step_is_followed_by_a_first_step_unless_something_else_is_said() -> None:
    steps = columns([(1, 0, 0), (0, 0, 0), (0, 0, 0), (0, 1, 1)], discount=np.array([0.9, 0.8, 0.7, 0.6]))
    rows = trajectory_rows(steps)
    assert rows["step_type"].tolist() == [FIRST, MID, MID, LAST]
    assert rows["next_step_type"].tolist() == [MID, MID, LAST, FIRST]
    assert rows["discount"].tolist() == [0.9, 0.8, 0.7, 0]


@pytest.mark.parametrize(("terminal", "discount"), [(True, 0.0), (False, 1.0)])
def test_a_single_step_is_last_and_last(terminal: bool, discount: float) -> None:
    rows = trajectory_rows(columns([(1, 1, terminal)], discount=np.ones(1)))
    assert (rows["step_type"].tolist(), rows["next_step_type"].tolist()) == ([LAST], [LAST])
    assert rows["discount"].tolist() == [discount]


@settings(max_examples=40)
@given(strategies.episodes(min_steps=1, max_steps=12))
def test_whole_rows_of_any_columns_are_those_of_single_steps(episode: Episode) -> None:
    rows = trajectory_rows(episode.columns)
    expected = reference.trajectories(reference.steps_of(reference.nested(episode.columns)))
    nest = reference.nested(rows)
    found = reference.leaves([nest.get(name, ()) for name in FIELDS])
    for column, stacked in zip(found, reference.stack(expected), strict=True):
        assert reference.same(column, stacked)


@given(st.integers(1, 6), st.lists(st.integers(1, 3), max_size=2), st.booleans())
def test_a_discount_of_any_shape_is_zero_on_the_terminal_row_only(rows: int, shape: list[int], terminal: bool) -> None:
    flags = [(at == 0, at == rows - 1, at == rows - 1 and terminal) for at in range(rows)]
    discount = np.ones((rows, *shape), np.float32)
    found = trajectory_rows(columns(flags, discount=discount))["discount"]
    assert found.shape == discount.shape
    assert [bool(row.all()) for row in found] == [not flag[2] for flag in flags]
    assert found.any(axis=tuple(range(1, found.ndim))).tolist() == [not flag[2] for flag in flags]


def test_columns_stand_in_the_order_of_the_fields() -> None:
    steps = columns([(1, 0, 0), (0, 1, 1)])
    del steps["observation"], steps["reward"]
    steps |= {
        "reward/b": np.zeros(2),
        "policy_info": np.zeros(2),
        "reward/a": np.zeros(2),
        "observation/y": np.zeros(2),
        "observation/x/z": np.zeros(2),
        "language": np.zeros(2),
    }
    assert list(trajectory_rows(steps)) == [
        "step_type",
        "observation/y",
        "observation/x/z",
        "action",
        "policy_info",
        "next_step_type",
        "reward/b",
        "reward/a",
        "discount",
    ]


@pytest.mark.parametrize("name", ["is_first", "is_last", "is_terminal", "reward", "discount"])
def test_a_missing_field_is_named(name: str) -> None:
    steps = columns([(1, 0, 0), (0, 1, 1)])
    del steps[name]
    with pytest.raises(ViewError, match=rf"steps without {name}; found \['action', "):
        trajectory_rows(steps)


class TestPadding:
    @settings(max_examples=40)
    @given(strategies.episodes(max_steps=5), st.integers(0, 4))
    def test_padding_is_boundary_rows_of_zeros(self, episode: Episode, count: int) -> None:
        rows = trajectory_rows(episode.columns)
        padding = padding_rows(rows, count)
        assert list(padding) == list(rows)
        for path, column in padding.items():
            assert column.dtype == rows[path].dtype
            assert column.shape == (count, *rows[path].shape[1:])
            value = {"step_type": LAST, "next_step_type": FIRST}.get(path, b"" if column.dtype == object else 0)
            assert all(entry == value for entry in column.ravel().tolist())


class TestSpecs:
    def test_a_trajectory_has_the_fields_in_order(self) -> None:
        spec = trajectory_spec(STEPS)
        assert type(spec).__name__ == "Trajectory"
        assert spec._fields == FIELDS
        assert spec.policy_info == ()
        assert spec.step_type == ArraySpec((), np.dtype(np.int32))
        assert (spec.step_type.name, spec.next_step_type.name) == ("step_type", "step_type")
        assert list(flatten(spec)) == [
            "step_type",
            "observation/a",
            "observation/b",
            "action",
            "next_step_type",
            "reward",
            "discount",
        ]

    def test_policy_info_of_the_steps_is_kept(self) -> None:
        assert trajectory_spec({**STEPS, "policy_info": {"logits": FLOAT}}).policy_info == {"logits": FLOAT}

    @pytest.mark.parametrize("size", [2, None])
    def test_a_window_is_a_leading_axis_of_every_leaf(self, size: int | None) -> None:
        windowed = flatten(with_window(trajectory_spec(STEPS), size))
        assert windowed["observation/a"].shape == (size, 3)
        assert all(spec.shape[0] == size for spec in windowed.values())

    @pytest.mark.parametrize("absent", [["reward"], ["observation", "discount"], ["action"]])
    def test_a_spec_that_lacks_a_field_is_refused(self, absent: list[str]) -> None:
        steps = {name: spec for name, spec in STEPS.items() if name not in absent}
        with pytest.raises(
            ViewError, match=f"step spec without {', '.join(absent)}: a trajectory needs them; found .*; a transform"
        ):
            trajectory_spec(steps)

    @pytest.mark.parametrize("nest", [FLOAT, (FLOAT, FLOAT)])
    def test_steps_that_are_no_dict_are_refused(self, nest: ArraySpec | tuple[ArraySpec, ArraySpec]) -> None:
        with pytest.raises(ViewError, match=f"expected a dict of step fields, got {type(nest).__name__}"):
            trajectory_spec(nest)


def test_a_tables_signature_frees_the_rows_and_bounds_the_discount() -> None:
    items = with_window(trajectory_spec(STEPS), 2)
    found = table_signature(items)
    assert [str(leaf) for leaf in flatten(found).values()] == [
        "int32[?]",
        "uint8[?, 3]",
        "float32[?]",
        "float32[?]",
        "int32[?]",
        "float32[?]",
        "float32[?]",
    ]
    assert (found.discount.name, found.discount.minimum, found.discount.maximum) == ("discount", 0, 1)
    assert [leaf.name for leaf in flatten(found).values()] == ["step_type", "", "", "", "step_type", "", "discount"]


@pytest.mark.parametrize(
    "discount", [ArraySpec((), np.dtype(np.float64)), ArraySpec((2,), np.dtype(np.float32))], ids=str
)
def test_a_discount_that_no_tf_agents_table_has_is_left_as_it_is(discount: ArraySpec) -> None:
    found = table_signature(with_window(trajectory_spec({**STEPS, "discount": discount}), 2))
    assert (found.discount, found.discount.minimum) == (discount.with_leading(None), None)


def test_items_that_are_no_trajectories_are_their_tables_signature() -> None:
    for items in ({"step_type": FLOAT}, FLOAT, named_tuple_type("Trajectory", ("observation",))(FLOAT)):
        assert table_signature(items) is items


# Whole episodes agree with a step-by-step simulation of TF-Agents' episode observer.


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


# Windows over a stream of episodes: agreement with the slow, obvious way, and with TF-Agents' observer on a server.

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(LENGTHS, st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_items_are_the_windows_of_the_joined_rows(lengths: list[int], length: int, stride: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    episodes = [strategies.episode(rng, rows) for rows in lengths]
    view = AcrossEpisodes(length, stride)
    cut = Streamed(view.stream())
    found = [item for episode in episodes for item in items_of(cut(episode).in_order(columns_of(view, episode)))]
    rows = [row for episode in episodes for row in observed_rows(episode)[0]]
    starts = range(0, len(rows) - length + 1, stride)
    reference.assert_same_items(found, [reference.stack(rows[start : start + length]) for start in starts])


@given(LENGTHS, st.integers(0, 6), st.integers(1, 6), st.integers(1, 5))
def test_a_stream_goes_on_from_its_count_and_last_rows(lengths: list[int], stop: int, length: int, stride: int) -> None:
    view = AcrossEpisodes(length, stride)
    episodes = [strategies.episode(np.random.default_rng(number), rows) for number, rows in enumerate(lengths)]
    one, other = Streamed(view.stream()), Streamed(view.stream())
    expected = [item for episode in episodes for item in items_of(one(episode))]
    found = [item for episode in episodes[:stop] for item in items_of(other(episode))]
    stream = other.stream
    assert isinstance(stream, RowStream)
    assert stream.count == sum(lengths[:stop])
    assert {len(column) for column in stream.last_rows.values()} <= {min(length, stream.count)}
    kept = {path: column[len(column) - min(len(column), length - 1) :] for path, column in stream.last_rows.items()}
    for last_rows in (kept, stream.last_rows):
        resumed = Streamed(RowStream(view, stream.count, last_rows))
        rest = [item for episode in episodes[stop:] for item in items_of(resumed(episode))]
        reference.assert_same_items(found + rest, expected)


def test_every_stream_begins_anew() -> None:
    view, one = AcrossEpisodes(4), strategies.episode(np.random.default_rng(0), 3)
    for _ in range(2):
        cut = Streamed(view.stream())
        assert [len(cut(one).anchors) for _ in range(3)] == [0, 3, 3]


@pytest.mark.parametrize("options", [{"length": 0}, {"stride": 0}, {"length": True}, {"priority": -1}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ViewError, match="across_episodes"):
        AcrossEpisodes(**options)


def test_a_ledger_is_refused_because_items_depend_on_more_than_their_episode(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run the whole push again"):
        PushOptions("t", AcrossEpisodes(), ledger=tmp_path / "ledger.db")
