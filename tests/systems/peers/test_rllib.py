"""The view of requirements beside RLlib itself, Ray 2.12 and 2.60: its AgentCollector, fed with the same episodes step by step."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from ray.rllib.evaluation.collectors.agent_collector import AgentCollector
from ray.rllib.policy.rnn_sequencing import pad_batch_to_sequences_of_same_size
from ray.rllib.policy.view_requirement import ViewRequirement

from rlds2reverb.adapters.rllib import sample_batch
from rlds2reverb.episode import Array, Episode
from rlds2reverb.formats.source import spec_of
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import flatten
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


def collected(
    requirements: dict[str, ViewRequirement], episode: Episode, *states: Any, t: int = -1
) -> dict[str, Array]:
    """Column -> values of the training batch that RLlib builds of an episode, by a policy with these initial states.

    `t` is the environment's step at which the agent's first observation came, less one.
    """
    steps = episode.columns
    collector = AgentCollector(requirements, is_policy_recurrent=bool(states), intial_states=list(states))
    infos: Any = steps.get("infos", [{}] * len(episode))
    first = {"init_obs": steps["observation"][0], "init_infos": infos[0]}
    collector.add_init_obs(episode_id=7, agent_index=0, env_id=0, t=t, **first)
    for row in range(len(episode) - 1):
        ends = steps["is_last"][row + 1]
        collector.add_action_reward_next_obs(
            {
                "new_obs": steps["observation"][row + 1],
                "actions": steps["action"][row],
                "rewards": steps["reward"][row],
                "terminateds": ends and steps["is_terminal"][row + 1],
                "truncateds": ends and not steps["is_terminal"][row + 1],
                "agent_index": 0,
                "env_id": 0,
                "infos": infos[row + 1],
                **{path: column[row] for path, column in steps.items() if path.startswith("state_out")},
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


@pytest.mark.parametrize("shift", [-2, 0, 1, 3, "-2:2"], ids=str)
def test_infos_and_times_of_an_agent_that_enters_late(shift: Any) -> None:
    """Infos have a row more than actions, and an agent's time is the environment's."""
    asked = PLAIN | {f"{name}_shifted": ViewRequirement(name, shift=shift) for name in ("infos", "t")}
    for plain in random_episodes():
        numbers = np.arange(10, 10 + len(plain))
        episode = Episode({**plain.columns, "infos": numbers}, {"t": 6}, plain.id)
        theirs, ours = collected(asked, episode, t=5), columns(Requirements(asked), episode)
        for name in ("t", "t_shifted", "infos_shifted"):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"{name} of {episode.id}")


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


STATES: list[Any] = [-1, -2, -7, "-3:-1", "-6:0:2", [-1, 0], [0, -4], 0, 1, "-1:2"]


@pytest.mark.parametrize("initial", [0.0, 0.5], ids=["zeros", "learned"])
@pytest.mark.parametrize("repeat", [1, 2, 4])
@pytest.mark.parametrize("shift", STATES, ids=str)
def test_states_begin_with_the_policys_initial_state(shift: Any, repeat: int, initial: float) -> None:
    """Theirs are arrays of the values that `policy.get_initial_state` returns; no state after step 0 stands before it."""
    states = [np.full(4, initial, np.float32), np.arange(3, dtype=np.float32) * np.float32(initial)]
    space = [Box(-1, 1, state.shape, np.float32) for state in states]
    required = PLAIN | {f"state_out_{i}": ViewRequirement(space=space[i]) for i in range(2)}
    for i in range(2):
        required[f"state_in_{i}"] = ViewRequirement(
            f"state_out_{i}", shift=shift, space=space[i], batch_repeat_value=repeat
        )
    view = Requirements(required, initial_state=states if initial else None)
    for plain in random_episodes():
        rng = np.random.default_rng(len(plain))
        recorded = {
            f"state_out_{i}": rng.normal(size=(len(plain), *space[i].shape)).astype(np.float32) for i in range(2)
        }
        episode = plain.with_columns(**recorded)
        theirs, ours = collected(required, episode, *states), columns(view, episode)
        theirs.pop("seq_lens")
        assert set(ours) == set(theirs)
        for name, values in theirs.items():
            repeated = np.repeat(values, required[name].batch_repeat_value, axis=0)[: len(episode) - 1]
            np.testing.assert_array_equal(ours[name], repeated, err_msg=f"{name} of {episode.id}")


def policy_of(name: str, **training: Any) -> Any:
    """A policy of RLlib's old stack for cartpole, as its algorithm makes it."""
    module, kind = import_module(f"ray.rllib.algorithms.{name.lower()}"), f"{name.lower()}_torch_policy"
    config = getattr(module, f"{name}Config")().framework("torch").training(**training)
    if hasattr(config, "api_stack"):
        config = config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    else:
        config = config.experimental(_enable_new_api_stack=False)
    policy = getattr(import_module(f"{module.__name__}.{kind}"), f"{name}TorchPolicy")
    return policy(OBS, Discrete(2), {**config.to_dict(), "worker_index": 0})


