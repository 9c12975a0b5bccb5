"""What episodes are held to: filled, judged and normalised by one and the same. A repair mends what has one right answer, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode, with_metadata
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import spec_of
from rlds2reverb.formats.transform import Transform
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.prepare.checks import find_problems
from rlds2reverb.prepare.conventions import Conventions, fill_absent
from rlds2reverb.prepare.problems import CODES, Problem
from rlds2reverb.prepare.standard import Standard, repair
from rlds2reverb.specs import ArraySpec
from tests.support import reference, strategies
from tests.support.prepare import faults

SHIFT = Conventions(last_reward="shift")


def without(episode: Episode, *fields: Any) -> Episode:
    return episode.with_only_columns({path: column for path, column in episode.columns.items() if path not in fields})


@pytest.mark.parametrize("fields", [(), ("reward",), ("reward", "discount", "is_terminal")])
def test_absent_fields_are_filled_and_expected(fields: tuple[str, ...]) -> None:
    episode = without(strategies.episode(np.random.default_rng(0), 4), *fields)
    standard = Standard.of(spec_of(episode), Conventions())
    filled = fill_absent(episode)
    assert set(standard.columns) == set(filled.columns)
    assert standard.problems(filled) == find_problems(filled, standard.columns) == []


def test_what_the_conventions_would_lose_is_a_problem_and_they_mend_what_is_good() -> None:
    episode = strategies.episode(np.random.default_rng(0), 4).with_columns(reward=np.array([0, 1, 2, 3], np.float32))
    standard = Standard.of(spec_of(episode), SHIFT)
    assert standard.normalise(episode).columns["reward"].tolist() == [1, 2, 3, 0]
    spoilt = episode.with_columns(reward=np.array([1, 0, 0, 0], np.float32))
    assert [problem.code for problem in standard.problems(fill_absent(spoilt))] == ["first_reward_lost"]
    assert Standard.of(spec_of(episode), Conventions()).problems(fill_absent(spoilt)) == []


def test_of_an_episode_that_cannot_be_read_only_the_fault_is_told() -> None:
    good = strategies.episode(np.random.default_rng(0), 4)
    broken = Episode({}, id="e", faults=(("reward", "17 rows; expected 20"), ("", "no ends")))
    task = {"task": ArraySpec((), np.dtype(object))}
    for standard in (Standard.of(spec_of(good), SHIFT), Standard.of(spec_of(good), SHIFT, task)):
        assert fill_absent(broken) is broken
        assert [(problem.code, problem.path, problem.detail) for problem in standard.problems(broken)] == [
            ("unreadable", "reward", "17 rows; expected 20"),
            ("unreadable", "", "no ends"),
        ]


NUMBER, TEXT, PAIR = (
    ArraySpec((), np.dtype(np.float64)),
    ArraySpec((), np.dtype(object)),
    ArraySpec((2,), np.dtype(np.int64)),
)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (NUMBER, np.float64(1)),
        (NUMBER, np.float64("nan")),
        (NUMBER, np.float32(1)),
        (NUMBER, 1.5),
        (NUMBER, np.array([1.0])),
        (NUMBER, "text"),
        (NUMBER, None),
        (TEXT, "text"),
        (TEXT, b"text"),
        (TEXT, np.uint8(1)),
        (PAIR, np.arange(2)),
        (PAIR, np.arange(3)),
    ],
)
def test_metadata_is_judged_as_the_columns_that_it_becomes(spec: ArraySpec, value: Any) -> None:
    episodes = [
        replace(strategies.episode(np.random.default_rng(number), 4), metadata={"x": value}) for number in range(3)
    ]
    standard = Standard.of(spec_of(episodes[0]), Conventions(), {"x": spec})
    columns = {**standard.columns, "metadata/x": spec}
    expected = [find_problems(with_metadata(episode, {"x": spec}), columns) for episode in episodes]
    assert [standard.problems(episode) for episode in episodes] == expected
    assert standard.problems_of_all(episodes) == expected


def test_a_transform_adds_no_faults_to_an_episode_that_cannot_be_read() -> None:
    good = strategies.episode(np.random.default_rng(0), 4, episode_id="good")
    broken = Episode({}, id="broken", faults=(("reward", "17 rows"),))
    chosen = transformed(EpisodeList([good, broken]), Transform(drop=("reward",)))
    assert [episode.faults for episode in chosen] == [(), broken.faults]


SEEDS = st.integers(0, 2**32 - 1)
REPAIRABLE = sorted(name for name in faults.SPOILERS if name in CODES and CODES[name].is_repairable)
TOUCHED = {"first_missing": "is_first", "last_missing": "is_last", "terminal_discount": "discount"}


def repaired(episode: Episode, columns: dict[str, ArraySpec] | None = None) -> Episode:
    return repair(episode, find_problems(episode, columns))


def changed_columns(left: Episode, right: Episode) -> set[str]:
    """Paths whose columns differ in any bit."""
    return {path for path in left.columns if not reference.same(left.columns[path], right.columns[path])}


@given(SEEDS, st.integers(6, 12), st.sets(st.sampled_from(sorted(faults.SPOILERS))))
def test_repairable_faults_go_and_all_others_stay(seed: int, rows: int, names: set[str]) -> None:
    rng = np.random.default_rng(seed)
    episode = faults.good(rng, rows)
    bad, expected = faults.spoiled(rng, episode, sorted(names))
    mended = repaired(bad, faults.spec(episode))
    left = {(problem.code, problem.path) for problem in find_problems(mended, faults.spec(episode))}
    stay = {(code, path) for code, path in expected if not CODES[code].is_repairable}
    assert stay <= left
    # A last flag put in its place can show that the step is terminal; another round mends what leads to it.
    assert left - stay <= {("terminal_discount", "discount")}
    again = repaired(mended, faults.spec(episode))
    assert {(problem.code, problem.path) for problem in find_problems(again, faults.spec(episode))} == stay


@given(SEEDS, st.integers(6, 12), st.sets(st.sampled_from(sorted(faults.SPOILERS))))
def test_only_the_columns_at_fault_are_touched(seed: int, rows: int, names: set[str]) -> None:
    rng = np.random.default_rng(seed)
    episode = faults.good(rng, rows)
    bad, _ = faults.spoiled(rng, episode, sorted(names))
    mended = repaired(bad, faults.spec(episode))
    assert list(mended.columns) == list(bad.columns)
    assert changed_columns(bad, mended) <= {TOUCHED[name] for name in names & set(TOUCHED)}
    assert mended.id == bad.id


@pytest.mark.parametrize("name", REPAIRABLE)
def test_a_mended_fault_leaves_the_good_episode(name: str) -> None:
    rng = np.random.default_rng(0)
    episode = faults.good(rng, 7)
    bad, expected = faults.spoiled(rng, episode, [name])
    assert {path for _, path in expected} == changed_columns(bad, episode)
    assert changed_columns(repaired(bad), episode) == set()


@pytest.mark.parametrize("path", ["is_first", "is_last", "is_terminal"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, bool])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, 1, 1)])
def test_a_flag_of_zeros_and_ones_becomes_boolean(path: str, dtype: type, shape: tuple[int, ...]) -> None:
    episode = faults.good(np.random.default_rng(0), 5)
    bad = episode.with_columns(**{path: episode.columns[path].astype(dtype).reshape(shape)})
    assert changed_columns(repaired(bad), episode) == set()


@pytest.mark.parametrize(
    "flag",
    [
        np.array([1, 0, 2]),
        np.array([1, 0, np.nan]),
        np.array([1, 0, -1]),
        np.zeros((3, 2), bool),
        np.array(["1", "0", "0"]),
        np.array([b"1", b"0", b"0"], object),
        np.array([1j, 0, 0]),
    ],
    ids=lambda flag: f"{flag.dtype}{flag.shape}",
)
def test_a_flag_that_says_something_else_is_left_alone(flag: np.ndarray) -> None:
    episode = faults.good(np.random.default_rng(0), 3).with_columns(is_first=flag)
    mended = repaired(episode)
    assert mended is episode
    assert ("flag_dtype", "is_first") in {(problem.code, problem.path) for problem in find_problems(mended)}


def test_an_episode_without_steps_is_left_alone() -> None:
    empty = Episode({}, id="x")
    assert repair(empty, [Problem("first_missing", "is_first", ""), Problem("last_missing", "is_last", "")]) is empty


def test_the_episode_given_is_not_changed() -> None:
    rng = np.random.default_rng(0)
    bad, _ = faults.spoiled(rng, faults.good(rng, 7), REPAIRABLE)
    before = {path: column.copy() for path, column in bad.columns.items()}
    repaired(bad)
    assert all(reference.same(bad.columns[path], column) for path, column in before.items())
