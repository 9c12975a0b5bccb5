"""Beside TF-Agents' own ReverbReplayBuffer: equal specs and equal values from equal tables; an agent learns from either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

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
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.options import SliceSpec
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import ArraySpec
from rlds2reverb.views import view_from
from rlds2reverb.views.trajectory import table_signature
from tests.support.forks import Forks

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


VIEWS = {"fours": "sequence:length=4", "whole": "episode", "bare": "sequence:length=4", "pairs": "two_step"}
COPIES = 12
"""Of each table that hands out its items once. A request that waits when a test ends would take what the next one stores."""


def tables() -> list[TableConfig]:
    once = [
        TableConfig(f"{kind}{n}", signature(VIEWS[kind]), **ONCE) for kind in ("fours", "whole") for n in range(COPIES)
    ]
    return [
        *once,
        TableConfig("bare0", **ONCE),
        TableConfig("pairs0", signature("two_step"), sampler="prioritized"),
        TableConfig("pairs1", signature("two_step")),
        TableConfig("episodes", signature("episode")),
        TableConfig("episodes_bare"),
        TableConfig("other", {"x": ArraySpec((), np.dtype(np.float32))}),
    ]


@dataclass
class Twins:
    """Two servers: the same pushes give both the same items, keys included. One is for our side, the other for theirs."""

    ours: str
    theirs: str
    used: Counter[str] = field(default_factory=Counter)

    def filled(self, kind: str) -> str:
        """A table of that kind that no test has used, filled; its name."""
        name = f"{kind}{self.used[kind]}"
        self.used[kind] += 1
        self.fill(name, kind)
        return name

    def count(self, name: str) -> int:
        """The items of a table."""
        with rlds2reverb.connect(self.ours) as client:
            return client.tables()[name].current_size

    def fill(self, name: str, kind: str) -> None:
        for address in (self.ours, self.theirs):
            with rlds2reverb.connect(address) as client:
                client.reset(name)
                client.push(SOURCE, name, view=VIEWS[kind])


@pytest.fixture(scope="module")
def twins(forks: Forks) -> Iterator[Twins]:
    with forks.embedded(tables()) as one, forks.embedded(tables()) as other:
        made = Twins(one.address, other.address)
        made.fill("pairs0", "pairs")
        made.fill("pairs1", "pairs")
        made.fill("episodes", "whole")
        made.fill("episodes_bare", "whole")
        yield made


def theirs(address: str, table: str, length: int | None) -> reverb_replay_buffer.ReverbReplayBuffer:
    """As TF-Agents' users make it; a timeout ends its datasets."""
    return reverb_replay_buffer.ReverbReplayBuffer(
        DATA_SPEC, table, length, server_address=address, rate_limiter_timeout_ms=1000
    )


def values(element: Any) -> list[Any]:
    return [leaf.numpy().tolist() for leaf in tf.nest.flatten(element)]


SPLITS = [
    ("fours", 4, None, None),
    ("fours", 4, 4, 3),
    ("fours", 4, 2, None),
    ("fours", 4, 2, 3),
    ("fours", None, 2, 3),
    ("whole", None, None, None),
    ("whole", None, 3, 3),
]


@pytest.mark.parametrize(("table", "length", "num_steps", "size"), SPLITS)
def test_a_single_pass_gives_the_same_elements_in_the_same_order(
    twins: Twins, table: str, length: int | None, num_steps: int | None, size: int | None
) -> None:
    name = twins.filled(table)
    ours = SampledReplayBuffer(twins.ours, name, length, samples=twins.count(name))
    asked = {"sample_batch_size": size, "num_steps": num_steps, "single_deterministic_pass": True}
    expected = theirs(twins.theirs, name, length).as_dataset(**asked)
    dataset = ours.as_dataset(**asked)
    assert dataset.element_spec == expected.element_spec
    found = [values(element) for element in dataset]
    assert found
    assert found == [values(element) for element in expected]


@pytest.mark.parametrize(
    ("length", "num_steps", "size"), [(None, None, None), (None, None, 5), (None, 2, 5), (4, None, 5), (4, 1, None)]
)
def test_specs_are_equal(twins: Twins, length: int | None, num_steps: int | None, size: int | None) -> None:
    dataset = as_trajectory_dataset(twins.ours, "fours0", size, num_steps, length)
    expected = theirs(twins.theirs, "fours0", length).as_dataset(size, num_steps)
    assert dataset.element_spec == expected.element_spec


def test_a_shuffled_pass_gives_the_same_pieces(twins: Twins) -> None:
    name = twins.filled("fours")
    dataset = as_trajectory_dataset(twins.ours, name, None, 2, 4, samples=twins.count(name))
    expected = theirs(twins.theirs, name, 4).as_dataset(None, 2)
    assert sorted(values(trajectory)[1] for trajectory in dataset) == sorted(
        values(trajectory)[1] for trajectory in expected
    )


