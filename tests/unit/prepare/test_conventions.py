"""Conventions: the rules by which absent fields are filled, and the two repairs on request."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode, content_digest
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.last_step import last_row_is_added
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform
from rlds2reverb.formats.transformed import Transformed, transformed
from rlds2reverb.prepare import conventions
from rlds2reverb.prepare.conventions import (
    Conventions,
    absent_fields,
    ends_terminal,
    fill_absent,
    filled_spec,
    shifted_reward,
    zero_transition_discount,
)
from rlds2reverb.prepare.policy import SKIP, Policy
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.standard import Standard
from rlds2reverb.specs import ArraySpec, Nest, column_spec
from tests.support import strategies
from tests.unit.formats.test_transformed import WHOLE, robot, source, with_column

OPTIONAL = ("is_terminal", "reward", "discount")
FLOAT = ArraySpec((), np.dtype(np.float32))
FLAG = ArraySpec((), np.dtype(bool))


def steps(rows: int, terminal: bool | None = None, **columns: Any) -> Episode:
    at = np.arange(rows)
    flags = {"is_first": at == 0, "is_last": at == rows - 1}
    if terminal is not None:
        flags["is_terminal"] = (at == rows - 1) & terminal
    return Episode({**flags, **columns})


class TestFilling:
    def test_the_docstring_has_a_rule_for_every_optional_field(self) -> None:
        rules = re.findall(r"^\| (\w+) \| (.+) \|$", conventions.__doc__, re.MULTILINE)
        assert rules == [
            ("absent", "filled with"),
            ("is_terminal", "False: the episode counts as truncated"),
            ("reward", "0.0, float32"),
            ("discount", "1.0, float32; 0.0 on a terminal last step and on the step before it"),
        ]

    @pytest.mark.parametrize("terminal", [None, False])
    def test_without_a_terminal_flag_or_end_the_episode_is_truncated(self, terminal: bool | None) -> None:
        filled = fill_absent(steps(4, terminal))
        assert filled.columns["is_terminal"].tolist() == [False] * 4
        assert filled.columns["reward"].tolist() == [0.0] * 4
        assert filled.columns["discount"].tolist() == [1.0] * 4

    @pytest.mark.parametrize(("rows", "discount"), [(4, [1, 1, 0, 0]), (3, [1, 0, 0]), (2, [0, 0]), (1, [0]), (0, [])])
    def test_a_terminal_end_has_discount_zero_on_both_its_rows(self, rows: int, discount: list[int]) -> None:
        assert fill_absent(steps(rows, terminal=True)).columns["discount"].tolist() == discount

    @settings(max_examples=30)
    @given(strategies.episodes(min_steps=1), st.sets(st.sampled_from(OPTIONAL)))
    def test_absent_fields_are_filled_and_the_others_left_alone(self, episode: Episode, absent: set[str]) -> None:
        kept = {path: column for path, column in episode.columns.items() if path not in absent}
        recorded = Episode(kept, {"agent": 1}, "x")
        assert absent_fields(kept) == tuple(name for name in OPTIONAL if name in absent)
        filled = fill_absent(recorded)
        assert set(filled.columns) == set(episode.columns)
        assert all(np.array_equal(filled.columns[path], column) for path, column in kept.items())
        assert (filled.id, dict(filled.metadata)) == ("x", {"agent": 1})
        for name in absent:
            assert filled.columns[name].dtype == (bool if name == "is_terminal" else np.float32)
            assert filled.columns[name].shape == (len(episode),)

    def test_nothing_absent_is_the_same_episode(self) -> None:
        episode = strategies.episode(np.random.default_rng(0), 3)
        assert fill_absent(episode) is episode

    @pytest.mark.parametrize("flag", ["is_first", "is_last"])
    def test_what_is_no_rlds_episode_stays_as_it_was_recorded(self, flag: str) -> None:
        episode = Episode({path: column for path, column in steps(3).columns.items() if path != flag})
        assert fill_absent(episode) is episode

    def test_nested_fields_count_as_present(self) -> None:
        assert absent_fields({"reward/left": 0, "reward/right": 0, "is_terminal": 0}) == ("discount",)

    def test_a_terminal_flag_of_another_length_is_left_to_validation(self) -> None:
        filled = fill_absent(steps(3, is_terminal=np.array([True])))
        assert filled.columns["discount"].tolist() == [1, 1, 1]

    def test_the_spec_is_filled_with_the_same_dtypes(self) -> None:
        spec = filled_spec({"observation": {"a": FLOAT}, "is_first": FLAG, "is_last": FLAG})
        assert spec == {
            "observation": {"a": FLOAT},
            "is_first": FLAG,
            "is_last": FLAG,
            "is_terminal": FLAG,
            "reward": FLOAT,
            "discount": FLOAT,
        }
        assert filled_spec(spec) == spec
        filled = fill_absent(steps(3))
        assert all(filled.columns[name].dtype == spec[name].dtype for name in OPTIONAL)


class TestTransitions:
    @pytest.mark.parametrize(
        ("before", "after"),
        [([1, 1, 1], [1, 0, 1]), ([0.5, 0.5], [0, 0.5]), ([1], [1]), ([], []), ([[1, 1], [1, 1]], [[0, 0], [1, 1]])],
    )
    def test_the_discount_of_the_row_before_the_last_becomes_zero(
        self, before: list[float | list[int]], after: list[float | list[int]]
    ) -> None:
        discount = np.array(before, np.float32)
        kept = discount.copy()
        assert zero_transition_discount(discount).tolist() == after
        assert np.array_equal(discount, kept)

    @pytest.mark.parametrize(
        ("before", "after"),
        [([1, 2, 3], [2, 3, 0]), ([5], [0]), ([], []), ([[1, 2], [3, 4]], [[3, 4], [0, 0]])],
    )
    def test_a_shift_moves_every_reward_one_step_back(
        self, before: list[int | list[int]], after: list[int | list[int]]
    ) -> None:
        reward = np.array(before, np.float64)
        kept = reward.copy()
        shifted = shifted_reward(reward)
        assert shifted.tolist() == after
        assert shifted.dtype == np.float64
        assert np.array_equal(reward, kept)

    @pytest.mark.parametrize(
        ("terminal", "last", "ends"),
        [([0, 1], [0, 1], True), ([0, 1], [0, 0], False), ([1, 0], [0, 1], False), ([], [], False)],
    )
    def test_an_episode_ends_terminal_when_its_last_row_is_last_and_terminal(
        self, terminal: list[int], last: list[int], ends: bool
    ) -> None:
        episode = Episode({"is_terminal": np.array(terminal, bool), "is_last": np.array(last, bool)})
        assert ends_terminal(episode) is ends


class TestConventions:
    @given(
        strategies.episodes(), st.sampled_from(("as_recorded", "transition")), st.sampled_from(("as_recorded", "shift"))
    )
    def test_each_option_changes_its_own_column_only(
        self, episode: Episode, terminal_discount: str, last_reward: str
    ) -> None:
        applied = Conventions(terminal_discount, last_reward).apply(episode)
        discount, reward = episode.columns["discount"].tolist(), episode.columns["reward"].tolist()
        if terminal_discount == "transition" and episode.columns["is_terminal"][-1]:
            discount[-2] = 0.0
        if last_reward == "shift":
            reward = [*reward[1:], 0.0]
        assert applied.columns["discount"].tolist() == discount
        assert applied.columns["reward"].tolist() == reward
        for path in set(episode.columns) - {"discount", "reward"}:
            assert np.array_equal(applied.columns[path], episode.columns[path])
        assert applied.id == episode.id

    def test_as_recorded_is_the_same_episode(self) -> None:
        episode = strategies.episode(np.random.default_rng(0), 3)
        assert Conventions().apply(episode) is episode

    def test_a_truncated_end_keeps_its_discount(self) -> None:
        episode = strategies.episode(np.random.default_rng(0), 4, terminal=False)
        assert Conventions(terminal_discount="transition").apply(episode).columns["discount"].tolist() == [1] * 4

    def test_every_leaf_of_a_nested_reward_is_shifted(self) -> None:
        episode = steps(3, reward=np.zeros(0))
        columns = {"reward/a": np.array([0, 1, 2]), "reward/b": np.array([[0.0], [3], [4]]), "rewards": np.arange(3)}
        episode = episode.with_only_columns(columns)
        shifted = Conventions(last_reward="shift").apply(episode).columns
        assert {path: column.tolist() for path, column in shifted.items()} == {
            "reward/a": [1, 2, 0],
            "reward/b": [[3], [4], [0]],
            "rewards": [0, 1, 2],
        }

    def test_names_of_items_that_were_pushed_before_there_were_three_stay(self) -> None:
        assert Conventions("transition", "shift").label == "transition|shift"
        assert Conventions(last_observation="drop").label == "as_recorded|as_recorded|drop"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"terminal_discount": "zero"}, 'terminal_discount "zero": expected one of as_recorded, transition'),
            ({"last_reward": ""}, 'last_reward "": expected one of as_recorded, shift'),
            ({"last_observation": "zeros"}, 'last_observation "zeros": expected one of as_recorded, repeat, drop'),
        ],
    )
    def test_other_words_are_refused(self, options: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError) as error:
            Conventions(**options)
        assert str(error.value) == message


def added(episode: Episode) -> Episode:
    """The same with a last row that holds no transition."""
    names = [path for path in episode.columns if path.split("/")[0] in ("action", "reward")]
    columns = {path: episode.columns[path].copy() for path in names}
    for column in columns.values():
        column[-1] = b"" if column.dtype == object else 0
    return episode.with_columns(**columns)


def test_a_row_before_a_gap_was_recorded_even_if_its_action_is_0() -> None:
    ends = {
        name: Episode({**steps(3).columns, "action": np.zeros(3)}, {}, name)
        for name in ("e", "e[2:]", "e[:3]", "e[2:5]")
    }
    assert [Conventions(last_step="repeat").adds_row(end) for end in ends.values()] == [False, False, True, True]
    assert [Conventions(last_observation="drop").mends_end(end) for end in ends.values()] == [True, True, False, False]


class TestTheLastObservation:
    @settings(max_examples=60)
    @given(strategies.episodes(min_steps=2))
    def test_is_that_of_the_row_before_when_it_is_repeated(self, recorded: Episode) -> None:
        episode = added(recorded)
        put = Conventions(last_observation="repeat").apply(episode)
        for path, column in episode.columns.items():
            expected = [*column[:-1], column[-2]] if path.split("/")[0] == "observation" else list(column)
            assert put.columns[path].dtype == column.dtype
            assert all(np.array_equal(image, other) for image, other in zip(put.columns[path], expected))
            assert len(put.columns[path]) == len(expected)

    @settings(max_examples=60)
    @given(strategies.episodes(min_steps=2))
    def test_goes_with_its_row_when_it_is_dropped_and_the_end_is_none(self, recorded: Episode) -> None:
        episode = added(recorded)
        put = Conventions(last_observation="drop").apply(episode)
        assert len(put) == len(episode) - 1
        for path in set(episode.columns) - {"is_last"}:
            assert np.array_equal(put.columns[path], episode.columns[path][:-1])
        assert put.columns["is_last"].tolist() == [False] * (len(put) - 1) + [True]
        assert not put.columns["is_terminal"].any()
        assert put.id == episode.id

    @pytest.mark.parametrize("choice", conventions.LAST_OBSERVATIONS)
    @pytest.mark.parametrize(
        "column",
        [
            {"action": np.array([0, 0, 0.5])},
            {"reward": np.array([0, 0, 1])},
            {"reward/one": np.array([[0, 0], [0, 0], [0, np.nan]])},
            {"action": np.array([b"", b"", b"stop"], object)},
            {"action": np.array([0, 0, 1j])},
        ],
    )
    def test_stays_where_its_row_was_recorded(self, choice: str, column: dict[str, np.ndarray]) -> None:
        episode = steps(3, terminal=True, observation=np.arange(3.0), **column)
        assert Conventions(last_observation=choice).apply(episode) is episode

    @pytest.mark.parametrize("choice", conventions.LAST_OBSERVATIONS)
    def test_stays_where_there_is_no_other_row(self, choice: str) -> None:
        episode = steps(1, terminal=True, observation=np.arange(1.0))
        assert Conventions(last_observation=choice).apply(episode) is episode

    def test_is_judged_before_rewards_are_moved(self) -> None:
        recorded = steps(
            4, terminal=True, observation=np.arange(4.0), reward=np.array([0, 1, 2, 3.0]), discount=np.ones(4)
        )
        put = Conventions("transition", "shift", "drop").apply(recorded).columns
        assert (put["reward"].tolist(), put["discount"].tolist()) == ([1, 2, 3, 0], [1, 1, 0, 1])
        put = Conventions("transition", "shift", "drop").apply(added(recorded)).columns
        assert (put["reward"].tolist(), put["discount"].tolist()) == ([1, 2, 0], [1, 1, 1])


# What a push finds in episodes whose columns a transform made.


def problems(bad: Episode, transform: Transform = WHOLE, like: Episode | None = None) -> list[Problem]:
    """What a push finds in an episode of a dataset whose spec is that of another one."""
    changed = transformed(source(like or robot(0), bad), transform)
    assert isinstance(changed, Transformed)
    *_, episode = changed
    return Standard.of(changed.spec(), Conventions()).problems(fill_absent(episode))


def test_a_good_episode_has_no_problems() -> None:
    assert problems(robot(1)) == []


@pytest.mark.parametrize(
    ("path", "column", "reason"),
    [
        ("action/arm", np.zeros((4, 4), np.float32), "expected rows of float32[3], got float32[4]"),
        ("action/arm", np.zeros((4, 3)), "expected rows of float32[3], got float64[3]"),
        ("action/arm", None, "expected it in every episode; found ['action/grip', 'discount', "),
        ("action/grip", np.zeros(3, bool), "expected columns of equal length, got action/grip 3, action/arm 4"),
        ("observation/image", np.zeros((4, 3, 4, 3), np.uint8), "expected rows of uint8[6, 5, 3], got uint8[3, 4, 3]"),
        ("observation/image", np.zeros((4, 6, 5, 3), np.float32), "expected rows of uint8[6, 5, 3], got float32"),
    ],
)
def test_what_the_transform_reads_must_be_as_the_spec_says(path: str, column: Array | None, reason: str) -> None:
    """Whatever would come out, even columns of the right shape, such as an image that has the wanted size already."""
    found = problems(with_column(path, column))
    assert (found[0].code, found[0].path) == ("untransformed", path)
    assert reason in found[0].detail
    made = "action" if path.startswith("action") else "observation/image"
    assert ("missing_column", made) in [(problem.code, problem.path) for problem in found]


def test_two_errors_do_not_make_a_right_action() -> None:
    swapped = Transform(action="concat(arm, mode)")
    bad = with_column("action/arm", np.zeros((4, 1), np.float32)).columns
    bad = {**bad, "action/mode": np.zeros((4, 3), np.int32)}
    found = problems(robot(1).with_only_columns(bad), swapped)
    assert [problem.path for problem in found if problem.code == "untransformed"] == ["action/arm", "action/mode"]


def test_an_integer_that_float32_does_not_hold_is_refused() -> None:
    exact = with_column("action/mode", np.full((4, 1), 2**24, np.int32))
    assert problems(exact, Transform(action="concat(mode)")) == []
    found = problems(with_column("action/mode", np.full((4, 1), 2**24 + 1, np.int32)), Transform(action="concat(mode)"))
    assert (found[0].code, found[0].path) == ("untransformed", "action/mode")
    assert "step 0 has 16777217: expected integers of at most 16,777,216" in found[0].detail


def test_images_without_pixels_are_refused_where_sizes_are_free() -> None:
    class Free(EpisodeList):
        def spec(self) -> Nest:
            flat = super().spec()
            return {**flat, "observation": {"image": ArraySpec((None, None, 3), np.dtype(np.uint8))}}

    episodes = [Episode({**robot(0).columns, "observation/image": np.zeros((4, *shape), np.uint8)}, id=f"{shape}")
                for shape in [(0, 5, 3), (9, 2, 3), (1, 1, 3)]]  # fmt: skip
    changed = transformed(Free(episodes), Transform(select=["*/image", "action"], resize={"observation/image": "2x2"}))
    empty, *good = changed
    assert empty.faults == (("observation/image", "images of 0x5 pixels cannot be resized"),)
    assert [episode.columns["observation/image"].shape for episode in good] == [(4, 2, 2, 3)] * 2


def test_what_is_only_taken_is_left_to_validation_under_its_new_name() -> None:
    found = problems(with_column("observation/state", np.zeros((4, 9), np.float32)))
    assert found == [Problem("shape", "proprio", "expected rows of [2], got [9]")]
    assert [problem.code for problem in problems(with_column("observation/state", None))] == ["missing_column"]
    assert problems(with_column("observation/words", np.zeros((2, 2)))) == []  # it is dropped


def test_a_column_that_the_dataset_does_not_have_is_neither_hidden_nor_taken_for_a_new_one() -> None:
    assert [(problem.code, problem.path) for problem in problems(with_column("surplus", np.zeros(4)))] == [
        ("extra_column", "surplus")
    ]
    found = problems(with_column("proprio", np.zeros((4, 2), np.float32)))
    assert [(problem.code, problem.path) for problem in found] == [("untransformed", "proprio")]


def test_an_episode_without_steps_is_one() -> None:
    empty = robot(1).with_only_columns({path: column[:0] for path, column in robot(1).columns.items()})
    assert [problem.code for problem in problems(empty)] == ["no_steps"]


class TestLastStep:
    @settings(max_examples=60)
    @given(strategies.episodes(min_steps=1, max_steps=5), st.booleans())
    def test_a_last_row_with_an_action_is_followed_by_its_observation(self, episode: Episode, is_empty: bool) -> None:
        if is_empty:  # of the last row, what an action is and earns
            emptied = {path: column.copy() for path, column in episode.columns.items()}
            for path in emptied:
                if path.split("/")[0] in ("action", "reward"):
                    emptied[path][-1:] = b"" if emptied[path].dtype == object else 0
            episode = Episode(emptied, {}, "e")
        repeat = Conventions(last_step="repeat")
        longer = repeat.apply(episode)
        if last_row_is_added(episode):
            assert longer is episode
            return
        rows = len(episode)
        assert longer.id == episode.id
        for path, column in longer.columns.items():
            recorded = episode.columns[path]
            assert column.dtype == recorded.dtype
            assert len(column) == rows + 1
            field = path.split("/")[0]
            if field in ("is_last", "is_terminal"):
                assert column.tolist() == [False] * rows + [bool(recorded[-1])]
                continue
            assert content_digest({"": column[:-1]}) == content_digest({"": recorded})
            if field in ("action", "reward"):
                assert all(not value for value in column[-1:].ravel().tolist())
            elif field == "is_first":
                assert not column[-1]
            else:
                assert content_digest({"": column[-1:]}) == content_digest({"": recorded[-1:]})
        assert repeat.apply(longer) is longer

    def test_the_discount_into_a_terminal_end_is_that_of_the_last_action(self) -> None:
        recorded = steps(3, True, observation=np.arange(3), action=np.ones(3), reward=np.ones(3, np.float32))
        standard = Standard(
            {path: column_spec(column) for path, column in fill_absent(recorded).columns.items()},
            Conventions(last_step="repeat"),
        )
        filled, problems, _ = Policy(SKIP).examine(recorded, standard)
        assert not problems
        assert standard.normalise(filled).columns["discount"].tolist() == [1, 1, 0, 0]
        always_one = filled.with_columns(discount=np.ones(3, np.float32))
        assert [problem.code for problem in standard.problems(always_one)] == ["terminal_discount"]
        both = Conventions(terminal_discount="transition", last_step="repeat").apply(always_one)
        assert both.columns["discount"].tolist() == [1, 1, 0, 1]
