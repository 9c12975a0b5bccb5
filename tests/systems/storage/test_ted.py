"""TorchRL beside us: it loads what we wrote, and we read what it wrote, value for value.

.venv-learners/bin/python -m pytest tests/systems/storage/test_ted.py
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torchrl = pytest.importorskip("torchrl")

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers import checkpointers
from torchrl.data.replay_buffers.utils import find_start_stop_traj

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from tests.support import strategies
from tests.support.formats.ted_writing import LAYOUTS, write

FORMS = {
    "memmap": None,
    "flat": checkpointers.FlatStorageCheckpointer,
    "nested": checkpointers.NestedStorageCheckpointer,
    "h5": checkpointers.H5StorageCheckpointer,
}
COLUMNS: dict[str, Any] = {
    "observation/state": (np.dtype("float32"), (3,)),
    "observation/image": (np.dtype("uint8"), (4, 4, 3)),
    "observation/half": (np.dtype("float16"), ()),
    "action/arm": (np.dtype("float64"), (2,)),
    "action/grip": (np.dtype("bool"), ()),
    "mood": (np.dtype("int16"), ()),
    "log_prob": (np.dtype("float32"), ()),
}


def numbers(one: torch.Tensor) -> np.ndarray:
    return one.float().numpy() if one.dtype == torch.bfloat16 else one.numpy()


@pytest.mark.parametrize("storage", [LazyMemmapStorage, LazyTensorStorage])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2, 10, 11, 101])
def test_torchrl_loads_what_was_written(tmp_path: Path, layout: str, count: int, storage: Any) -> None:
    rng = np.random.default_rng(count)
    episodes = [strategies.episode(rng, int(rng.integers(2, 9)), COLUMNS, bool(number % 2)) for number in range(count)]
    name, losses, _ = write(tmp_path, episodes, f"{LAYOUTS[layout]},steps=log_prob,batch_size=4")
    assert losses == []
    steps = sum(len(episode) - 1 for episode in episodes)
    buffer = TensorDictReplayBuffer(storage=storage(steps), sampler=SliceSampler(num_slices=2, strict_length=False))
    if layout == "h5":
        buffer.storage.checkpointer = checkpointers.H5StorageCheckpointer()
    buffer.loads(tmp_path / "buffer")
    assert len(buffer) == steps
    held = buffer[:]
    _compare(held, episodes)
    _, _, lengths = find_start_stop_traj(trajectory=held["collector", "traj_ids"], at_capacity=True, cursor=steps - 1)
    assert sorted(lengths.tolist()) == sorted(len(episode) - 1 for episode in episodes)
    assert buffer.sample()["next", "reward"].shape[0] <= 4
    assert [episode.columns["mood"].tolist() for episode in open_source(name)] == [
        episode.columns["mood"].tolist() for episode in episodes
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_buffer_can_be_sampled_without_more_said(tmp_path: Path, layout: str) -> None:
    episodes = [strategies.episode(np.random.default_rng(1), 40, COLUMNS)]
    write(tmp_path, episodes, LAYOUTS[layout])
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(39), batch_size=4)
    if layout == "h5":
        buffer.storage.checkpointer = checkpointers.H5StorageCheckpointer()
    buffer.loads(tmp_path / "buffer")
    assert len(buffer.sample()) == 32
    assert len(buffer.sample(4)) == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sampler_with_a_state_of_its_own_goes_with_the_storage_alone(tmp_path: Path, layout: str) -> None:
    episodes = [strategies.episode(np.random.default_rng(1), 40, COLUMNS)]
    write(tmp_path, episodes, LAYOUTS[layout])
    whole, stored = (
        TensorDictReplayBuffer(storage=LazyMemmapStorage(39), sampler=SamplerWithoutReplacement(), batch_size=13)
        for _ in range(2)
    )
    if layout == "h5":
        whole.storage.checkpointer = stored.storage.checkpointer = checkpointers.H5StorageCheckpointer()
    with pytest.raises(FileNotFoundError):
        whole.loads(tmp_path / "buffer")
    stored.storage.loads(tmp_path / "buffer" / "storage")
    _compare(stored[:], episodes)
    drawn = torch.cat([stored.sample()["index"] for _ in range(3)])
    assert sorted(drawn.tolist()) == list(range(39))


def _compare(held: Any, episodes: list[Episode]) -> None:
    def joined(path: str, rows: slice) -> np.ndarray:
        return np.concatenate([episode.columns[path][rows] for episode in episodes])

    before, after = slice(None, -1), slice(1, None)
    for path in COLUMNS:
        nested = tuple(path.split("/"))
        found = held[nested]
        np.testing.assert_array_equal(numbers(found), joined(path, before), path)
        assert numbers(found).dtype == COLUMNS[path][0]
        if path.startswith("observation") or path == "mood":
            np.testing.assert_array_equal(numbers(held[("next", *nested)]), joined(path, after), path)
    np.testing.assert_array_equal(held["next", "reward"][:, 0].numpy(), joined("reward", before))
    np.testing.assert_array_equal(held["discount"][:, 0].numpy(), joined("discount", before))
    terminated = joined("is_terminal", after)
    done = joined("is_last", after)
    for key, wanted in (("terminated", terminated), ("done", done), ("truncated", done & ~terminated)):
        np.testing.assert_array_equal(held["next", key][:, 0].numpy(), wanted)
        assert not held[key].any()


def test_torchrl_loads_the_memory_mapped_folder_as_a_tensordict(tmp_path: Path) -> None:
    columns = {**COLUMNS, "observation/brain": strategies.DTYPES[14]}
    columns["observation/brain"] = (strategies.DTYPES[14], (2,))
    assert columns["observation/brain"][0].name == "bfloat16"
    episodes = [strategies.episode(np.random.default_rng(number), 4, columns) for number in range(3)]
    write(tmp_path, episodes, LAYOUTS["memmap"])
    held = TensorDict.load_memmap(tmp_path / "buffer" / "storage")
    assert held.batch_size == torch.Size([9])
    assert held["observation", "brain"].dtype == torch.bfloat16
    wanted = np.concatenate([episode.columns["observation/brain"][:-1] for episode in episodes]).astype(np.float32)
    np.testing.assert_array_equal(held["observation", "brain"].float().numpy(), wanted)


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_torchrl_loads_a_compressed_file(tmp_path: Path, compression: str) -> None:
    episodes = [strategies.episode(np.random.default_rng(number), 4, COLUMNS) for number in range(3)]
    write(tmp_path, episodes, f"?compression={compression},steps=log_prob")
    storage = LazyMemmapStorage(9)
    storage.checkpointer = checkpointers.H5StorageCheckpointer()
    storage.loads(str(tmp_path / "buffer" / "storage" / "checkpoint.h5"))
    _compare(storage[:], episodes)


def _steps(rng: np.random.Generator, count: int, dones: float) -> TensorDict:
    """Steps of episodes whose ends are drawn."""
    ends = rng.uniform(size=count) < dones
    ids = np.concatenate([[0], np.cumsum(ends)[:-1]])
    seen = rng.normal(size=(count + 1, 3)).astype(np.float32)
    after = seen[1:].copy()
    after[ends] = rng.normal(size=(int(ends.sum()), 3))
    terminated = ends & (rng.uniform(size=count) < 0.5)
    flags = {"done": ends, "terminated": terminated, "truncated": ends & ~terminated}
    return TensorDict(
        {
            "observation": torch.from_numpy(seen[:-1]),
            "action": torch.from_numpy(rng.integers(0, 9, count)),
            "collector": {"traj_ids": torch.from_numpy(ids)},
            **{key: torch.zeros(count, 1, dtype=torch.bool) for key in flags},
            "next": {
                "observation": torch.from_numpy(after),
                "reward": torch.from_numpy(rng.normal(size=(count, 1)).astype(np.float32)),
                **{key: torch.from_numpy(flag)[:, None] for key, flag in flags.items()},
            },
        },
        [count],
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("capacity", "count", "columns"), [(20, 13, 0), (20, 20, 0), (20, 47, 0), (9, 5, 3), (9, 9, 3), (9, 25, 2)]
)
@pytest.mark.parametrize("seed", range(3))
def test_what_torchrl_wrote_is_read(
    tmp_path: Path, form: str, capacity: int, count: int, columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data = torch.stack([_steps(rng, count, 0.25) for _ in range(max(columns, 1))])
    more: dict[str, Any] = {"dim_extend": 1} if columns else {}
    storage = LazyTensorStorage(capacity * max(columns, 1), ndim=2 if columns else 1)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4, **more)
    if FORMS[form] is not None:
        buffer.storage.checkpointer = FORMS[form]()
    data = data if columns else data[0]
    for at in range(0, count, 5):
        buffer.extend(data[..., at : at + 5])
    buffer.dumps(tmp_path)
    held = buffer.storage._storage[: buffer.storage._len // max(columns, 1)]
    bounds: Any = find_start_stop_traj(
        trajectory=held["collector", "traj_ids"],
        at_capacity=buffer.storage._is_full,
        cursor=buffer.storage._last_cursor if buffer.storage._is_full else None,
    )
    start, stop, lengths = bounds
    wanted = sorted((_of_torchrl(held, first, last) for first, last in zip(start, stop)), key=repr)
    found = sorted((_of_ours(episode) for episode in open_source(f"ted:{tmp_path}")), key=repr)
    assert len(found) == len(lengths)
    assert found == wanted


@pytest.mark.parametrize("form", ["flat", "nested", "h5"])
def test_environments_side_by_side_are_parted_by_their_ids(tmp_path: Path, form: str) -> None:
    """Batches of four environments, one after the other: a batch stops each environment's trajectory without an end flag.

    TorchRL's compact forms keep no observation after such a stop, so the steps before it are what can be read.
    """
    rng = np.random.default_rng(3)
    batches = [torch.stack([_steps(rng, 10, 0.25) for _ in range(4)]) for _ in range(3)]
    ids = 0
    for batch in batches:
        for row in batch:
            row["collector", "traj_ids"] += ids
            ids = int(row["collector", "traj_ids"][-1]) + 1
    storage = LazyTensorStorage(120)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    buffer.storage.checkpointer = FORMS[form]()
    for batch in batches:
        buffer.extend(batch.reshape(-1))
    buffer.dumps(tmp_path)
    held = torch.cat([batch.reshape(-1) for batch in batches])
    numbers_of = held["collector", "traj_ids"]
    wanted = []
    for number in range(ids):
        one = held[numbers_of == number]
        one = one if one["next", "done"][-1] or number == ids - 1 else one[:-1]
        if len(one):
            wanted.append(
                (
                    number,
                    one["action"].tolist(),
                    [*one["observation"].tolist(), one["next", "observation"][-1].tolist()],
                )
            )
    found = [
        (
            int(episode.metadata["trajectory_id"]),
            episode.columns["action"][:-1].tolist(),
            episode.columns["observation"].tolist(),
        )
        for episode in open_source(f"ted:{tmp_path}")
    ]
    assert found == wanted


def _of_torchrl(held: Any, start: torch.Tensor, stop: torch.Tensor) -> Any:
    rows = (int(start[0]) + step for step in itertools.count())
    at: list[Any] = []
    for row in rows:
        at.append((row % len(held), *start[1:].tolist()))
        if at[-1][0] == int(stop[0]):
            break
    steps = [held[index] for index in at]
    observation = [*(step["observation"].tolist() for step in steps), steps[-1]["next", "observation"].tolist()]
    rewards = [step["next", "reward"].item() for step in steps]
    return observation, [step["action"].item() for step in steps], rewards, steps[-1]["next", "terminated"].item()


def _of_ours(one: Episode) -> Any:
    assert not one.faults
    columns = one.columns
    return (
        columns["observation"].tolist(),
        columns["action"][:-1].tolist(),
        columns["reward"][:-1].tolist(),
        bool(columns["is_terminal"][-1]),
    )


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("capacity", [6, 9])
@pytest.mark.parametrize("scratch", [False, True])
def test_trajectories_that_are_stored_independently_are_read(
    tmp_path: Path, ends: bool, capacity: int, scratch: bool
) -> None:
    """The batch has one dimension, so each item of the storage is a trajectory: `buffer[i]` as TorchRL gives it."""
    rng = np.random.default_rng(capacity)
    seen = torch.from_numpy(rng.normal(size=(6, 8, 3)).astype(np.float32))
    data: dict[str, Any] = {
        "observation": seen[:, :-1],
        "action": torch.from_numpy(rng.normal(size=(6, 7, 2))),
        "next": {"observation": seen[:, 1:], "reward": torch.from_numpy(rng.normal(size=(6, 7, 1)))},
    }
    if ends:
        flags = torch.zeros(6, 7, 1, dtype=torch.bool)
        flags[:, -1] = True
        data["next"] |= {"done": flags, "terminated": flags.clone()}
    folder = tmp_path / "scratch" if scratch else tmp_path / "dumped"
    storage = LazyMemmapStorage(capacity, **({"scratch_dir": str(folder)} if scratch else {}))
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=2)
    buffer.extend(TensorDict(data, [6]))
    if not scratch:
        buffer.dumps(folder)
    source = open_source(f"ted:{folder}")
    episodes = list(source)
    assert len(episodes) == len(buffer)
    for number, episode in enumerate(episodes):
        item = buffer[number]
        np.testing.assert_array_equal(episode.columns["observation"][:-1], item["observation"].numpy())
        np.testing.assert_array_equal(episode.columns["observation"][-1], item["next", "observation"][-1].numpy())
        np.testing.assert_array_equal(episode.columns["action"][:-1], item["action"].numpy())
        np.testing.assert_array_equal(episode.columns["reward"][:-1], item["next", "reward"][:, 0].numpy())
    assert ("unwritten" in {notice.code for notice in source.notices}) == (scratch and capacity > 6)


def test_environments_in_turn_are_told(tmp_path: Path) -> None:
    """`data.reshape(-1)` of time first: an id comes back with every step, which SliceSampler cannot handle either."""
    batch = torch.stack([_steps(np.random.default_rng(seed), 4, 0) for seed in range(2)])
    batch[1]["collector", "traj_ids"] += 1
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(8), batch_size=2)
    buffer.extend(batch.transpose(0, 1).reshape(-1))
    buffer.dumps(tmp_path)
    told = {notice.code: notice.count for notice in open_source(f"ted:{tmp_path}").notices}
    assert told["ids_return"] == 6
