"""TorchRL's samplers beside `local` on the same dump: what comes how often, and with which weight.

.venv-learners/bin/python -m pytest tests/systems/learners/test_torchrl_samplers.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

import rlds2reverb
from rlds2reverb import SliceSpec
from rlds2reverb.episode import Array
from tests.support.torchrl_trees import prioritized_module

prioritized_module()
from torchrl.data import PrioritizedSampler, PrioritizedSliceSampler

LENGTHS = (8, 3, 12, 5)
STEPS = sum(LENGTHS)
SLICE = 5
ALPHA, BETA = 0.6, 0.4


def make_buffer(sampler: Any, batch_size: int) -> TensorDictReplayBuffer:
    """Trajectories whose observation is the number of the step."""
    warnings.simplefilter("ignore")
    number = torch.arange(STEPS)
    ends = torch.zeros(STEPS, 1, dtype=torch.bool)
    ends[np.cumsum(LENGTHS) - 1] = True
    data = {
        "observation": number.float()[:, None],
        "action": number,
        "episode": torch.from_numpy(np.repeat(np.arange(len(LENGTHS)), LENGTHS)),
        "next": {
            "observation": number.float()[:, None] + 1,
            "reward": torch.ones(STEPS, 1),
            "done": ends,
            "terminated": ends.clone(),
            "truncated": torch.zeros_like(ends),
        },
    }
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(STEPS), sampler=sampler, batch_size=batch_size)
    index = buffer.extend(TensorDict(data, [STEPS]))
    if isinstance(sampler, PrioritizedSampler):
        buffer.update_priority(index, 1 + (number % 7).float())
    return buffer


def dump(folder: Path, sampler: Any, batch_size: int) -> tuple[TensorDictReplayBuffer, str]:
    buffer = make_buffer(sampler, batch_size)
    buffer.dumps(folder)
    return buffer, f"ted:{folder}"


def count(draw: Callable[[], Array], times: int) -> Array:
    """[STEPS] how often each step came."""
    return np.bincount(np.concatenate([draw() for _ in range(times)]), minlength=STEPS)


def assert_alike(one: Array, other: Array) -> None:
    """Chi-squared of two samples: over (n + 10 sqrt(2n)) in far less than one of a million cases."""
    kept = (one + other) > 0
    scale = np.sqrt(other.sum() / one.sum())
    statistic = ((one * scale - other / scale) ** 2 / (one + other).clip(1))[kept].sum()
    assert statistic < kept.sum() + 10 * np.sqrt(2 * kept.sum())


def endless(batches: Iterator[Any], take: Callable[[Any], Array]) -> Callable[[], Array]:
    return lambda: take(next(batches)).astype(int)


def first_of_slices(sampled: Any) -> Array:
    """The step that each slice of a batch begins with."""
    return np.asarray(sampled["observation"].reshape(-1, SLICE)[:, 0].numpy(), int)


@pytest.mark.parametrize("drop_last", [False, True])
def test_each_index_once_per_epoch(tmp_path: Path, drop_last: bool) -> None:
    buffer, name = dump(tmp_path, SamplerWithoutReplacement(drop_last=drop_last), 6)
    for epoch in range(3):
        theirs = [batch["action"].numpy() for batch in buffer]
        with rlds2reverb.local(name, "transition", 6, shuffle="global", drop_last=drop_last) as batches:
            batches.begin_epoch(epoch)
            ours = [batch.data["action"] for batch in batches]
        assert [len(batch) for batch in ours] == [len(batch) for batch in theirs]
        for batches_of_epoch in (ours, theirs):
            steps = np.concatenate(batches_of_epoch)
            assert len(np.unique(steps)) == len(steps)
        assert sum(map(len, ours)) == (STEPS // 6 * 6 if drop_last else STEPS)


@pytest.mark.parametrize("drop_last", [False, True])
def test_each_trajectory_once_per_epoch(tmp_path: Path, drop_last: bool) -> None:
    """num_slices=2 of 5 steps: three of the four trajectories are long enough."""
    sampler = SliceSamplerWithoutReplacement(num_slices=2, traj_key="episode", drop_last=drop_last)
    buffer, name = dump(tmp_path, sampler, 2 * SLICE)
    theirs: list[int] = []
    ours: list[int] = []
    sizes: list[list[int]] = []
    for epoch in range(300):
        of_epoch = [first_of_slices(batch) for batch in buffer]
        theirs += np.concatenate(of_epoch).tolist()
        with rlds2reverb.local(
            name, batch_size=2, slices=SliceSpec(SLICE + 1), shuffle="global", drop_last=drop_last
        ) as batches:
            batches.begin_epoch(epoch)
            own = [batch.data.observation[:, 0, 0].astype(int) for batch in batches]
        ours += np.concatenate(own).tolist()
        sizes = [[len(batch) for batch in own], [len(batch) for batch in of_epoch]]
    assert sizes[0] == [2] if drop_last else [2, 1]
    episode_of = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    for firsts in (ours, theirs):
        assert set(episode_of[firsts]) == {0, 2, 3}
    assert_alike(np.bincount(ours, minlength=STEPS), np.bincount(theirs, minlength=STEPS))


def test_slices_are_drawn_as_slice_sampler_draws_them(tmp_path: Path) -> None:
    buffer, name = dump(tmp_path, SliceSampler(num_slices=8, traj_key="episode"), 8 * SLICE)
    with rlds2reverb.local(name, batch_size=8, slices=SliceSpec(SLICE + 1), sampler="uniform", epochs=None) as batches:
        ours = count(endless(batches, lambda batch: batch.data.observation[:, 0, 0]), 1000)
    theirs = count(lambda: first_of_slices(buffer.sample()), 1000)
    assert_alike(ours, theirs)
    # The ends of episodes by end_key are the same slices.
    by_end, _ = dump(tmp_path / "by_end", SliceSampler(num_slices=8, end_key=("next", "done")), 8 * SLICE)
    assert_alike(ours, count(lambda: first_of_slices(by_end.sample()), 1000))


def test_short_trajectories_without_strict_length(tmp_path: Path) -> None:
    buffer, name = dump(tmp_path, SliceSampler(num_slices=8, traj_key="episode", strict_length=False), 8 * SLICE)
    lengths: dict[str, list[int]] = {"ours": [], "theirs": []}
    with rlds2reverb.local(
        name, batch_size=8, slices=SliceSpec(SLICE + 1, strict=False), sampler="uniform", epochs=None
    ) as batches:
        for _ in range(500):
            lengths["ours"] += (next(batches).info.mask.sum(axis=1) - 1).tolist()
            stops = np.flatnonzero(buffer.sample()["next", "truncated"].numpy()[:, 0])
            lengths["theirs"] += np.diff(stops, prepend=-1).tolist()
    ours, theirs = (np.bincount(lengths[name], minlength=SLICE + 1) for name in ("ours", "theirs"))
    assert set(np.flatnonzero(ours)) == {3, SLICE}
    assert_alike(ours, theirs)


def test_steps_are_drawn_as_prioritized_sampler_draws_them(tmp_path: Path) -> None:
    buffer, name = dump(tmp_path, PrioritizedSampler(STEPS, ALPHA, BETA), 32)
    weights: dict[int, float] = {}
    for _ in range(20):
        sampled, info = buffer.sample(return_info=True)
        weights |= dict(zip(sampled["action"].tolist(), np.asarray(info["priority_weight"]).tolist()))
    with rlds2reverb.local(
        name,
        "transition:priority=sampler_priority",
        32,
        sampler="prioritized",
        exponent=ALPHA,
        weights="table_min",
        beta=BETA,
        epochs=None,
    ) as batches:
        data, info = next(batches)
        assert info.weight is not None
        wanted = [weights[action] for action in data["action"].tolist()]
        np.testing.assert_allclose(info.weight, wanted, rtol=1e-5)
        ours = count(endless(batches, lambda batch: batch.data["action"]), 500)
    assert_alike(ours, count(lambda: buffer.sample()["action"].numpy(), 500))


def test_slices_are_drawn_as_prioritized_slice_sampler_draws_them(tmp_path: Path) -> None:
    """A start is drawn by its own priority among those from which a whole slice fits."""
    sampler = PrioritizedSliceSampler(STEPS, ALPHA, BETA, num_slices=4, traj_key="episode")
    buffer, name = dump(tmp_path, sampler, 4 * SLICE)
    with rlds2reverb.local(
        name,
        f"sequence:length={SLICE + 1},priority=sampler_priority",
        4,
        sampler="prioritized",
        exponent=ALPHA,
        allow=("no_items",),
        epochs=None,
    ) as batches:
        ours = count(endless(batches, lambda batch: batch.data.observation[:, 0, 0]), 1500)
    theirs = count(lambda: first_of_slices(buffer.sample()), 1500)
    assert_alike(ours, theirs)
