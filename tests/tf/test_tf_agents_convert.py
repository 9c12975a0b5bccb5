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

from rlds2reverb.tf_agents import conversion  # noqa: E402

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


BLOCK = conversion._BLOCK_STEPS


@pytest.mark.parametrize(
    "lengths",
    [[BLOCK - 1], [BLOCK], [BLOCK + 1], [2 * BLOCK, 1], [BLOCK - 3, 3, 2], [BLOCK - 1, 1, 1], [BLOCK - 1, 2, BLOCK]],
    ids=lambda lengths: "+".join(map(str, lengths)),
)
def test_where_a_block_ends_does_not_show(lengths: list[int]) -> None:
    episodes, rlds = data([(rows, True) for rows in lengths])
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    expected = reference.trajectories(steps, numpy_info)
    reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds, pair_info)), expected)


def numpy_info(current: Any, following: Any) -> Any:
    return {"delta": following["observation"] - current["observation"], "last": following["is_last"]}


@pytest.mark.parametrize("at", [BLOCK - 2, BLOCK - 1, BLOCK])
def test_a_mistake_at_the_border_of_two_blocks_is_found(at: int) -> None:
    episodes, _ = data([(BLOCK + 3, True)])
    episodes[0]["is_first"] = episodes[0]["is_first"] | (np.arange(BLOCK + 3) == at)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Mid step should not be followed by a first step"):
        rows_of(convert_rlds_to_trajectories(dataset(episodes)))


def test_text_and_numbers_are_those_of_tf_agents() -> None:
    specs = {"observation": ("O", (2,)), "action": ("O", ()), "reward": ("float64", (2,))}
    _, rlds = data([(3, True), (1, False), (2, True)], specs)
    ours = rows_of(convert_rlds_to_trajectories(rlds))
    reference.assert_same_items(ours, rows_of(theirs.convert_rlds_to_trajectories(rlds)))


def test_extra_features_reach_the_function_as_in_tf_agents() -> None:
    episodes, _ = data([(3, True), (2, False)])
    for columns in episodes:
        columns["extra"] = np.arange(len(columns["reward"]), dtype=np.int16)
    rlds = dataset(episodes)

    def info(current: Any, following: Any) -> Any:
        return {"here": current["extra"], "there": following["extra"]}

    ours = rows_of(convert_rlds_to_trajectories(rlds, info))
    reference.assert_same_items(ours, rows_of(theirs.convert_rlds_to_trajectories(rlds, info)))


@pytest.mark.parametrize("batch", [1, 3, 8, 9, 5000])
def test_a_batch_may_be_of_any_size(batch: int) -> None:
    _, rlds = data([(5, True), (3, False)])
    batches = list(convert_rlds_to_trajectories(rlds, pair_info, batch_size=batch).as_numpy_iterator())
    assert [len(one.policy_info["last"]) for one in batches] == [min(batch, 8 - at) for at in range(0, 8, batch)]
    empty = dataset([], like=data([(2, True)])[0][0])
    assert list(convert_rlds_to_trajectories(empty, batch_size=batch).as_numpy_iterator()) == []


def test_episodes_without_steps_are_passed_over() -> None:
    episodes, _ = data([(3, True), (2, False)])
    empty = {name: column[:0] for name, column in episodes[0].items()}
    rlds = dataset([empty, episodes[0], empty, episodes[1], empty])
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds)), reference.trajectories(steps))


def test_steps_of_unknown_sizes_are_converted() -> None:
    """TF-Agents fails at the padding step here, whose unknown sizes it takes for 1."""
    episodes, rlds = data([(3, True), (2, False)])

    def loose(step: Any) -> Any:
        return {**step, "observation": tf.numpy_function(lambda value: value, [step["observation"]], tf.float32)}

    def with_rank(step: Any) -> Any:
        return {**step, "observation": tf.ensure_shape(step["observation"], [None])}

    rlds = rlds.map(lambda one: {"steps": one["steps"].map(loose).map(with_rank)})
    assert create_trajectory_data_spec(rlds).observation.shape.as_list() == [None]
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds)), reference.trajectories(steps))


def test_nothing_is_read_before_the_first_trajectory_is_asked_for() -> None:
    episodes, _ = data([(2, True)])
    read = []

    class Counted:
        def __iter__(self) -> Any:
            read.append(1)
            return iter(episodes)

    trajectories = convert_rlds_to_trajectories(dataset(Counted(), like=episodes[0]), pair_info)
    assert read == []
    assert len(rows_of(trajectories)) == 2
    assert read == [1]


def test_it_can_be_part_of_another_pipeline() -> None:
    """Inside a `flat_map`, so in the graph, one dataset of trajectories an episode."""
    episodes, rlds = data([(3, True), (4, False)])
    nested = rlds.flat_map(lambda one: convert_rlds_to_trajectories(tf.data.Dataset.from_tensors(one)))
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    reference.assert_same_items(rows_of(nested), reference.trajectories(steps))


def test_a_dataset_of_numpy_values_from_the_function_is_a_dataset_of_tensors() -> None:
    _, rlds = data([(2, True)])
    rows = list(convert_rlds_to_trajectories(rlds, lambda *_: (np.float32(2.5), 7)).as_numpy_iterator())
    assert [row.policy_info for row in rows] == [(2.5, 7), (2.5, 7)]
