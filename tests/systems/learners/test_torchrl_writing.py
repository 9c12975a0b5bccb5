"""A TableReplayBuffer that TorchRL's own collectors fill, beside TorchRL's own buffer that gets the same data."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardScaling, SerialEnv
from torchrl.envs.transforms import Compose, MultiStepTransform, RenameTransform
from torchrl.trainers import ReplayBufferTrainer

import rlds2reverb
from rlds2reverb.adapters.torchrl import Layout, TableReplayBuffer, _as_steps, _leaves_of
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError
from tests.systems.learners.conftest import StartServer
from tests.systems.learners.servers import signature_of

KEYS = (
    "observation",
    "action",
    ("next", "observation"),
    ("next", "reward"),
    *(("next", flag) for flag in ("done", "terminated", "truncated")),
)
TRANSITION = {"view": "transition"}


@pytest.fixture(scope="module")
def address(start_server: StartServer) -> str:
    views = {"transitions": "transition", "episodes": "episode", "two_step": "two_step"}
    return start_server(
        *({"name": name, "signature": signature_of("bundled:cartpole", view)} for name, view in views.items())
    ).address


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(address) as client:
        yield client
        for table in client.server_info().tables:
            if not table.startswith("rlds2reverb"):
                client.reset(table)


def cartpole() -> Any:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def collected(env: Any, frames: int, total: int, **options: Any) -> Iterator[TensorDict]:
    torch.manual_seed(0)
    collector = Collector(
        env,
        env.rand_action if hasattr(env, "rand_action") else None,
        frames_per_batch=frames,
        total_frames=total,
        **options,
    )
    try:
        yield from collector
    finally:
        collector.shutdown()


def rows(data: TensorDict) -> list[bytes]:
    """Each transition as bytes, sorted."""
    flat = data.reshape(-1)
    columns = [flat[key].reshape(len(flat), -1).to(torch.float64).numpy() for key in KEYS]
    return sorted(row.tobytes() for row in np.concatenate(columns, axis=1))


@pytest.mark.parametrize("environments", [1, 3])
@pytest.mark.parametrize("table", ["transitions", "two_step", "episodes"])
def test_the_table_holds_what_torchrls_own_buffer_holds(
    client: rlds2reverb.Client, table: str, environments: int
) -> None:
    """Batches end within trajectories, and those that no flag ended become truncated ends: the one difference."""
    env = cartpole() if environments == 1 else SerialEnv(environments, cartpole)
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(10_000))
    view = {"transitions": "transition", "episodes": "episode"}.get(table, table)
    with TableReplayBuffer(client, table, 8, write={"view": view}) as ours:
        for data in collected(env, 30 * environments, 240 * environments):
            ours.extend(data)
            theirs.extend(data.reshape(-1))
        ours.end_trajectories()
        ours.flush()
        held = TableReplayBuffer(client, table, 8, layout=Layout(mark_ends=False))[:]
    assert len(held) == len(theirs) == 240 * environments
    if environments == 1:
        last = theirs[:].clone()
        if not last["next", "done"][-1]:
            last["next", "done"][-1] = last["next", "truncated"][-1] = True
        assert rows(held) == rows(last)
    else:
        ends = sorted(map(float, held["next", "done"].sum(1)))
        assert sum(ends) - float(theirs[:]["next", "done"].sum()) <= environments
        keys = [key for key in KEYS if key[-1] not in ("done", "truncated")]
        assert {tuple(row["observation"].tolist()) for row in held.unbind(0)} == {
            tuple(row["observation"].tolist()) for row in theirs[:].unbind(0)
        }
        assert len(keys) == 5


def test_padded_trajectories_are_stored_without_their_padding(client: rlds2reverb.Client) -> None:
    seen: list[TensorDict] = []
    with TableReplayBuffer(client, "transitions", 8, write=TRANSITION) as buffer:
        for data in collected(SerialEnv(3, cartpole), 90, 360, split_trajs=True):
            assert not data["collector", "mask"].all()
            buffer.extend(data)
            seen.append(data[data["collector", "mask"]].clone())
    held, theirs = TableReplayBuffer(client, "transitions")[:], torch.cat(seen)
    assert len(held) == len(theirs) == 360
    for key in ("observation", ("next", "observation"), ("next", "terminated")):
        assert sorted(map(tuple, held[key].tolist())) == sorted(map(tuple, theirs[key].tolist()))


def test_steps_that_are_added_singly_and_as_dicts_are_the_same(client: rlds2reverb.Client) -> None:
    (data,) = collected(cartpole(), 40, 40)
    with TableReplayBuffer(client, "transitions", 8, write=TRANSITION) as buffer:
        for step in data.unbind(0):
            buffer.add(step)
    first = rows(TableReplayBuffer(client, "transitions")[:])
    client.reset("transitions")
    with TableReplayBuffer(client, "transitions", 8, write=TRANSITION) as buffer:
        buffer.extend(data[:10].to_dict())
        buffer.extend(list(data[10:].unbind(0)))
    assert rows(TableReplayBuffer(client, "transitions")[:]) == first
    assert len(first) == 40


def test_transforms_of_batches_and_their_inverses_when_writing(client: rlds2reverb.Client) -> None:
    def scale(data: TensorDict) -> TensorDict:
        return data.set("twice", data["state"] * 2)

    (data,) = collected(cartpole(), 60, 60)
    renamed = data.clone().rename_key_("observation", "state").rename_key_(("next", "observation"), ("next", "state"))
    recorded, renamed_keys = ["observation", ("next", "observation")], ["state", ("next", "state")]
    rename = RenameTransform(recorded, renamed_keys, recorded, renamed_keys)
    seen: list[int] = []

    def collate(batch: TensorDict) -> TensorDict:
        seen.append(len(batch))
        return batch

    with TableReplayBuffer(
        client, "transitions", 16, transform=Compose(rename), collate_fn=collate, write=TRANSITION
    ) as buffer:
        buffer.append_transform(scale).insert_transform(0, RewardScaling(0.0, 3.0, in_keys=[("next", "reward")]))
        buffer.extend(renamed)
        buffer.end_trajectories()
        buffer.flush()
        sample = buffer.sample()
        whole = buffer[:]
        state = buffer.state_dict()
        buffer.load_state_dict(state)
        with pytest.raises(ConfigError, match="data and priorities are the server's"):
            buffer.load_state_dict({"_storage": 1})
    assert seen == [16, 60]
    assert "observation" not in sample
    assert torch.equal(sample["twice"], sample["state"] * 2)
    assert set(whole["next", "reward"].ravel().tolist()) == {3.0}
    plain = TableReplayBuffer(client, "transitions")[:]
    assert sorted(map(tuple, plain["observation"].tolist())) == sorted(map(tuple, data["observation"].tolist()))


def test_a_multi_step_transform_keeps_every_transition(client: rlds2reverb.Client) -> None:
    (data,) = collected(cartpole(), 60, 60)
    later = MultiStepTransform(n_steps=3, gamma=0.9)
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), transform=later)
    theirs.extend(data)
    stored = theirs._storage[:]
    with TableReplayBuffer(
        client,
        "transitions",
        8,
        write={
            "view": "transition",
            "transform": {"drop": ["steps_to_next_obs", "nonterminal", "gamma", "next/original_reward"]},
        },
    ) as buffer:
        buffer.extend(stored)
    ours = TableReplayBuffer(client, "transitions")[:]
    assert len(ours) == len(stored)
    keys = ("observation", ("next", "observation"), ("next", "reward"))

    def told(data: TensorDict) -> list[tuple[float, ...]]:
        return sorted(tuple(torch.cat([row[key].ravel() for key in keys]).tolist()) for row in data.unbind(0))

    assert told(ours) == told(stored)


def test_reading_by_index(client: rlds2reverb.Client) -> None:
    (data,) = collected(cartpole(), 50, 50)
    with TableReplayBuffer(client, "transitions", 8, write=TRANSITION) as buffer:
        with pytest.raises(SourceError, match="holds no items"):
            buffer[:]
        buffer.extend(data)
        buffer.end_trajectories()
        buffer.flush()
        assert len(buffer) == len(buffer[:]) == 50
        assert buffer[:10].shape == (10,)
        assert buffer[3].shape == ()
        assert buffer["next", "reward"].shape == (50, 1)
        for change in (lambda: buffer.set_at(0, data[0]), lambda: buffer.__setitem__(0, data[0])):
            with pytest.raises(ConfigError, match="items do not change"):
                change()
        buffer.empty()
        assert len(buffer) == 0


def test_a_trainers_hook_writes_and_samples(client: rlds2reverb.Client) -> None:
    with TableReplayBuffer(client, "transitions", 16, write=TRANSITION) as buffer:
        hook = ReplayBufferTrainer(buffer, batch_size=16)
        for data in collected(cartpole(), 50, 200):
            hook.extend(data)
        buffer.flush()
        assert hook.sample(TensorDict({}, [])).shape == (16,)


def test_a_collector_writes_into_the_buffer_itself(client: rlds2reverb.Client) -> None:
    env = cartpole()
    with TableReplayBuffer(client, "transitions", 16, write=TRANSITION) as buffer:
        collector = Collector(env, env.rand_action, frames_per_batch=50, total_frames=200, replay_buffer=buffer)
        for data in collector:
            assert data is None
        collector.shutdown()
    assert client.server_info().tables["transitions"].current_size == 200


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (TensorDict({}, []), "a single step; add"),
        ([], "empty list"),
        ((1, 2), "a table's columns have names"),
        ("text", "expected a TensorDict, a dict of arrays"),
        ([3], "a step that is a int"),
        ({"observation": torch.zeros(3, 4)}, 'no key "action"'),
    ],
)
def test_what_is_no_steps_is_refused(client: rlds2reverb.Client, data: Any, match: str) -> None:
    with (
        TableReplayBuffer(client, "transitions", 16, write=TRANSITION) as buffer,
        pytest.raises(ConfigError, match=match),
    ):
        buffer.extend(data)


def test_steps_that_do_not_fit_the_table_are_refused_with_the_column(client: rlds2reverb.Client) -> None:
    (data,) = collected(cartpole(), 30, 30)
    with TableReplayBuffer(client, "transitions", 16, write=TRANSITION) as buffer:
        with pytest.raises(ConfigError, match='field "log_prob" is in no item'):
            buffer.extend(data.clone().set("log_prob", torch.zeros(30)))
        with pytest.raises(TypeError, match='did you mean "view"'):
            TableReplayBuffer(client, "transitions", write={"veiw": "transition"})


def test_an_error_in_the_block_stores_what_had_ended_and_nothing_half(client: rlds2reverb.Client) -> None:
    (data,) = collected(cartpole(), 60, 60)
    ended = int(data["next", "done"].nonzero()[-1][0]) + 1
    with pytest.raises(ZeroDivisionError), TableReplayBuffer(client, "transitions", 16, write=TRANSITION) as buffer:
        buffer.extend(data)
        _ = 1 / 0
    assert client.server_info().tables["transitions"].current_size == ended


def ladder(start: int, count: int, reward: float = 1.0, ends: bool = True) -> TensorDict:
    """A trajectory whose observations are [start] * 4, [start + 1] * 4, ..."""
    observations = torch.arange(start, start + count + 1).float()[:, None].repeat(1, 4)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[-1] = ends
    following = {
        "observation": observations[1:].clone(),
        "reward": torch.full((count, 1), reward),
        "done": done,
        "terminated": done.clone(),
        "truncated": torch.zeros_like(done),
    }
    return TensorDict(
        {"observation": observations[:-1].clone(), "action": torch.zeros(count, dtype=torch.int64), "next": following},
        [count],
    )


def stored(client: rlds2reverb.Client) -> list[float]:
    return sorted(TableReplayBuffer(client, "transitions")[:]["observation"][:, 0].tolist())


def test_a_bad_trajectory_loses_none_of_its_batch(client: rlds2reverb.Client) -> None:
    """The unfinished one behind it does not stay in the collector's memory either."""
    bad = ladder(100, 3, reward=float("nan"))
    memory = torch.cat([ladder(0, 2), bad, ladder(200, 2), ladder(300, 2, ends=False)])
    with TableReplayBuffer(client, "transitions", 8, write=TRANSITION) as buffer:
        with pytest.raises(InvalidEpisode):
            buffer.extend(memory)
        memory.zero_()
        buffer.extend(ladder(302, 1))
    assert stored(client) == [0, 1, 200, 201, 300, 301, 302]


