"""RLlib's new stack: rows and episodes are those of the data, Learners learn from them, priorities go back."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.policy.rnn_sequencing import chop_into_sequences

import rlds2reverb
from rlds2reverb.adapters.rllib import TableInput, episodes, multi_agent_batch, sample_batch, update_priorities
from rlds2reverb.client import Client
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.learner.batch import Batch, BatchInfo, columns_of, pad_columns
from rlds2reverb.specs import ArraySpec, flatten, map_with_path
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.views import view_from
from rlds2reverb.views.requirements import Requirements
from tests.support.project import ROOT
from tests.systems.peers.episodes import items, random_episode, random_episodes

VIEWS = {
    "transition": view_from("transition"),
    "two_step": view_from("two_step"),
    "tiles": view_from("sequence:length=3,pad_end=true"),
    "episode": view_from("episode"),
    "n_step": view_from("n_step:n=1"),
    "requirements": Requirements(
        {
            "obs": {},
            "new_obs": {"data_col": "obs", "shift": 1},
            "actions": {},
            "rewards": {},
            "terminateds": {},
            "truncateds": {},
        }
    ),
    "fragments": view_from("fragments:length=1"),
}
COLUMNS = ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds")


def _batch_with(signature: Any, rows: Sequence[Any], info: dict[str, Any]) -> Batch:
    """Items as one batch of a table with this signature."""

    def column(path: str, _: Any) -> Any:
        values = [item[path] for item in rows]
        return np.stack(values) if len({value.shape for value in values}) == 1 else values

    count = len(rows)
    numbers = {"probability": np.ones(count), "table_size": np.ones(count, np.int64), "priority": np.ones(count)}
    plain = {"key": np.arange(count, dtype=np.uint64), **numbers, "times_sampled": np.ones(count, np.int32)}
    return Batch(map_with_path(column, signature), BatchInfo(**{**plain, **info}))


def batch_of(view: Any, source: Sequence[Episode], lengths: Sequence[int] | None = None, **info: Any) -> Batch:
    """The items of all episodes, as the client makes a batch of them; of each the first so many rows."""
    made = [item for episode in source for item in items(view, episode)]
    if lengths is not None:
        made = [
            {path: rows[:length] for path, rows in item.items()} for item, length in zip(made, lengths, strict=True)
        ]
    spec = rlds2reverb.open_source(list(source)).spec()

    return _batch_with(view.signature(spec), made, info)


def slow_rows(source: Sequence[Episode], truncation: bool = True) -> list[list[Any]]:
    """The transitions of the data, one by one."""
    rows = []
    for episode in source:
        steps = episode.columns
        for row in range(len(episode) - 1):
            ends, is_terminal = bool(steps["is_last"][row + 1]), bool(steps["is_terminal"][row + 1])
            values = [
                steps["observation"][row],
                steps["observation"][row + 1],
                steps["action"][row],
                steps["reward"][row],
            ]
            rows.append([*(value.tolist() for value in values), is_terminal, ends and not is_terminal and truncation])
    return rows


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_rows_are_the_transitions_of_the_data(name: str, terminal: bool) -> None:
    source = random_episodes(terminal)
    rows = sample_batch(batch_of(VIEWS[name], source))
    found = [[rows[column][number].tolist() for column in COLUMNS] for number in range(rows.count)]
    expected = slow_rows(source, truncation=name != "n_step")
    if name == "tiles":  # overlapping windows have some twice
        found = [row for number, row in enumerate(found) if row not in found[:number]]
    assert found == expected
    assert rows["terminateds"].dtype == rows["truncateds"].dtype == bool
    assert rows["weights"].tolist() == [1.0] * rows.count
    assert rows["n_step"].tolist() == [1] * rows.count


def filled_up(batch: Batch, view: Any, rows: int | None = None) -> Batch:
    """As `ragged="pad"` gives it."""
    paths = map_with_path(lambda path, _: path, view.signature(rlds2reverb.open_source([random_episode(2)]).spec()))
    names = list(flatten(paths))
    made = pad_columns(columns_of(batch.data, paths), names, [True] * len(names), rows)
    data = map_with_path(lambda path, _: made.columns[names.index(path)], paths)
    return Batch(data, batch.info._replace(mask=made.mask, masks=made.masks))


LENGTHS = {"sequence:length=4": [2, 4, 3, 2, 4], "fragments:length=3": [1, 3], "episode": [3, 8]}


@pytest.mark.parametrize("rows", [None, 9])
@pytest.mark.parametrize("view", LENGTHS)
def test_rows_that_were_filled_up_are_no_data(view: str, rows: int | None) -> None:
    """The items end within their episodes, so that only the mask tells where."""
    source = [random_episode(8)] if view != "episode" else [random_episode(5), random_episode(9)]
    ragged = batch_of(view_from(view), source, LENGTHS[view])
    full = filled_up(ragged, view_from(view), rows)
    wanted, found = sample_batch(ragged), sample_batch(full)
    assert wanted.count == sum(LENGTHS[view]) - (0 if "fragments" in view else len(LENGTHS[view]))
    assert sorted(wanted) == sorted(found)
    for name, column in wanted.items():
        np.testing.assert_array_equal(found[name], column)
    if "fragments" not in view:
        assert [told(episode) for episode in episodes(full)] == [told(episode) for episode in episodes(ragged)]
    noted: Any = Table()
    update_priorities(noted, "replay", full, np.arange(wanted.count), epsilon=0)
    rows_of_items = [length - ("fragments" not in view) for length in LENGTHS[view]]
    assert noted.given == dict(enumerate(np.cumsum(rows_of_items) - 1.0))


def told(one: Any) -> list[Any]:
    """What there is in an episode."""
    values = [np.stack(one.get_observations()).tolist(), np.stack(one.get_actions()).tolist(), list(one.get_rewards())]
    return [*values, one.is_terminated, one.is_truncated]


@pytest.mark.parametrize("length", [1, 3])
def test_fragments_keep_their_further_columns(length: int) -> None:
    source = random_episodes()
    batch = batch_of(view_from(f"fragments:length={length}"), source)
    rows = sample_batch(batch)
    assert rows.count == batch.size * length
    assert rows["eps_id"].shape == rows["t"].shape == (rows.count,)


def test_steps_of_an_item_and_weights_come_from_the_items() -> None:
    source = [random_episode(6)]
    view = view_from("n_step:n=3")
    weights = np.linspace(0, 1, 5, dtype=np.float64)
    rows = sample_batch(batch_of(view, source, weight=weights), n_step=9)
    assert rows["n_step"].tolist() == [3, 3, 3, 2, 1]
    assert rows["weights"].dtype == np.float32
    assert rows["weights"].tolist() == weights.astype(np.float32).tolist()
    of_windows = batch_of(view_from("episode"), [random_episode(4), random_episode(3)], weight=np.array([2.0, 3.0]))
    assert sample_batch(of_windows, n_step=2)["weights"].tolist() == [2.0, 2.0, 2.0, 3.0, 3.0]
    assert sample_batch(of_windows, n_step=2)["n_step"].tolist() == [2] * 5


def test_a_batch_of_several_modules_has_the_rows_under_its_name() -> None:
    batch = batch_of(VIEWS["transition"], random_episodes())
    made = multi_agent_batch(batch, module="pilot")
    assert list(made.policy_batches) == ["pilot"]
    assert made.env_steps() == made.policy_batches["pilot"].count == batch.size


def with_modules(source: Sequence[Episode], names: Sequence[str]) -> list[Episode]:
    """The episodes of agents in turn, each with the name of its module and of the environment's episode, two agents to one."""
    return [
        Episode(
            episode.columns,
            {"policy_id": names[number % len(names)], "episode_id": f"world {number // 2}"},
            f"{number} {episode.id}",
        )
        for number, episode in enumerate(source)
    ]


