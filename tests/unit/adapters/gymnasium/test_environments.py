"""Environments as a source: what a plain loop plays, whoever plays it and how often."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlds2reverb import convert, open_source
from rlds2reverb.adapters.gymnasium import EnvironmentSource, episodes_of
from rlds2reverb.conversion import convert as engine
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, SourceError
from tests.support import gymnasium_environments as those

HERE = those.__name__


def loop(environment: Any, policy: Any, seed: int, most: int | None = None) -> dict[str, list[Any]]:
    """A plain loop: what it saw, did and earned."""
    observation, _ = environment.reset(seed=seed)
    seen, has_ended = [observation], False
    acted: list[Any] = []
    earned: list[Any] = []
    while not has_ended and len(acted) != most:
        acted.append(policy(observation))
        observation, reward, terminated, truncated, _ = environment.step(acted[-1])
        seen.append(observation)
        earned.append(reward)
        has_ended = terminated or truncated
    return {"observation": seen, "action": acted, "reward": earned, "is_terminal": [terminated]}


def contents(source: Any) -> list[tuple[Any, ...]]:
    return [(episode.id, dict(episode.metadata)) for episode in source]


def test_episodes_are_those_of_a_plain_loop() -> None:
    source = episodes_of(
        "CartPole-v1", episodes=4, seed=7, policy=f"{HERE}:balance", env_kwargs={"max_episode_steps": 40}
    )
    environment = gymnasium.make("CartPole-v1", max_episode_steps=40)
    assert source.episode_count == 4
    for number, episode in enumerate(source):
        played = loop(environment, those.balance, 7 + number)
        steps = len(played["reward"])
        columns = episode.columns
        np.testing.assert_array_equal(columns["observation"], played["observation"])
        np.testing.assert_array_equal(columns["action"], [*played["action"], 0])
        np.testing.assert_array_equal(columns["reward"], [*played["reward"], 0])
        terminal = played["is_terminal"][0]
        np.testing.assert_array_equal(columns["is_terminal"], [False] * steps + [terminal])
        np.testing.assert_array_equal(columns["discount"], [1] * (steps - 1) + [0 if terminal else 1] * 2)
        assert columns["observation"].dtype == np.float32
        assert episode.metadata == {"seed": 7 + number}


@pytest.mark.parametrize("policy", ["random", f"{HERE}:noisy", f"{HERE}:of_all"])
def test_the_same_episodes_however_they_are_played(policy: str) -> None:
    every = contents(episodes_of("CartPole-v1", episodes=9, policy=policy))
    assert len({name for name, _ in every}) == 9
    assert contents(episodes_of("CartPole-v1", episodes=9, policy=policy, envs=4)) == every
    source = episodes_of("CartPole-v1", episodes=9, policy=policy)
    assert contents(source.episodes(5, 7)) == every[5:7]
    assert contents(source.slice(3)) == every[3:]
    assert contents(source.shard(1, 3)) == every[1::3]
    assert [(number, episode.id) for number, episode in source.at([2, 6])] == [(2, every[2][0]), (6, every[6][0])]
    assert contents(pickle.loads(pickle.dumps(source))) == every


def test_environments_in_processes_of_their_own_play_the_same() -> None:
    options: dict[str, Any] = {"episodes": 3, "infos": True}
    alone = episodes_of("CartPole-v1", **options)
    apart = episodes_of("CartPole-v1", envs=2, vectorization="async", **options)
    assert contents(alone) == contents(apart)
    assert apart.about == alone.about


@pytest.mark.parametrize("envs", [1, 3])
def test_so_many_steps_and_no_more(envs: int) -> None:
    whole = list(episodes_of("CartPole-v1", episodes=3))
    steps = sum(len(episode) - 1 for episode in whole) - 2
    cut = list(episodes_of("CartPole-v1", steps=steps, envs=envs))
    assert [len(episode) for episode in cut] == [len(whole[0]), len(whole[1]), len(whole[2]) - 2]
    last = cut[2].columns
    assert not last["is_terminal"].any()
    assert last["discount"].all()
    assert not last["action"][-1]
    np.testing.assert_array_equal(last["observation"], whole[2].columns["observation"][:-2])
    source = episodes_of("CartPole-v1", steps=steps, envs=envs)
    assert contents(source.episodes(1)) == contents(cut[1:])


def test_less_than_an_episode() -> None:
    (episode,) = episodes_of("CartPole-v1", steps=2)
    assert len(episode) == 3


def test_columns_of_every_kind_of_space() -> None:
    source = episodes_of(f"{HERE}:Nested", episodes=5, infos=True)
    spec: Any = source.spec()
    assert spec["observation"]["pair"]["_index_0"].maximum == 4
    assert spec["action"]["_index_1"].shape == (2,)
    assert spec["infos"]["where"]["x"].dtype == np.float32
    for number, episode in enumerate(source):
        columns = episode.columns
        steps = 2 + number % 4
        assert len(episode) == steps + 1
        assert columns["observation/said"].tolist() == [f"step {at}".encode() for at in range(steps + 1)]
        assert columns["infos/at"].tolist() == list(range(steps + 1))
        assert bool(columns["is_terminal"][-1]) == (steps % 2 == 0)
    codes = {(notice.code, notice.path) for notice in source.notices}
    assert {("left_out", "infos/odd"), ("filled", "infos/at"), ("no_env_spec", "")} <= codes


def test_nested_values_come_back_from_a_dataset(tmp_path: Path) -> None:
    source = episodes_of(f"{HERE}:Nested", episodes=5)
    report = convert(source, f"minari:{tmp_path}/nested-v0", verify=True)
    assert report.verified == 5


def test_an_environment_that_writes_into_one_array() -> None:
    (episode,) = episodes_of(f"{HERE}:InPlace", episodes=1, infos=True)
    assert episode.columns["observation"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert episode.columns["infos/start"].tolist() == [1, 0, 0, 0, 0]
    assert episode.columns["infos/late"].tolist() == [0, 2.5, 2.5, 2.5, 2.5]


def test_values_of_another_dtype_than_the_space_are_kept_and_told() -> None:
    source = episodes_of(f"{HERE}:OtherDtype", episodes=1)
    assert source.spec()["observation"].dtype == np.float64
    assert [notice.path for notice in source.notices if notice.code == "space_dtype"] == ["observation"]


def test_a_vector_that_begins_anew_by_itself() -> None:
    source = episodes_of("CartPole-v1", episodes=10, envs=3, vectorization="own")
    assert source.is_live
    episodes = list(source)
    assert len(episodes) == 10
    for episode in episodes:
        check_of_cart(episode)


def check_of_cart(episode: Episode) -> None:
    """Every action leads from its observation to the next one, by the physics of the cart: nothing is lost at a reset."""
    observation, action = (episode.columns[name] for name in ("observation", "action"))
    environment = gymnasium.make("CartPole-v1").unwrapped
    environment.reset()
    for at in range(len(episode) - 1):
        environment.state = observation[at].astype(np.float64)
        following, *_ = environment.step(action[at])
        np.testing.assert_allclose(following, observation[at + 1], atol=1e-5)


def test_the_dataset_makes_its_environment_again(tmp_path: Path) -> None:
    convert(episodes_of("CartPole-v1", episodes=2, env_kwargs=["max_episode_steps=30"]), f"minari:{tmp_path}/cart-v0")
    facts = open_source(f"minari:{tmp_path}/cart-v0").about.facts
    spec = gymnasium.envs.registration.EnvSpec.from_json(facts["env_spec"])
    assert gymnasium.make(spec).spec.max_episode_steps == 30
    assert facts["algorithm_name"] == "random"
    assert json.loads((tmp_path / "cart-v0/data/metadata.json").read_text())["action_space"]


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    name = f"tfds:{tmp_path}/cart"
    whole = episodes_of("CartPole-v1", episodes=6)
    convert(whole, f"tfds:{tmp_path}/whole")

    class Stopped(Exception):
        pass

    class Stopping(EnvironmentSource):
        def _played(self, start: int, stop: int | None) -> Any:
            for number, episode in enumerate(super()._played(start, stop), start):
                if number == 4:
                    raise Stopped
                yield episode

    from rlds2reverb.conversion import convert as engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "SYNC_SECONDS", 0.0)
        stopping = Stopping("CartPole-v1", whole._options)
        with pytest.raises(Stopped):
            convert(stopping, name)
    report = convert(whole, name)
    assert 0 < report.episodes_resumed < 6
    assert [path.read_bytes() for path in sorted((tmp_path / "cart").rglob("*tfrecord*"))] == [
        path.read_bytes() for path in sorted((tmp_path / "whole").rglob("*tfrecord*"))
    ]


def test_a_run_whose_seed_decides_nothing_goes_on_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)
    name = f"ted:{tmp_path}/live"
    monkeypatch.setattr(those.Unseeded, "played", 0)

    def record(live: bool = False) -> Any:
        return convert(episodes_of(f"{HERE}:Unseeded", episodes=6, live=live), name)

    monkeypatch.setattr(those.Unseeded, "breaks_in", 4)
    with pytest.raises(SourceError, match=r"episode 4 .*the cable is off"):
        record()
    monkeypatch.setattr(those.Unseeded, "breaks_in", -1)
    with pytest.raises(ConfigError, match=r"another source.*go on with live=True \(--live\)"):
        record()
    assert record(live=True).episodes_written == 6
    assert len({episode.id for episode in open_source(name)}) == 6


@pytest.mark.parametrize("envs", [1, 2])
def test_values_that_are_not_in_their_space_are_told(envs: int) -> None:
    source = episodes_of(f"{HERE}:Outside", episodes=3, envs=envs)
    assert [len(episode) for episode in source] == [5, 5, 5]
    assert [(notice.code, notice.path) for notice in source.notices if notice.path] == [
        ("outside_space", "observation")
    ]
    (*_, last) = source
    assert last.title.endswith("episode 2 (seed 2)")


def test_live_episodes_are_gone_on_with() -> None:
    source = episodes_of("CartPole-v1", episodes=5, live=True)
    assert source.is_live
    assert [dict(episode.metadata)["seed"] for episode in source.episodes(3)] == [3, 4]
    with pytest.raises(SourceError, match="cannot be divided among workers"):
        source.shard(0, 2)


@pytest.mark.parametrize(
    ("environment", "options", "why"),
    [
        ("CartPole-v1", {}, "say how much to play"),
        ("CartPole-v1", {"episodes": 1, "steps": 1}, "and not both"),
        ("CartPole-v1", {"episodes": 0}, "at least 1"),
        ("CartPole-v1", {"episodes": True}, "whole number"),
        ("CartPole-v1", {"episodes": 1, "seed": -1}, "at least 0"),
        ("CartPole-v1", {"episodes": 1, "seed": 1 << 63}, "less than 2"),
        ("CartPole-v1", {"episodes": 1, "vectorization": "threads"}, "sync, async or own"),
        ("CartPole-v1", {"episodes": 1, "policy": "best"}, "expected module:function"),
        ("CartPole-v1", {"episodes": 1, "policy": f"{HERE}:nothing"}, "takes nothing"),
        ("CartPole-v1", {"episodes": 1, "env_kwargs": ["n"]}, "expected NAME=VALUE"),
        ("CartPole-v1", {"episodes": 1, "env_kwargs": ["n=1", "n=2"]}, "stands twice"),
    ],
)
def test_options_that_make_no_sense(environment: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        episodes_of(environment, **options)


@pytest.mark.parametrize(
    ("environment", "options", "why"),
    [
        ("CartPole-v99", {}, "CartPole-v99.*cannot be made"),
        ("NoSuchThing-v0", {}, "cannot be made"),
        (f"{HERE}:absent", {}, "cannot be imported"),
        (f"{HERE}:nothing", {}, "expected a gymnasium.Env, got NoneType"),
        ("CartPole-v1", {"env_kwargs": {"gravity": 3}}, "cannot be made: TypeError"),
        (
            f"{HERE}:InPlace",
            {"env_kwargs": {"breaks_at": 3}},
            r"episode 0 \(seed 0\), step 2: ValueError: the motor is burnt",
        ),
        (f"{HERE}:Sequences", {}, "Sequence has values of no fixed shape"),
        ("CartPole-v1", {"policy": f"{HERE}:leave"}, r"episode 0 \(seed 0\), step 0: SystemExit: 0"),
        ("CartPole-v1", {"policy": f"{HERE}:leave", "envs": 2}, "SystemExit: 0"),
        (f"{HERE}:InPlace", {"policy": f"{HERE}:half"}, r"\"action\": expected int64\[\], got float32\[\]"),
        (f"{HERE}:InPlace", {"policy": f"{HERE}:half", "envs": 2}, r"\"action\": expected int64\[\], got float32\[\]"),
        (f"{HERE}:Short", {}, r"a value of a Tuple space: expected 2 parts, got \(1,\)"),
        ("CartPole-v1", {"policy": "json:dumps"}, r"episode 0 \(seed 0\), step 0: TypeError"),
    ],
)
def test_what_cannot_be_played_is_told(environment: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(SourceError, match=why):
        list(episodes_of(environment, episodes=2, **options))


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3, start=-1),
        gymnasium.spaces.Box(-2, 3, (2, 2), np.float32),
        gymnasium.spaces.Box(0, 255, (3,), np.uint8),
        gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        gymnasium.spaces.MultiBinary(4),
        those.ACTIONS,
    ],
)
def test_random_actions_are_of_the_space_and_the_seed(space: Any) -> None:
    from rlds2reverb.adapters.gymnasium.environments import _random_actions

    first, again, other = (_random_actions(space, seed) for seed in (1, 1, 2))
    drawn = [first(None) for _ in range(200)]
    assert all(space.contains(action) for action in drawn)
    assert str([again(None) for _ in range(200)]) == str(drawn) != str([other(None) for _ in range(200)])
