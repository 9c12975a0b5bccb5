"""RLlib's old stack: a policy learns from rows of a table, gives priorities back, and an algorithm reads a table as its input."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import ray
import reverb
import tensorflow as tf
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.dqn.dqn_torch_policy import DQNTorchPolicy

import rlds2reverb
from rlds2reverb.adapters.rllib import TableInput, episodes, sample_batch, update_priorities
from rlds2reverb.errors import ConfigError, ServerUnreachable, Stalled
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import map_leaves
from rlds2reverb.views import view_from

OBSERVATIONS: Any = Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS: Any = Discrete(2)
VIEWS = {"transitions": "transition", "pairs": "two_step", "whole": "episode"}


def table(name: str, view: str) -> reverb.Table:
    signature = view_from(view).signature(filled_spec(rlds2reverb.open_source("bundled:cartpole").spec()))
    return reverb.Table(
        name,
        reverb.selectors.Prioritized(1.0),
        reverb.selectors.Fifo(),
        10_000,
        reverb.rate_limiters.MinSize(1),
        signature=map_leaves(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype, leaf.name or None), signature),
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a server with cartpole's episodes, drawn by their priorities."""
    server = reverb.Server([table(*named_view) for named_view in {**VIEWS, "empty": "transition"}.items()])
    with rlds2reverb.connect(f"localhost:{server.port}") as client:
        for name, view in VIEWS.items():
            client.push("bundled:cartpole@train[:5]", name, view=view)
    yield f"localhost:{server.port}"
    server.stop()


@pytest.mark.parametrize("name", ["transitions", "pairs"])
def test_a_dqn_policy_learns_and_its_errors_become_priorities(address: str, name: str) -> None:
    policy = DQNTorchPolicy(OBSERVATIONS, ACTIONS, DQNConfig().framework("torch").to_dict())
    with rlds2reverb.connect(address) as client, client.sample(name, 32) as sampler:
        batch = next(iter(sampler))
        rows = sample_batch(batch)
        results = policy.learn_on_batch(rows)
        assert np.isfinite(results["learner_stats"]["mean_q"])
        update_priorities(client, name, batch, results["td_error"], epsilon=1e9)
        assert client.sample_one(name).info.priority > 1e8


def test_episodes_are_made_here_too(address: str) -> None:
    with rlds2reverb.connect(address) as client, client.sample("whole", 3) as sampler:
        made = episodes(next(iter(sampler)))
    assert len(made) == 3
    assert all(episode.is_terminated or episode.is_truncated for episode in made)


def test_an_input_is_pickled_and_begins_again_after_its_last_sample(address: str) -> None:
    reader: Any = pickle.loads(pickle.dumps(TableInput(address, "transitions", 4, samples=6, n_step=3)))
    rows = [reader.next() for _ in range(3)]
    assert [row.count for row in rows] == [4, 2, 4]
    assert rows[0]["n_step"].tolist() == [3] * 4
    reader.close()
    assert reader.next().count == 4
    reader.close()


def test_an_input_that_ends_without_a_sample_says_so(address: str) -> None:
    reader = TableInput(address, "empty", 4, end_after_seconds=0.1)
    with pytest.raises(Stalled, match='table "empty": it gave no sample'):
        reader.next()
    reader.close()


def test_wrong_options_of_an_input_fail_where_they_are_written() -> None:
    with pytest.raises(ConfigError, match="batch_size 0"):
        TableInput("localhost:1", "transitions", 0)
    with pytest.raises(ServerUnreachable):
        TableInput("localhost:1", "transitions").next()


def test_what_the_old_stack_lacks_is_told_with_what_it_has() -> None:
    with pytest.raises(ImportError, match=rf"as Ray 2\.60 has it; this is Ray {ray.__version__}.*TableInput"):
        import_module("rlds2reverb.adapters.rllib_offline")


def test_an_algorithm_reads_a_table_as_its_input(address: str) -> None:
    config = (
        DQNConfig()
        .environment(observation_space=OBSERVATIONS, action_space=ACTIONS)
        .framework("torch")
        .rollouts(num_rollout_workers=0)
        .training(train_batch_size=8, num_steps_sampled_before_learning_starts=8)
        .offline_data(input_=lambda context: TableInput(address, "transitions", 8))
    )
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        algorithm = config.build()
        *_, last = (algorithm.training_step() for _ in range(3))  # the first ones only sample
        assert last["default_policy"]["td_error"].shape == (8,)
        algorithm.stop()
    finally:
        ray.shutdown()
