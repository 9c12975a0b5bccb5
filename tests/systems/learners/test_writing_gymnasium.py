"""Loops over Gymnasium's environments, alone and in vectors: every transition once, with the observation that it led to."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlds2reverb import EpisodeWriter
from tests.support.learner.loops import writer
from tests.support.push.in_memory import Server

COUNT, STEPS, SEED = 3, 60, 5


def action_of(env: int, observation: Any) -> np.int64:
    """Falls soon, and in each environment in another way."""
    return np.int64(abs(int(observation.sum() * 1000)) // (env + 1) % 2)


def run_alone(to: EpisodeWriter, env: int, steps: int) -> None:
    """So many steps of one environment."""
    environment = gymnasium.make("CartPole-v1", max_episode_steps=15)
    observation, _ = environment.reset(seed=SEED + env)
    for _ in range(steps):
        action = action_of(env, observation)
        following, reward, terminated, truncated, _ = environment.step(action)
        to.append(observation=observation, action=action, reward=reward)
        observation = following
        if terminated or truncated:
            to.end_episode(observation=observation, terminal=terminated)
            observation, _ = environment.reset()
    to.discard_episode()


def run_vector(to: EpisodeWriter, mode: AutoresetMode) -> list[int]:
    """So many steps of a vector of environments; how many each has made."""
    made = [0] * COUNT
    environments: Any = gymnasium.make_vec(
        "CartPole-v1", COUNT, "sync", vector_kwargs={"autoreset_mode": mode}, max_episode_steps=15
    )
    observations, _ = environments.reset(seed=[SEED + env for env in range(COUNT)])
    was_over = np.zeros(COUNT, bool)
    for _ in range(STEPS):
        actions = np.array([action_of(env, observations[env]) for env in range(COUNT)])
        following, rewards, terminated, truncated, infos = environments.step(actions)
        is_over = terminated | truncated
        for env in np.flatnonzero(~was_over):
            made[env] += 1
            to.episode(int(env)).append(observation=observations[env], action=actions[env], reward=rewards[env])
            if is_over[env]:
                final = infos["final_obs"][env] if mode is AutoresetMode.SAME_STEP else following[env]
                to.episode(int(env)).end_episode(observation=final, terminal=terminated[env])
        was_over = is_over if mode is AutoresetMode.NEXT_STEP else was_over
        observations = following
    for env in range(COUNT):
        to.episode(env).discard_episode()
    return made


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_stores_what_its_environments_store_alone(mode: AutoresetMode) -> None:
    alone, together = Server(), Server()
    with writer(together, name="v") as to:
        made = run_vector(to, mode)
    for env in range(COUNT):
        with writer(alone, name=f"v/{env}") as to:
            run_alone(to, env, made[env])
    expected, found = alone.items["replay"], together.items["replay"]
    assert len(expected) > COUNT * 20
    assert found.keys() == expected.keys()
    for key, values in found.items():
        assert [value.astype(np.float32).tolist() for value in values] == [
            value.astype(np.float32).tolist() for value in expected[key]
        ]
