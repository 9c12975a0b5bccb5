"""The priorities of TorchRL's prioritised samplers: what they dump is read, and they load what is written.

.venv-learners/bin/python -m pytest tests/systems/storage/test_ted_priorities.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers import checkpointers

import rlds2reverb
from rlds2reverb.conversion.convert import convert
from rlds2reverb.formats import open_source
from tests.support.torchrl_trees import prioritized_module

prioritized = prioritized_module()
FORMS = {
    "memmap": None,
    "flat": checkpointers.FlatStorageCheckpointer,
    "nested": checkpointers.NestedStorageCheckpointer,
    "h5": checkpointers.H5StorageCheckpointer,
}


def steps(first: int, count: int, columns: int) -> TensorDict:
    """[columns, count] of trajectories of three steps; observation and priority tell which step it is."""
    number = torch.arange(first, first + count)[None] + 1000 * torch.arange(columns)[:, None]
    ends = ((number % 1000) % 3 == 2)[..., None]
    data = {
        "observation": number[..., None].float(),
        "action": number.clone(),
        "next": {
            "observation": number[..., None].float() + 1,
            "reward": torch.ones(columns, count, 1),
            "done": ends,
            "terminated": ends.clone(),
            "truncated": torch.zeros_like(ends),
        },
    }
    return TensorDict(data, [columns, count])


def make_buffer(form: str, capacity: int, columns: int, alpha: float, storage: Any = LazyTensorStorage) -> Any:
    size = capacity * max(columns, 1)
    buffer = TensorDictReplayBuffer(
        storage=storage(size, ndim=2 if columns else 1),
        sampler=prioritized.PrioritizedSampler(size, alpha, 0.4),
        batch_size=4,
        **({"dim_extend": 1} if columns else {}),
    )
    if FORMS[form] is not None:
        buffer.storage.checkpointer = FORMS[form]()
    return buffer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("capacity", "count", "columns"), [(20, 13, 0), (20, 20, 0), (20, 47, 0), (9, 5, 3), (9, 25, 2)]
)
@pytest.mark.parametrize("alpha", [0.7, 1.0])
def test_priorities_of_a_dump_are_a_column(
    tmp_path: Path, form: str, capacity: int, count: int, columns: int, alpha: float
) -> None:
    buffer = make_buffer(form, capacity, columns, alpha)
    for first in range(0, count, 5):
        data = steps(first, min(5, count - first), max(columns, 1))
        index = buffer.extend(data if columns else data[0])
        held = buffer.storage._storage["action"]
        buffer.update_priority(index, 0.5 + held[tuple(index.T) if columns else index].float())
    buffer.dumps(tmp_path)
    source = open_source(f"ted:{tmp_path}")
    episodes = list(source)
    assert sum(len(episode) - 1 for episode in episodes) == min(capacity, count) * max(columns, 1)
    for episode in episodes:
        assert not episode.faults
        numbers = episode.columns["action"][:-1]
        np.testing.assert_allclose(episode.columns["sampler_priority"][:-1], numbers + 0.5, rtol=1e-6)
    assert dict(source.about.facts) == pytest.approx(
        {"alpha": alpha, "beta": 0.4, "eps": 1e-8, "max_priority": source.about.facts["max_priority"]}
    )
    assert "sampler_priority" not in next(iter(open_source(f"ted:{tmp_path}?priorities=drop"))).columns


@pytest.mark.parametrize("layout", ["h5", "memmap"])
def test_torchrl_loads_the_priorities_that_were_written(tmp_path: Path, layout: str) -> None:
    buffer = make_buffer("memmap", 30, 0, 0.6)
    index = buffer.extend(steps(0, 30, 1)[0])
    buffer.update_priority(index, torch.arange(30.0) ** 2)
    buffer.dumps(tmp_path / "dumped")
    report = convert(f"ted:{tmp_path / 'dumped'}", f"ted:{tmp_path / 'copy'}?layout={layout}")
    assert not report.losses
    copy = make_buffer("h5" if layout == "h5" else "memmap", 30, 0, 0.6, LazyMemmapStorage)
    copy.loads(tmp_path / "copy")
    rows = np.arange(30)
    np.testing.assert_allclose(copy.sampler._sum_tree[rows], buffer.sampler._sum_tree[rows], rtol=1e-6)
    np.testing.assert_allclose(copy.sampler._min_tree[rows], buffer.sampler._min_tree[rows], rtol=1e-6)
    assert (copy.sampler._alpha, copy.sampler._beta, copy.sampler._eps) == (0.6, 0.4, 1e-8)
    assert float(copy.sampler._max_priority[0]) == pytest.approx(29**2)
    np.testing.assert_array_equal(copy[:]["action"].numpy(), rows)
    assert len(copy.sample()) == 32
    again = list(open_source(f"ted:{tmp_path / 'copy'}"))
    held = list(open_source(f"ted:{tmp_path / 'dumped'}"))
    for episode, other in zip(again, held, strict=True):
        np.testing.assert_allclose(episode.columns["sampler_priority"], other.columns["sampler_priority"], rtol=1e-6)


def test_items_have_the_priorities_of_their_steps(tmp_path: Path) -> None:
    buffer = make_buffer("memmap", 12, 0, 0.6)
    buffer.update_priority(buffer.extend(steps(0, 12, 1)[0]), torch.arange(12.0) + 1)
    buffer.dumps(tmp_path)
    with rlds2reverb.local(f"ted:{tmp_path}", "transition:priority=sampler_priority", batch_size=12) as batches:
        data, info = next(batches)
    np.testing.assert_allclose(info.priority, data["action"] + 1, rtol=1e-6)
