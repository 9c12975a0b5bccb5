"""TensorDicts in memory as sources: read as the same TensorDict that `memmap` wrote, and refused where they may be read in several ways.

.venv-learners/bin/python -m pytest tests/systems/storage/test_ted_memory.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, tensorclass
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)

import rlds2reverb
from rlds2reverb.adapters.torchrl import tensordict_source
from rlds2reverb.conversion.convert import convert
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from tests.support.torchrl_trees import prioritized_module


def trajectory(steps: int, seed: int = 0, end: str = "terminated") -> TensorDict:
    """[steps] of one trajectory, as a rollout gives it."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randn(steps + 1, 3, generator=generator)
    last = (torch.arange(steps) == steps - 1)[:, None]
    ends = {
        key: last if key in ("done", end) else torch.zeros_like(last) for key in ("done", "terminated", "truncated")
    }
    data = {
        "observation": {"state": seen[:-1], "half": seen[:-1, 0].to(torch.bfloat16)},
        "action": torch.randint(5, (steps,), generator=generator),
        **{key: torch.zeros_like(last) for key in ends},
        "next": {
            "observation": {"state": seen[1:], "half": seen[1:, 0].to(torch.bfloat16)},
            "reward": torch.randn(steps, 1, generator=generator),
            **ends,
        },
    }
    return TensorDict(data, [steps], names=["time"])


def same(episodes: Any, others: Any) -> None:
    for episode, other in zip(episodes, others, strict=True):
        assert not episode.faults
        assert not other.faults
        assert episode.id == other.id
        assert episode.columns.keys() == other.columns.keys()
        for path, column in episode.columns.items():
            np.testing.assert_array_equal(column, other.columns[path], path)
            assert column.dtype == other.columns[path].dtype


LENGTHS = [4, 1, 7]


def lists() -> list[TensorDict]:
    return [trajectory(steps, number) for number, steps in enumerate(LENGTHS)]


def test_steps_are_read_as_from_a_folder(tmp_path: Path) -> None:
    data = torch.cat(lists())
    data.memmap(tmp_path / "memmap")
    source = open_source(data)
    same(source, open_source(f"ted:{tmp_path / 'memmap'}"))
    assert [len(episode) for episode in source] == [steps + 1 for steps in LENGTHS]
    (first, *_) = source
    assert first.columns["observation/half"].dtype.name == "bfloat16"
    np.testing.assert_array_equal(first.columns["observation/state"][-1], data["next", "observation", "state"][3])
    assert [bool(episode.columns["is_terminal"][-1]) for episode in source] == [True] * 3


def test_a_list_has_a_trajectory_each() -> None:
    same(open_source(lists()), open_source(torch.cat(lists())))
    same(open_source(tuple(lists())), open_source(lists()))
    without = [part.exclude(*(("next", key) for key in ("done", "terminated", "truncated"))) for part in lists()]
    assert [len(episode) for episode in open_source(without)] == [5, 2, 8]
    lazy = LazyStackedTensorDict(*lists(), stack_dim=0)
    same(open_source(lazy), open_source(lists()))


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_have_a_trajectory_each(layout: Any) -> None:
    parts = [part.select("observation", "action", ("next", "observation")) for part in lists()]
    keys = [("observation", "state"), "action", ("next", "observation", "state")]
    nested = {key: torch.nested.as_nested_tensor([part[key] for part in parts], layout=layout) for key in keys}
    episodes = list(open_source(TensorDict({**nested, "goal": torch.arange(6.0).reshape(3, 2)}, [3])))
    np.testing.assert_array_equal(episodes[0].columns["goal"][:-1], [[0, 1]] * 4)
    assert [len(episode) for episode in episodes] == [5, 2, 8]
    np.testing.assert_array_equal(episodes[2].columns["observation/state"][:-1], parts[2]["observation", "state"])


@pytest.mark.parametrize("named", [True, False])
def test_a_stack_has_time_last(tmp_path: Path, named: bool) -> None:
    parts = [trajectory(6, number) for number in range(4)]
    data = torch.stack(parts)
    if not named:
        data = TensorDict(data.to_dict(), data.batch_size)
    same(open_source(data), open_source(parts))
    data.memmap(tmp_path / "memmap")
    same(open_source(data), open_source(f"ted:{tmp_path / 'memmap'}"))
    # One step of each environment beside each other, as a storage of ndim=2 has them.
    beside = TensorDict(data.transpose(0, 1).contiguous().to_dict(), [6, 4], names=["time", None] if named else None)
    same(open_source(beside), open_source(parts))


