"""RLlib's own BC and MARWIL train from a table and from a dataset without a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.algorithms.iql import IQLConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

import rlds2reverb
from rlds2reverb.adapters.rllib_offline import local_data, table_data
from rlds2reverb.errors import ConfigError, Stalled
from tests.systems.learners.conftest import CARTPOLE, StartServer
from tests.systems.learners.servers import signature_of

SPACES = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32), gymnasium.spaces.Discrete(2)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.shutdown()  # RLlib starts one by itself, as in the tests before
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


def train(
    config: Any,
    data: Any,
    iterations: int,
    learners: int = 0,
    batches: int | None = 1,
    spaces: Any = SPACES,
    **training: Any,
) -> tuple[Any, list[float]]:
    """The policy of an algorithm after so many training steps, and its loss in each."""
    config = (
        config.environment(observation_space=spaces[0], action_space=spaces[1])
        .env_runners(num_env_runners=0)
        .learners(num_learners=learners)
        .debugging(seed=0)
        .training(**{"train_batch_size_per_learner": 256, "lr": 0.003, **training})
        .offline_data(input_="unused", offline_data_class=data, dataset_num_iters_per_learner=batches)
    )
    algorithm = config.build_algo()
    losses = []
    try:
        for _ in range(iterations):
            results = algorithm.train()["learners"]["default_policy"]
            losses.append(float(results[next(name for name in ("policy_loss", "actor_loss") if name in results)]))
        state = algorithm.learner_group.get_state(components="learner/rl_module")["learner"]["rl_module"]
        module = algorithm.config.get_rl_module_spec(spaces={"default_policy": spaces}).build()
        module.set_state(state["default_policy"])
    finally:
        algorithm.offline_data.close()
        algorithm.stop()
    return module, losses


@pytest.mark.parametrize(
    ("is_local", "learners", "batches"), [(False, 0, 1), (True, 0, 1), (True, 0, 5), (False, 1, 5), (True, 2, 5)]
)
def test_behaviour_cloning_learns_the_policy(address: str, is_local: bool, learners: int, batches: int) -> None:
    if is_local:
        data = local_data(by_sign(), "two_step", 64, shuffle=500, epochs=None)
    else:
        data = table_data(address, "pairs", 64)
    module, losses = train(BCConfig(), data, 40 // batches, learners, batches)
    assert losses[-1] < 0.7 * losses[0]
    (episode, *_) = by_sign()
    import torch

    outputs = module.forward_inference({"obs": torch.tensor(np.array(episode.columns["observation"]))})
    actions = outputs["action_dist_inputs"].argmax(-1).numpy()
    assert (actions == episode.columns["action"]).mean() > 0.8


@pytest.mark.parametrize("learners", [0, 1])
@pytest.mark.parametrize("is_local", [False, True])
def test_marwil_learns_from_whole_episodes(address: str, is_local: bool, learners: int) -> None:
    data = local_data(CARTPOLE, "episode", 2) if is_local else table_data(address, "episodes", 2)
    _, losses = train(MARWILConfig(), data, 4, learners, beta=1.0)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "max_seq_len": 8}], ids=["plain", "lstm"])
def test_a_training_step_has_as_many_rows_as_it_asks_for(model: dict[str, Any], batches: int) -> None:
    """Items of 40 steps, batches of 64: a longer batch would be trained as two minibatches, some rows twice."""
    config = MARWILConfig().rl_module(model_config=DefaultModelConfig(**model))
    config = config.environment(observation_space=SPACES[0], action_space=SPACES[1]).learners(num_learners=0)
    config = config.env_runners(num_env_runners=0).training(train_batch_size_per_learner=64)
    data = local_data(by_sign(), "episode", 2)
    config = config.offline_data(input_="unused", offline_data_class=data, dataset_num_iters_per_learner=batches)
    algorithm = config.build_algo()
    for _ in range(2):
        results = algorithm.train()["learners"]["default_policy"]
        trained = results["num_module_steps_trained"]
        assert trained == 64 * batches or (model and 56 * batches < trained < 64 * batches)  # whole sequences
        assert np.isfinite(results["vf_loss"])
    algorithm.stop()


@pytest.mark.parametrize("config", [CQLConfig(), IQLConfig()], ids=["CQL", "IQL"])
def test_algorithms_that_need_next_observations_learn_from_pairs(config: Any) -> None:
    pendulum = gymnasium.make("Pendulum-v1")  # CQL makes an environment of its own
    spaces = pendulum.observation_space, pendulum.action_space
    torques = [episode.with_columns(observation=episode.columns["observation"][:, :3]) for episode in by_sign()]
    torques = [episode.with_columns(action=np.ones((len(episode), 1), np.float32)) for episode in torques]
    config = config.environment("Pendulum-v1")
    _, losses = train(config, local_data(torques, "two_step", 64), 2, batches=2, spaces=spaces, lr=None)
    assert np.isfinite(losses).all()


def test_what_gives_no_step_is_said(address: str) -> None:
    with pytest.raises(Stalled, match='table "none": it ended without an item'):
        train(BCConfig(), table_data(address, "none", 8, end_after_seconds=0.5), 1)


def test_a_learner_in_another_process_says_what_it_lacks(address: str) -> None:
    with pytest.raises(Exception, match='no table "reply"'):
        train(BCConfig(), table_data(address, "reply", 8), 1, learners=1)
    with rlds2reverb.connect(address) as client:
        with pytest.raises(ConfigError, match="an open client cannot be pickled for workers"):
            train(BCConfig(), table_data(client, "pairs", 8), 1, learners=1)
        train(BCConfig(), table_data(client, "pairs", 8), 1)


def test_learners_read_other_items_of_a_dataset_each() -> None:
    data: Any = local_data(by_sign()[:2], "two_step", 8)
    keys = []
    for rank in range(2):
        with contextlib.ExitStack() as opened:
            keys.append([key for batch in data._reading.open(opened, rank, 2) for key in batch.info.key.tolist()])
    assert len(set(keys[0] + keys[1])) == len(keys[0]) + len(keys[1]) == 80


def test_settings_that_make_no_sense_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="set dataset_num_iters_per_learner"):
        train(BCConfig(), table_data(address, "pairs"), 1, learners=1, batches=None)
    with pytest.raises(TypeError, match="no_such"):
        table_data(address, "pairs", no_such=3)  # type: ignore[call-arg]
