"""Collectors: what a loop has played, where it was to go, whatever ends it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlds2reverb import dataset_writer, open_source
from rlds2reverb.adapters.gymnasium import (
    DataCollector,
    EpisodeMetadataCallback,
    StepDataCallback,
    VectorDataCollector,
    episodes_of,
)
from rlds2reverb.errors import ConfigError, InvalidEpisode
from tests.support import gymnasium_environments as those
from tests.support.learner.loops import writer as writer_of
from tests.support.push.in_memory import Server
from tests.unit.adapters.gymnasium.test_environments import check_of_cart


def cart(most: int = 12) -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=most)


def play(env: Any, seeds: range, most: int = 99) -> None:
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        for _ in range(most):
            observation, _, terminated, truncated, _ = env.step(those.balance(observation))
            if terminated or truncated:
                break


def name_at(folder: Path) -> str:
    return f"minari:{folder}/cart-v0"


def test_a_dataset_is_written_while_it_is_played(tmp_path: Path) -> None:
    env = DataCollector(cart(), name_at(tmp_path), checkpoint_every=2)
    play(env, range(5))
    assert env.episodes == 5
    assert env.checkpoint() == 5
    assert not (tmp_path / "cart-v0").exists()
    env.close()
    options: dict[str, Any] = {"policy": f"{those.__name__}:balance", "env_kwargs": {"max_episode_steps": 12}}
    expected = list(episodes_of("CartPole-v1", episodes=5, **options))
    episodes = list(open_source(name_at(tmp_path)))
    for episode, same in zip(episodes, expected, strict=True):
        for path, column in same.columns.items():
            np.testing.assert_array_equal(episode.columns[path], column)
        assert episode.metadata["seed"] == same.metadata["seed"]
        assert episode.metadata["rewards_sum"] == same.columns["reward"].sum()
    assert "CartPole-v1" in open_source(name_at(tmp_path)).about.facts["env_spec"]


def test_episodes_in_memory_become_a_dataset_and_add_to_it(tmp_path: Path) -> None:
    env = DataCollector(cart())
    play(env, range(3))
    with pytest.raises(ConfigError, match="did you mean"):
        env.create_dataset(name_at(tmp_path), overwrit=True)
    report = env.create_dataset(name_at(tmp_path), algorithm_name="balance", author="me", eval_env="CartPole-v1")
    assert report.episodes_written == 3
    with pytest.raises(ConfigError, match="no episode was collected"):
        env.create_dataset(name_at(tmp_path))
    play(env, range(2, 5))
    report = env.add_to_dataset(name_at(tmp_path))
    assert (report.episodes_written, dict(report.rejected)) == (2, {"duplicate": 1})
    source = open_source(name_at(tmp_path))
    assert source.episode_count == 5
    assert source.about.facts["algorithm_name"] == "balance"
    assert source.about.facts["author"] == ["me"]
    assert "CartPole-v1" in source.about.facts["eval_env_spec"]


def test_an_early_reset_and_a_close_truncate(tmp_path: Path) -> None:
    env = DataCollector(cart(), name_at(tmp_path))
    play(env, range(1), 3)
    env.reset(seed=1)
    env.reset(seed=2)  # of an episode without a step nothing is left
    env.step(np.int64(0))
    env.close()
    env.close()
    episodes = list(open_source(name_at(tmp_path)))
    assert [len(episode) for episode in episodes] == [4, 2]
    assert not any(episode.columns["is_terminal"].any() for episode in episodes)


def test_an_error_leaves_it_to_be_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), DataCollector(cart(), name_at(tmp_path)) as env:
        play(env, range(3))
        raise RuntimeError
    assert not (tmp_path / "cart-v0").exists()
    with DataCollector(cart(), name_at(tmp_path)) as env:
        play(env, range(5))
    assert open_source(name_at(tmp_path)).episode_count == 5


def test_nothing_played_is_no_dataset_and_no_error(tmp_path: Path) -> None:
    DataCollector(cart(), name_at(tmp_path)).close()
    assert list(tmp_path.iterdir()) == []


def test_into_a_writer_and_a_table(tmp_path: Path) -> None:
    with dataset_writer(name_at(tmp_path)) as writer:
        for seeds in (range(2), range(2, 4)):
            env = DataCollector(cart(), writer)
            play(env, seeds)
            env.close()
    assert open_source(name_at(tmp_path)).episode_count == 4
    server = Server()
    with writer_of(server) as to:
        env = DataCollector(cart(), to, episode_metadata_callback=lambda _: {})
        play(env, range(3))
        steps = to.report().steps_read
        assert env.checkpoint() == 3
        assert to.report().episodes_pushed == 3 == env.episodes
    assert to.report().items_confirmed == steps - 3
    stored = dict(server.items["replay"])
    with writer_of(server) as to:  # of a process that plays the same ones again
        play(DataCollector(cart(), to, episode_metadata_callback=lambda _: {}), range(3))
    assert server.items["replay"].keys() == stored.keys()


def play_alike(into: Any, episodes: int, **options: Any) -> DataCollector:
    env = DataCollector(those.Alike(), into, episode_metadata_callback=lambda _: {}, **options)
    for _ in range(episodes):
        env.reset()
        while not any(env.step(np.int64(0))[2:4]):
            pass
    return env


def test_equal_episodes_are_as_many_as_were_played(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    env = play_alike(name, 3)
    assert env.checkpoint() == env.episodes == 3
    env.__exit__(RuntimeError, RuntimeError(), None)
    # A loop that begins anew plays the three that are on disk once more.
    env = play_alike(name, 5)
    env.close()
    assert open_source(name).episode_count == 5
    report = play_alike(None, 7).add_to_dataset(name)
    assert (report.episodes_written, dict(report.rejected)) == (2, {"duplicate": 5})
    play_alike(name, 7, append=True, duplicates="keep").close()
    assert open_source(name).episode_count == 14


def test_equal_episodes_of_a_table_are_as_many_as_were_played() -> None:
    server = Server()
    for played, stored in ((2, 2), (4, 4)):  # the second process plays the first two again
        with writer_of(server) as to:
            play_alike(to, played)
        assert len(server.items["replay"]) == stored * 4
    with writer_of(server) as to:
        play_alike(to, 1)
        play_alike(to, 1)  # another collector of the same writer
    assert len(server.items["replay"]) == 4 * 4


class Further(StepDataCallback):
    """Changes the reward, and adds the state of the simulator."""

    def __call__(self, env: Any, obs: Any, info: Any, **step: Any) -> dict[str, Any]:
        recorded = super().__call__(env, obs, info, **step)
        if recorded["reward"] is not None:
            recorded["reward"] = np.float32(recorded["reward"] * 2)
        return recorded | {"state": {"pole": float(env.unwrapped.state[2])}}


class Said(EpisodeMetadataCallback):
    def __call__(self, episode: Any) -> dict[str, Any]:
        assert episode["observations"].shape == (len(episode["rewards"]) + 1, 4)
        assert episode["terminations"].shape == episode["truncations"].shape == episode["actions"].shape
        return {"task": "balance", "length": episode["total_steps"], "nothing": None}


def test_callbacks(tmp_path: Path) -> None:
    with DataCollector(cart(), f"tfds:{tmp_path}/cart", Further, Said()) as env:
        play(env, range(2))
    (first, _) = open_source(f"tfds:{tmp_path}/cart/1.0.0")
    assert first.columns["reward"].dtype == np.float32
    assert first.columns["reward"][0] == 2
    np.testing.assert_allclose(first.columns["infos/state/pole"], first.columns["observation"][:, 2], atol=1e-6)
    assert first.metadata["task"] == b"balance"
    assert first.metadata["length"] == len(first) - 1


@pytest.mark.filterwarnings("ignore:.*is left out")
def test_infos_and_nested_spaces(tmp_path: Path) -> None:
    with DataCollector(those.Nested(), name_at(tmp_path), record_infos=True) as env:
        env.action_space.seed(0)
        for seed in range(3):
            env.reset(seed=seed)
            while env.step(env.action_space.sample())[2:4] == (False, False):
                pass
    source = open_source(name_at(tmp_path))
    assert {"infos/at", "infos/where/x", "observation/pair/_index_0", "action/_index_1"} <= set(
        next(iter(source)).columns
    )


def test_seeds_are_made_unless_switched_off() -> None:
    env = DataCollector(cart(), episode_metadata_callback=lambda _: {})
    env.reset()
    env.step(np.int64(0))
    env.reset(options={"minari_autoseed": False})
    env.step(np.int64(0))
    env._cut()
    seeds = [episode.metadata.get("seed") for episode in env._collection._kept]
    assert isinstance(seeds[0], np.uint64)
    assert seeds[1] is None


def test_what_is_not_in_its_space_is_told_once() -> None:
    env = DataCollector(those.InPlace(), observation_space=gymnasium.spaces.Box(0, 2, (2,), np.float32))
    with pytest.warns(UserWarning, match='"observation" is not in its space: step 3 has'):
        play_in_place(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play_in_place(env)


def play_in_place(env: Any) -> None:
    env.reset(seed=0)
    while not env.step(1)[3]:
        pass


def test_misuse_is_told(tmp_path: Path) -> None:
    env = DataCollector(cart(), name_at(tmp_path))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))
    with pytest.raises(ConfigError, match="go somewhere already"):
        env.create_dataset(name_at(tmp_path / "other"))
    with pytest.raises(ConfigError, match="another process is writing it"):
        DataCollector(cart(), name_at(tmp_path))
    env.close()
    with pytest.raises(ConfigError, match="expected the name of a dataset"):
        DataCollector(cart(), 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="into is no name of one"):
        DataCollector(cart(), append=True)
    with pytest.raises(ConfigError, match="Give the space"):
        DataCollector(those.InPlace(), observation_space=gymnasium.spaces.Box(0, 2, (3,), np.float32)).reset()


def test_a_bad_episode_is_raised_when_it_ends(tmp_path: Path) -> None:
    class Broken(StepDataCallback):
        def __call__(self, env: Any, obs: Any, info: Any, **step: Any) -> dict[str, Any]:
            return super().__call__(env, obs * np.float32(np.nan), info, **step)

    env = DataCollector(cart(), name_at(tmp_path), Broken)
    with warnings.catch_warnings(), pytest.raises(InvalidEpisode, match="nan"):
        warnings.simplefilter("ignore")
        play(env, range(1))
    env.close()


@pytest.mark.parametrize("record_infos", [False, True])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_no_step_of_a_vector_is_lost_or_doubled(mode: Any, record_infos: bool, tmp_path: Path) -> None:
    count, steps, most = 3, 700, 9
    vector = SyncVectorEnv([lambda: cart(most)] * count, autoreset_mode=mode)
    env = VectorDataCollector(vector, name_at(tmp_path), record_infos=record_infos, duplicates="keep")
    env.action_space.seed(3)
    env.reset(seed=5)
    ended = resets = 0
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated | truncated
        resets += ended if mode is AutoresetMode.NEXT_STEP else 0
        ended = int(over.sum())
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
    env.close()
    episodes = list(open_source(name_at(tmp_path)))
    assert sum(len(episode) - 1 for episode in episodes) == count * steps - resets
    assert {len(episode) - 1 for episode in episodes[:-3]} <= set(range(1, most + 1))
    for episode in episodes[:5] + episodes[-8:]:
        check_of_cart(episode)


def test_a_vector_that_was_not_reset_is_told() -> None:
    vector = SyncVectorEnv([lambda: cart(2)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    env = VectorDataCollector(vector)
    env.reset(seed=1)
    action = np.array([0, 1])
    env.step(action)
    env.step(action)
    env.env.reset(seed=1)  # past the collector
    with pytest.raises(ConfigError, match="nothing resets them"):
        env.step(action)


def test_a_step_of_a_vector_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    vector = SyncVectorEnv([lambda: cart(3)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    with VectorDataCollector(vector, name_at(tmp_path), duplicates="keep") as env:
        observations, _ = env.reset(seed=1)
        env.step(np.array([0, 1]))
        for actions, given in (
            (np.array([0.5, 1.0]), observations),
            (np.array([0, 1]), observations.astype(np.float64)),
        ):
            with pytest.raises(ConfigError, match=r"expected (int64|float32)\[2.* of 2 environments, got float64"):
                env._trajectories.step(actions, given, np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {})
        env.step(np.array([1, 0]))
    episodes = list(open_source(name_at(tmp_path)))
    assert [episode.columns["action"][:-1].tolist() for episode in episodes] == [[0, 1], [1, 0]]
    for episode in episodes:
        check_of_cart(episode)


def test_an_error_leaves_a_vector_to_be_gone_on_with(tmp_path: Path) -> None:
    def play_vector(steps: int, error: BaseException | None = None) -> None:
        vector = SyncVectorEnv([lambda: cart(3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        with VectorDataCollector(vector, name_at(tmp_path)) as env:
            env.reset(seed=1)
            for _ in range(steps):
                env.step(np.array([0, 1]))
            if error is not None:
                raise error

    with pytest.raises(RuntimeError):
        play_vector(4, RuntimeError())
    assert not (tmp_path / "cart-v0").exists()
    play_vector(6)
    assert open_source(name_at(tmp_path)).episode_count == 4


def test_a_step_that_is_refused_leaves_nothing() -> None:
    env = DataCollector(those.InPlace(), episode_metadata_callback=lambda _: {})
    env.reset()
    for action, reward, observation in ((1.5, 1, [0, 0]), (1, None, [0, 0]), (1, "x", [0, 0]), (1, 1, [0, 0, 0])):
        with pytest.raises(ConfigError, match=r"action|reward|observation"):
            env._trajectory.add(action, reward, np.array(observation, np.float32), {})
    with pytest.raises(ConfigError, match="info: expected a dict"):
        env._trajectory.begin(np.zeros(2, np.float32), [1])  # type: ignore[arg-type]
    play_all(env)
    (episode,) = env._collection._kept
    assert episode.columns["observation"][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_infos_of_a_vector_are_those_of_each_environment(tmp_path: Path) -> None:
    alone = list(episodes_of(f"{those.__name__}:InPlace", episodes=4, infos=True))
    together = list(episodes_of(f"{those.__name__}:InPlace", episodes=4, infos=True, envs=2))
    for episode, other in zip(alone, together, strict=True):
        assert {path: column.tolist() for path, column in episode.columns.items()} == {
            path: column.tolist() for path, column in other.columns.items()
        }


@pytest.mark.filterwarnings("ignore:.*is left out")
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nested_spaces_of_a_vector(mode: Any, tmp_path: Path) -> None:
    vector = SyncVectorEnv([those.Wordless] * 3, autoreset_mode=mode)
    env = VectorDataCollector(vector, name_at(tmp_path), record_infos=True, duplicates="keep")
    env.action_space.seed(0)
    env.reset(seed=1)
    expected: dict[int, list[Any]] = {place: [] for place in range(3)}
    for _ in range(12):
        observations, _, terminated, truncated, infos = env.step(env.action_space.sample())
        over = terminated | truncated
        for place in np.flatnonzero(over).tolist():
            finals = infos["final_obs"][place] if mode is AutoresetMode.SAME_STEP else None
            camera = observations["camera"][place] if finals is None else finals["camera"]
            pair = observations["pair"][1][place] if finals is None else finals["pair"][1]
            expected[place].append((camera.tolist(), pair.tolist()))
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
    env.close()
    ends = [
        (episode.columns["observation/camera"][-1].tolist(), episode.columns["observation/pair/_index_1"][-1].tolist())
        for episode in open_source(name_at(tmp_path))
    ]
    assert all(final in ends for finals in expected.values() for final in finals)
    assert len(ends) >= sum(map(len, expected.values())) > 6


def test_nested_episodes_of_a_vector_are_those_of_one_environment() -> None:
    name = f"{those.__name__}:Wordless"
    alone = [episode.id for episode in episodes_of(name, episodes=6, infos=True)]
    assert [episode.id for episode in episodes_of(name, episodes=6, infos=True, envs=4)] == alone


class Odd(those.InPlace):
    """Rewards and infos that are not always of one kind."""

    rewards: tuple[Any, ...] = (np.float32(0.5), 0.25)
    infos: tuple[Any, ...] = ({}, {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *ends, _ = super().step(action)
        at = int(self._buffer[0] > 1)
        return (observation, self.rewards[at], *ends, self.infos[at])


def play_odd(rewards: Any = (1.0, 1.0), infos: Any = ({}, {}), record_infos: bool = True) -> DataCollector:
    odd = Odd()
    odd.rewards, odd.infos = rewards, infos
    env = DataCollector(odd, record_infos=record_infos)
    play_all(env)
    return env


def play_all(env: Any) -> None:
    env.reset(seed=0)
    while not any(env.step(np.int64(0))[2:4]):
        pass


def test_a_reward_is_kept_as_it_is_or_refused() -> None:
    assert play_odd((np.float32(0.5), 0.25)).episodes == 1
    with pytest.raises(ConfigError, match=r"0.1 is not a float32"):
        play_odd((np.float32(0.5), 0.1))


@pytest.mark.parametrize(
    "values",
    [(np.int8(1), 300), (np.float32(1), 0.1), ("a", 7), (1, np.uint64(2**63))],
    ids=["int8", "float32", "text", "uint64"],
)
def test_an_info_is_kept_as_it_is_or_a_fault(values: Any, tmp_path: Path) -> None:
    infos = tuple({"x": value} for value in values)
    env = play_odd(infos=infos)
    with pytest.raises(InvalidEpisode, match="infos/x"):
        env.create_dataset(f"ted:{tmp_path}/odd")


def test_an_info_that_comes_later_is_told() -> None:
    env = play_odd()
    env.env.infos = ({"late": 1}, {})
    with pytest.warns(UserWarning, match='"infos/late" is left out .not in the first episode'):
        play_all(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play_all(env)


def test_a_close_that_refuses_the_last_episode_keeps_the_others(tmp_path: Path) -> None:
    env = DataCollector(Odd(), name_at(tmp_path))
    env.env.rewards = (1.0, 1.0)
    play_all(env)
    env.reset(seed=1)
    env.env.rewards = (float("nan"), 1.0)
    env.step(np.int64(0))
    with pytest.raises(InvalidEpisode, match="nan"):
        env.close()
    with dataset_writer(name_at(tmp_path)) as writer:
        assert writer.episodes == 1
        writer.close()