def test_what_tells_no_time_is_asked_for_with_the_way_to_say_it() -> None:
    data = torch.stack([trajectory(6, number) for number in range(4)]).exclude(("next", "observation"))
    data = TensorDict(data.to_dict(), data.batch_size)
    with pytest.raises(SourceError, match=r"items=trajectories reads 4 trajectories.*torchrl\.tensordict_source\(data"):
        open_source(data)
    assert [len(episode) for episode in tensordict_source(data, "items=trajectories")] == [7] * 4
    single = TensorDict(data.exclude("next").to_dict(), [4])
    with pytest.raises(SourceError, match="items=steps reads 4 steps"):
        open_source(single)
    assert [len(episode) for episode in tensordict_source(single, "items=trajectories,episodes=1:")] == [7] * 3
    with pytest.raises(SourceError, match="nothing says where trajectories end"):
        tensordict_source(single, "items=steps")


def test_steps_of_zeros_are_steps() -> None:
    data = TensorDict(
        {"observation": torch.zeros(5, 2), "action": torch.zeros(5), "next": {"done": torch.zeros(5, 1).bool()}}, [5]
    )
    (episode,) = open_source(data)
    assert len(episode) == 6


def test_values_that_are_no_tensors() -> None:
    data = trajectory(3)
    data["task"], data["says"] = NonTensorData("pour", batch_size=[3]), NonTensorStack("a", "b", "c")
    (episode,) = open_source(data)
    assert episode.metadata["task"] == b"pour"
    assert episode.columns["says"].tolist() == [b"a", b"b", b"c", b""]
    other = trajectory(2, 1)
    other["task"], other["says"] = NonTensorData("stir", batch_size=[2]), NonTensorStack("d", "e")
    first, second = open_source([data, other])
    assert first.columns["task"].tolist() == [b"pour"] * 3 + [b""]
    assert second.columns["task"].tolist() == [b"stir"] * 2 + [b""]


def test_a_tensorclass_is_a_tensordict() -> None:
    @tensorclass
    class Step:
        observation: torch.Tensor
        action: torch.Tensor
        next: TensorDict

    data = trajectory(4).select("action", "next")
    step = Step(  # type: ignore[call-arg]  # its fields come from tensorclass
        observation=torch.zeros(4, 3), action=data["action"], next=data["next"].exclude("observation"), batch_size=[4]
    )
    assert [len(episode) for episode in open_source(step)] == [5]


def collected(counts: list[int]) -> list[TensorDict]:
    """Batches of a collector: trajectories of seven steps, cut where a batch is full."""
    data = torch.cat([trajectory(7, number) for number in range(4)])
    data["collector", "traj_ids"] = torch.arange(28) // 7
    return list(data.split(counts))


@pytest.mark.parametrize("keys", [(), ("collector",), ("next", "done")])
@pytest.mark.parametrize(
    ("counts", "why"),
    [([14, 14], "number 0 has 1"), ([5, 9, 14], "number 0 has no end, and number 1 goes on|number 1 has")],
)
def test_batches_of_a_collector_are_no_trajectories(keys: tuple[str, ...], counts: list[int], why: str) -> None:
    if keys == ("next", "done"):
        why = "number 0 has" if counts[0] == 14 else "number 0 has no end|number 1 has"
        parts = [
            part.exclude(*(("next", key) for key in ("done", "terminated", "truncated"))) for part in collected(counts)
        ]
    else:
        parts = [part.exclude(*keys) for part in collected(counts)]
    with pytest.raises(SourceError, match=why):
        open_source(parts)
    assert [len(episode) for episode in open_source(torch.cat(parts))] == [8] * 4


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([trajectory(3), trajectory(3).exclude("action")], "action: number 1 has no such key"),
        ([trajectory(3), {"a": 1}], "number 1 is a dict"),
        ([trajectory(3), trajectory(3)[:0]], r"number 1 has the batch size \[0\]"),
        ([trajectory(3)[0], trajectory(3)[1]], r"number 0 has the batch size \[\].*torch.stack"),
        ([torch.stack([trajectory(3)])], r"number 0 has the batch size \[1, 3\]"),
        ([trajectory(3), trajectory(3).apply(torch.Tensor.double)], "number 1 has float64"),
        (trajectory(3)[0], "without a batch size"),
        (TensorDict({}, [3]), "no key that could be a column|nothing says"),
        (
            TensorDict({"a": torch.zeros(3).to_sparse(), "next": {"done": torch.ones(3).bool()}}, [3]),
            "layout torch.sparse_coo",
        ),
        (
            TensorDict({"a": torch.zeros(3).to(torch.float8_e4m3fn), "next": {"done": torch.ones(3).bool()}}, [3]),
            "a: dtype torch.float8",
        ),
    ],
)
def test_what_is_refused(parts: Any, why: str) -> None:
    with pytest.raises(SourceError, match=why) as caught:
        list(open_source(parts))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", ["buffer=0", "itms=steps", "items=steps,items=steps", "spec_from=all"])
