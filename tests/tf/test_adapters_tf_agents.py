"""Beside TF-Agents' own ReverbReplayBuffer: equal specs and equal values from equal tables; an agent learns from either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tf_agents")

import tensorflow as tf
from replay_server import TableConfig
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import sequential
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step, trajectory

import rlds2reverb
from rlds2reverb import Client
from rlds2reverb.adapters.tf_agents import SampledReplayBuffer, as_trajectory_dataset, replay_buffer
from rlds2reverb.conventions import filled_spec
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec
from rlds2reverb.views.registry import view_from
from rlds2reverb.views.trajectory import table_signature
from tests.server.forks import Embedded, Forks

SOURCE = "bundled:cartpole@train[:2]"
ONCE: dict[str, Any] = {"sampler": "fifo", "max_times_sampled": 1}
DATA_SPEC = trajectory.Trajectory(
    step_type=tf.TensorSpec((), tf.int32),
    observation=tf.TensorSpec((4,), tf.float32),
    action=tf.TensorSpec((), tf.int64),
    policy_info=(),
    next_step_type=tf.TensorSpec((), tf.int32),
    reward=tf.TensorSpec((), tf.float32),
    discount=tf.TensorSpec((), tf.float32),
)


def signature(view: str) -> Any:
    return table_signature(view_from(view).signature(filled_spec(rlds2reverb.open_source("bundled:cartpole").spec())))


def tables() -> list[TableConfig]:
    return [
        TableConfig("fours", signature("sequence:length=4"), **ONCE),
        TableConfig("whole", signature("episode"), **ONCE),
        TableConfig("bare", **ONCE),
        TableConfig("pairs", signature("two_step")),
        TableConfig("prioritized", signature("two_step"), sampler="prioritized"),
        TableConfig("other", {"x": ArraySpec((), np.dtype(np.float32))}),
    ]


@pytest.fixture(scope="module")
def twins(forks: Forks) -> Iterator[tuple[Embedded, Embedded]]:
    """Two servers; the same pushes give both the same items, keys included."""
    with forks.embedded(tables()) as one, forks.embedded(tables()) as other:
        yield one, other


@pytest.fixture
def filled(twins: tuple[Embedded, Embedded]) -> Iterator[tuple[str, str]]:
    """The addresses of the servers, filled anew. One is for our side, the other for theirs."""
    views = {
        "fours": "sequence:length=4",
        "whole": "episode",
        "bare": "sequence:length=4",
        "pairs": "two_step",
        "prioritized": "two_step",
    }
    for server in twins:
        with rlds2reverb.connect(server.address) as client:
            for table, view in views.items():
                client.reset(table)
                client.push(SOURCE, table, view=view)
    yield twins[0].address, twins[1].address


def theirs(address: str, table: str, length: int | None) -> reverb_replay_buffer.ReverbReplayBuffer:
    """As TF-Agents' users make it; a timeout ends its datasets."""
    return reverb_replay_buffer.ReverbReplayBuffer(
        DATA_SPEC, table, length, server_address=address, rate_limiter_timeout_ms=300
    )


def values(element: Any) -> list[Any]:
    return [leaf.numpy().tolist() for leaf in tf.nest.flatten(element)]


SPLITS = [
    ("fours", 4, None),
    ("fours", 4, 4),
    ("fours", 4, 2),
    ("fours", None, 2),
    ("whole", None, None),
    ("whole", None, 3),
]


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize(("table", "length", "num_steps"), SPLITS)
def test_a_single_pass_gives_the_same_elements_in_the_same_order(
    filled: tuple[str, str], table: str, length: int | None, num_steps: int | None, size: int | None
) -> None:
    if table == "whole" and size is not None and num_steps is None:
        pytest.skip("episodes of different lengths are no batch, see below")
    ours = SampledReplayBuffer(filled[0], table, length, end_after_seconds=0.3)
    asked = {"sample_batch_size": size, "num_steps": num_steps, "single_deterministic_pass": True}
    expected = theirs(filled[1], table, length).as_dataset(**asked)
    dataset = ours.as_dataset(**asked)
    assert dataset.element_spec == expected.element_spec
    found = [values(element) for element in dataset]
    assert found
    assert found == [values(element) for element in expected]