LABELLED = "extras=metadata/policy_id+metadata/episode_id"


def labelled_batch(view: Any, source: list[Episode], **info: Any) -> Batch:
    made = [item for episode in source for item in items(view, episode)]
    opened = rlds2reverb.open_source(source)
    signature = view.signature(opened.spec(), {name: ArraySpec((), np.dtype(object)) for name in source[0].metadata})

    return _batch_with(signature, made, info)


@pytest.mark.parametrize(
    "view", ["transition", "two_step", "episode", "n_step:n=1", "fragments:length=1", "sequence:length=2"]
)
def test_each_module_gets_the_rows_of_its_agents(view: str) -> None:
    joint = "," if ":" in view else ":"
    extras = "policy_info" if view.split(":")[0] in ("two_step", "episode", "sequence") else "extras"
    source = with_modules(random_episodes(), ["p0", "p1"])
    made = multi_agent_batch(
        labelled_batch(view_from(f"{view}{joint}{LABELLED}"), source), module_column=f"{extras}/metadata/policy_id"
    )
    assert sorted(made.policy_batches) == ["p0", "p1"]
    for name, rows in made.policy_batches.items():
        alone = [episode for episode in source if episode.metadata["policy_id"] == name]
        expected = sample_batch(labelled_batch(view_from(f"{view}{joint}{LABELLED}"), alone))
        for column in COLUMNS:
            np.testing.assert_array_equal(rows[column], expected[column])
    assert made.agent_steps() == made.env_steps() == sum(rows.count for rows in made.policy_batches.values())