def test_options_about_files_and_unknown_ones_are_refused(options: str) -> None:
    with pytest.raises(SourceError, match="option"):
        tensordict_source(trajectory(3), options)


def test_tensors_that_need_a_gradient_and_expanded_ones() -> None:
    data = trajectory(4)
    data["extra"], data["same"] = torch.ones(4, 2, requires_grad=True) * 2, torch.ones(1, 2).expand(4, 2)
    (episode,) = open_source(data)
    np.testing.assert_array_equal(episode.columns["extra"][:-1], np.full((4, 2), 2))
    np.testing.assert_array_equal(episode.columns["same"][:-1], np.ones((4, 2)))


def test_local_and_convert_take_them(tmp_path: Path) -> None:
    with rlds2reverb.local(torch.cat(lists()), "transition", batch_size=4) as batches:
        data = next(batches).data
    np.testing.assert_array_equal(data["observation"]["state"], lists()[0]["observation", "state"])
    convert(lists(), f"ted:{tmp_path / 'copy'}?layout=memmap")
    kept = TensorDict.load_memmap(tmp_path / "copy" / "storage")
    assert (kept["next", "observation", "state"] == torch.cat(lists())["next", "observation", "state"]).all()


prioritized = prioritized_module()


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("alpha", [None, 0.7])
@pytest.mark.parametrize(
    ("capacity", "count", "columns"), [(20, 13, 0), (20, 20, 0), (20, 47, 0), (9, 5, 3), (9, 9, 2), (9, 25, 2)]
)
def test_a_buffer_is_what_it_dumps(
    tmp_path: Path, storage: Any, alpha: float | None, capacity: int, count: int, columns: int
) -> None:
    size = capacity * max(columns, 1)
    sampler = {} if alpha is None else {"sampler": prioritized.PrioritizedSampler(size, alpha, 0.4)}
    buffer = TensorDictReplayBuffer(
        storage=storage(size, ndim=2 if columns else 1),
        batch_size=4,
        **sampler,
        **({"dim_extend": 1} if columns else {}),
    )
    lines = [torch.cat([trajectory(3, 100 * line + number) for number in range(20)]) for line in range(max(columns, 1))]
    data = torch.stack(lines)
    for first in range(0, count, 5):
        part = data[:, first : min(first + 5, count)]
        index = buffer.extend(part if columns else part[0])
        if alpha is not None:
            buffer.update_priority(index, torch.rand(index.shape[:1]) + 0.1)
    buffer.append_transform(lambda step: step.exclude("action"))
    buffer.dumps(tmp_path)
    for option in ("", "incomplete=drop", "priorities=drop"):
        source, dumped = tensordict_source(buffer, option), open_source(f"ted:{tmp_path}{option and '?'}{option}")
        same(source, dumped)
        assert source.about == dumped.about
        assert [notice.code for notice in source.notices] == [notice.code for notice in dumped.notices]
    same(open_source(buffer), open_source(f"ted:{tmp_path}"))


def test_buffers_that_are_refused() -> None:
    with pytest.raises(SourceError, match="it is empty"):
        open_source(ReplayBuffer(storage=LazyTensorStorage(4)))
    best = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), writer=TensorDictMaxValueWriter(rank_key=("next", "reward")), batch_size=2
    )
    best.extend(trajectory(6))
    with pytest.raises(SourceError, match="TensorDictMaxValueWriter"):
        open_source(best)
    assert len(list(tensordict_source(best, "trajectories=rows"))) == 4
    texts = ReplayBuffer(storage=ListStorage(4))
    texts.extend(["a", "b"])
    with pytest.raises(SourceError, match="expected TensorDicts"):
        open_source(texts)
    listed = ReplayBuffer(storage=ListStorage(4))
    listed.extend(lists())
    same(open_source(listed), open_source(lists()))
    with pytest.raises(SourceError, match="one of its buffers"):
        open_source(ReplayBufferEnsemble(best, best, p=[0.5, 0.5], batch_size=4))
