"""An observation that ends several episodes and belongs to none of them is told of all; true ends are never told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.endings import (
    _MOST_SINGLE,
    MOST_HELD,
    Endings,
    Shared,
    Single,
    ending_of,
    endings_of,
    leaps,
    state_of,
    with_problems_of_ends,
)
from rlds2reverb.prepare.problems import Problem
from tests.support import strategies

SEEDS = st.integers(0, 2**32 - 1)
SHARED = "last_observation_shared"


def episode_of(observation: Any, name: str = "", /, **columns: np.ndarray) -> Episode:
    """An episode with these observations; its last row was added."""
    rows = len(observation) if isinstance(observation, np.ndarray) else len(next(iter(observation.values())))
    at = np.arange(rows)
    observations = {"observation": observation} if isinstance(observation, np.ndarray) else observation
    steps = {
        **observations,
        "action": np.where(at < rows - 1, 1.5, 0).astype(np.float32),
        "reward": np.zeros(rows, np.float32),
        "is_first": at == 0,
        "is_last": at == rows - 1,
        **columns,
    }
    return Episode(steps, id=name or "unnamed")


def walk(rng: np.random.Generator, rows: int, values: int = 6, dtype: Any = np.float32) -> np.ndarray:
    """[rows, values] of a smooth walk."""
    return (np.cumsum(rng.normal(size=(rows, values)), axis=0) + 9 * rng.normal(size=values)).astype(dtype)


def ended_by(observation: np.ndarray, last: np.ndarray) -> np.ndarray:
    return np.concatenate((observation[:-1], last[None].astype(observation.dtype)))


def told(episodes: Any, conventions: Conventions = Conventions()) -> list[str]:
    """Ids of the episodes that are told."""
    return [episode.id for episode, problems in with_problems_of_ends(episodes, conventions) if problems]


def poisoned(rng: np.random.Generator, count: int, owner: int = 0, rows: int = 20) -> list[Episode]:
    """Episodes that all end with the last observation of one of them."""
    walks = [walk(rng, int(rng.integers(8, 9 + rows))) for _ in range(count)]
    return [
        episode_of(ended_by(observations, walks[owner % count][-1]), f"e{number}")
        for number, observations in enumerate(walks)
    ]


class TestAFalseEnd:
    @given(SEEDS, st.integers(4, 30), st.integers(0, 29))
    def test_is_told_of_every_episode_wherever_its_owner_stands(self, seed: int, count: int, owner: int) -> None:
        episodes = poisoned(np.random.default_rng(seed), count, owner)
        assert told(episodes) == [episode.id for episode in episodes]

    @given(SEEDS, st.integers(3, 9), st.integers(2, 5))
    def test_is_told_among_episodes_that_end_by_themselves(self, seed: int, bad: int, between: int) -> None:
        rng = np.random.default_rng(seed)
        shared = poisoned(rng, bad + 1)[1:]  # the owner is not among them
        mixed: list[Episode] = []
        for episode in shared:
            mixed += [episode, *(episode_of(walk(rng, 12)) for _ in range(between))]
        found = told(mixed)
        assert found == [episode.id for episode in shared][-len(found) :]
        assert len(found) >= len(shared) - 2  # the first ones may have gone before the third showed it

    @pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
    def test_is_told_of_floats_of_any_kind(self, dtype: Any) -> None:
        rng = np.random.default_rng(0)
        last = walk(rng, 2, dtype=dtype)[-1]
        episodes = [episode_of(ended_by(walk(rng, 20, dtype=dtype), last), f"{number}") for number in range(3)]
        assert told(episodes) == ["0", "1", "2"]

    def test_is_told_of_several_columns_and_text_does_not_count(self) -> None:
        rng = np.random.default_rng(0)
        last, picture = walk(rng, 2)[-1], rng.integers(0, 255, (4, 4), np.uint8)
        episodes = []
        for number in range(3):
            images = np.concatenate((rng.integers(0, 255, (19, 4, 4), np.uint8), picture[None]))
            columns = {
                "observation/state": ended_by(walk(rng, 20), last),
                "observation/image": images,
                "observation/text": np.array([b"task %d" % number] * 20, object),
            }
            episodes.append(episode_of(columns, f"{number}"))
        assert told(episodes) == ["0", "1", "2"]

    def test_of_two_files_in_one_dataset_is_told_of_both(self) -> None:
        rng = np.random.default_rng(4)
        both = [*poisoned(rng, 9), *poisoned(rng, 9)]
        both = [episode_of(episode.columns["observation"], f"{number}") for number, episode in enumerate(both)]
        order = rng.permutation(len(both))
        assert len(told([both[number] for number in order])) >= len(both) - 4

    def test_names_the_first_episode_and_says_what_to_do(self) -> None:
        *_, (_, (problem,)) = with_problems_of_ends(poisoned(np.random.default_rng(0), 3))
        assert problem.path == "observation"
        assert problem.detail.startswith("3 episodes so far, the first is e0, end with this very observation")
        assert 'last_observation="repeat"' in problem.detail

    @pytest.mark.parametrize("choice", ["repeat", "drop"])
    def test_is_no_problem_where_conventions_mend_it(self, choice: str) -> None:
        episodes = poisoned(np.random.default_rng(0), 6)
        assert told(episodes, Conventions(last_observation=choice)) == []
        recorded = [
            episode.with_columns(action=np.ones(len(episode), np.float32)) for episode in episodes
        ]  # no last row was added
        assert len(told(recorded, Conventions(last_observation=choice))) == 6


class TestATrueEnd:
    @settings(max_examples=40)
    @given(st.lists(strategies.episodes(min_steps=1, max_steps=12), max_size=8))
    def test_of_any_valid_episode_is_not_told(self, episodes: list[Episode]) -> None:
        assert told(episodes) == []

    @given(SEEDS, st.integers(2, 12))
    def test_of_the_same_episode_again_is_not_told(self, seed: int, count: int) -> None:
        observation = walk(np.random.default_rng(seed), 20)
        assert told([episode_of(observation, f"{number}") for number in range(count)]) == []

    @given(st.floats(-5, 5, width=32), st.integers(2, 12), st.integers(2, 12))
    def test_where_nothing_ever_changes_is_not_told(self, value: float, rows: int, count: int) -> None:
        constant = np.full((rows, 3), value, np.float32)
        assert told([episode_of(constant, f"{number}") for number in range(count)]) == []

    @settings(max_examples=60)
    @given(SEEDS, st.integers(2, 12), st.integers(3, 9), st.booleans(), st.booleans())
    def test_at_the_goal_of_a_maze_is_not_told(
        self, seed: int, count: int, size: int, is_straight: bool, is_scaled: bool
    ) -> None:
        """Cells as numbers or as parts of the maze's size; straight ways and detours; the goal is in a corner."""
        rng = np.random.default_rng(seed)
        ways = [maze_way(rng, size, is_straight) for _ in range(count)]
        scale = size if is_scaled else 1
        assert told([episode_of(way / scale, f"{number}") for number, way in enumerate(ways)]) == []

    @given(SEEDS, st.integers(2, 12))
    def test_that_is_reached_by_smooth_ways_is_not_told(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        goal = rng.normal(size=4)
        ways = [
            goal + rng.normal(size=4) * np.linspace(3, 0, rows)[:, None] ** 2 for rows in rng.integers(5, 40, count)
        ]
        assert told([episode_of(ended_by(way, goal), f"{number}") for number, way in enumerate(ways)]) == []

    @pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
    def test_of_whole_numbers_or_zeros_is_not_told(self, dtype: Any) -> None:
        rng = np.random.default_rng(0)
        states = [rng.integers(0, 9, (20, 4)).astype(dtype) for _ in range(6)]
        last = np.full(4, 200, dtype)
        assert told([episode_of(ended_by(state, last), f"{number}") for number, state in enumerate(states)]) == []
        zeros = [episode_of(ended_by(walk(rng, 20), np.zeros(6)), f"{number}") for number in range(6)]
        assert told(zeros) == []  # each by itself is, by another code

    def test_of_two_episodes_is_not_told(self) -> None:
        assert told(poisoned(np.random.default_rng(0), 2)) == []


def maze_way(rng: np.random.Generator, size: int, is_straight: bool) -> np.ndarray:
    """[T, 2] cells from anywhere to the last corner."""
    cell = rng.integers(0, size - 1, 2)
    cells = [cell]
    while (cell != size - 1).any():
        axes = [axis for axis in (0, 1) if cell[axis] < size - 1]
        axis = axes[0] if is_straight else int(rng.choice(axes))
        step = -1 if not is_straight and cell[axis] > 0 and rng.random() < 0.3 else 1
        cell = cell + step * np.eye(2, dtype=int)[axis]
        cells.append(cell)
    return np.stack(cells).astype(float)


class TestTheStream:
    def counted(self, episodes: list[Episode]) -> Iterator[tuple[int, Episode]]:
        """How many had been read when each came out."""
        read = 0

        def reading() -> Iterator[Episode]:
            nonlocal read
            for episode in episodes:
                read += 1
                yield episode

        for problems, _ in with_problems_of_ends(reading()):
            yield read, problems

    @given(st.lists(strategies.episodes(min_steps=1, max_steps=5), max_size=6), SEEDS, st.integers(0, 12))
    def test_gives_every_episode_once_in_order(self, some: list[Episode], seed: int, bad: int) -> None:
        episodes = [*some, *poisoned(np.random.default_rng(seed), bad), *some] if bad else some
        assert [episode for _, episode in self.counted(episodes)] == episodes

    def test_waits_for_one_episode_only_where_nothing_is_shared(self) -> None:
        rng = np.random.default_rng(0)
        episodes = [episode_of(walk(rng, 9)) for _ in range(6)]
        assert [read for read, _ in self.counted(episodes)] == [2, 2, 3, 4, 5, 6]

    def test_waits_for_none_where_observations_are_no_floats(self) -> None:
        episodes = [episode_of(np.full((9, 4, 4), number, np.uint8)) for number in range(3)]
        assert [read for read, _ in self.counted(episodes)] == [1, 2, 3]

    def test_waits_for_none_where_conventions_mend_the_end(self) -> None:
        stream = with_problems_of_ends(
            iter(poisoned(np.random.default_rng(0), 5)), Conventions(last_observation="drop")
        )
        assert next(stream)[0].id == "e0"

    def test_waits_until_it_is_shown(self) -> None:
        assert [read for read, _ in self.counted(poisoned(np.random.default_rng(0), 5, owner=4))] == [3, 3, 3, 4, 5]

    @given(SEEDS, st.integers(1, 40))
    def test_never_lets_more_wait_than_it_says(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        goals = [walk(rng, 2)[-1] for _ in range(3)]
        ends = [
            ended_by(walk(rng, 9), goals[rng.integers(3)]) if rng.random() < 0.5 else walk(rng, 9) for _ in range(count)
        ]
        for number, (read, _) in enumerate(self.counted([episode_of(end) for end in ends])):
            assert read - number <= MOST_HELD

    def test_gives_what_waits_before_an_error(self) -> None:
        def reading() -> Iterator[Episode]:
            yield from poisoned(np.random.default_rng(0), 2)
            raise OSError("gone")

        stream = with_problems_of_ends(reading())
        assert [next(stream)[0].id for _ in range(2)] == ["e0", "e1"]
        with pytest.raises(OSError, match="gone"):
            next(stream)

    def test_of_none_gives_none(self) -> None:
        assert list(with_problems_of_ends([])) == []

    def test_keeps_little_of_many_episodes_and_what_was_shared_stays(self) -> None:
        rng = np.random.default_rng(0)
        state = Endings()
        shared = poisoned(rng, 3)
        for episode in [*shared, *(episode_of(walk(rng, 6)) for _ in range(4 * _MOST_SINGLE))]:
            state = state.after(episode, ending_of(episode))
        assert (len(state.single), len(state.shared)) == (_MOST_SINGLE, 1)
        assert state.problems(ending_of(shared[0]))


ODD = [
    episode_of(np.zeros((0, 3), np.float32)),
    episode_of(np.array(["a", "b"])),
    episode_of(np.array([b"a", None, 3], object)),
    episode_of(np.full((6, 2), np.nan)),
    episode_of(np.array([[0.5], [np.inf], [-np.inf], [np.nan], [0.5], [7.5]])),
    episode_of(np.zeros((6, 0), np.float32)),
    episode_of({"observation/a": np.ones((3, 2)) / 3, "observation/b": np.ones(5)}),
    episode_of(np.ones((3, 2), np.float32) / 3, "", action=np.ones(2)),
    episode_of(np.array([1 + 1j, 2, 3])),
    Episode({}, id="nothing"),
    Episode({"is_first": np.array([True])}, id="no observation"),
]


def test_odd_episodes_go_through() -> None:
    with np.errstate(all="raise"):
        assert told([*ODD, *ODD, *ODD]) == []


class TestALeap:
    def rows(self, *values: float) -> dict[str, np.ndarray]:
        return {"observation": np.array(values)[:, None]}

    @pytest.mark.parametrize(
        ("values", "is_one"),
        [
            ((0.1, 0.2, 0.3, 0.4, 0.9), True),
            ((0.1, 0.2, 0.3, 0.4, 0.5), False),
            ((0.1, 0.2, 0.3, 0.4, 0.0), True),
            ((0.1, 0.5, 0.3, 0.4, 0.0), False),
            ((0.1, 0.2, 0.3, 0.9), False),  # too short to tell
            ((0.1, 0.1, 0.1, 0.1, 0.9), False),  # never moved before
            ((1.0, 2.0, 3.0, 4.0, 9.0), False),  # counts
            ((0.1, 0.2, 0.3, 0.4, np.nan), False),
            ((0.1, np.nan, 0.3, 0.4, 0.9), False),
        ],
    )
    def test_goes_farther_than_any_step_before(self, values: tuple[float, ...], is_one: bool) -> None:
        assert leaps(self.rows(*values)) is is_one

    def test_may_be_of_one_value_among_many(self) -> None:
        rows = np.tile(np.linspace(0.1, 0.5, 5)[:, None], 3)
        rows[-1, 1] = 2.5
        assert leaps({"observation": rows})
        assert not leaps({"observation": rows[:-1]})


ROWS = st.binary(max_size=8)
SINGLES = st.dictionaries(ROWS, st.builds(Single, st.text(), ROWS), max_size=4)
SHAREDS = st.dictionaries(
    ROWS,
    st.builds(Shared, st.text(), st.lists(ROWS, max_size=3).map(tuple), *(st.integers(0, 9),) * 3),
    max_size=4,
)


@given(st.builds(Endings, st.integers(0, 99), SINGLES, SHAREDS))
def test_what_is_known_comes_back(endings: Endings) -> None:
    found = endings_of(json.loads(json.dumps(state_of(endings))))
    assert found == endings
    assert list(found.single) == list(endings.single)  # the oldest goes first
    assert list(found.shared) == list(endings.shared)


def mixture(seed: int) -> list[Episode]:
    """Episodes that end by themselves, and others that share an end, in turns."""
    rng = np.random.default_rng(seed)
    shared, own = poisoned(rng, 6), [poisoned(rng, 1)[0] for _ in range(6)]
    mixed = [episode for pair in zip(own, shared) for episode in pair]
    return [replace(episode, id=f"episode {number}") for number, episode in enumerate(mixed)]


@given(st.integers(0, 99))
def test_a_reading_goes_on_as_if_it_had_not_stopped(seed: int) -> None:
    episodes = mixture(seed)
    seen: list[tuple[str, list[Problem]]] = []
    clear: list[tuple[int, Endings]] = []
    for episode, problems in with_problems_of_ends(
        episodes, on_clear=lambda endings: clear.append((len(seen), endings))
    ):
        seen.append((episode.id, problems))
    assert any(problems for _, problems in seen)
    assert clear[-1][0] == len(episodes)
    for done, endings in clear:
        rest = with_problems_of_ends(episodes[done:], endings=endings_of(state_of(endings)))
        assert seen[done:] == [(episode.id, problems) for episode, problems in rest]
