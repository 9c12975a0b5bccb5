"""RLlib's own BC and MARWIL train from a table and from a dataset without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.marwil import MARWILConfig

import rlds2reverb
from rlds2reverb.adapters.rllib_offline import local_data, table_data
from rlds2reverb.errors import ConfigError, Stalled
from tests.systems.learners.conftest import CARTPOLE, StartServer
from tests.systems.learners.servers import signature_of

SPACES = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32), gymnasium.spaces.Discrete(2)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def address(start_server: StartServer) -> str:
    """A server with whole episodes of CartPole, and the pairs of one episode that always pushes to the left."""
    address = start_server(
        {"name": "episodes", "signature": signature_of(CARTPOLE, "episode")},
        {"name": "pairs", "signature": signature_of(CARTPOLE, "two_step")},
        {"name": "none", "signature": signature_of(CARTPOLE, "two_step")},
    ).address
    with rlds2reverb.connect(address) as client:
        client.push(CARTPOLE, "episodes", view="episode")
        client.push(by_sign(), "pairs", view="two_step")
    return address


def by_sign() -> list[rlds2reverb.Episode]:
    """Episodes of a policy that is easily learnt: it pushes to where the pole falls."""
    rng = np.random.default_rng(0)
    episodes = []
    for number in range(20):
        observation = rng.normal(size=(41, 4)).astype(np.float32)
        at = np.arange(41)
        columns = {
            "observation": observation,
            "action": (observation[:, 2] > 0).astype(np.int64),
            "reward": np.ones(41, np.float32),
            "discount": np.ones(41, np.float32),
            "is_first": at == 0,
            "is_last": at == 40,
            "is_terminal": np.zeros(41, bool),
        }
        episodes.append(rlds2reverb.Episode(columns, id=f"by_sign-{number}"))
    return episodes


def train(config: Any, data: Any, iterations: int, **training: Any) -> tuple[Any, list[float]]:
    """An algorithm after so many training steps, and the loss of its policy in each."""
    config = (
        config.environment(observation_space=SPACES[0], action_space=SPACES[1])
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .debugging(seed=0)
        .training(train_batch_size_per_learner=256, lr=0.003, **training)
        .offline_data(input_="unused", offline_data_class=data, dataset_num_iters_per_learner=1)
    )
    algorithm = config.build_algo()
    losses = []
    try:
        for _ in range(iterations):
            results = algorithm.train()["learners"]["default_policy"]
            losses.append(float(results["policy_loss"]))
        module = algorithm.learner_group._learner.module["default_policy"]
    finally:
        algorithm.offline_data.close()
        algorithm.stop()
    return module, losses


@pytest.mark.parametrize("is_local", [False, True])
def test_behaviour_cloning_learns_the_policy(address: str, is_local: bool) -> None:
    if is_local:
        data = local_data(by_sign(), "two_step", 64, shuffle=500, epochs=None)
    else:
        data = table_data(address, "pairs", 64)
    module, losses = train(BCConfig(), data, 40)
    assert losses[-1] < 0.7 * losses[0]
    (episode, *_) = by_sign()
    import torch

    outputs = module.forward_inference({"obs": torch.tensor(np.array(episode.columns["observation"]))})
    actions = outputs["action_dist_inputs"].argmax(-1).numpy()
    assert (actions == episode.columns["action"]).mean() > 0.8


@pytest.mark.parametrize("is_local", [False, True])
def test_marwil_learns_from_whole_episodes(address: str, is_local: bool) -> None:
    data = local_data(CARTPOLE, "episode", 2) if is_local else table_data(address, "episodes", 2)
    _, losses = train(MARWILConfig(), data, 4, beta=1.0)
    assert np.isfinite(losses).all()


def test_what_gives_no_step_is_said(address: str) -> None:
    with pytest.raises(Stalled, match='table "none": it ended without an item'):
        train(BCConfig(), table_data(address, "none", 8, end_after_seconds=0.5), 1)


def test_settings_that_need_iterators_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="dataset_num_iters_per_learner=1"):
        config = BCConfig().environment(observation_space=SPACES[0], action_space=SPACES[1]).learners(num_learners=0)
        config.offline_data(
            input_="unused", offline_data_class=table_data(address, "pairs"), dataset_num_iters_per_learner=4
        ).build_algo()
    with pytest.raises(TypeError, match="no_such"):
        table_data(address, "pairs", no_such=3)  # type: ignore[call-arg]
