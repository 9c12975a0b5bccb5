"""Files of `torch.save` as sources, read without torch's own loader, beside the same data in memory and in folders.

.venv-learners/bin/python -m pytest tests/systems/storage/test_ted_torch_files.py
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack
from torchrl.data import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.systems.storage.test_ted_memory import LENGTHS, lists, same, trajectory


def saved(folder: Path, content: Any, **options: Any) -> str:
    torch.save(content, folder / "saved.pt", **options)
    return f"ted:{folder / 'saved.pt'}"


def test_tensordicts(tmp_path: Path) -> None:
    parts = lists()
    same(open_source(saved(tmp_path, torch.cat(parts))), open_source(parts))
    same(open_source(saved(tmp_path, parts)), open_source(parts))
    same(open_source(saved(tmp_path, LazyStackedTensorDict(*parts, stack_dim=0))), open_source(parts))
    equal = [trajectory(6, number) for number in range(4)]
    same(open_source(saved(tmp_path, torch.stack(equal))), open_source(equal))
    same(open_source(saved(tmp_path, LazyStackedTensorDict(*equal, stack_dim=0))), open_source(equal))
    steps = LazyStackedTensorDict(*torch.cat(parts).unbind(0), stack_dim=0)
    same(open_source(saved(tmp_path, steps)), open_source(parts))


def test_dicts_and_state_dicts_of_tensordicts(tmp_path: Path) -> None:
    data = torch.cat(lists())
    same(open_source(saved(tmp_path, data.to_dict())), open_source(lists()))
    same(open_source(saved(tmp_path, data.state_dict())), open_source(lists()))
    same(open_source(saved(tmp_path, data.flatten_keys(".").to_dict())), open_source(lists()))
    same(open_source(saved(tmp_path, [part.to_dict() for part in lists()])), open_source(lists()))


def test_values_that_are_no_tensors(tmp_path: Path) -> None:
    data = trajectory(3)
    data["task"], data["says"] = NonTensorData("pour", batch_size=[3]), NonTensorStack("a", "b", "c")
    same(open_source(saved(tmp_path, data)), open_source(data))
    (episode,) = open_source(saved(tmp_path, data))
    assert episode.metadata["task"] == b"pour"
    assert episode.columns["says"].tolist() == [b"a", b"b", b"c", b""]


@pytest.mark.parametrize(
    ("capacity", "count", "columns"), [(20, 13, 0), (20, 20, 0), (20, 47, 0), (9, 5, 3), (9, 25, 2)]
)
def test_the_state_of_a_buffer_is_what_it_dumps(tmp_path: Path, capacity: int, count: int, columns: int) -> None:
    size = capacity * max(columns, 1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(size, ndim=2 if columns else 1),
        batch_size=4,
        **({"dim_extend": 1} if columns else {}),
    )
    lines = [
        torch.cat([trajectory(3, 100 * column + number) for number in range(20)]) for column in range(max(columns, 1))
    ]
    data = torch.stack(lines)
    for first in range(0, count, 5):
        part = data[:, first : min(first + 5, count)]
        buffer.extend(part if columns else part[0])
    buffer.dumps(tmp_path / "dumped")
    same(open_source(saved(tmp_path, buffer.state_dict())), open_source(f"ted:{tmp_path / 'dumped'}"))
    name = saved(tmp_path, buffer.storage.state_dict())
    assert sum(len(episode) - 1 for episode in open_source(name)) == min(capacity, count) * max(columns, 1)


def test_an_ensemble_and_a_list_storage(tmp_path: Path) -> None:
    buffers = [TensorDictReplayBuffer(storage=LazyTensorStorage(12), batch_size=4) for _ in range(2)]
    for number, buffer in enumerate(buffers):
        buffer.extend(trajectory(5 + number, number))
    name = saved(tmp_path, ReplayBufferEnsemble(*buffers, p=[0.5, 0.5], batch_size=4).state_dict())
    assert [len(episode) for episode in open_source(name)] == [6, 7]
    assert [len(episode) for episode in open_source(f"{name}?buffer=1")] == [7]
    with pytest.raises(SourceError, match="there are 2, from 0"):
        open_source(f"{name}?buffer=2")
    held = ReplayBuffer(storage=ListStorage(5))
    held.extend([part.to_dict() for part in lists()])
    assert [len(episode) for episode in open_source(saved(tmp_path, held.state_dict()))] == [n + 1 for n in LENGTHS]


def test_a_buffer_that_keeps_the_best_has_no_order(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), writer=TensorDictMaxValueWriter(rank_key=("next", "reward")), batch_size=2
    )
    buffer.extend(trajectory(6))
    try:
        state = buffer.state_dict()
    except NotImplementedError:
        pytest.skip("this TorchRL has no state of it")
    with pytest.raises(SourceError, match="TensorDictMaxValueWriter"):
        open_source(saved(tmp_path, state))


def test_odd_tensors(tmp_path: Path) -> None:
    content = {
        "observation": torch.arange(12).reshape(3, 4).T,
        "expanded": torch.ones(1).expand(4, 2),
        "part": torch.arange(10.0)[3:7],
        "every_second": torch.arange(8)[::2],
        "unsigned": torch.arange(4).to(torch.uint16),
        "parameter": torch.nn.Parameter(torch.ones(4, 1)),
        "flags": torch.tensor([[True, False]] * 2).T.reshape(4),
        "none": torch.zeros(4, 0),
        "complex": torch.ones(4, dtype=torch.complex64),
        "array": np.arange(4),
        "next": {"done": torch.tensor([False, False, False, True])},
        "note": "hello",
    }
    (episode,) = open_source(saved(tmp_path, content))
    for key, value in content.items():
        if isinstance(value, (torch.Tensor, np.ndarray)) and key != "none":
            expected = value.detach().numpy() if isinstance(value, torch.Tensor) else value
            column = episode.columns[key][: len(expected)]
            np.testing.assert_array_equal(column, expected, key)
            assert column.dtype == expected.dtype
    assert episode.metadata["note"] == b"hello"


def test_a_file_is_read_in_place(tmp_path: Path) -> None:
    """A column alone is read, not the file; a file that is written anew meanwhile is refused."""
    data = torch.cat([trajectory(50, number) for number in range(4)])
    name = saved(tmp_path, data)
    source = open_source(f"{name}?episodes=1:3")
    same(source, open_source([trajectory(50, 1), trajectory(50, 2)]))
    episodes = iter(source)
    next(episodes)
    saved(tmp_path, trajectory(7))
    with pytest.raises(SourceError, match=r"changed|written anew|has been"):
        list(itertools.chain(episodes, source))


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"before 1\.6 is read by torch only"):
        open_source(saved(tmp_path, trajectory(3), _use_new_zipfile_serialization=False))
    with pytest.raises(SourceError, match="expected a dict of tensors with one first size"):
        open_source(saved(tmp_path, torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 4)).state_dict()))
    with pytest.raises(SourceError, match=r'refers to "torch\.nn\.modules\.linear\.Linear".*to_tensordict'):
        open_source(saved(tmp_path, torch.nn.Linear(2, 3)))
    with pytest.raises(SourceError, match="expected a TensorDict"):
        open_source(saved(tmp_path, torch.ones(3)))
    with pytest.raises(SourceError, match="it is empty"):
        open_source(saved(tmp_path, []))
    with pytest.raises(SourceError, match=r"ends before|ZIP"):
        name = saved(tmp_path, trajectory(3))
        file = tmp_path / "saved.pt"
        file.write_bytes(file.read_bytes()[:-2000])
        open_source(name)
