"""Algorithms of RLlib train while a table is the `output` of their config: it holds each finished episode once."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

import rlds2reverb
from rlds2reverb.adapters.rllib_output import TableEnvRunner, TableMultiAgentEnvRunner, TableOutput
from rlds2reverb.adapters.rllib_writing import EpisodeAssembler, flush_episodes
from rlds2reverb.errors import ConfigError
from tests.systems.learners.conftest import CARTPOLE, StartServer
from tests.systems.learners.servers import signature_of
from tests.systems.learners.test_rllib_writing import Row, Turns, finished, rows_in, rows_of

SAMPLES: list[Any] = []
"""What the EnvRunners of this process have sampled."""


class Spy(RLlibCallback):
    """Keeps copies: PPO's learner connectors add a step to the episodes that it learns from."""

    def on_sample_end(self, *, samples: Any = (), **_: Any) -> None:
        is_old = hasattr(samples, "as_multi_agent")
        SAMPLES.extend(deepcopy(list(samples.as_multi_agent().policy_batches.values() if is_old else samples)))


@pytest.fixture(scope="module")
def address(start_server: StartServer) -> str:
    return start_server({"name": "replay", "signature": signature_of(CARTPOLE, "transition")}).address


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    SAMPLES.clear()
    with rlds2reverb.connect(address) as client:
        yield client
        client.reset("replay")


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    ray.shutdown()  # RLlib starts one by itself, as in the tests before
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    yield
    ray.shutdown()


def config_of(address: str, env_runners: int = 0, **options: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            env_runner_cls=TableEnvRunner,
            num_env_runners=env_runners,
            num_envs_per_env_runner=2,
            rollout_fragment_length=60,
        )
        .offline_data(
            output=f"{address}/replay", output_config={"view": "transition", **options}, output_write_episodes=False
        )
        .training(train_batch_size=120, minibatch_size=60, num_epochs=1)
        .callbacks(Spy)
        .debugging(seed=0)
    )


@pytest.mark.usefixtures("_ray")
def test_a_table_is_the_output_of_an_algorithm(client: rlds2reverb.Client, address: str) -> None:
    algorithm = config_of(address).evaluation(evaluation_interval=1, evaluation_duration=1).build_algo()
    for _ in range(4):
        algorithm.train()
    algorithm.stop()  # sends what waits
    whole = finished([sample for sample in SAMPLES if isinstance(sample, SingleAgentEpisode)])
    stored = rows_in(client)
    assert len(stored) > 100
    # The evaluation's episodes are in SAMPLES, and not in the table.
    assert set(stored) < set(rows_of(whole))
    assert len(stored) == len(set(stored))


@pytest.mark.usefixtures("_ray")
def test_remote_env_runners_send_what_waits_when_the_algorithm_stops(client: rlds2reverb.Client, address: str) -> None:
    algorithm = config_of(address, env_runners=1).build_algo()
    for _ in range(3):
        algorithm.train()
    taken = algorithm.env_runner_group.foreach_env_runner(
        lambda runner: sum(
            runner._callbacks_of_output.recorder.account().__dict__[name] for name in ("stored", "waiting")
        ),
        local_env_runner=False,
    )
    algorithm.stop()
    stored = rows_in(client)
    ended = [row for row in stored if row[-2] or row[-1]]
    assert len(ended) == taken[0] > 5
    assert len(stored) == len(set(stored))


@pytest.mark.usefixtures("_ray")
def test_several_agents_write_by_their_own_class(client: rlds2reverb.Client, address: str) -> None:
    config = (
        config_of(address, modules=["p1"])
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(env_runner_cls=TableMultiAgentEnvRunner, num_envs_per_env_runner=1)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent}")
    )
    algorithm = config.build_algo()
    for _ in range(2):
        algorithm.train()
    algorithm.stop()
    parts = {
        tuple(map(float, row))
        for sample in SAMPLES
        for part in sample.agent_episodes.values()
        if part.module_id == "p1"
        for row in part.get_observations()[:-1]
    }
    observations = [row[:4] for row in rows_in(client)]
    assert observations
    assert set(observations) <= parts


def old_config(output: Any, **env_runners: Any) -> PPOConfig:
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=60, **env_runners)
        .training(train_batch_size=120, minibatch_size=60, num_epochs=1)
        .offline_data(output=output, output_write_episodes=False)
        .callbacks(Spy)
        .debugging(seed=0)
    )


def rows_of_batches(batches: list[SampleBatch]) -> list[Row]:
    """The transitions of the episodes that have ended."""
    ended = {
        int(episode)
        for batch in batches
        for episode, *ends in zip(batch["eps_id"], batch["terminateds"], batch["truncateds"])
        if any(ends)
    }
    names = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")
    rows = []
    for batch in batches:
        columns = [np.asarray(batch[name], np.float64).reshape(len(batch["t"]), -1) for name in names]
        is_whole = np.isin(batch["eps_id"], list(ended))
        rows += [tuple(row) for row in np.concatenate(columns, axis=1)[is_whole].tolist()]
    return sorted(rows)