def test_each_item_goes_through_a_function_before_it_is_cut(twins: Twins) -> None:
    def preprocess(steps: Any) -> Any:
        return steps._replace(reward=tf.cumsum(steps.reward))

    asked = {
        "num_steps": 2,
        "sequence_preprocess_fn": preprocess,
        "single_deterministic_pass": True,
        "sample_batch_size": 3,
    }
    name = twins.filled("fours")
    dataset = SampledReplayBuffer(twins.ours, name, 4, samples=twins.count(name)).as_dataset(**asked)
    expected = theirs(twins.theirs, name, 4).as_dataset(**asked)
    assert dataset.element_spec == expected.element_spec
    assert [values(trajectory) for trajectory in dataset] == [values(trajectory) for trajectory in expected]


@pytest.mark.parametrize("cut", [{"slices": SliceSpec(4)}, {"view": "sequence:length=4"}])
@pytest.mark.parametrize("name", ["episodes", "episodes_bare"])
def test_items_are_cut_out_of_episodes(twins: Twins, cut: dict[str, Any], name: str) -> None:
    spec = DATA_SPEC if name == "episodes_bare" else None
    dataset = as_trajectory_dataset(twins.ours, name, 3, 2, data_spec=spec, **cut)
    expected = as_trajectory_dataset(twins.ours, "fours0", 3, 2, 4)
    assert tf.nest.map_structure(lambda one: (one.shape, one.dtype), dataset.element_spec) == tf.nest.map_structure(
        lambda one: (one.shape, one.dtype), expected.element_spec
    )
    steps, info = next(iter(dataset))
    assert steps.observation.shape == (3, 2, 4)
    assert info.key.shape == (3, 2)


def test_a_table_without_signature_takes_a_data_spec(twins: Twins) -> None:
    name = twins.filled("bare")
    dataset = as_trajectory_dataset(twins.ours, name, 3, 4, 4, data_spec=DATA_SPEC, samples=3)
    expected = theirs(twins.theirs, name, 4).as_dataset(3, 4, single_deterministic_pass=True)
    assert dataset.element_spec == expected.element_spec
    assert values(next(iter(dataset))) == values(next(iter(expected)))
    with pytest.raises(ConfigError, match='table "bare0": it has no signature'):
        as_trajectory_dataset(twins.ours, name, 3)


class TestRefusals:
    @pytest.mark.parametrize("num_steps", [3, 5, 8])
    @pytest.mark.parametrize("single", [False, True])
    def test_steps_that_do_not_divide_an_item(self, twins: Twins, num_steps: int, single: bool) -> None:
        for buffer in (SampledReplayBuffer(twins.ours, "fours0", 4), theirs(twins.theirs, "fours0", 4)):
            with pytest.raises(ValueError, match="num_steps"):
                buffer.as_dataset(2, num_steps, single_deterministic_pass=single)

    def test_more_parallel_calls_than_samples(self, twins: Twins) -> None:
        for buffer in (SampledReplayBuffer(twins.ours, "fours0", 4), theirs(twins.theirs, "fours0", 4)):
            with pytest.raises(ValueError, match="num_parallel_calls"):
                buffer.as_dataset(2, 2, num_parallel_calls=3)

    def test_a_single_pass_over_what_is_drawn_at_random(self, twins: Twins) -> None:
        for buffer in (SampledReplayBuffer(twins.ours, "pairs1", 2), theirs(twins.theirs, "pairs1", 2)):
            with pytest.raises(ValueError, match="deterministic"):
                buffer.as_dataset(2, 2, single_deterministic_pass=True)

    def test_what_neither_does(self, twins: Twins) -> None:
        for buffer in (SampledReplayBuffer(twins.ours, "pairs1", 2), theirs(twins.theirs, "pairs1", 2)):
            for call in (buffer.gather_all, buffer.get_next, lambda: buffer.add_batch(())):  # noqa: B023  called at once
                with pytest.raises(NotImplementedError):
                    call()

    def test_items_of_several_lengths_in_one_batch(self, twins: Twins) -> None:
        with pytest.raises(tf.errors.OpError, match="steps do not fit into one batch; give num_steps"):
            next(iter(as_trajectory_dataset(twins.ours, twins.filled("whole"), 2, samples=2)))

    def test_another_length_than_was_said(self, twins: Twins) -> None:
        with pytest.raises(tf.errors.OpError, match="expected items of 3 steps, as sequence_length says; got 4"):
            next(iter(as_trajectory_dataset(twins.ours, twins.filled("fours"), 2, None, 3, samples=2)))

    @pytest.mark.parametrize("name", ["batch_size", "ragged", "spec"])
    def test_options_that_it_decides_on(self, twins: Twins, name: str) -> None:
        with pytest.raises(ConfigError, match=f"{name}: as_dataset decides on it"):
            as_trajectory_dataset(twins.ours, "pairs1", 2, **cast("Any", {name: 1}))

    def test_what_an_info_has_no_field_for(self, twins: Twins) -> None:
        with pytest.raises(ConfigError, match=r"weights: .*SampleInfo has no field .* info\.weight"):
            as_trajectory_dataset(twins.ours, "pairs0", 2, weights="batch_max", beta=0.4)
        with pytest.raises(ConfigError, match=r"slices: strict=False .* no field for the mask"):
            as_trajectory_dataset(twins.ours, "whole0", 2, slices=SliceSpec(3, strict=False))

    def test_a_table_without_steps(self, twins: Twins) -> None:
        with pytest.raises(ConfigError, match='table "other", column "x": it has no axis of steps'):
            as_trajectory_dataset(twins.ours, "other", 2)


