"""How episodes end is counted, and the style of a known producer is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.inspection.statistics import Ends
from rlds2reverb.prepare.conventions import fill_absent

NAN = float("nan")


def make_episode(action: Any, reward: Any, discount: Any, terminal: bool, last: bool = True) -> Episode:
    rows = len(action)
    at = np.arange(rows)
    return Episode(
        {
            "observation": at / 7,
            "action": np.array(action, np.float32),
            "reward": np.array(reward, np.float32),
            "discount": np.array(discount, np.float32),
            "is_first": at == 0,
            "is_last": (at == rows - 1) & last,
            "is_terminal": (at == rows - 1) & terminal,
        }
    )


OPEN_X = make_episode([1, 1, 1], [0, 0, 1], [1, 1, 1], terminal=True)
OPEN_X_FAILED = make_episode([1, 1, 1], [0, 0, 1], [1, 1, 1], terminal=False)
RLDS_TERMINAL = make_episode([1, 1, 0], [1, 1, 0], [1, 0, 0], terminal=True)
RLDS_TRUNCATED = make_episode([1, 1, 0], [1, 1, 0], [1, 1, 1], terminal=False)
D4RL_TIMEOUT = make_episode([1, 1, 0], [1, 1, 0], [1, 1, 0], terminal=False)
NO_NEXT_TIMEOUT = make_episode([1, 1, 1], [1, 1, 1], [1, 1, 1], terminal=False)
ENV_LOGGER_CUT = make_episode([1, 1, 0], [1, 1, 0], [1, 1, 1], terminal=False, last=False)
DMLAB = make_episode([1, 1, 1], [0, 1, 0], [1, 0, 0], terminal=False)


def ends_of(*episodes: Episode) -> Ends:
    ends = Ends()
    for episode in episodes:
        ends.add(episode)
    return ends


@pytest.mark.parametrize(
    ("episodes", "style"),
    [
        ((), ""),
        (
            (OPEN_X, OPEN_X),
            "last row real, discount always 1, all terminal: as Open X-Embodiment sets (rlds_dataset_builder); "
            "last_reward=shift and terminal_discount=transition let learners see the end",
        ),
        ((RLDS_TERMINAL, RLDS_TRUNCATED), "last row added for the last observation, as RLDS has it"),
        (
            (RLDS_TERMINAL, D4RL_TIMEOUT),
            "last row added for the last observation, as RLDS has it; "
            "discount 0 in it even where truncated: as TFDS' d4rl_* sets",
        ),
        (
            (RLDS_TERMINAL, NO_NEXT_TIMEOUT),
            "last row added where terminal, real where truncated: as TFDS' d4rl_* sets of files without next_observations",
        ),
        (
            (RLDS_TERMINAL, ENV_LOGGER_CUT),
            "last row added for the last observation, as RLDS has it; "
            "not all marked is_last: as EnvLogger leaves episodes that were cut off",
        ),
        (
            (DMLAB,),
            "last row real, so no observation follows its action, and learners do not see it; "
            "none terminal, though discounts of 0 lead into some ends",
        ),
        (
            (OPEN_X_FAILED,),
            "last row real, so no observation follows its action, and learners do not see it; "
            "a reward in the last row only, where learners do not look; last_reward=shift moves it one step back",
        ),
        (
            (OPEN_X, OPEN_X.with_columns(reward=np.array([1, 0, 1], np.float32))),
            "last row real, discount always 1, all terminal: as Open X-Embodiment sets (rlds_dataset_builder); "
            "terminal_discount=transition lets learners see the end",
        ),
        ((OPEN_X, RLDS_TERMINAL), "some have a last row that was added, some a real one"),
    ],
)
def test_a_style_is_named_where_all_episodes_have_it(episodes: tuple[Episode, ...], style: str) -> None:
    assert ends_of(*episodes).style == style


def test_counts_are_those_of_the_episodes() -> None:
    ends = ends_of(OPEN_X, RLDS_TERMINAL, D4RL_TIMEOUT, ENV_LOGGER_CUT, DMLAB)
    assert ends.as_dict() == {
        "episodes": 5,
        "terminal": 2,
        "added": 3,
        "unmarked": 1,
        "zero_discount": 2,
        "cut_by_discount": 1,
        "always_one": 2,
        "rewarded_first": 3,
        "rewarded_last": 1,
        "style": "some have a last row that was added, some a real one; "
        "not all marked is_last: as EnvLogger leaves episodes that were cut off",
    }
    assert (ends.truncated, ends.real) == (3, 2)


@given(st.lists(st.sampled_from([OPEN_X, RLDS_TERMINAL, RLDS_TRUNCATED, D4RL_TIMEOUT, DMLAB]), max_size=6))
def test_the_order_does_not_matter(episodes: list[Episode]) -> None:
    assert ends_of(*episodes) == ends_of(*reversed(episodes))


@pytest.mark.parametrize(
    "odd",
    [
        Episode({}, id="nothing"),
        OPEN_X.with_columns(is_last=np.zeros(3)),
        OPEN_X.with_columns(is_terminal=np.zeros(2, bool)),
        OPEN_X.with_only_columns({path: column[:1] for path, column in OPEN_X.columns.items()}),
    ],
)
def test_an_episode_that_cannot_be_read_is_passed_over(odd: Episode) -> None:
    assert ends_of(odd) == Ends()


@pytest.mark.parametrize(
    "columns",
    [
        {"reward": np.full(3, NAN), "discount": np.full(3, NAN)},
        {"reward": np.ones((3, 2))},
        {"discount": np.array(["a"] * 3)},
    ],
)
def test_odd_numbers_are_counted_as_far_as_they_go(columns: dict[str, np.ndarray]) -> None:
    assert ends_of(OPEN_X.with_columns(**columns)).terminal == 1


def test_fields_that_are_absent_count_as_they_are_filled() -> None:
    bare = Episode({path: OPEN_X.columns[path] for path in ("observation", "is_first", "is_last")})
    assert ends_of(fill_absent(bare)).as_dict()["style"] == "last row added for the last observation, as RLDS has it"
