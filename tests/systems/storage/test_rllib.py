"""Data of RLlib: what RLlib's own readers make of a file equals what ours makes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source

ray = pytest.importorskip("ray")
pytest.importorskip("ray.rllib")

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # JsonReader closes none of its files

DATA = Path(__file__).parents[2] / "data" / "rllib"
Key = tuple[str, str, str]


def ours(path: Path) -> dict[Key, Episode]:
    """Our episodes by id, policy and agent."""
    episodes = list(open_source(f"rllib:{path}"))
    assert all(not episode.faults for episode in episodes)
    return {
        (
            episode.metadata["episode_id"].decode(),
            episode.metadata["policy_id"].decode(),
            episode.metadata["agent_id"].decode(),
        ): episode
        for episode in episodes
    }


def by_json_reader(folder: Path) -> dict[Key, list[dict[str, Any]]]:
    """RLlib's rows by id, policy and agent, in the order of `t`."""
    from ray.rllib.offline.json_reader import JsonReader

    reader = JsonReader(sorted(map(str, folder.glob("*.json"))))
    rows: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for batch in reader.read_all_files():
        for policy, columns in getattr(batch, "policy_batches", {"": batch}).items():
            for at in range(len(columns["rewards"])):
                row = {name: column[at] for name, column in columns.items()}
                rows[str(row["eps_id"]), policy, str(row["agent_index"])].append(row)
    return {key: sorted(some, key=lambda row: row["t"]) for key, some in rows.items()}


