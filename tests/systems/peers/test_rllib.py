"""The view of requirements beside RLlib itself: its AgentCollector, fed with the same episodes step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from ray.rllib.evaluation.collectors.agent_collector import AgentCollector
from ray.rllib.policy.view_requirement import ViewRequirement

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views.requirements import Requirements
from tests.systems.peers.episodes import columns, random_episodes

OBS, ACTION, ONE = Box(-9, 9, (2,), np.float32), Box(-9, 9, (3,), np.float32), Box(-9, 9, (), np.float32)
PLAIN = {
    "obs": ViewRequirement(space=OBS),
    "actions": ViewRequirement(space=ACTION),
    "rewards": ViewRequirement(space=ONE),
    "terminateds": ViewRequirement(),
    "truncateds": ViewRequirement(),
    "t": ViewRequirement(),
    "new_obs": ViewRequirement("obs", shift=1, space=OBS),
}
"""What every policy of theirs requires; without obs at shift 0 or earlier their rows before the first do not add up."""


def collected(requirements: dict[str, ViewRequirement], episode: Episode) -> dict[str, Array]:
    """Column -> values of the training batch that RLlib builds of an episode."""
    steps = episode.columns
    collector = AgentCollector(requirements)
    collector.add_init_obs(episode_id=7, agent_index=0, env_id=0, init_obs=steps["observation"][0])
    for row in range(len(episode) - 1):
        ends = steps["is_last"][row + 1]
        collector.add_action_reward_next_obs(
            {
                "new_obs": steps["observation"][row + 1],
                "actions": steps["action"][row],
                "rewards": steps["reward"][row],
                "terminateds": ends and steps["is_terminal"][row + 1],
                "truncateds": ends and not steps["is_terminal"][row + 1],
            }
        )
    return dict(collector.build_for_training(requirements))


def compare(requirements: dict[str, ViewRequirement], terminal: bool = True, dtype: type = np.float32) -> None:
    """Asserts that every column of every episode is the same; their own objects are what our view is made of."""
    for episode in random_episodes(terminal, dtype):
        theirs, ours = collected(requirements, episode), columns(Requirements(requirements), episode)
        assert set(ours) == set(theirs)
        for name, values in theirs.items():
            repeat = requirements[name].batch_repeat_value
            # Theirs is a row for every r-th step; ours an item for every step, r in a row alike.
            repeated = np.repeat(values, repeat, axis=0)[: len(episode) - 1]
            assert ours[name].dtype == values.dtype, name
            np.testing.assert_array_equal(ours[name], repeated, err_msg=f"{name} of {episode.id}")


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_columns_of_every_policy(terminal: bool, dtype: type) -> None:
    compare(PLAIN, terminal, dtype)


PREVIOUS = {
    "prev_actions": ViewRequirement("actions", shift=-1, space=ACTION),
    "prev_rewards": ViewRequirement("rewards", shift=-1),
}
SHIFTS: list[Any] = [
    *(-7, -3, -2, -1, 0, 1, 2, 6),
    *([-1, 0], [0, -2], [-2, -1], [1, 2, 3], [3, -3, 0], [-4], [2]),
    *("-3:0", "-3:-1", "-2:2", "1:3", "-6:0:2", "-5:4:3", "1:4:2", "-1:-1"),
]


@pytest.mark.parametrize("previous", [{}, PREVIOUS], ids=["plain", "previous"])
@pytest.mark.parametrize("shift", SHIFTS, ids=str)
def test_shifts(shift: Any, previous: dict[str, ViewRequirement]) -> None:
    """Of every column: first values, or zeros, before the start, and zeros past the end."""
    columns_of = ("obs", "actions", "rewards", "terminateds", "truncateds", "t")
    asked = {f"{name}_shifted": ViewRequirement(name, shift=shift) for name in columns_of}
    compare(PLAIN | previous | asked)


@pytest.mark.parametrize("repeat", [2, 3, 5, 20])
@pytest.mark.parametrize("shift", [-1, "-3:-1", [0, -1], 1, "1:3"], ids=str)
def test_repeats(shift: Any, repeat: int) -> None:
    asked = {
        f"{name}_repeated": ViewRequirement(name, shift=shift, batch_repeat_value=repeat)
        for name in ("obs", "actions", "rewards")
    }
    compare(PLAIN | PREVIOUS | asked)


def test_several_at_once_share_the_rows_before_the_start() -> None:
    asked = {
        "frames": ViewRequirement("obs", shift="-3:0"),
        "far": ViewRequirement("rewards", shift=-9),
        "next_actions": ViewRequirement("actions", shift=1),
        "later": ViewRequirement("obs", shift=[1, 3], batch_repeat_value=2),
    }
    compare(PLAIN | PREVIOUS | asked)
    compare(PLAIN | asked, terminal=False)


def test_a_column_that_is_not_for_training_is_left_out_by_both() -> None:
    """RLlib leaves it out where a policy loads a batch, after `build_for_training`; its filling stays in force."""
    hidden = ViewRequirement("actions", shift=-1, space=ACTION, used_for_training=False)
    asked = PLAIN | {"back": ViewRequirement("actions", shift=-2), "prev_actions": hidden}
    for episode in random_episodes():
        theirs, ours = collected(asked, episode), columns(Requirements(asked), episode)
        assert set(theirs) - set(ours) == {"prev_actions"}
        np.testing.assert_array_equal(ours["back"], theirs["back"])


@pytest.mark.parametrize(("text", "offsets"), [("0:2", [0, 1, 2]), ("0:0", [0]), ("0:4:2", [0, 2, 4])])
def test_a_range_from_zero_works_only_here(text: str, offsets: list[int]) -> None:
    """A deliberate difference: RLlib tests `if self.shift_from`, takes a start of 0 for none, and then never works out
    the offsets. The view gives what the range says, which is what RLlib gives for the same offsets as a list."""
    with pytest.raises(AttributeError, match="shift_arr"):
        collected(PLAIN | {"ahead": ViewRequirement("obs", shift=text)}, random_episodes()[0])
    as_list = PLAIN | {"ahead": ViewRequirement("obs", shift=offsets)}
    for episode in random_episodes():
        ours = columns(Requirements({"ahead": {"data_col": "obs", "shift": text}}), episode)
        np.testing.assert_array_equal(ours["ahead"], collected(as_list, episode)["ahead"])