@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_the_old_stack_has_an_output_writer(client: rlds2reverb.Client, address: str, mode: str) -> None:
    algorithm = old_config(lambda context: TableOutput(address, "replay", "transition"), batch_mode=mode).build()
    for _ in range(4):
        algorithm.train()
    flush_episodes()
    algorithm.stop()
    stored = rows_in(client)
    assert len(stored) > 100
    assert stored == rows_of_batches(SAMPLES)


@pytest.mark.usefixtures("_ray")
def test_agents_have_the_numbers_that_rllib_gives_them() -> None:
    """The old stack's `agent_index`, of the same environment whose episodes the new one's EnvRunner hands over."""
    config = old_config(None, batch_mode="complete_episodes").environment(Turns, env_config={})
    config.multi_agent(policies={"p"}, policy_mapping_fn=lambda *_, **__: "p")
    algorithm = config.build()
    SAMPLES.clear()
    algorithm.env_runner.sample()
    algorithm.stop()
    theirs: dict[int, set[float]] = {}
    for batch in SAMPLES:
        for index, observation in zip(batch["agent_index"].tolist(), batch["obs"].ravel().tolist()):
            theirs.setdefault(index, set()).add(observation)
    new_config = (
        PPOConfig()
        .environment(Turns, env_config={})
        .multi_agent(policies={"p"}, policy_mapping_fn=lambda *_, **__: "p")
    )
    runner = MultiAgentEnvRunner(config=new_config)
    episodes = list(EpisodeAssembler().take(runner.sample(num_timesteps=60, random_actions=True)))
    runner.stop()
    ours = {
        int(episode.metadata["agent_index"]): set(episode.columns["observation"][:-1, 0].tolist())
        for episode in episodes
    }
    assert ours == theirs
    assert len(ours) == 3


def rows(**columns: Any) -> SampleBatch:
    count = len(columns["t"])
    whole = {
        "obs": np.arange(count, dtype=np.float32)[:, None],
        "new_obs": np.arange(1, count + 1, dtype=np.float32)[:, None],
        "actions": np.zeros(count, np.int64),
        "rewards": np.ones(count, np.float32),
        "terminateds": np.zeros(count, bool),
        "truncateds": np.zeros(count, bool),
        "eps_id": np.zeros(count, np.int64),
        "agent_index": np.zeros(count, np.int64),
    }
    return SampleBatch({**whole, **{name: np.asarray(column) for name, column in columns.items()}})


def test_agents_and_episodes_of_one_batch_are_told_apart(address: str) -> None:
    output = TableOutput(address, "replay", "transition")
    ends = [False, True, False, True]
    batch = rows(
        t=[0, 1, 0, 1],
        agent_index=[0, 0, 1, 1],
        obs=[[0.0], [1], [0], [1]],
        new_obs=[[1.0], [2], [1], [2]],
        terminateds=ends,
    )
    episodes = []
    output._recorder.take = lambda samples: episodes.extend(output._recorder.assembler.take(samples))
    output.write(MultiAgentBatch({"walker": batch}, 2))
    assert [episode.metadata for episode in episodes] == [
        {"episode_id": "0", "agent_id": str(agent), "module_id": "walker", "agent_index": agent, "t": 0}
        for agent in (0, 1)
    ]
    assert [episode.columns["observation"].tolist() for episode in episodes] == [[[0], [1], [2]]] * 2


def test_rows_that_are_no_single_steps_are_refused(address: str) -> None:
    output = TableOutput(address, "replay", "transition")
    with pytest.raises(ConfigError, match='"new_obs" of a row is not "obs" of the next one: set n_step=1'):
        output.write(rows(t=[0, 1], new_obs=[[2.0], [2.0]]))
    batch = rows(t=[0, 1])
    del batch["new_obs"]
    with pytest.raises(ConfigError, match='rows have no "new_obs"; there are actions'):
        output.write(batch)


@pytest.mark.parametrize("output", [None, "replay", "localhost:8000/", 3])
def test_an_output_that_names_no_table_is_refused(output: Any) -> None:
    config = config_of("localhost:1").offline_data(output=output)
    with pytest.raises(ConfigError, match=r'config\.output .*: expected "host:port/table"'):
        TableEnvRunner(config=config)


def test_an_unknown_key_of_the_config_is_refused() -> None:
    with pytest.raises(TypeError, match="max_step"):
        TableEnvRunner(config=config_of("localhost:1", max_step=3))
