"""Beside Minari's own collector: the same loop gives the same dataset, as Minari reads it; and Minari's episodes in a list are a source."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from minari.data_collector.episode_buffer import EpisodeBuffer

from rlds2reverb import convert, open_source
from rlds2reverb.adapters.gymnasium import DataCollector, episodes_of
from tests.support import gymnasium_environments as those


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


class Shifted(minari.StepDataCallback):
    """One of Minari's own."""

    def __call__(self, env: Any, **step: Any) -> Any:
        data = super().__call__(env, **step)
        data["observation"] = data["observation"] + np.float32(1)
        return data


class Said(minari.EpisodeMetadataCallback):
    def __call__(self, episode: Any) -> Any:
        return {**super().__call__(episode), "task": "balance"}


def environment() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=14)


def play(env: Any, seeds: range) -> None:
    """With an early reset, and an episode that is not ended."""
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        for _ in range(5 if seed % 3 == 1 else 99):
            observation, _, terminated, truncated, _ = env.step(those.balance(observation) if seed % 2 else np.int64(1))
            if terminated or truncated:
                break


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, tuple):
        for part, same in zip(one, other, strict=True):
            assert_equal(part, same)
    else:
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def assert_same_datasets(one: Any, other: Any, with_metadata: bool = True) -> None:
    assert (one.total_episodes, one.total_steps) == (other.total_episodes, other.total_steps)
    assert (one.observation_space, one.action_space) == (other.observation_space, other.action_space)
    assert one.env_spec == other.env_spec
    for episode, same in zip(one, other, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
            assert_equal(getattr(episode, name), getattr(same, name))
    numbers = range(one.total_episodes if with_metadata else 0)
    pairs = zip(one.storage.get_episode_metadata(numbers), other.storage.get_episode_metadata(numbers), strict=True)
    for features, same in pairs:
        assert {key: value for key, value in features.items() if key != "options"} == same


def test_the_same_loop_gives_the_same_dataset() -> None:
    callbacks: dict[str, Any] = {"step_data_callback": Shifted, "episode_metadata_callback": Said, "record_infos": True}
    facts: dict[str, Any] = {
        "algorithm_name": "balance",
        "author": "me",
        "author_email": "m@e",
        "code_permalink": "here",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = minari.DataCollector(environment(), **callbacks), DataCollector(environment(), **callbacks)
        play(theirs, range(7))
        play(ours, range(7))
        expected = theirs.create_dataset("cart/theirs-v0", **facts, description="balanced")
    ours.create_dataset("minari:cart/ours-v0", **facts, description="balanced")
    dataset = minari.load_dataset("cart/ours-v0")
    assert_same_datasets(expected, dataset)
    assert isinstance(dataset.recover_environment().unwrapped, type(environment().unwrapped))
    for name in (*facts, "description"):
        assert dataset.storage.metadata[name] == expected.storage.metadata[name]
    play(theirs, range(7, 10))
    play(ours, range(5, 10))  # two of which are there
    theirs.add_to_dataset(expected)
    assert dict(ours.add_to_dataset("minari:cart/ours-v0").rejected) == {"duplicate": 2}
    # Minari calls no callback for the metadata of episodes that it adds.
    assert_same_datasets(minari.load_dataset("cart/theirs-v0"), minari.load_dataset("cart/ours-v0"), False)


def test_what_minari_has_added_to_grows_on() -> None:
    convert(episodes_of("CartPole-v1", episodes=3, infos=True), "minari:cart/both-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = minari.DataCollector(gymnasium.make("CartPole-v1"), record_infos=True)
        play(theirs, range(90, 93))
        theirs.add_to_dataset(minari.load_dataset("cart/both-v0"))
    report = convert(episodes_of("CartPole-v1", episodes=5, infos=True), "minari:cart/both-v0", append=True)
    assert report.episodes_written == 2
    dataset = minari.load_dataset("cart/both-v0")
    assert dataset.total_episodes == 8 == len(list(dataset))
    assert dataset.total_steps == sum(len(episode) for episode in dataset)


def test_recorded_spaces_are_those_of_the_environment() -> None:
    name = f"{those.__name__}:Nested"
    convert(episodes_of(name, episodes=4), "minari:nested/ours-v0")
    dataset = minari.load_dataset("nested/ours-v0")
    ours, theirs = dataset.observation_space, those.NESTED
    assert ours["camera"] == theirs["camera"]
    assert ours["pair"][0] == theirs["pair"][0]
    assert dataset.action_space == those.ACTIONS
    assert all(len(episode.observations["said"]) == len(episode) + 1 for episode in dataset)


def test_episodes_of_minari_in_a_list() -> None:
    convert(episodes_of(f"{those.__name__}:Nested", episodes=4, infos=True), "minari:nested/some-v0")
    dataset = minari.load_dataset("nested/some-v0")
    read = list(open_source("minari:nested/some-v0"))
    for episode, same in zip(open_source(list(dataset)), read, strict=True):
        assert {path: column.tolist() for path, column in episode.columns.items()} == {
            path: column.tolist() for path, column in same.columns.items()
        }
        assert all(episode.columns[path].dtype == same.columns[path].dtype for path in same.columns)
    report = convert(list(dataset)[:2], "minari:nested/listed-v0", verify=True)
    assert report.verified == 2


def test_buffers_of_minari_in_a_list() -> None:
    buffer = EpisodeBuffer(seed=3, observations={"a": [np.zeros(2, np.float32)] * 3, "b": ([1, 2, 3],)}, actions=[0, 1])
    for _ in range(2):
        buffer.rewards.append(1.0)
        buffer.terminations.append(False)
        buffer.truncations.append(False)
    (episode,) = open_source([buffer])
    assert episode.columns["observation/b/_index_0"].tolist() == [1, 2, 3]
    assert episode.columns["action"].tolist() == [0, 1, 0]
    assert not episode.columns["is_terminal"].any()
    assert episode.metadata == {"seed": 3}