@pytest.mark.parametrize("folder", ["packed", "lists", "complete", "multi", "sample_batches"])
def test_lines_are_what_rllibs_json_reader_reads(folder: str) -> None:
    theirs = by_json_reader(DATA / folder)
    found = ours(DATA / folder)
    assert found.keys() == theirs.keys()
    for key, rows in theirs.items():
        episode = found[key].columns
        assert len(found[key]) == len(rows) + 1
        observations = [np.asarray(row["obs"]) for row in rows] + [np.asarray(rows[-1]["new_obs"])]
        np.testing.assert_array_equal(episode["observation"], np.stack(observations))
        assert episode["observation"].dtype == observations[0].dtype
        for ours_named, name in (
            ("action", "actions"),
            ("reward", "rewards"),
            *((name, name) for name in ("action_logp", "vf_preds", "t")),
        ):
            np.testing.assert_array_equal(episode[ours_named][:-1], [row[name] for row in rows], name)
        assert episode["is_terminal"][-1] == rows[-1]["terminateds"]
        ended = rows[-1]["terminateds"] or rows[-1]["truncateds"]
        assert (found[key].metadata["ending"] == b"unfinished") == (not ended)
        assert found[key].metadata["t"] == rows[0]["t"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def offline_data(folder: Path, **options: Any) -> Any:
    """RLlib's reader of Parquet files, and its config."""
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.offline.offline_data import OfflineData

    config = BCConfig().offline_data(input_=[str(folder)], **options)
    return OfflineData(config), config


@pytest.mark.parametrize(("folder", "packed"), [("steps", ["obs"]), ("tensors", [])])
def test_steps_are_what_offline_data_and_its_prelearner_read(cluster: None, folder: str, packed: list[str]) -> None:
    from ray.rllib.offline.offline_prelearner import OfflinePreLearner

    [last_run] = (DATA / folder).glob("*/run-*-00002")
    data, config = offline_data(last_run, input_compress_columns=packed)
    batch = next(iter(data.data.iter_batches(batch_size=1000)))
    prelearner = SimpleNamespace(config=config)
    steps = OfflinePreLearner._map_to_episodes(prelearner, batch, to_numpy=False)["episodes"]
    found = {key[0]: episode.columns for key, episode in ours(DATA / folder).items()}
    theirs: dict[str, list[Any]] = defaultdict(list)
    for step in steps:
        theirs[step.id_].append(step)
    assert found.keys() == theirs.keys()
    for name, some in theirs.items():
        columns = found[name]
        by_reward = sorted(some, key=lambda one: one.get_rewards(0))  # rewards are 1, 2, 3, ...
        observations = [episode.get_observations(0) for episode in by_reward] + [by_reward[-1].get_observations(1)]
        np.testing.assert_array_equal(columns["observation"], np.stack(observations))
        assert columns["observation"].dtype == observations[0].dtype
        np.testing.assert_array_equal(columns["action"][:-1], [episode.get_actions(0) for episode in by_reward])
        np.testing.assert_array_equal(columns["reward"][:-1], [episode.get_rewards(0) for episode in by_reward])
        assert columns["is_terminal"][-1] == by_reward[-1].is_terminated


def test_episodes_are_the_states_that_rllib_restores(cluster: None) -> None:
    msgpack_numpy = pytest.importorskip("msgpack_numpy")
    import msgpack
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    [last_run] = (DATA / "episodes").glob("*/run-*-00002")
    data, _ = offline_data(last_run, input_read_episodes=True)
    states = [msgpack.unpackb(row["item"], object_hook=msgpack_numpy.decode) for row in data.data.take_all()]
    parts = sorted(map(SingleAgentEpisode.from_state, states), key=lambda one: one.t_started)
    found = {key[0]: episode for key, episode in ours(DATA / "episodes").items()}
    assert found.keys() == {part.id_ for part in parts}
    for name, episode in found.items():
        own = [part for part in parts if part.id_ == name]
        observations = [part.get_observations(slice(0, len(part))) for part in own] + [
            [own[-1].get_observations(len(own[-1]))]
        ]
        np.testing.assert_array_equal(episode.columns["observation"], np.concatenate(observations))
        np.testing.assert_array_equal(
            episode.columns["action"][:-1], np.concatenate([part.get_actions() for part in own])
        )
        np.testing.assert_array_equal(
            episode.columns["reward"][:-1], np.concatenate([part.get_rewards() for part in own])
        )
        assert episode.columns["is_terminal"][-1] == own[-1].is_terminated
        assert episode.metadata["t"] == own[0].t_started


TUPLES: dict[str, Any] = {
    "shapes": lambda at: (np.full(2, at, np.float32), np.int64(2**53 + 1 + at)),
    "scalars": lambda at: (np.float32(at) / 3, np.int64(2**53 + 1 + at), np.uint8(at)),
    "discrete": lambda at: (np.int64(2**53 + 1 + at), np.int64(at)),
    "nested": lambda at: ({"a": np.full(3, at, np.int16), "b": (np.float64(at) / 7, np.int8(at))}, np.full((2, 2), at)),
    "in a dict": lambda at: {"x": (np.int64(at), np.full(4, at, np.float32)), "y": np.float32(at)},
}


def space_of(value: Any) -> Any:
    from gymnasium import spaces

    if isinstance(value, dict):
        return spaces.Dict({key: space_of(part) for key, part in value.items()})
    if isinstance(value, tuple):
        return spaces.Tuple([space_of(part) for part in value])
    if isinstance(value, np.int64):
        return spaces.Discrete(2**62)
    return spaces.Box(-1, 1, np.shape(value), np.float32)


def leaves(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, (dict, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: leaf for key, part in parts for name, leaf in leaves(part, f"{path}/{key}").items()}
    return {path: value}


@pytest.mark.parametrize("kind", TUPLES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("is_numpy", [False, True])
@pytest.mark.parametrize("has_space", [False, True])
@pytest.mark.parametrize("lookback", [0, 2])
def test_components_of_tuple_spaces_are_columns_of_their_own(
    kind: str, rows: int, is_numpy: bool, has_space: bool, lookback: int, tmp_path: Path
) -> None:
    """Of episodes of each length, among them as many steps or observations as components."""
    msgpack_numpy = pytest.importorskip("msgpack_numpy")
    import msgpack
    import pyarrow as pa
    import pyarrow.parquet as pq
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    value_of = TUPLES[kind]
    space = space_of(value_of(0)) if has_space else None
    whole = SingleAgentEpisode(observation_space=space, action_space=space)
    whole.add_env_reset(value_of(0), {})
    for at in range(1, lookback + rows + 1):
        ends = at == lookback + rows
        whole.add_env_step(value_of(at), value_of(at + 10), float(at), infos={}, terminated=ends)
    if lookback:
        whole = whole[lookback:] if len(whole) > lookback else whole
    episode = whole.to_numpy() if is_numpy else whole
    item = msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)
    pq.write_table(pa.table({"item": pa.array([item], pa.binary())}), tmp_path / "x.parquet")
    [found] = ours(tmp_path).values()
    theirs = [leaves(whole.get_observations(at), "observation") for at in range(rows + 1)]
    theirs_of_actions = [leaves(whole.get_actions(at), "action") for at in range(rows)]
    assert len(found) == rows + 1
    for recorded in (theirs, theirs_of_actions):
        for path in recorded[0]:
            expected = np.stack([row[path] for row in recorded])
            column = found.columns[path][: len(recorded)]
            assert column.dtype == expected.dtype, path
            np.testing.assert_array_equal(column, expected, path)
    fields = {path for path in found.columns if path.split("/")[0] in ("observation", "action")}
    assert fields == {*theirs[0], *theirs_of_actions[0]}