def test_the_rest_of_a_buffer(twins: Twins) -> None:
    ours, other = SampledReplayBuffer(twins.ours, "pairs1", 2), replay_buffer(twins.theirs, "pairs1", 2)
    assert ours.num_frames() == other.num_frames() > 0
    assert ours.capacity == other.capacity
    assert tf.nest.map_structure(
        lambda one, two: (one.shape, one.dtype) == (two.shape, two.dtype), ours.data_spec, DATA_SPEC
    )
    emptied = SampledReplayBuffer(twins.ours, twins.filled("fours"), 4)
    assert emptied.num_frames() > 0
    emptied.clear()
    assert emptied.num_frames() == 0


@pytest.fixture(scope="module")
def train() -> Any:
    """Of a DQN agent for cartpole: a step of learning."""
    action_spec = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1)
    network = sequential.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(2)])
    made = dqn_agent.DqnAgent(
        time_step.time_step_spec(DATA_SPEC.observation), action_spec, network, tf.keras.optimizers.legacy.Adam(1e-3)
    )
    made.initialize()
    return made.train


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_an_agent_learns_and_gives_priorities_back(twins: Twins, train: Any, whose: str) -> None:
    buffer: Any = (
        SampledReplayBuffer(twins.ours, "pairs0", 2) if whose == "ours" else replay_buffer(twins.ours, "pairs0", 2)
    )
    elements = iter(buffer.as_dataset(sample_batch_size=16, num_steps=2))
    steps, info = next(elements)
    loss = train(steps)
    assert np.isfinite(loss.loss)
    assert loss.extra.td_loss.shape == (16, 1) or loss.extra.td_loss.shape == (16,)
    buffer.update_priorities(info.key[:, 0], tf.fill((16,), tf.constant(0.0, tf.float64)))
    with rlds2reverb.connect(twins.ours) as client:
        only = info.key[0, 0].numpy()
        client.update_priorities("pairs0", only, 1e9)
        assert client.sample_one("pairs0").info.key == only


def test_priorities_of_two_buffers_go_to_the_server_of_each(twins: Twins) -> None:
    for address in (twins.ours, twins.theirs):
        buffer = replay_buffer(address, "pairs0", 2)
        with rlds2reverb.connect(address) as client:
            before = client.sample_one("pairs0").info
            buffer.update_priorities(before.key.reshape(1), np.array([2.0**70]))
            after = client.sample_one("pairs0").info
            assert after.key == before.key
            assert after.priority == 2.0**70
            client.update_priorities("pairs0", before.key, before.priority)


def test_priorities_are_updated_inside_a_function_too(twins: Twins) -> None:
    with rlds2reverb.connect(twins.ours) as client:
        buffer = SampledReplayBuffer(client, "pairs0", 2)
        dataset = buffer.as_dataset(4, 2)

        @tf.function
        def loop() -> Any:
            keys = tf.zeros((4,), tf.uint64)
            for _, info in dataset.take(1):
                buffer.update_priorities(info.key, tf.fill((4,), 2.0**60))
                keys = info.key[:, 0]
            return keys

        assert loop().shape == (4,)
        assert client.sample_one("pairs0").info.priority == 2.0**60


def test_a_client_of_ours_does_as_an_address(twins: Twins) -> None:
    with rlds2reverb.connect(twins.ours) as client:
        assert isinstance(client, Client)
        steps, _ = next(iter(as_trajectory_dataset(client, "pairs1", 4, 2, 2)))
        assert steps.observation.shape == (4, 2, 4)
        assert replay_buffer(client, "pairs1", 2).num_frames() == client.tables()["pairs1"].current_size