@pytest.mark.parametrize(("recorded", "asked"), [("policy_id", "module_id"), ("module_id", "policy_id")])
def test_a_policy_is_found_by_either_of_its_names(recorded: str, asked: str) -> None:
    source = [
        replace(episode, metadata={recorded: episode.metadata["policy_id"]})
        for episode in with_modules(random_episodes(), ["p0", "p1"])
    ]
    batch = labelled_batch(view_from(f"transition:extras=metadata/{recorded}"), source)
    by_either = [multi_agent_batch(batch, module_column=f"extras/metadata/{name}") for name in (recorded, asked)]
    assert [sorted(rows.policy_batches) for rows in by_either] == [["p0", "p1"]] * 2
    with pytest.raises(ConfigError, match=f'no "extras/{asked}".*{recorded}'):
        multi_agent_batch(batch, module_column=f"extras/{asked}")


def test_steps_of_agents_at_one_time_are_one_step_of_the_environment() -> None:
    source = with_modules([random_episode(5), random_episode(4, seed=1), random_episode(3, seed=2)], ["p0", "p1"])
    batch = labelled_batch(view_from(f"fragments:length=1,{LABELLED}"), source)
    made = multi_agent_batch(
        batch, module_column="extras/metadata/policy_id", episode_column="extras/metadata/episode_id"
    )
    assert (made.env_steps(), made.agent_steps()) == (4 + 2, 4 + 3 + 2)


@pytest.mark.parametrize(
    ("view", "options", "message"),
    [
        ("transition", {"module_column": "extras/metadata/policy"}, 'no "extras/metadata/policy".*policy_id'),
        ("transition", {"module_column": "observation"}, "names nothing"),
        ("transition", {"episode_column": "extras/metadata/episode_id"}, 'rows without "t"'),
        ("transition", {"max_seq_len": 0}, "max_seq_len"),
        ("transition", {"max_seq_len": True}, "max_seq_len"),
    ],
)
def test_wrong_options_of_several_modules_are_refused(view: str, options: dict[str, Any], message: str) -> None:
    batch = labelled_batch(view_from(f"{view}:{LABELLED}"), with_modules(random_episodes(), ["p0"]))
    with pytest.raises(ConfigError, match=message):
        multi_agent_batch(batch, **options)


@pytest.mark.parametrize("max_seq_len", [1, 2, 3, 20])
def test_sequences_of_whole_episodes_are_those_of_rllib(max_seq_len: int) -> None:
    """Ours are padded to max_seq_len, theirs without `dynamic_max` too."""
    required: dict[str, Any] = {
        name: {} for name in ("obs", "actions", "rewards", "terminateds", "truncateds", "t", "eps_id")
    }
    states = {"state_in_0": {"data_col": "state_out_0", "shift": -1}, "state_out_0": {}}
    further: dict[str, Any] = {"agent_index": {}, "unroll_id": {}}
    source = [
        episode.with_columns(state_out_0=np.random.default_rng(len(episode)).normal(size=(len(episode), 3)))
        for episode in random_episodes()
    ]
    batch = batch_of(Requirements(required | states | further), source)
    plain, ours = sample_batch(batch), sample_batch(batch, max_seq_len=max_seq_len)
    features = [name for name in plain if not name.startswith("state")]
    sequences, initial, lengths = chop_into_sequences(
        feature_columns=[plain[name] for name in features],
        state_columns=[plain["state_in_0"]],
        max_seq_len=max_seq_len,
        episode_ids=plain["eps_id"],
        unroll_ids=plain["unroll_id"],
        agent_indices=plain["agent_index"],
        dynamic_max=False,
    )
    assert ours["seq_lens"].tolist() == list(lengths)
    for name, values in zip(features, sequences, strict=True):
        assert ours[name].dtype == values.dtype
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    np.testing.assert_array_equal(ours["state_in_0"], initial[0])
    assert ours.count == plain.count
    assert ours.zero_padded
    assert ours.max_seq_len == max_seq_len