def test_a_bad_unfinished_trajectory_does_not_keep_the_buffer_open(client: rlds2reverb.Client) -> None:
    buffer = TableReplayBuffer(client, "transitions", 8, write=TRANSITION)
    buffer.extend(torch.stack([ladder(0, 2, float("nan"), ends=False), ladder(50, 2, ends=False)]))
    with pytest.raises(InvalidEpisode):
        buffer.close()
    assert stored(client) == [50, 51]
    buffer.extend(ladder(80, 1))
    buffer.close()
    assert stored(client) == [50, 51, 80]


def test_after_close_or_an_error_in_the_block_it_writes_on_under_other_names(client: rlds2reverb.Client) -> None:
    buffer = TableReplayBuffer(client, "transitions", 8, write={**TRANSITION, "name": "actor"})
    buffer.extend(ladder(0, 2))
    buffer.close()
    with pytest.raises(ZeroDivisionError), buffer:
        buffer.extend(ladder(10, 2))
        _ = 1 / 0
    with buffer:
        buffer.extend(ladder(20, 2))
    assert stored(client) == [0, 1, 10, 11, 20, 21]


def test_a_pytree_is_a_dict_whose_lists_have_numbers() -> None:
    tree = {
        "observation": {"b": torch.randn(3), "c": [torch.zeros(3, 2), (np.ones((3, 10)), {"d": torch.ones(3)})]},
        "action": [[1, 2], [3, 4], [5, 6]],
    }
    leaves = _leaves_of(_as_steps(tree))
    shapes = {path: leaf.shape[1:] for path, leaf in leaves.items()}
    nested = {"b": (3,), "c/0": (3, 2), "c/1/0": (3, 10), "c/1/1/d": (3,)}
    assert shapes == {**{f"observation/{path}": shape for path, shape in nested.items()}, "action": (3, 2)}


