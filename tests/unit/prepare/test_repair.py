"""Repair mends what has one right answer and leaves every other column, and every other fault, as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.prepare.checks import find_problems
from rlds2reverb.prepare.problems import CODES, Problem
from rlds2reverb.prepare.standard import repair
from rlds2reverb.specs import ArraySpec
from tests import reference
from tests.unit.prepare import faults

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