def test_a_learner_of_two_modules_learns_from_one_batch() -> None:
    observations = Box(-9, 9, (2,), np.float32)
    policies = {name: (None, observations, Discrete(2), None) for name in ("p0", "p1")}
    config = DQNConfig().multi_agent(policies=policies, policy_mapping_fn=lambda *_, **__: "p0")
    learner = config.build_learner(spaces={name: (observations, Discrete(2)) for name in policies})
    learner.build()
    discrete = [episode.with_columns(action=np.arange(len(episode)) % 2) for episode in random_episodes()]
    batch = labelled_batch(view_from(f"n_step:n=1,{LABELLED}"), with_modules(discrete, ["p0", "p1"]))
    both = multi_agent_batch(batch, module_column="extras/metadata/policy_id")
    results = learner.update(batch=both)
    for name, rows in both.policy_batches.items():
        assert np.size(results[name]["td_error"].peek()) == rows.count


def test_rows_side_by_side_that_do_not_follow_each_other_are_no_sequence() -> None:
    view = Requirements({name: {} for name in ("obs", "actions", "rewards", "t", "eps_id")})
    batch = batch_of(view, [random_episode(6)])
    order = [0, 1, 3, 3, 4, 2]
    shuffled = batch._replace(data={name: column[order] for name, column in batch.data.items() if name != "extras"})
    shuffled = shuffled._replace(info=batch_of(view, [random_episode(7)]).info)
    assert sample_batch(shuffled, max_seq_len=4)["seq_lens"].tolist() == [2, 1, 2, 1]
    of_items = batch_of(view_from("sequence:length=3,pad_end=false"), [random_episode(5)])
    assert sample_batch(of_items, max_seq_len=4)["seq_lens"].tolist() == [2] * of_items.size


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("is_one_item", [False, True])
def test_episodes_are_those_of_the_data(is_one_item: bool, terminal: bool) -> None:
    source = [random_episode(4, terminal=terminal), random_episode(3, terminal=terminal)]
    batch = batch_of(view_from("episode"), source)
    if is_one_item:  # as windows across episodes have it
        batch = batch._replace(
            data=type(batch.data)(*(field if field == () else np.concatenate(field)[None] for field in batch.data))
        )
        batch = batch._replace(info=batch_of(view_from("episode"), source[:1]).info)
    made = episodes(batch)
    assert [len(batch) for batch in made] == [3, 2]
    for part, episode in zip(made, source):
        steps = episode.columns
        assert np.array_equal(np.stack(part.get_observations()), steps["observation"])
        assert np.array_equal(np.stack(part.get_actions()), steps["action"][:-1])
        assert part.get_rewards() == steps["reward"][:-1].tolist()
        assert (part.is_terminated, part.is_truncated) == (terminal, not terminal)


def test_a_window_that_ends_within_its_episode_is_truncated() -> None:
    (first, *_) = episodes(batch_of(view_from("sequence:length=3"), [random_episode(8)]))
    assert (len(first), first.is_terminated, first.is_truncated) == (2, False, True)


@pytest.mark.parametrize("data", [{"x": np.zeros(1)}, [np.zeros(1)]])
def test_items_that_are_none_of_these_are_refused(data: Any) -> None:
    info = batch_of(VIEWS["transition"], [random_episode(2)]).info
    with pytest.raises(ConfigError, match=r"RLlib needs items of the views .* got"):
        sample_batch(Batch(data, info))
    with pytest.raises(ConfigError, match=r"RLlib's episodes need items of trajectories .* got"):
        episodes(Batch(data, info))


class Table:
    """Notes what priorities it is given."""

    def __init__(self) -> None:
        self.given: dict[int, float] = {}

    def update_priorities(self, table: str, keys: Any, priorities: Any) -> None:
        assert table == "replay"
        self.given |= dict(zip(keys.tolist(), priorities.tolist()))


def test_an_item_gets_the_largest_error_of_its_rows() -> None:
    table: Any = Table()
    batch = batch_of(view_from("episode"), [random_episode(4), random_episode(3)])
    update_priorities(table, "replay", batch, [0.5, -3, 1, 0, 2], epsilon=0.25)
    assert table.given == {0: 3.25, 1: 2.25}
    with pytest.raises(ConfigError, match="td_errors: 4 for 5 rows; expected one each"):
        update_priorities(table, "replay", batch, [0.0] * 4)


def test_an_item_without_rows_keeps_its_priority() -> None:
    table: Any = Table()
    batch = batch_of(view_from("two_step"), [random_episode(4)])  # the last pair leads out of the episode
    rows = sample_batch(batch)
    assert rows.count == 3
    update_priorities(table, "replay", batch, np.ones((3, 1)), epsilon=0)
    assert table.given == {0: 1.0, 1: 1.0, 2: 1.0}


