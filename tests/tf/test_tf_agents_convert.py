"""`convert_rlds_to_trajectories` and `create_trajectory_data_spec` give what TF-Agents gives, and the right thing where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import convert_rlds_to_trajectories, create_trajectory_data_spec
from tests import reference
from tests.rlds_data import dataset, episode

tf = pytest.importorskip("tensorflow")
theirs = pytest.importorskip("tf_agents.replay_buffers.rlds_to_reverb")

FLAT = {"observation": ("float32", (3,)), "action": ("int64", ())}
NESTED = {"observation": {"b": ("uint8", (2, 2)), "a": ("float32", ())}, "action": [("int64", ()), ("float32", (2,))]}
Lengths = list[tuple[int, bool]]
LENGTHS = st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=4)


def data(lengths: Lengths, specs: Any = None) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(len(lengths))
    episodes = [episode(rng, rows, terminal, **(specs or FLAT)) for rows, terminal in lengths]
    return episodes, dataset(episodes)


def rows_of(trajectories: Any) -> list[list[Any]]:
    return [[np.asarray(leaf) for leaf in reference.leaves(row)] for row in trajectories.as_numpy_iterator()]


def pair_info(current: Any, following: Any) -> Any:
    return {"delta": following["observation"] - current["observation"], "last": following["is_last"]}


@settings(max_examples=12)
@given(lengths=LENGTHS)
def test_every_trajectory_is_tf_agents(lengths: Lengths) -> None:
    _, rlds = data(lengths)
    for function in (None, pair_info):
        ours = rows_of(convert_rlds_to_trajectories(rlds, function))
        reference.assert_same_items(ours, rows_of(theirs.convert_rlds_to_trajectories(rlds, function)))


@settings(max_examples=8)
@given(lengths=LENGTHS, batch=st.integers(1, 9))
def test_batches_hold_the_same_trajectories(lengths: Lengths, batch: int) -> None:
    _, rlds = data(lengths)
    wanted = rows_of(convert_rlds_to_trajectories(rlds))
    batches = list(convert_rlds_to_trajectories(rlds, batch_size=batch).as_numpy_iterator())
    assert all(len(one.step_type) == batch for one in batches[:-1])
    columns = [np.concatenate(column) for column in zip(*(reference.leaves(one) for one in batches))]
    reference.assert_same_items([list(row) for row in zip(*columns)], wanted)


@pytest.mark.parametrize("rows", [510, 511, 512, 513, 1024, 1025, 1300])
def test_episodes_longer_than_a_block_are_whole(rows: int) -> None:
    episodes, rlds = data([(rows, True), (3, False)])
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds)), reference.trajectories(steps))


def test_nested_observations_and_actions_are_those_of_the_current_step() -> None:
    episodes, rlds = data([(4, True), (1, True), (2, False)], NESTED)
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds)), reference.trajectories(steps))


def test_policy_info_sees_nested_steps_and_the_padding_step() -> None:
    episodes, rlds = data([(3, True), (2, False)], NESTED)

    def info(current: Any, following: Any) -> Any:
        return (current["observation"]["b"], following["is_first"])

    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds, info)), reference.trajectories(steps, info))


FLAG = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=4)


@settings(max_examples=25)
@given(flags=FLAG)
def test_random_flags_give_tf_agents_error(flags: list[tuple[bool, bool, bool]]) -> None:
    episodes, _ = data([(2, True), (len(flags), False)])
    first, last, terminal = (np.array(flag) for flag in zip(*flags))
    episodes[1].update(is_first=first, is_last=last, is_terminal=terminal)
    rlds = dataset(episodes)
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    broken = [rule for pair in reference.pairs(steps) if (rule := reference.broken_rule(*pair))]
    if not broken:
        reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds)), reference.trajectories(steps))
        return
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        rows_of(convert_rlds_to_trajectories(rlds))
    assert broken[0] in str(error.value)


def test_an_empty_dataset_gives_nothing() -> None:
    episodes, _ = data([(2, True)])
    assert rows_of(convert_rlds_to_trajectories(dataset([], like=episodes[0]))) == []


def test_the_result_is_an_ordinary_dataset() -> None:
    _, rlds = data([(5, True), (3, False)])
    trajectories = convert_rlds_to_trajectories(rlds)
    assert len(rows_of(trajectories)) == len(rows_of(trajectories)) == 8
    rewards = trajectories.map(lambda row: row.reward).repeat(2).shuffle(16, seed=1).batch(4)
    assert sum(len(batch) for batch in rewards) == 16
    assert int(rlds.map(lambda one: one).reduce(0, lambda count, _: count + 1)) == 2


@pytest.mark.parametrize("specs", [FLAT, NESTED])
def test_the_spec_is_tf_agents(specs: Any) -> None:
    _, rlds = data([(2, True)], specs)
    assert create_trajectory_data_spec(rlds) == theirs.create_trajectory_data_spec(rlds)


def test_the_elements_have_the_spec() -> None:
    _, rlds = data([(2, True)], NESTED)
    spec = create_trajectory_data_spec(rlds)
    found = convert_rlds_to_trajectories(rlds).element_spec
    for wanted, leaf in zip(tf.nest.flatten(spec), tf.nest.flatten(found)):
        assert (wanted.shape, wanted.dtype) == (leaf.shape, leaf.dtype)


def test_the_spec_can_have_policy_info() -> None:
    _, rlds = data([(2, True)])
    info = create_trajectory_data_spec(rlds, pair_info).policy_info
    assert (info["delta"].shape, info["delta"].dtype) == ((3,), tf.float32)
    assert info["last"].dtype == tf.bool


def test_a_float64_discount_is_a_type_error() -> None:
    episodes, _ = data([(2, True)])
    episodes[0]["discount"] = episodes[0]["discount"].astype(np.float64)
    with pytest.raises(TypeError, match="expected float32"):
        convert_rlds_to_trajectories(dataset(episodes))


def test_extra_step_features_are_left_out_but_seen_by_the_function() -> None:
    episodes, _ = data([(3, True)])
    episodes[0]["extra"] = np.array([b"a", b"b", b"c"], object)
    rlds = dataset(episodes)
    rows = list(convert_rlds_to_trajectories(rlds, lambda current, _: current["extra"]).as_numpy_iterator())
    assert [row.policy_info for row in rows] == [b"a", b"b", b"c"]
    assert not hasattr(rows[0], "extra")