@pytest.mark.parametrize("name", ["PPO", "DQN", "MARWIL"])
def test_what_real_policies_require_is_made_of_any_episode(name: str) -> None:
    """Their collector leaves out what only their sampler, policy or loss makes; so do we, and name it."""
    required = policy_of(name).view_requirements
    required["next_actions"] = ViewRequirement("actions", shift=1, space=Discrete(2))  # as their document adds it
    view = Requirements(required)
    for plain in random_episodes():
        choices = np.arange(len(plain)) % 2
        episode = plain.with_columns(action=choices)
        theirs, ours = collected(required, episode), columns(view, episode)
        spec = filled_spec(spec_of(episode))
        assert set(flatten(view.signature(spec))) == set(ours)
        assert set(theirs) - set(ours) == {"infos"}  # theirs holds empty dicts
        assert set(required) - set(ours) == set(view.left_out(spec))
        assert {"rewards", "terminateds", "truncateds", "eps_id", "unroll_id", "agent_index", "t"} <= set(ours)
        for column in set(ours) - {"eps_id", "unroll_id"}:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=column)
        for column in ("eps_id", "unroll_id"):
            assert ours[column].dtype == theirs[column].dtype == np.int64
            assert len(set(ours[column].tolist())) == len(set(theirs[column].tolist())) == 1


def test_what_a_real_recurrent_policy_requires_is_made_of_its_own_states() -> None:
    policy = policy_of("PPO", model={"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4})
    required, initial = policy.view_requirements, policy.get_initial_state()
    view = Requirements(required, initial_state=initial)
    assert {"state_in_0", "state_in_1", "state_out_0", "state_out_1"} <= set(required)
    for plain in random_episodes():
        rng = np.random.default_rng(len(plain))
        states = {f"state_out_{i}": rng.normal(size=(len(plain), 3)).astype(np.float32) for i in range(2)}
        episode = plain.with_columns(action=np.arange(len(plain)) % 2, **states)
        theirs, ours = collected(required, episode, *initial), columns(view, episode)
        for name in ("state_in_0", "state_in_1", "state_out_0", "state_out_1"):
            repeated = np.repeat(theirs[name], required[name].batch_repeat_value, axis=0)[: len(episode) - 1]
            np.testing.assert_array_equal(ours[name], repeated, err_msg=f"{name} of {episode.id}")
        assert not ours["state_in_0"][0].any()
    without = view.left_out(filled_spec(spec_of(plain)))
    assert {name for name in without if name.startswith("state")} == {name for name in required if "state" in name}


LSTM: dict[str, Any] = {"use_lstm": True, "lstm_cell_size": 3, "lstm_use_prev_reward": True, "max_seq_len": 4}
ATTENTION: dict[str, Any] = {
    "use_attention": True,
    "attention_dim": 4,
    "attention_num_transformer_units": 1,
    "max_seq_len": 4,
    "attention_memory_inference": 2,
    "attention_memory_training": 2,
}


@pytest.mark.parametrize("model", [LSTM, ATTENTION], ids=["lstm", "attention"])
def test_a_real_recurrent_policy_learns_from_padded_sequences(model: dict[str, Any]) -> None:
    """What their own function makes of the rows of whole episodes."""
    policy = policy_of("PPO", model=model)
    view, rng = (
        Requirements(policy.view_requirements, initial_state=policy.get_initial_state()),
        np.random.default_rng(0),
    )
    shapes = {"action_logp": (), "action_dist_inputs": (2,), "vf_preds": (), "advantages": (), "value_targets": ()}
    shapes |= {f"state_out_{i}": state.shape for i, state in enumerate(policy.get_initial_state())}
    parts = []
    for plain in random_episodes():
        made = {name: rng.normal(size=(len(plain), *shape)).astype(np.float32) for name, shape in shapes.items()}
        parts.append(columns(view, plain.with_columns(action=np.arange(len(plain)) % 2, **made)))
    data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = len(data["obs"])
    ones = np.ones(count)
    info = BatchInfo(np.arange(count, dtype=np.uint64), ones, ones.astype(np.int64), ones, ones.astype(np.int32))
    ours, theirs = sample_batch(Batch(data, info), max_seq_len=4), sample_batch(Batch(data, info))
    pad_batch_to_sequences_of_same_size(theirs, 4, view_requirements=policy.view_requirements)
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    assert np.isfinite(policy.learn_on_batch(ours)["learner_stats"]["total_loss"])