def one_row(*keys: int) -> rlds2reverb.Client:
    """Of a server whose table "replay" has rows."""
    signature = {name: ArraySpec((), np.dtype(np.float32)) for name in COLUMNS}
    server = MemoryServer(table_info("replay", signature))
    for key in keys:
        server.put("replay", key, [np.array(key, np.float32)] * len(COLUMNS))
    return rlds2reverb.Client(MemoryTransport(server))


def test_an_input_of_a_table_that_stays_empty_is_told_of() -> None:
    reader = TableInput(one_row, "replay", 2, end_after_seconds=0.1)
    with pytest.raises(Stalled, match='table "replay": it gave no sample'):
        reader.next()
    reader.close()


def test_an_input_of_a_client_leaves_it_open_and_is_for_no_worker() -> None:
    client = one_row(7)
    reader = TableInput(client, "replay", 2, samples=3)
    assert [reader.next()["obs"].tolist() for _ in range(3)] == [[7, 7], [7], [7, 7]]
    reader.close()
    assert client.tables()
    with pytest.raises(ConfigError, match="an open client cannot be pickled for workers"):
        pickle.dumps(reader)


def test_an_input_closes_what_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(rlds2reverb.Client, "close", lambda self: closed.append(self))
    with pytest.raises(ConfigError, match='no table "reply"'):
        TableInput(one_row, "reply", 2).next()
    assert len(closed) == 1
    reader = TableInput(functools.partial(one_row, 1), "replay", 2)
    reader.next()
    assert len(closed) == 1
    pickle.dumps(reader)  # without the open connection
    reader.close()
    reader.close()
    assert len(closed) == 2


class Spaces(gymnasium.Env):
    """An environment of which only the spaces count."""

    def __init__(self, observation: int, action: Any) -> None:
        self.observation_space = Box(-np.inf, np.inf, (observation,), np.float32)
        self.action_space = action


CARTPOLE = Spaces(4, Discrete(2))
CHEETAH = Spaces(17, Box(-1, 1, (6,), np.float32))


def learner_of(config: Any, env: Any) -> Any:
    learner = config.build_learner(env=env)
    learner.build()
    return learner


def sampled(client: Client, table: str, size: int = 16) -> Batch:
    with client.sample(table, size) as sampler:
        return next(iter(sampler))


def test_dqn_learns_and_its_errors_become_priorities(replay: str) -> None:
    with rlds2reverb.connect(replay) as client:
        batch = sampled(client, "prioritized")
        learner = learner_of(DQNConfig(), CARTPOLE)
        results = learner.update(batch=multi_agent_batch(batch))
        found = results["default_policy"]
        assert np.isfinite(_plain(found["total_loss"]))
        errors = _plain(found["td_error"])
        update_priorities(client, "prioritized", batch, errors, epsilon=1e9)
        assert client.sample_one("prioritized").info.priority > 1e8


def test_sac_learns(replay: str) -> None:
    with rlds2reverb.connect(replay) as client:
        rows = multi_agent_batch(sampled(client, "two_step"))
    learner = learner_of(SACConfig(), CHEETAH)
    results = learner.update(batch=rows)["default_policy"]
    assert np.isfinite(_plain(results["total_loss"]))
    assert _plain(results["td_error"]).size == rows.count


@pytest.mark.parametrize("table", ["transitions", "sequences"])
def test_behaviour_cloning_learns_from_rows(replay: str, table: str) -> None:
    with rlds2reverb.connect(replay) as client:
        rows = multi_agent_batch(sampled(client, table))
    results = learner_of(BCConfig(), CARTPOLE).update(batch=rows)
    assert np.isfinite(_plain(results["default_policy"]["total_loss"]))


def test_behaviour_cloning_learns_from_episodes(replay: str) -> None:
    with rlds2reverb.connect(replay) as client:
        made = episodes(sampled(client, "sequences"))
    results = learner_of(BCConfig(), CARTPOLE).update(episodes=made)
    assert np.isfinite(_plain(results["default_policy"]["total_loss"]))


def _plain(value: Any) -> np.ndarray:
    """A learner's result, which may be a statistic around it."""
    return np.asarray(value.peek() if hasattr(value, "peek") else value)


def test_the_code_of_the_page_runs_and_prints_what_it_says(replay: str, capsys: Any) -> None:
    page = ROOT / "docs/adapters/rllib.md"
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    exec(compile(code.replace("localhost:8000", replay), page, "exec"), {})
    said = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert said
    assert set(said) <= set(capsys.readouterr().out.splitlines())