@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("num_steps", [None, 1, 2, 4])
@pytest.mark.parametrize("length", [None, 4])
def test_specs_are_equal(filled: tuple[str, str], size: int | None, num_steps: int | None, length: int | None) -> None:
    dataset = as_trajectory_dataset(filled[0], "fours", size, num_steps, length)
    expected = theirs(filled[1], "fours", length).as_dataset(size, num_steps)
    assert dataset.element_spec == expected.element_spec


def test_a_shuffled_pass_gives_the_same_pieces(filled: tuple[str, str]) -> None:
    dataset = as_trajectory_dataset(filled[0], "fours", None, 2, 4, end_after_seconds=0.3)
    expected = theirs(filled[1], "fours", 4).as_dataset(None, 2)
    assert sorted(values(one)[1] for one in dataset) == sorted(values(one)[1] for one in expected)


def test_each_item_goes_through_a_function_before_it_is_cut(filled: tuple[str, str]) -> None:
    def preprocess(steps: Any) -> Any:
        return steps._replace(reward=tf.cumsum(steps.reward))

    asked = {
        "num_steps": 2,
        "sequence_preprocess_fn": preprocess,
        "single_deterministic_pass": True,
        "sample_batch_size": 3,
    }
    dataset = SampledReplayBuffer(filled[0], "fours", 4, end_after_seconds=0.3).as_dataset(**asked)
    expected = theirs(filled[1], "fours", 4).as_dataset(**asked)
    assert dataset.element_spec == expected.element_spec
    assert [values(one) for one in dataset] == [values(one) for one in expected]


def test_a_table_without_signature_takes_a_data_spec(filled: tuple[str, str]) -> None:
    dataset = as_trajectory_dataset(filled[0], "bare", 3, 4, 4, data_spec=DATA_SPEC, samples=3)
    expected = theirs(filled[1], "bare", 4).as_dataset(3, 4, single_deterministic_pass=True)
    assert dataset.element_spec == expected.element_spec
    assert values(next(iter(dataset))) == values(next(iter(expected)))
    with pytest.raises(ConfigError, match='table "bare": it has no signature'):
        as_trajectory_dataset(filled[0], "bare", 3)


class TestRefusals:
    @pytest.mark.parametrize("num_steps", [3, 5, 8])
    @pytest.mark.parametrize("single", [False, True])
    def test_steps_that_do_not_divide_an_item(self, filled: tuple[str, str], num_steps: int, single: bool) -> None:
        for buffer in (SampledReplayBuffer(filled[0], "fours", 4), theirs(filled[1], "fours", 4)):
            with pytest.raises(ValueError, match="num_steps"):
                buffer.as_dataset(2, num_steps, single_deterministic_pass=single)

    def test_more_parallel_calls_than_samples(self, filled: tuple[str, str]) -> None:
        for buffer in (SampledReplayBuffer(filled[0], "fours", 4), theirs(filled[1], "fours", 4)):
            with pytest.raises(ValueError, match="num_parallel_calls"):
                buffer.as_dataset(2, 2, num_parallel_calls=3)

    def test_a_single_pass_over_what_is_drawn_at_random(self, filled: tuple[str, str]) -> None:
        for buffer in (SampledReplayBuffer(filled[0], "pairs", 2), theirs(filled[1], "pairs", 2)):
            with pytest.raises(ValueError, match="deterministic"):
                buffer.as_dataset(2, 2, single_deterministic_pass=True)

    def test_what_neither_does(self, filled: tuple[str, str]) -> None:
        for buffer in (SampledReplayBuffer(filled[0], "pairs", 2), theirs(filled[1], "pairs", 2)):
            for call in (buffer.gather_all, buffer.get_next, lambda: buffer.add_batch(())):  # noqa: B023
                with pytest.raises(NotImplementedError):
                    call()

    def test_items_of_several_lengths_in_one_batch(self, filled: tuple[str, str]) -> None:
        with pytest.raises(tf.errors.OpError, match="steps do not fit into one batch; give num_steps"):
            next(iter(as_trajectory_dataset(filled[0], "whole", 2, samples=2)))

    def test_another_length_than_was_said(self, filled: tuple[str, str]) -> None:
        with pytest.raises(tf.errors.OpError, match="expected items of 3 steps, as sequence_length says; got 4"):
            next(iter(as_trajectory_dataset(filled[0], "fours", 2, None, 3, samples=2)))

    @pytest.mark.parametrize("name", ["batch_size", "ragged", "spec"])
    def test_options_that_it_decides_on(self, filled: tuple[str, str], name: str) -> None:
        with pytest.raises(ConfigError, match=f"{name}: as_dataset decides on it"):
            as_trajectory_dataset(filled[0], "pairs", 2, **{name: 1})

    def test_a_table_without_steps(self, filled: tuple[str, str]) -> None:
        with pytest.raises(ConfigError, match='table "other", column "x": it has no axis of steps'):
            as_trajectory_dataset(filled[0], "other", 2)


