"""Importance weights beside those of TorchRL and RLlib themselves, from the same priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.replay_buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from torchrl.data import ListStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, prioritized

from rlds2reverb.episode import Array
from rlds2reverb.learner.weights import Weights
from rlds2reverb.testing import table_info
from rlds2reverb.wire.sample.batches import SampleInfo

ALPHA, BETA, ITEMS, DRAWS = 0.7, 0.4, 20, 200
PRIORITIES = np.random.default_rng(3).uniform(0.01, 5.0, ITEMS)


def of_server(index: Array, priorities: Array) -> SampleInfo:
    """What a prioritised table with these items would tell of such draws."""
    powers = priorities**ALPHA
    count = len(index)
    return SampleInfo(
        index.astype(np.uint64),
        powers[index] / powers.sum(),
        np.full(count, ITEMS),
        priorities[index],
        np.ones(count, np.int32),
    )


def ours(index: Array, priorities: Array, formula: str, **options: Any) -> Array:
    return Weights(table_info(sampler=f"prioritized({ALPHA})"), formula, BETA, **options).next(
        of_server(index, priorities)
    )


class Tree:
    """TorchRL's segment trees, the slow way; for a wheel whose extension does not load with the torch that is here."""

    def __init__(self, capacity: int) -> None:
        self.values = torch.full((capacity,), torch.nan, dtype=torch.float64)

    def __setitem__(self, index: Any, values: Any) -> None:
        self.values[index] = torch.as_tensor(values, dtype=torch.float64)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.nan_to_num(self.values[index])

    def _there(self, left: int, right: int) -> torch.Tensor:
        there = self.values[left:right]
        return there[~torch.isnan(there)]


class SumTree(Tree):
    def query(self, left: int, right: int) -> float:
        return float(self._there(left, right).sum())

    def scan_lower_bound(self, mass: Any) -> torch.Tensor:
        return torch.searchsorted(torch.nan_to_num(self.values).cumsum(0), torch.as_tensor(mass))


class MinTree(Tree):
    def query(self, left: int, right: int) -> float:
        return float(self._there(left, right).min())


@pytest.fixture
def torchrl_draws(monkeypatch: pytest.MonkeyPatch) -> tuple[Array, Array]:
    """Indices and weights."""
    if prioritized.SumSegmentTreeFp64 is None:
        for kind, tree in (("Sum", SumTree), ("Min", MinTree)):
            for bits in (32, 64):
                monkeypatch.setattr(prioritized, f"{kind}SegmentTreeFp{bits}", tree)
    sampler = PrioritizedSampler(ITEMS, ALPHA, BETA, dtype=torch.float64)
    buffer = ReplayBuffer(storage=ListStorage(ITEMS), sampler=sampler, collate_fn=list)
    buffer.extend(list(range(ITEMS)))
    sampler.update_priority(torch.arange(ITEMS), torch.as_tensor(PRIORITIES))
    index, info = sampler.sample(buffer.storage, DRAWS)
    return np.asarray(index), np.asarray(info["priority_weight"])


def test_with_the_smallest_priority_weights_are_torchrls(torchrl_draws: tuple[Array, Array]) -> None:
    """TorchRL adds eps to every priority."""
    index, weights = torchrl_draws
    priorities = PRIORITIES + 1e-8
    assert len(set(index.tolist())) > 5
    np.testing.assert_allclose(ours(index, priorities, "table_min", min_priority=priorities.min()), weights, rtol=1e-5)


def test_without_it_they_differ_by_one_factor_per_batch(torchrl_draws: tuple[Array, Array]) -> None:
    index, weights = torchrl_draws
    batch = ours(index, PRIORITIES + 1e-8, "batch_max")
    np.testing.assert_allclose(batch, weights / weights.max(), rtol=1e-5)


def test_with_the_smallest_priority_weights_are_rllibs() -> None:
    buffer = PrioritizedReplayBuffer(capacity=ITEMS, alpha=ALPHA)
    for number, priority in enumerate(PRIORITIES):
        buffer.add(SampleBatch({"obs": np.array([number])}), weight=float(priority))
    drawn = buffer.sample(DRAWS, beta=BETA)
    index = np.asarray(drawn["batch_indexes"])
    assert len(set(index.tolist())) > 5
    found = ours(index, PRIORITIES, "table_min", min_priority=PRIORITIES.min())
    np.testing.assert_allclose(found, drawn["weights"], rtol=1e-5)
