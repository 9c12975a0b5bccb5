"""TorchRL's prioritised samplers where its C++ extension does not load, as with a PyTorch of another version: its trees as plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


class PlainTree:
    """What `PrioritizedSampler` asks of a segment tree, with the neutral value and the sum, or the smallest value, of a range."""

    neutral, dtype = 0.0, np.float32

    def __init__(self, capacity: int) -> None:
        self.values = np.full(capacity, self.neutral, self.dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.values[np.asarray(index)]

    def __setitem__(self, index: Any, values: Any) -> None:
        self.values[np.asarray(index)] = np.asarray(values)

    def query(self, start: int, stop: int) -> float:
        return float(self.values[start:stop].sum(dtype=np.float64))

    def scan_lower_bound(self, mass: Any) -> Any:
        return np.searchsorted(np.cumsum(self.values, dtype=np.float64), np.asarray(mass))


class PlainMinTree(PlainTree):
    neutral = float(np.finfo(np.float32).max)

    def query(self, start: int, stop: int) -> float:
        return float(self.values[start:stop].min())


def prioritized_module() -> Any:
    """torchrl's module of prioritised samplers, able to make them."""
    from torchrl.data.replay_buffers.samplers import prioritized

    module: Any = prioritized
    if module.SumSegmentTreeFp32 is None:
        module.SumSegmentTreeFp32 = module.SumSegmentTreeFp64 = PlainTree
        module.MinSegmentTreeFp32 = module.MinSegmentTreeFp64 = PlainMinTree
    return module