def test_the_rest_of_a_buffer(filled: tuple[str, str]) -> None:
    ours, other = SampledReplayBuffer(filled[0], "pairs", 2), replay_buffer(filled[1], "pairs", 2)
    assert ours.num_frames() == other.num_frames() > 0
    assert ours.capacity == other.capacity
    assert tf.nest.map_structure(
        lambda one, two: (one.shape, one.dtype) == (two.shape, two.dtype), ours.data_spec, DATA_SPEC
    )
    ours.clear()
    assert ours.num_frames() == 0


def agent() -> dqn_agent.DqnAgent:
    """A DQN agent for cartpole."""
    action_spec = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1)
    network = sequential.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(2)])
    made = dqn_agent.DqnAgent(
        time_step.time_step_spec(DATA_SPEC.observation), action_spec, network, tf.keras.optimizers.legacy.Adam(1e-3)
    )
    made.initialize()
    return made


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_an_agent_learns_and_gives_priorities_back(filled: tuple[str, str], whose: str) -> None:
    buffer: Any = (
        SampledReplayBuffer(filled[0], "prioritized", 2)
        if whose == "ours"
        else replay_buffer(filled[0], "prioritized", 2)
    )
    dqn = agent()
    train = tf.function(dqn.train)
    elements = iter(buffer.as_dataset(sample_batch_size=16, num_steps=2))
    steps, info = next(elements)
    loss = train(steps)
    assert np.isfinite(loss.loss)
    assert loss.extra.td_loss.shape == (16, 1) or loss.extra.td_loss.shape == (16,)
    buffer.update_priorities(info.key[:, 0], tf.fill((16,), tf.constant(0.0, tf.float64)))
    with rlds2reverb.connect(filled[0]) as client:
        only = info.key[0, 0].numpy()
        client.update_priorities("prioritized", only, 1e9)
        assert client.sample_one("prioritized").info.key == only


def test_priorities_are_updated_inside_a_function_too(filled: tuple[str, str]) -> None:
    with rlds2reverb.connect(filled[0]) as client:
        buffer = SampledReplayBuffer(client, "prioritized", 2)
        dataset = buffer.as_dataset(4, 2)

        @tf.function
        def loop() -> Any:
            for _, info in dataset.take(1):
                buffer.update_priorities(info.key, tf.fill((4,), 1e12))
            return info.key[:, 0]

        assert loop().shape == (4,)
        assert client.sample_one("prioritized").info.priority == 1e12


def test_a_client_of_ours_does_as_an_address(filled: tuple[str, str]) -> None:
    with rlds2reverb.connect(filled[0]) as client:
        assert isinstance(client, Client)
        steps, _ = next(iter(as_trajectory_dataset(client, "pairs", 4, 2, 2)))
        assert steps.observation.shape == (4, 2, 4)
        assert replay_buffer(client, "pairs", 2).num_frames() == client.tables()["pairs"].current_size
