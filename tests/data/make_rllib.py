"""Writes `tests/data/rllib` with RLlib itself.

    python tests/data/make_rllib.py old    # Ray 2.12.0, torch 2.13.0, numpy 1.26.4, pyarrow 19.0.1, gymnasium 0.28.1, lz4 4.4.5
    python tests/data/make_rllib.py new    # Ray 2.60.0, torch 2.13.0, numpy 2.4.6, pyarrow 19.0.1, gymnasium 1.2.2, msgpack-numpy 0.4.8

Each writes the folders of its stack. Ids of episodes are random, so that files differ from one writing to the next.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

OUT = Path(__file__).parent / "rllib"


class Tiny(gym.Env):
    """Episodes of three to six steps, some terminated and some truncated; random observations; rewards 1, 2, 3, ..."""

    observation_space = gym.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.rng = np.random.default_rng(0)

    def obs(self) -> Any:
        return self.rng.normal(size=3).astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.n, self.length = 0, int(self.rng.integers(3, 7))
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.n += 1
        ends = self.n == self.length
        is_terminal = self.length % 2 == 0
        return self.obs(), float(self.n), ends and is_terminal, ends and not is_terminal, {"n": self.n}


class Turns(MultiAgentEnv):
    """Two agents of one policy that take turns, and one of another policy that acts always."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.inner, self.ended = Tiny(), False
        self._agent_ids = {"a", "b", "c"}
        self.observation_space, self.action_space = Tiny.observation_space, Tiny.action_space

    def _obs(self) -> Any:
        acting = ["a", "b", "c"] if self.ended else ["a" if self.inner.n % 2 == 0 else "b", "c"]
        return {agent: self.inner.obs() for agent in acting}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.inner.reset()
        self.ended = False
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        _, reward, done, cut, _ = self.inner.step(0)
        self.ended = done or cut
        obs = self._obs()
        return obs, dict.fromkeys(obs, reward), {"__all__": done}, {"__all__": cut}, {}


def policy_of(agent: Any, *args: Any, **options: Any) -> str:
    return "two" if agent == "c" else "one"


def old(name: str, env: Any, output: str = "", **offline: Any) -> None:
    folder = fresh(name)
    mode = offline.pop("mode", "truncate_episodes")
    config = (
        PPOConfig()
        .environment(env)
        .rollouts(num_rollout_workers=0, rollout_fragment_length=7, batch_mode=mode)
        .framework("torch")
        .training(train_batch_size=21, sgd_minibatch_size=7, num_sgd_iter=1, model={"fcnet_hiddens": [2]})
        .debugging(seed=1)
        .offline_data(output=output or str(folder), **offline)
        .experimental(_enable_new_api_stack=False)
    )
    if env is Turns:
        policies: Any = {"one": (None, None, None, {}), "two": (None, None, None, {})}
        config = config.multi_agent(policies=policies, policy_mapping_fn=policy_of)
    algorithm = config.build()
    algorithm.train()
    algorithm.stop()


def written_again(name: str) -> None:
    """Batches of one policy, as a `SampleBatch` each, by RLlib's other writers."""
    from ray.rllib.offline.dataset_writer import DatasetWriter
    from ray.rllib.offline.io_context import IOContext
    from ray.rllib.offline.json_reader import JsonReader
    from ray.rllib.offline.json_writer import JsonWriter

    lines = JsonWriter(str(fresh("sample_batches")), IOContext(worker_index=3), max_file_size=2000)
    config = {"output_config": {"format": "parquet", "path": str(fresh("batches")), "max_num_samples_per_file": 1}}
    table = DatasetWriter(IOContext(config=config))
    for batch in JsonReader(str(OUT / name)).read_all_files():
        steps = batch.policy_batches["default_policy"]
        lines.write(steps)
        steps.pop("infos")  # Parquet has no empty structures
        table.write(steps)


def new(name: str, **offline: Any) -> None:
    from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

    folder = fresh(name)
    with tempfile.TemporaryDirectory() as made:
        config = PPOConfig().environment(Tiny).env_runners(num_env_runners=0, rollout_fragment_length=5)
        config = config.debugging(seed=1).offline_data(output=made, **offline)
        runner = OfflineSingleAgentEnvRunner(config=config, worker_index=0)
        for _ in range(2):
            runner.sample(num_timesteps=5, random_actions=True)
        runner.stop()
        shutil.copytree(made, folder, dirs_exist_ok=True)


def fresh(name: str) -> Path:
    shutil.rmtree(OUT / name, ignore_errors=True)
    (OUT / name).mkdir(parents=True)
    return OUT / name


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    if sys.argv[1] == "old":
        old("packed", Tiny)
        old("lists", Tiny, output_compress_columns=[])
        old("complete", Tiny, mode="complete_episodes", output_compress_columns=["obs"])
        old("multi", Turns)
        written_again("packed")
    else:
        new("steps", output_write_episodes=False)
        new("tensors", output_write_episodes=False, output_compress_columns=[])
        new("episodes", output_write_episodes=True)
        new("step_lines", output_write_episodes=False, output_write_method="write_json", output_compress_columns=[])
