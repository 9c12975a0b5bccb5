"""The checks find every fault and nothing else, and look at anything without stumbling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode, content_digest
from rlds2reverb.formats.transform import LAST_REWARDS
from rlds2reverb.prepare.checks import find_problems, find_problems_of_all
from rlds2reverb.prepare.conventions import LAST_OBSERVATIONS, TERMINAL_DISCOUNTS, Conventions
from rlds2reverb.prepare.problems import CODES, Problem
from rlds2reverb.specs import ArraySpec, ImageSpec
from tests.support import strategies
from tests.support.pictures import IMAGE, png
from tests.support.prepare import faults

SEEDS = st.integers(0, 2**32 - 1)


def found(episode: Episode, columns: dict[str, ArraySpec] | None = None) -> set[tuple[str, str]]:
    """(code, path) of every problem."""
    problems = find_problems(episode, columns)
    pairs = [(problem.code, problem.path) for problem in problems]
    assert len(set(pairs)) == len(pairs)
    assert all(problem.code in CODES and problem.detail for problem in problems)
    return set(pairs)


def an_episode(rows: int = 6, terminal: bool = True, /, **columns: Any) -> Episode:
    """A good episode with these columns put in its place; None takes one out."""
    episode = faults.good(np.random.default_rng(0), rows, terminal)
    steps = {**episode.columns, **columns}
    return Episode({path: column for path, column in steps.items() if column is not None}, id="x")


@given(
    SEEDS,
    st.lists(
        st.tuples(st.integers(1, 9), st.booleans(), st.sets(st.sampled_from(sorted(faults.SPOILERS)), max_size=2)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(TERMINAL_DISCOUNTS),
    st.sampled_from(LAST_REWARDS),
    st.sampled_from(LAST_OBSERVATIONS),
    st.booleans(),
)
def test_of_many_episodes_are_those_of_each(
    seed: int,
    kinds: list[tuple[int, bool, set[str]]],
    terminal_discount: str,
    last_reward: str,
    last_observation: str,
    ends_in_zeros: bool,
) -> None:
    """Found together or one by one: the same problems, in the same words."""
    rng = np.random.default_rng(seed)
    columns = faults.spec(faults.good(rng, 5))
    episodes = []
    for rows, terminal, names in kinds:
        episode = faults.good(rng, rows, terminal)
        if rows > 3:
            episode, _ = faults.spoiled(rng, episode, sorted(names))
        if ends_in_zeros:
            zeroed = {
                path: column.copy() for path, column in episode.columns.items() if path.startswith(("obs", "act"))
            }
            for column in zeroed.values():
                column[-1] = 0
            episode = episode.with_columns(**zeroed)
        episodes.append(episode)
    conventions = Conventions(terminal_discount, last_reward, last_observation)
    assert find_problems_of_all(episodes, columns, conventions) == [
        find_problems(episode, columns, conventions) for episode in episodes
    ]


class TestGoodEpisodes:
    @settings(max_examples=30)
    @given(strategies.episodes())
    def test_have_no_problems(self, episode: Episode) -> None:
        assert find_problems(episode) == []
        assert find_problems(episode, faults.spec(episode)) == []

    @given(SEEDS, st.integers(2, 9), st.booleans())
    def test_of_every_kind_of_column_have_none_either(self, seed: int, rows: int, terminal: bool) -> None:
        episode = faults.good(np.random.default_rng(seed), rows, terminal)
        assert find_problems(episode) == []
        assert find_problems(episode, faults.spec(episode)) == []

    def test_need_no_more_than_the_two_flags_that_rlds_requires(self) -> None:
        assert find_problems(Episode({"is_first": np.array([1, 0], bool), "is_last": np.array([0, 1], bool)})) == []

    @pytest.mark.parametrize("value", [np.nan, np.inf, -3.0])
    def test_may_hold_anything_in_the_last_discount(self, value: float) -> None:
        discount = np.array([1, 1, 0, value], np.float32)
        assert found(an_episode(4, discount=discount)) == set()

    @pytest.mark.parametrize("column", [np.array(["text"] * 6), np.array([b"text"] * 6), np.array(["é"] * 6, object)])
    def test_may_hold_text_as_numpy_holds_it(self, column: np.ndarray) -> None:
        episode = an_episode(**{"observation/text": column})
        assert found(episode, faults.spec(an_episode())) == set()

    def test_may_be_of_another_byte_order(self) -> None:
        episode = an_episode(confidence=np.zeros(6, ">f2"))
        assert found(episode, faults.spec(an_episode())) == set()

    def test_may_have_any_size_where_the_spec_leaves_it_free(self) -> None:
        columns = faults.spec(an_episode()) | {"observation/image": ArraySpec((None, 2), np.dtype(np.uint8))}
        assert found(an_episode(), columns) == set()
        longer = an_episode(**{"observation/image": np.zeros((6, 7, 2), np.uint8)})
        assert found(longer, columns) == set()
        flat = an_episode(**{"observation/image": np.zeros((6, 7), np.uint8)})
        assert found(flat, columns) == {("shape", "observation/image")}


def ended_by_zeros(episode: Episode) -> Episode:
    """The same; its last observation is nothing but zeros, far from all the others."""
    at = np.arange(len(episode))
    state = np.where(at < len(at) - 1, 100 + at / 7, 0)[:, None] * np.ones(3)
    image = episode.columns["observation/image"] * (at < len(at) - 1)[:, None, None].astype(np.uint8)
    return episode.with_columns(**{"observation/state": state, "observation/image": image})


CASES = [
    ("no_steps", "", an_episode(**{path: column[:0] for path, column in an_episode().columns.items()})),
    ("single_step", "", an_episode(**{path: column[-1:] for path, column in an_episode().columns.items()}).with_columns(
        is_first=np.array([True]))),
    ("unreadable", "reward", Episode({}, id="e", faults=(("reward", "found nothing"),))),
    ("untransformed", "action/arm", replace(an_episode(), faults=(("action/arm", "expected rows of float32[3]"),))),
    ("missing_column", "confidence", an_episode(confidence=None)),
    ("missing_column", "is_last", an_episode(is_last=None)),
    ("extra_column", "surplus", an_episode(surplus=np.zeros(6))),
    ("unequal_lengths", "action", an_episode(action=np.zeros((5, 2), np.float32))),
    ("unequal_lengths", "is_first", an_episode(is_first=np.zeros(0, bool))),
    ("shape", "action", an_episode(action=np.zeros((6, 3), np.float32))),
    ("shape", "action", an_episode(action=np.zeros(6, np.float32))),
    ("dtype", "action", an_episode(action=np.zeros((6, 2), np.float64))),
    ("flag_dtype", "is_first", an_episode(is_first=np.array([1, 0, 0, 0, 0, 0]))),
    ("flag_dtype", "is_last", an_episode(is_last=np.array([[0], [0], [0], [0], [0], [1]], bool))),
    ("flag_dtype", "is_terminal", an_episode(is_terminal=np.array(["no"] * 6))),
    ("first_missing", "is_first", an_episode(is_first=np.zeros(6, bool))),
    ("first_inside", "is_first", an_episode(is_first=np.array([1, 0, 1, 0, 0, 0], bool))),
    ("last_missing", "is_last", an_episode(6, False, is_last=np.zeros(6, bool))),
    ("last_inside", "is_last", an_episode(is_last=np.array([0, 1, 0, 0, 0, 1], bool))),
    ("terminal_inside", "is_terminal", an_episode(is_terminal=np.array([0, 0, 1, 0, 0, 1], bool))),
    ("nan", "action", an_episode(action=np.full((6, 2), np.nan, np.float32))),
    ("infinite", "confidence", an_episode(confidence=np.full(6, np.inf, np.float16))),
    ("discount_range", "discount", an_episode(discount=np.array([1, 1.5, 1, -1, 0, 0], np.float32))),
    ("terminal_discount", "discount", an_episode(discount=np.ones(6, np.float32))),
    ("last_reward", "reward", an_episode(reward=np.ones(6, np.float32))),
    ("terminal_unmarked", "is_terminal", an_episode(is_terminal=np.zeros(6, bool))),
    ("zero_last_observation", "observation", ended_by_zeros(an_episode())),
]  # fmt: skip
SHIFT = Conventions(last_reward="shift")
FOUND_UNDER_A_SHIFT, FOUND_BY_CUTTING = {"first_reward_lost"}, {"no_items", "view_refused"}
FOUND_IN_OTHERS = {"last_observation_shared"} | {code for code, meaning in CODES.items() if meaning.is_of_dataset}
FOUND_IN_FILES, FOUND_BY_DESTINATIONS = {"image"}, {"unfit"}


class TestEncodedImages:
    FILE = png(np.zeros((9, 12, 3), np.uint8))

    def problems(self, column: np.ndarray, image: ImageSpec = IMAGE) -> list[str]:
        spec = faults.spec(an_episode()) | {"camera": ArraySpec.of_images(image, column.shape[1:])}
        return [str(problem) for problem in find_problems(an_episode(camera=column), spec)]

    def column(self, *shape: int) -> np.ndarray:
        return np.full(shape, self.FILE, object)

    def test_are_good_whatever_comes_after_their_headers(self) -> None:
        assert self.problems(self.column(6)) == []
        assert self.problems(np.full(6, self.FILE[:40], object)) == []
        assert self.problems(self.column(6, 2), ImageSpec((None, 12, None), np.dtype(np.uint8))) == []

    def test_of_another_size_are_counted(self) -> None:
        column = self.column(6)
        column[[2, 5]] = png(np.zeros((12, 9, 3), np.uint8))
        assert self.problems(column) == [
            'image: column "camera": expected files of png of uint8[9, 12, 3], got 12 by 9 pixels; 2 steps differ, the first is step 2'
        ]

    @pytest.mark.parametrize("value", [b"", b"text", "text", 3, None, b"GIF89a" + bytes(99)])
    def test_that_are_none_are_found_in_any_place_of_a_step(self, value: object) -> None:
        column = self.column(6, 2)
        column[4, 1] = value
        assert self.problems(column) == [
            'image: column "camera": expected files of png of uint8[9, 12, 3], got no such file; step 4 differs'
        ]

    def test_that_are_decoded_are_of_another_dtype(self) -> None:
        spec = faults.spec(an_episode()) | {"camera": ArraySpec.of_images(IMAGE)}
        assert found(an_episode(camera=np.zeros((6, 9, 12, 3), np.uint8)), spec) == {
            ("dtype", "camera"),
            ("shape", "camera"),
        }


class TestEachCode:
    @pytest.mark.parametrize(
        ("code", "path", "episode"), CASES, ids=lambda value: value if isinstance(value, str) else ""
    )
    def test_is_found_alone(self, code: str, path: str, episode: Episode) -> None:
        reported = found(episode, faults.spec(an_episode()))
        if code == "unequal_lengths" and path == "is_first":
            assert reported == {(code, other) for other in episode.columns if other != path}
        else:
            assert reported == {(code, path)}

    def test_has_a_case(self) -> None:
        elsewhere = FOUND_UNDER_A_SHIFT | FOUND_BY_CUTTING | FOUND_IN_OTHERS | FOUND_IN_FILES | FOUND_BY_DESTINATIONS
        assert {code for code, _, _ in CASES} | elsewhere == set(CODES)

    @pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16, np.int32])
    def test_is_found_in_numbers_of_any_dtype(self, dtype: type) -> None:
        episode = an_episode(discount=np.full(6, 3).astype(dtype), reward=np.full(6, 2).astype(dtype))
        assert found(episode) == {
            ("discount_range", "discount"),
            ("terminal_discount", "discount"),
            ("last_reward", "reward"),
        }

    @pytest.mark.parametrize("dtype", [np.float16, ">f4", np.longdouble, ml_dtypes.bfloat16, np.complex64])
    def test_of_numbers_that_are_none_is_found_in_any_dtype(self, dtype: str | type) -> None:
        column = np.zeros((6, 2), dtype)
        column[1], column[3, 0], column[4, 1] = np.nan, np.inf, np.nan
        problems = find_problems(an_episode(confidence=column))
        assert problems == [
            Problem("nan", "confidence", "expected numbers; 2 steps differ, the first is step 1"),
            Problem("infinite", "confidence", "expected finite numbers; step 3 differs"),
        ]

    def test_is_found_in_the_shortest_episodes(self) -> None:
        pair = an_episode(2, reward=np.array([np.nan, 1]), discount=np.array([2.0, 0]))
        assert found(pair) == {
            ("nan", "reward"),
            ("discount_range", "discount"),
            ("last_reward", "reward"),
            ("terminal_discount", "discount"),
        }
        alone = {path: column[-1:] for path, column in pair.columns.items()}
        alone |= {"is_first": np.array([True]), "reward": np.array([np.nan]), "discount": np.array([2.0])}
        assert found(Episode(alone)) == {("single_step", ""), ("nan", "reward")}

    def test_of_rewards_is_found_in_every_leaf(self) -> None:
        left, right = np.ones(6, np.float32), np.zeros((6, 2), np.float32)
        left[-1], right[-1] = np.nan, (0, 1)
        episode = an_episode(reward=None, **{"reward/left": left, "reward/right": right})
        assert found(episode) == {("last_reward", "reward/left"), ("last_reward", "reward/right")}
        left[2] = np.nan
        assert ("nan", "reward/left") in found(episode)

    def test_of_discounts_is_found_in_any_shape(self) -> None:
        discount = np.ones((6, 2), np.float32)
        discount[1, 1] = 2
        assert found(an_episode(discount=discount)) == {
            ("discount_range", "discount"),
            ("terminal_discount", "discount"),
        }


class TestAShiftOfRewards:
    """What it would lose at the start, or bring in from the last step, where no learner looks without it."""

    @given(st.lists(st.sampled_from([0.0, 1.5, np.nan, np.inf, -np.inf]), min_size=2, max_size=4), st.booleans())
    def test_finds_what_is_bad_with_it_and_only_then(self, rewards: list[float], nested: bool) -> None:
        path = "reward/one" if nested else "reward"
        episode = an_episode(len(rewards), **{"reward": None, path: np.array(rewards, np.float32)})
        without, shifted = find_problems(episode), find_problems(episode, conventions=SHIFT)
        lost = {("first_reward_lost", path)} if rewards[0] != 0 else set()
        last = {("nan", path)} if np.isnan(rewards[-1]) else {("infinite", path)} if np.isinf(rewards[-1]) else set()
        stays = [problem for problem in without if problem.code != "last_reward"]
        assert shifted[: len(stays)] == stays
        assert {(problem.code, problem.path) for problem in shifted[len(stays) :]} == lost | last

    @pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.complex64])
    def test_finds_it_in_any_dtype(self, dtype: type) -> None:
        reward: np.ndarray = np.array([1, 0, 0, 0, 0, np.nan]).astype(dtype)
        shifted = find_problems(an_episode(reward=reward), conventions=SHIFT)
        assert [problem.code for problem in shifted][-2:] == ["first_reward_lost", "nan"]

    def test_says_that_the_data_needs_none(self) -> None:
        (problem,) = find_problems(an_episode(reward=np.array([2, 0, 0, 0, 0, 0])), conventions=SHIFT)
        assert str(problem) == (
            'first_reward_lost: column "reward": step 0 has reward 2; the data seems to record rewards with the action '
            "that earned them, so it needs no shift"
        )

    @pytest.mark.parametrize("reward", [None, np.zeros(0, np.float32), np.array([b"much"] * 6, object)])
    def test_has_nothing_to_say_of_a_reward_that_is_no_number(self, reward: np.ndarray | None) -> None:
        episode = an_episode(reward=reward)
        assert find_problems(episode, conventions=SHIFT) == find_problems(episode)


class TestConventions:
    """What they mend in every episode is nothing to tell."""

    @pytest.mark.parametrize(
        ("chosen", "left"),
        [
            (Conventions(), ["last_reward", "terminal_discount"]),
            (SHIFT, ["terminal_discount"]),
            (Conventions(terminal_discount="transition"), ["last_reward"]),
            (Conventions(terminal_discount="transition", last_reward="shift"), []),
        ],
        ids=str,
    )
    def test_answer_the_advice_that_asks_for_them(self, chosen: Conventions, left: list[str]) -> None:
        episode = an_episode(reward=np.eye(6)[5], discount=np.ones(6))
        assert [problem.code for problem in find_problems(episode, conventions=chosen)] == left
        assert [problem.code for problem in find_problems(chosen.apply(episode))] == left


class TestAnEndOfZeros:
    """Zeros in place of an observation that was never recorded; not those that an episode comes to by itself."""

    def test_is_found_unless_conventions_do_without_it(self) -> None:
        episode = ended_by_zeros(an_episode(action=np.zeros((6, 2), np.float32)))
        recorded = ended_by_zeros(an_episode(action=np.ones((6, 2), np.float32)))
        for choice in ("repeat", "drop"):
            conventions = Conventions(last_observation=choice)
            assert find_problems(episode, conventions=conventions) == []
            assert [problem.code for problem in find_problems(recorded, conventions=conventions)] == [
                "zero_last_observation"
            ]

    @pytest.mark.parametrize(
        "state",
        [
            np.zeros((6, 3)),
            np.linspace(0.5, 0, 6)[:, None] * np.ones(3),
            np.where(np.arange(6) < 5, 7.0, 0)[:, None] * np.ones(3),
            np.array([3, 1, 2, 3, 4, 0])[:, None] * np.ones(3),
            np.array([0.5, 1.5, 2.5, 3.5, 4.5, np.nan])[:, None] * np.ones(3),
        ],
        ids=["always", "by steps", "from one place", "whole numbers", "not a number"],
    )
    def test_is_nothing_where_the_episode_comes_to_it(self, state: np.ndarray) -> None:
        episode = ended_by_zeros(an_episode()).with_columns(**{"observation/state": state})
        assert "zero_last_observation" not in {problem.code for problem in find_problems(episode)}

    def test_is_nothing_where_another_column_goes_on(self) -> None:
        image = an_episode().columns["observation/image"]
        assert found(ended_by_zeros(an_episode()).with_columns(**{"observation/image": image})) == set()


class TestAnEndThatIsNotMarked:
    @pytest.mark.parametrize(
        ("changes", "is_one"),
        [
            ({"is_terminal": np.zeros(6, bool)}, True),
            ({"is_terminal": np.zeros(6, bool), "is_last": np.zeros(6, bool)}, False),
            ({"is_terminal": np.zeros(6, bool), "discount": np.array([1, 1, 1, 1, 0.1, 0])}, False),
            ({"is_terminal": np.zeros(6, bool), "discount": np.zeros((6, 2))}, True),
            ({}, False),
        ],
    )
    def test_is_found_by_the_discount_that_leads_to_it(self, changes: dict[str, np.ndarray], is_one: bool) -> None:
        codes = {problem.code for problem in find_problems(an_episode(**changes))}
        assert ("terminal_unmarked" in codes) is is_one

    def test_is_found_once_where_all_of_several_discounts_say_so(self) -> None:
        zeros, ones = np.zeros(6, np.float32), np.ones(6, np.float32)
        unmarked = {"is_terminal": np.zeros(6, bool), "discount": None, "discount/a": zeros}
        assert found(an_episode(**unmarked, **{"discount/b": zeros})) == {("terminal_unmarked", "is_terminal")}
        assert found(an_episode(**unmarked, **{"discount/b": ones})) == set()


class TestDetails:
    """The message says where, what was expected and what came."""

    @pytest.mark.parametrize(
        ("episode", "line"),
        [
            (
                an_episode(is_first=np.array([0, 0, 1, 1, 0, 0], bool)),
                'first_missing: column "is_first": expected True at step 0, got False',
            ),
            (
                an_episode(is_first=np.array([1, 0, 1, 1, 0, 0], bool)),
                'first_inside: column "is_first": only step 0 may be first; 2 steps differ, the first is step 2',
            ),
            (
                an_episode(is_last=np.array([0, 0, 1, 0, 0, 1], bool)),
                'last_inside: column "is_last": only step 5 may be last; step 2 differs',
            ),
            (
                an_episode(is_last=np.zeros(6, bool)),
                'last_missing: column "is_last": expected True at step 5, got False',
            ),
            (
                an_episode(discount=np.array([1, 0, 7, 9, 0, 0], np.int32)),
                'discount_range: column "discount": expected values in [0, 1]; 2 steps differ, the first is step 2 (7)',
            ),
            (
                an_episode(discount=np.array([1, 1, 1, 1, 0.5, 0], np.float64)),
                'terminal_discount: column "discount": step 4 leads into a terminal step with discount 0.5, expected 0; '
                'terminal_discount="transition" mends it',
            ),
            (
                an_episode(reward=np.array([0, 0, 0, 0, 1, 2], np.int32)),
                'last_reward: column "reward": step 5 (the last) has reward 2, where learners do not look; '
                'last_reward="shift" moves rewards one step back',
            ),
            (
                an_episode(is_first=np.zeros((6, 1), np.uint8)),
                'flag_dtype: column "is_first": expected bool[T], got uint8[6, 1]',
            ),
            (
                an_episode(action=np.zeros((5, 2), np.float32)),
                'unequal_lengths: column "action": expected 6 rows as in the other columns, got 5',
            ),
            (
                an_episode(is_first=None, action=np.zeros((7, 2), np.float32)),
                'unequal_lengths: column "observation/image": expected 7 rows as in the other columns, got 6',
            ),
        ],
    )
    def test_of_a_single_episode(self, episode: Episode, line: str) -> None:
        assert str(find_problems(episode)[0]) == line

    @pytest.mark.parametrize(
        ("episode", "line"),
        [
            (
                an_episode(action=np.zeros((6, 3), np.float64)),
                'dtype: column "action": expected float32, got float64; shape: column "action": '
                "expected rows of [2], got [3]",
            ),
            (
                an_episode(**{"observation/text": np.zeros(6, np.int8)}),
                'dtype: column "observation/text": expected string, got int8',
            ),
            (
                an_episode(surplus=np.zeros(6)),
                f'extra_column: column "surplus": the dataset\'s spec has {sorted(faults.spec(an_episode()))}',
            ),
            (
                an_episode(confidence=None),
                'missing_column: column "confidence": expected it in every episode; found '
                f"{sorted(an_episode(confidence=None).columns)}",
            ),
        ],
    )
    def test_of_an_episode_beside_its_dataset(self, episode: Episode, line: str) -> None:
        assert "; ".join(str(problem) for problem in find_problems(episode, faults.spec(an_episode()))) == line


class TestTheList:
    @given(SEEDS, st.integers(6, 12), st.booleans(), st.sets(st.sampled_from(sorted(faults.SPOILERS))))
    def test_is_complete_and_nothing_is_in_it_twice(
        self, seed: int, rows: int, terminal: bool, names: set[str]
    ) -> None:
        rng = np.random.default_rng(seed)
        episode = faults.good(rng, rows, terminal)
        chosen = sorted(name for name in names if terminal or not faults.SPOILERS[name].needs_terminal)
        bad, expected = faults.spoiled(rng, episode, chosen)
        reported = found(bad, faults.spec(episode))
        if "last_missing" in chosen:  # a terminal step that is not last leads nowhere
            expected.discard(("terminal_discount", "discount"))
        assert reported == expected

    def test_goes_on_after_flags_that_cannot_be_read(self) -> None:
        nan = np.full((6, 2), np.nan, np.float32)
        episode = an_episode(is_first=np.zeros(6, np.int8), is_last=np.zeros(6, bool), action=nan)
        assert found(episode) == {("flag_dtype", "is_first"), ("last_missing", "is_last"), ("nan", "action")}

    def test_goes_on_after_a_column_that_is_missing(self) -> None:
        nan = np.full((6, 2), np.nan, np.float32)
        episode = an_episode(confidence=None, is_first=np.zeros(6, bool), action=nan)
        assert found(episode, faults.spec(an_episode())) == {
            ("missing_column", "confidence"),
            ("first_missing", "is_first"),
            ("nan", "action"),
        }

    def test_goes_on_after_columns_of_other_lengths(self) -> None:
        episode = an_episode(is_last=np.zeros(3, bool), action=np.full((5, 2), np.nan, np.float32))
        assert found(episode) == {("unequal_lengths", "is_last"), ("unequal_lengths", "action"), ("nan", "action")}

    def test_names_the_flags_that_rlds_requires_even_where_the_dataset_lacks_them(self) -> None:
        episode = an_episode(is_first=None)
        assert found(episode, faults.spec(episode)) == {("missing_column", "is_first")}

    def test_of_nothing_at_all_says_so(self) -> None:
        assert found(Episode({})) == {("no_steps", ""), ("missing_column", "is_first"), ("missing_column", "is_last")}


ODD_DTYPES = [
    "bool", "i1", "u8", "f2", ">f4", "f8", "g", "c8", ml_dtypes.bfloat16, object, "S2", "U3", "S1", "M8[s]", "m8[D]", "V3",
    [("a", "f4"), ("b", "U2")],
]  # fmt: skip
ODD_SHAPES = st.one_of(
    st.just(()), st.just((1,)), st.just((2,)), st.just((0,)), st.just((3, 0)), st.lists(st.integers(0, 3), max_size=3)
)


@st.composite
def odd_columns(draw: st.DrawFn, rows: int) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(ODD_DTYPES)))
    shape = (draw(st.one_of(st.just(rows), st.integers(0, 4))), *draw(ODD_SHAPES))
    column = np.zeros(shape, dtype)
    if dtype == object:
        column.fill(draw(st.sampled_from([None, True, 0, 1.5, b"x", "x", ()])))
    elif dtype.kind in "biufc" and column.size and draw(st.booleans()):
        column.reshape(-1)[draw(st.integers(0, column.size - 1))] = 1
    return column


@st.composite
def odd_episodes(draw: st.DrawFn) -> Episode:
    rows = draw(st.integers(0, 4))
    optional = ["is_terminal", "reward", "discount", "observation", "action", "reward/a", "discount/b", "other"]
    paths = ["is_first", "is_last", *draw(st.sets(st.sampled_from(optional)))]
    return Episode({path: draw(odd_columns(rows)) for path in draw(st.permutations(paths))}, id="odd")


class TestAnythingAtAll:
    @settings(max_examples=200)
    @given(odd_episodes(), st.one_of(st.none(), odd_episodes()))
    def test_gives_a_list_of_known_problems(self, episode: Episode, other: Episode | None) -> None:
        columns = None
        if other is not None:
            columns = {path: ArraySpec(column.shape[1:], column.dtype) for path, column in other.columns.items()}
        problems = find_problems(episode, columns)
        assert all(problem.code in CODES for problem in problems)
        assert all(problem.path in {"", *episode.columns, *(columns or {})} for problem in problems)
        assert all(str(problem) for problem in problems)

    @settings(max_examples=30)
    @given(strategies.episodes())
    def test_is_left_as_it_is(self, episode: Episode) -> None:
        before = content_digest(episode.columns)
        find_problems(episode, faults.spec(episode))
        assert content_digest(episode.columns) == before
