"""What EnvRunners of RLlib sample is in a table: each episode once, whatever its chunks, its runner and its server do."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

import rlds2reverb
from rlds2reverb.adapters.rllib_writing import (
    Account,
    EpisodeAssembler,
    EpisodeSender,
    WholeEpisode,
    flush_episodes,
    table_callbacks,
)
from rlds2reverb.adapters.torchrl import TableReplayBuffer
from rlds2reverb.errors import ConfigError, ServerUnreachable, SpecMismatch
from tests.support.processes import wait_until
from tests.support.project import ROOT
from tests.systems.learners.conftest import CARTPOLE, StartServer
from tests.systems.learners.servers import signature_of

Row = tuple[float, ...]


@pytest.fixture(scope="module")
def address(start_server: StartServer) -> str:
    return start_server({"name": "replay", "signature": signature_of(CARTPOLE, "transition")}).address


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(address) as client:
        yield client
        client.reset("replay")


def runner_of(callbacks: Any, environments: int = 2, **options: Any) -> SingleAgentEnvRunner:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=environments, rollout_fragment_length=25, **options)
        .callbacks(callbacks)
        .debugging(seed=0)
    )
    return SingleAgentEnvRunner(config=config)


def rows_in(client: rlds2reverb.Client) -> list[Row]:
    """The transitions of the table: observation, action, reward, next observation, terminated, truncated."""
    data = TableReplayBuffer(client, "replay")[:]
    keys = (
        "observation",
        "action",
        ("next", "reward"),
        ("next", "observation"),
        ("next", "terminated"),
        ("next", "truncated"),
    )
    columns = [data[key].reshape(len(data), -1).double().numpy() for key in keys]
    return sorted(map(tuple, np.concatenate(columns, axis=1).tolist()))


def rows_of(samples: Sequence[SingleAgentEpisode]) -> list[Row]:
    """The same of chunks, step by step."""
    rows = []
    for chunk in samples:
        observations, actions, rewards = chunk.get_observations(), chunk.get_actions(), chunk.get_rewards()
        for step in range(len(chunk)):
            is_end = step == len(chunk) - 1
            ends = (is_end and chunk.is_terminated, is_end and chunk.is_truncated)
            rows.append((*observations[step], actions[step], rewards[step], *observations[step + 1], *ends))
    return sorted(tuple(float(value) for value in row) for row in rows)


def finished(samples: Sequence[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    ended = {chunk.id_ for chunk in samples if chunk.is_done}
    return [chunk for chunk in samples if chunk.id_ in ended]


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_the_table_holds_the_steps_of_every_finished_episode(
    client: rlds2reverb.Client, address: str, mode: str
) -> None:
    runner = runner_of(table_callbacks(address, "replay", "transition"), batch_mode=mode)
    samples = [chunk for _ in range(12) for chunk in runner.sample(random_actions=True)]
    account = flush_episodes()
    runner.stop()
    whole = finished(samples)
    assert rows_in(client) == rows_of(whole)
    assert account.stored >= len({chunk.id_ for chunk in whole}) > 3
    assert account.waiting == account.bad == account.dropped == 0


def test_an_episode_that_is_dropped_by_a_reset_ends_truncated(client: rlds2reverb.Client, address: str) -> None:
    runner = runner_of(table_callbacks(address, "replay", "transition"), environments=1)
    before = runner.sample(num_timesteps=5, random_actions=True)
    for _ in range(3):
        runner.sample(num_timesteps=1, random_actions=True, force_reset=True)
    runner.sample(num_timesteps=1, random_actions=True)
    flush_episodes()
    runner.stop()
    (cut,) = [
        row for row in rows_in(client) if row[-1] == 1 and row[:4] == tuple(before[-1].get_observations()[-2].tolist())
    ]
    assert cut[-2] == 0


def test_the_callback_at_the_end_of_an_episode_has_only_its_last_fragment() -> None:
    """Which is why `on_sample_end` is the one that writes."""
    told: dict[str, int] = {}

    class Ends(RLlibCallback):
        def on_episode_end(self, *, episode: Any, **_: Any) -> None:
            told[f"rllib/{episode.id_}"] = len(episode)

    runner = runner_of(Ends, environments=1)
    assembler = EpisodeAssembler()
    episodes = [
        episode for _ in range(30) for episode in assembler.take(runner.sample(num_timesteps=6, random_actions=True))
    ]
    runner.stop()
    steps = {episode.id: len(episode.columns["reward"]) - 1 for episode in episodes}
    assert steps.keys() == told.keys()
    assert all(told[name] <= 6 < steps[name] for name in steps)


def chunk(start: int, stop: int, id_: str = "a", ends: bool = False, **more: Any) -> SingleAgentEpisode:
    """Steps [start, stop) of an episode whose observations are their numbers."""
    numbers = range(start, stop)
    return SingleAgentEpisode(
        id_=id_,
        observations=[np.float32(number) for number in range(start, stop + 1)],
        actions=list(numbers),
        rewards=[float(number) for number in numbers],
        terminated=ends,
        t_started=start,
        len_lookback_buffer=0,
        **more,
    )


def told(episodes: Sequence[WholeEpisode]) -> list[tuple[list[float], bool]]:
    return [(episode.columns["observation"].tolist(), bool(episode.columns["is_terminal"][-1])) for episode in episodes]


@pytest.mark.parametrize("as_numpy", [False, True])
def test_chunks_are_joined_once(as_numpy: bool) -> None:
    assembler = EpisodeAssembler()
    chunks = [chunk(0, 3), chunk(3, 5), chunk(3, 5), chunk(5, 6, ends=True), chunk(5, 6, ends=True)]
    if as_numpy:
        for part in chunks:
            part.to_numpy()
    episodes = [episode for part in chunks for episode in assembler.take([part])]
    assert told(episodes) == [(list(range(7)), True)]
    assert (assembler.repeated, assembler.cut) == (2, 0)
    assert episodes[0].id == "rllib/a"


def test_missing_steps_cut_an_episode() -> None:
    assembler = EpisodeAssembler()
    episodes = [episode for part in (chunk(0, 3), chunk(4, 6, ends=True)) for episode in assembler.take([part])]
    assert told(episodes) == [([0, 1, 2, 3], False), ([4, 5, 6], True)]
    assert assembler.cut == 1
    assert len({episode.id for episode in episodes}) == 2


def test_what_never_comes_again_is_ended() -> None:
    assembler = EpisodeAssembler()
    calls = [[chunk(0, 3), chunk(0, 2, "b")], [chunk(2, 4, "b")], [chunk(4, 5, "b")], [chunk(5, 6, "b")]]
    assert told([episode for call in calls for episode in assembler.take(call)]) == [([0, 1, 2, 3], False)]


def test_outputs_of_the_module_become_columns_or_are_refused() -> None:
    part = chunk(0, 2, ends=True, extra_model_outputs={"action_logp": [0.5, 0.25]})
    (episode,) = EpisodeAssembler(["action_logp"]).take([part])
    assert episode.columns["action_logp"].tolist() == [0.5, 0.25, 0]
    with pytest.raises(ConfigError, match='no "vf_preds" among their extra_model_outputs; there are action_logp'):
        list(EpisodeAssembler(["vf_preds"]).take([part]))


def test_actions_have_the_dtype_of_their_space() -> None:
    spaces = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Discrete(3), "b": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
    )
    for dtype, kept in ((np.float32, np.float32), (np.float64, np.float64)):
        actions = [{"a": np.int32(1), "b": np.zeros(2, dtype)}]
        part = SingleAgentEpisode(
            observations=[np.zeros(2), np.ones(2)],
            actions=actions,
            rewards=[0.0],
            terminated=True,
            action_space=spaces,
            len_lookback_buffer=0,
        )
        (episode,) = EpisodeAssembler().take([part])
        assert episode.columns["action/a"].dtype == np.int64
        assert episode.columns["action/b"].dtype == kept


def test_what_an_episode_has_given_does_not_change_with_its_chunk() -> None:
    """A learner in the same process may change the arrays of a chunk before the episode ends."""
    assembler = EpisodeAssembler()
    first = chunk(0, 3).to_numpy()
    assert not list(assembler.take([first]))
    for buffer in (first.observations, first.actions, first.rewards):
        buffer.data[...] = 7
    (episode,) = assembler.take([chunk(3, 4, ends=True)])
    assert episode.columns["observation"].tolist() == [0, 1, 2, 3, 4]
    assert episode.columns["action"].tolist()[:-1] == episode.columns["reward"].tolist()[:-1] == [0, 1, 2, 3]


def test_nests_of_observations_are_columns_below() -> None:
    observations = [{"arm": np.ones(2), "goal": {"x": np.float32(n)}} for n in range(3)]
    episode = SingleAgentEpisode(
        observations=observations,
        actions=[{"a": 1}, {"a": 2}],
        rewards=[0.0, 1.0],
        terminated=True,
        len_lookback_buffer=0,
    )
    for part in (episode, episode.to_numpy()):
        (whole,) = EpisodeAssembler().take([part])
        assert whole.columns["observation/goal/x"].tolist() == [0, 1, 2]
        assert whole.columns["action/a"].tolist() == [1, 2, 0]


def test_agents_have_episodes_of_their_own(client: rlds2reverb.Client, address: str) -> None:
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(rollout_fragment_length=60)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent}")
        .callbacks(table_callbacks(address, "replay", "transition", modules=["p1"]))
        .debugging(seed=0)
    )
    runner = MultiAgentEnvRunner(config=config)
    samples = [episode for _ in range(6) for episode in runner.sample(random_actions=True)]
    flush_episodes()
    runner.stop()
    ended = {episode.id_ for episode in samples if episode.is_done}
    of_p1 = [
        part
        for episode in samples
        for part in episode.agent_episodes.values()
        if part.module_id == "p1" and (episode.id_ in ended)
    ]
    observations = [row[:4] for row in rows_in(client)]
    wanted = [tuple(map(float, row)) for part in of_p1 for row in part.get_observations()[:-1]]
    assert ended
    assert set(observations) >= set(wanted)
    assert len(observations) == len(set(observations))


class Turns(MultiAgentEnv):
    """ "a" acts in every step, "b" in every 25th, and "c" in the steps from 10 to `leaves`, where it is truncated. It ends after 60."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = self.agents = ["a", "b", "c"]
        self.observation_spaces = dict.fromkeys("abc", gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32))
        self.action_spaces = dict.fromkeys("abc", gymnasium.spaces.Discrete(2))
        self._leaves = (config or {}).get("leaves", 20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._step = 0
        return self._observe("ab"), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        self._step += 1
        c = "c" if 10 <= self._step <= self._leaves else ""
        agents = "a" + ("b" if self._step % 25 == 0 or self._step == 60 else "") + c
        truncated = {"__all__": False, **({"c": True} if self._step == self._leaves else {})}
        return self._observe(agents), dict.fromkeys(agents, 1.0), {"__all__": self._step == 60}, truncated, {}

    def _observe(self, agents: str) -> dict[str, Any]:
        return {agent: np.array([self._step], np.float32) for agent in agents}


def sample_turns(assembler: EpisodeAssembler, calls: int, steps: int, leaves: int = 20, **options: Any) -> list[Any]:
    """What an assembler makes of calls of so many steps of `Turns`; agent "b" has the RLModule "q", the others "p"."""
    with turns_runner(steps, leaves, **options) as runner:
        return [part for _ in range(calls) for part in assembler.take(runner.sample(random_actions=True))]


@contextmanager
def turns_runner(steps: int, leaves: int, **options: Any) -> Iterator[MultiAgentEnvRunner]:
    config = (
        PPOConfig()
        .environment(Turns, env_config={"leaves": leaves})
        .env_runners(rollout_fragment_length=steps, **options)
        .multi_agent(policies={"p", "q"}, policy_mapping_fn=lambda agent, *_, **__: "q" if agent == "b" else "p")
    )
    runner = MultiAgentEnvRunner(config=config)
    yield runner
    runner.stop()


@pytest.mark.parametrize("leaves", [20, 57])
@pytest.mark.parametrize("steps", [4, 5, 20])
def test_agents_that_wait_for_their_turn_or_leave_lose_nothing(steps: int, leaves: int) -> None:
    """Also across more calls than after which an episode that does not come again is ended."""
    assembler = EpisodeAssembler()
    episodes = sample_turns(assembler, 120 // steps, steps, leaves)
    by_agent = sorted((episode.metadata["agent_id"], *told([episode])[0]) for episode in episodes)
    of_each_round: list[tuple[str, Any, bool]] = [
        ("a", [[float(step)] for step in range(61)], True),
        ("b", [[0.0], [25.0], [50.0], [60.0]], True),
        ("c", [[float(step)] for step in range(10, leaves + 1)], False),
    ]
    assert by_agent == sorted([*of_each_round, *of_each_round])
    assert (assembler.repeated, assembler.cut) == (0, 0)
    entered = {"a": (0, 0), "b": (1, 0), "c": (2, 10)}
    assert all(
        (episode.metadata["agent_index"], episode.metadata["t"]) == entered[episode.metadata["agent_id"]]
        for episode in episodes
    )


@pytest.mark.parametrize("leaves", [20, 57])
@pytest.mark.parametrize("steps", [4, 7, 20])
def test_each_agent_comes_with_the_others_and_their_steps(steps: int, leaves: int) -> None:
    """The environment's observations are its steps, so these must be the column `t`."""
    assembler = EpisodeAssembler(modules=["p"], with_others=True)
    episodes = sample_turns(assembler, 140 // steps, steps, leaves)
    agents = [episode.metadata["agent_id"] for episode in episodes]
    assert sorted(agents) == ["a", "a", "c", "c"]
    for episode in episodes:
        assert episode.others is not None
        assert episode.others.keys() == {"a", "b", "c"} - {episode.metadata["agent_id"]}
        for part in (episode.episode, *episode.others.values()):
            assert part.columns["t"].tolist() == part.columns["observation"][:, 0].tolist()
            assert part.metadata["episode_id"] == episode.metadata["episode_id"]
        assert episode.others["b"].columns["t"].tolist() == [0, 25, 50, 60]
        assert episode.others["b"].metadata["module_id"] == "q"


@pytest.mark.parametrize("steps", [2, 3, 4, 7])
def test_the_steps_of_agents_are_known_without_a_lookback(steps: int) -> None:
    """RLlib loses what waits at a cut then, but what it hands over has its steps."""
    assembler = EpisodeAssembler(with_others=True)
    episodes = sample_turns(assembler, 70 // steps, steps, episode_lookback_horizon=0)
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.columns["t"].tolist() == episode.columns["observation"][:, 0].tolist()
        assert episode.metadata["t"] == episode.columns["t"][0]


def test_a_function_sees_the_other_agents(client: rlds2reverb.Client, address: str) -> None:
    """Each agent is rewarded by what the others got in the same steps, as a postprocess_trajectory of RLlib's may do."""

    def share(episode: rlds2reverb.Episode, others: Mapping[str, rlds2reverb.Episode]) -> rlds2reverb.Episode:
        reward = episode.columns["reward"].copy()
        for other in others.values():
            _, own, theirs = np.intersect1d(episode.columns["t"][:-1], other.columns["t"][:-1], return_indices=True)
            reward[own] += other.columns["reward"][theirs]
        return episode.with_columns(reward=reward)

    callbacks = table_callbacks(address, "replay", "transition", postprocess=share, with_other_agents=True)
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(rollout_fragment_length=30)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent}")
        .callbacks(callbacks)
        .debugging(seed=0)
    )
    runner = MultiAgentEnvRunner(config=config)
    samples = [episode for _ in range(8) for episode in runner.sample(random_actions=True)]
    flush_episodes()
    runner.stop()
    ended = {episode.id_ for episode in samples if episode.is_done}
    chunks = [
        (episode, part) for episode in samples if episode.id_ in ended for part in episode.agent_episodes.values()
    ]
    steps: dict[tuple[str, int], int] = {}  # how many agents act, by episode and step: each has a reward of 1
    for episode, part in chunks:
        for step in range(len(part)):
            at = (episode.id_, part.t_started + step)
            steps[at] = steps.get(at, 0) + 1
    expected = sorted(
        (*map(float, part.get_observations()[step]), float(steps[episode.id_, part.t_started + step]))
        for episode, part in chunks
        for step in range(len(part))
    )
    assert sorted((*row[:4], row[5]) for row in rows_in(client)) == expected
    assert {row[-1] for row in expected} == {1.0, 2.0}


def test_an_episode_of_one_agent_has_no_others() -> None:
    (episode,) = EpisodeAssembler(with_others=True).take([chunk(0, 3, ends=True)])
    assert episode.others == {}
    assert episode.columns["t"].tolist() == [0, 1, 2, 3]


def test_agents_of_an_episode_that_was_dropped_come_without_its_end() -> None:
    """An agent that had ended before waits for the others no longer."""
    assembler = EpisodeAssembler(with_others=True)
    with turns_runner(25, 20) as runner:
        first = runner.sample(random_actions=True)
        assert not list(assembler.take(first))
        calls = [runner.sample(num_timesteps=1, random_actions=True, force_reset=not number) for number in range(3)]
    episodes = [episode for samples in calls for episode in assembler.take(samples)]
    assert {episode.metadata["episode_id"] for episode in episodes} == {first[0].id_}
    assert sorted(episode.metadata["agent_id"] for episode in episodes) == ["a", "b", "c"]


def test_an_end_without_the_steps_before_it_is_no_terminal_one() -> None:
    assembler = EpisodeAssembler()
    calls = [chunk(0, 3), chunk(5, 5, ends=True)]
    assert told([episode for part in calls for episode in assembler.take([part])]) == [([0, 1, 2, 3], False)]
    assert assembler.cut == 1


def whole(number: int) -> WholeEpisode:
    columns = {
        "observation": np.full((4, 4), number, np.float32),
        "action": np.zeros(4, np.int64),
        "reward": np.ones(4, np.float32),
        "is_terminal": np.arange(4) == 3,
    }
    return WholeEpisode(columns, f"episode-{number}", {})


def test_a_server_that_comes_late_gets_everything_once(client: rlds2reverb.Client, address: str) -> None:
    attempts = []

    def connect() -> rlds2reverb.Client:
        attempts.append(1)
        if len(attempts) < 3:
            raise ServerUnreachable("not yet")
        return rlds2reverb.connect(address)

    sender = EpisodeSender(connect, "replay", "transition", {})
    for number in range(5):
        sender.put(whole(number))
    assert sender.flush(60)
    assert sender.account() == Account(stored=5, steps=15)
    sender.put(whole(3))  # as an EnvRunner that is restarted may hand it over
    assert sender.flush(60)
    assert sender.account() == Account(stored=5, steps=15, repeated=1)
    sender.close()
    with pytest.raises(ConfigError, match="has been closed"):
        sender.put(whole(6))
    assert len(rows_in(client)) == 15


def test_what_has_gathered_is_sent_without_being_asked(client: rlds2reverb.Client, address: str) -> None:
    sender = EpisodeSender(address, "replay", "transition", {})
    sender.put(whole(0))
    wait_until(lambda: sender.account() == Account(stored=1, steps=3))
    sender.close()
    assert len(rows_in(client)) == 3


def test_what_is_too_much_waits_or_is_left_out_and_counted(address: str) -> None:
    opened = threading.Event()

    def connect() -> rlds2reverb.Client:
        opened.wait(60)
        return rlds2reverb.connect(address)

    size = whole(0).nbytes
    sender = EpisodeSender(connect, "replay", "transition", {}, most_bytes=3 * size, when_full="drop")
    for number in range(10):
        sender.put(whole(number))
    assert sender.account().dropped >= 6
    opened.set()
    assert sender.flush(60)
    account = sender.account()
    assert account.stored + account.dropped == 10
    opened.clear()
    blocking = EpisodeSender(connect, "replay", "transition", {}, most_bytes=3 * size)
    thread = threading.Thread(target=lambda: [blocking.put(whole(number)) for number in range(10)])
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    opened.set()
    thread.join(60)
    assert blocking.flush(60)
    assert blocking.account().stored == 10
    sender.close()
    blocking.close()


def test_a_table_of_other_steps_is_an_error_of_the_next_call(address: str) -> None:
    sender = EpisodeSender(address, "replay", "episode", {})
    sender.put(whole(0))
    with pytest.raises(SpecMismatch):
        sender.flush(60)
    with pytest.raises(SpecMismatch):
        sender.put(whole(1))


def test_a_bad_episode_is_left_out_and_counted(client: rlds2reverb.Client, address: str) -> None:
    bad = whole(1)._replace(columns={**whole(1).columns, "reward": np.full(4, np.nan, np.float32)})
    sender = EpisodeSender(address, "replay", "transition", {})
    for episode in (whole(0), bad, whole(2)):
        sender.put(episode)
    assert sender.flush(60)
    assert sender.account() == Account(stored=2, steps=6, bad=1)
    sender.close()


def test_a_function_postprocesses_each_episode(client: rlds2reverb.Client, address: str) -> None:
    def double(episode: rlds2reverb.Episode) -> rlds2reverb.Episode:
        return episode.with_columns(reward=episode.columns["reward"] * 2)

    sender = EpisodeSender(address, "replay", "transition", {}, postprocess=double)
    sender.put(whole(0))
    assert sender.flush(60)
    sender.close()
    assert {row[5] for row in rows_in(client)} == {2.0}
    failing = EpisodeSender(address, "replay", "transition", {}, postprocess=lambda episode: None)  # type: ignore[arg-type,return-value]
    failing.put(whole(1))
    with pytest.raises(ConfigError, match="returned a NoneType; expected an Episode"):
        failing.flush(60)


def test_wrong_options_fail_where_they_are_written(client: rlds2reverb.Client) -> None:
    with pytest.raises(ConfigError, match="expected block or drop"):
        table_callbacks("localhost:1", "replay", when_full="wait")
    with pytest.raises(TypeError, match="max_step"):
        table_callbacks("localhost:1", "replay", max_step=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="client"):
        table_callbacks(client, "replay")
    with pytest.raises(ConfigError, match="with_other_agents is about postprocess"):
        table_callbacks("localhost:1", "replay", with_other_agents=True)


def test_an_algorithm_trains_while_its_remote_runners_write(client: rlds2reverb.Client, address: str) -> None:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    try:
        config = (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=1, rollout_fragment_length=200)
            .training(train_batch_size=400, minibatch_size=100, num_epochs=1)
            .callbacks(table_callbacks(address, "replay", "transition"))
            .debugging(seed=0)
        )
        algorithm = config.build_algo()
        for _ in range(2):
            algorithm.train()
        accounts = algorithm.env_runner_group.foreach_env_runner(flush_episodes, local_env_runner=False)
        algorithm.stop()
    finally:
        ray.shutdown()
    (account,) = accounts
    assert account.stored > 5
    assert client.server_info().tables["replay"].current_size == account.steps


@pytest.mark.parametrize("terminated", [False, True])
def test_the_pages_advantages_are_those_of_rllib(terminated: bool) -> None:
    from ray.rllib.evaluation.postprocessing import compute_advantages
    from ray.rllib.policy.sample_batch import SampleBatch

    code = (ROOT / "docs/adapters/rllib.md").read_text()
    (function,) = re.findall(r"^```python\n(# my_maps\.py\n.*?)^```", code, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(function, "my_maps.py", "exec"), names)
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=(2, 9)).astype(np.float32)
    last = float(rng.normal())
    at = np.arange(10)
    columns = {
        "reward": np.append(rewards, 0),
        "vf_preds": np.append(values, last),
        "is_terminal": (at == 9) & terminated,
    }
    ours = names["advantages"](rlds2reverb.Episode(columns)).columns
    batch = SampleBatch({"rewards": rewards.copy(), "vf_preds": values.copy()})
    theirs = compute_advantages(batch, 0.0 if terminated else last, gamma=0.99, lambda_=0.95)
    np.testing.assert_allclose(ours["advantages"][:-1], theirs["advantages"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours["value_targets"][:-1], theirs["value_targets"], rtol=1e-5, atol=1e-6)