def test_what_came_before_it_was_emptied_is_gone(client: rlds2reverb.Client) -> None:
    (data,) = collected(cartpole(), 100, 100)
    before, after = data[:60], data[60:]
    with TableReplayBuffer(client, "transitions", 4, write=TRANSITION) as buffer:
        buffer.extend(before)  # its last trajectory goes on
        assert before["next", "done"].any()
        buffer.sample()  # and prefetches more
        buffer.empty()
        assert len(buffer) == 0
        buffer.extend(after)
        buffer.end_trajectories()
        buffer.flush()
        assert len(buffer) == 40
        kept = {tuple(row) for row in after["observation"].tolist()}
        for _ in range(20):
            assert kept >= {tuple(row) for row in buffer.sample()["observation"].tolist()}


def test_what_a_server_does_in_its_place_is_told(client: rlds2reverb.Client) -> None:
    buffer = TableReplayBuffer(client, "transitions", 4)
    with pytest.raises(ConfigError, match=r"client\.checkpoint\(\).*ted:/some/where"):
        buffer.dumps("/some/where")
    with pytest.raises(ConfigError, match=r'client\.push\("ted:/some/where"'):
        buffer.loads("/some/where")
    with pytest.raises(ConfigError, match="make a buffer of its own"):
        pickle.dumps(buffer)


def test_threads_may_extend(client: rlds2reverb.Client) -> None:
    with TableReplayBuffer(client, "transitions", 8, write=TRANSITION) as buffer:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: buffer.extend(ladder(100 * number, 3)), range(40)))
    assert stored(client) == [100 * number + step for number in range(40) for step in range(3)]


@pytest.mark.parametrize("words", [["left", "up"], np.array(["left", "up"]), np.array([b"left", b"up"], object)])
def test_text_is_a_column_and_never_left_out(client: rlds2reverb.Client, words: Any) -> None:
    numbers = ladder(0, 2).to_dict()
    singly = [step.set("word", word) for step, word in zip(ladder(0, 2).unbind(0), ["left", "up"])]
    for data in ({**numbers, "word": words}, singly):
        assert _leaves_of(_as_steps(data))["word"].tolist() == [[b"left", b"up"]]
    with (
        TableReplayBuffer(client, "transitions", 8, write=TRANSITION) as buffer,
        pytest.raises(ConfigError, match='field "word" is in no item'),
    ):
        buffer.extend({**numbers, "word": words})
    with pytest.raises(ConfigError, match='"word" has values that are neither tensors nor a text for each step'):
        _leaves_of(_as_steps({**numbers, "word": [{1}, {2}]}))
