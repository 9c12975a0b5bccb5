"""TensorDicts in memory as a source: what a program, a collector or a buffer has, without a file.

| object | read as |
| --- | --- |
| a TensorDict, or a tensorclass, of batch size [N], [N, T] or [columns, N, T] | a storage of that batch size (`grids`), all of whose rows were recorded |
| a list of TensorDicts [T], or a lazy stack of such of different lengths | a trajectory each |
| a TensorDict [N] with nested tensors [N, T*, ...] | the same |
| a `ReplayBuffer` of TorchRL | what its `dumps` would write: the storage without transforms, in the order of the write cursor, with the sampler's priorities |

The size that is named "time" is time, as in what TorchRL's environments and collectors give. The values are those of the tensors, not copies, unless
a list joins them: they must not change while they are read.

Whoever has a TensorDict has imported torch and tensordict: neither is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.ted.folders import MOST_NESTED, Folder, Leaf, PerRow, leaf_of
from rlds2reverb.formats.ted.keys import DONES, DTYPES, NEXT, TRAJECTORY_IDS
from rlds2reverb.formats.ted.sampler import FACTS, Priorities, priorities_of
from rlds2reverb.text import counted, shortened

TIME = "time"
_BFLOAT16 = "torch.bfloat16"


def is_tensordict(thing: object) -> bool:
    """Whether an object is a TensorDict, or a tensorclass."""
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and bool(tensordict.is_tensor_collection(thing))


def is_buffer(thing: object) -> bool:
    """Whether an object is a replay buffer of TorchRL."""
    torchrl = sys.modules.get("torchrl.data")
    return torchrl is not None and isinstance(thing, torchrl.ReplayBuffer)


def takes(thing: object) -> bool:
    """Whether an object is a TensorDict, a list with one, or a buffer."""
    return (
        is_tensordict(thing)
        or is_buffer(thing)
        or (isinstance(thing, (list, tuple)) and any(map(is_tensordict, thing)))
    )


def folder_of(data: Any) -> Folder:
    """A TensorDict, or a list of them, as what a folder would hold.

    Raises:
      SourceError: a tensor is of a kind that cannot be read, or the parts of a list are not one trajectory each.
    """
    if not is_tensordict(data):
        return join_trajectories([_read(part, f"number {at}") for at, part in enumerate(_of_list(data))])
    if _is_stack_of_lengths(data):
        return folder_of(list(data.tensordicts))
    nested_keys = {_joined(key) for key, value in data.items(True, True) if getattr(value, "is_nested", False)}
    if nested_keys:
        return join_trajectories(
            [_spread(_read(part, f"number {at}"), nested_keys, at) for at, part in enumerate(data.unbind(0))]
        )
    return _read(data, "a TensorDict")


def _joined(key: str | tuple[str, ...]) -> str:
    return key if isinstance(key, str) else "/".join(key)


@dataclass(frozen=True)
class HeldBuffer:
    """What a buffer has: its rows, and what its writer and its sampler say, as dumped ones do; `length` is of `grids.lay_out`."""

    folder: Folder
    length: int | None = None
    writer: Mapping[str, Any] = field(default_factory=dict)
    priorities: Priorities | None = None


def hold_buffer(buffer: Any, with_priorities: bool = True) -> HeldBuffer:
    """The content of a replay buffer, without its transforms.

    Raises:
      SourceError: it is empty, is an ensemble, or holds what `folder_of` does not read.

    Source: torchrl/data/replay_buffers (`state_dict` of writers and samplers), version 0.14.
    """
    name = f"a {type(buffer).__name__}"
    storage = buffer.storage
    if type(buffer).__name__ == "ReplayBufferEnsemble":
        raise SourceError(f"{name}: give one of its buffers, or rlds2reverb.mix of several")
    if not len(storage):
        raise SourceError(f"{name}: it is empty")
    rows = storage[:]
    if isinstance(rows, (list, tuple)) or not is_tensordict(rows):
        if not takes(rows):
            raise SourceError(
                f"{name}: holds {type(rows).__name__}; expected TensorDicts. Dump it (buffer.dumps), which keeps PyTrees"
            )
        return HeldBuffer(folder_of(rows))
    folder = folder_of(rows)
    try:
        said = buffer.writer.state_dict()
    except NotImplementedError:  # a TensorDictMaxValueWriter, whose rows stand in no order
        said = {}
    writer: dict[str, Any] = {"rank_key": True} if hasattr(buffer.writer, "_rank_key") else {}
    if len(storage) >= storage.max_size:  # else the rows stand as they were written, and those behind them are not here
        writer |= {key: said[f"_{key}"] for key in ("cursor", "write_count") if f"_{key}" in said}
    return HeldBuffer(folder, len(storage), writer, _priorities(name, buffer.sampler) if with_priorities else None)


def _priorities(name: str, sampler: Any) -> Priorities | None:
    if not hasattr(sampler, "_sum_tree"):
        return None
    state = sampler.state_dict()
    tree = np.asarray(state["_sum_tree"][np.arange(int(sampler._max_capacity))], np.float64)
    facts = {key: state[f"_{key}"] for key in FACTS if f"_{key}" in state}
    highest = facts.pop("max_priority", None)
    if highest is not None and highest[0] is not None:
        facts["max_priority"] = float(highest[0])
    return priorities_of(f"{name}: its sampler", tree, facts)


def _of_list(parts: Sequence[Any]) -> Sequence[Any]:
    for at, part in enumerate(parts):
        if not is_tensordict(part):
            raise SourceError(
                f"a list of TensorDicts: number {at} is a {type(part).__name__}; expected TensorDicts [steps], a trajectory each"
            )
    return parts


def _is_stack_of_lengths(data: Any) -> bool:
    """Whether it is a lazy stack of TensorDicts that differ in length. Raises `SourceError` if they are stacked along another size than the first."""
    if not hasattr(data, "tensordicts") or -1 not in tuple(data.batch_size):
        return False
    if data.stack_dim != 0:
        raise SourceError(
            f"a lazy stack along size {data.stack_dim} of TensorDicts of different sizes: expected one along the first; give its parts as a list"
        )
    return True


def _spread(item: Folder, nested_keys: Collection[str], at: int) -> Folder:
    """An item [] of nested tensors as a trajectory [T]. What is no nested tensor stands once for it, such as a goal: in each of its steps then."""
    lengths = {item.leaves[key].shape[:1] for key in nested_keys}
    if len(lengths) != 1 or () in lengths:
        raise SourceError(
            f"a TensorDict of nested tensors: number {at} has the lengths {sorted(lengths)}; expected one number of steps in all of them"
        )
    (length,) = lengths
    leaves = {
        key: leaf if key in nested_keys else leaf_of(np.broadcast_to(_typed(leaf), (*length, *leaf.shape)))
        for key, leaf in item.leaves.items()
    }
    return replace(item, batch=length, leaves=leaves)


def _read(data: Any, where: str) -> Folder:
    leaves: dict[str, Leaf] = {}
    others: dict[str, Any] = {}
    _add(data, "", where, leaves, others, 0)
    batch = tuple(map(int, data.batch_size))
    names = getattr(data, "names", None) or ()
    time = list(names).index(TIME) if TIME in names else None
    return Folder(batch, leaves, others, is_whole=True, time=time)


def _add(data: Any, prefix: str, where: str, leaves: dict[str, Leaf], others: dict[str, Any], depth: int) -> None:
    """Adds the keys of a TensorDict, those of nested ones joined by "/"."""
    if depth > MOST_NESTED:
        raise SourceError(f"{where}: nested more than {MOST_NESTED} deep")
    is_non_tensor = sys.modules["tensordict"].is_non_tensor
    for name, value in data.items():
        key = f"{prefix}{name}"
        if key in leaves or key in others:
            raise SourceError(f'{where}: two keys "{key}"; a name with "/" in it stands for nested ones')
        if is_non_tensor(value):
            # One value of all rows, or a stack of one for each.
            others[key] = PerRow(value.tolist()) if hasattr(value, "tensordicts") else value.data
        elif is_tensordict(value):
            _add(value, f"{key}/", where, leaves, others, depth + 1)
        else:
            leaves[key] = leaf_of(_array_of(value, f"{where}: {key.replace('/', '.')}"))


def _array_of(tensor: Any, where: str) -> Array:
    """The values of a tensor, not copied if they lie in this computer's memory."""
    dtype = str(tensor.dtype)
    if dtype not in DTYPES:
        raise SourceError(
            f"{where}: dtype {dtype}: expected one of {', '.join(DTYPES)}; leave the key out, or convert it"
        )
    plain = tensor.detach().cpu()
    try:
        if dtype == _BFLOAT16:
            bits = plain.contiguous().view(sys.modules["torch"].int16).numpy()
            return np.asarray(bits.view(ml_dtypes.bfloat16))
        return np.asarray(plain.resolve_conj().resolve_neg().numpy())
    except (TypeError, RuntimeError) as error:
        raise SourceError(
            f"{where}: a tensor of layout {tensor.layout} cannot be read: {shortened(' '.join(str(error).split()))}"
        ) from error


def join_trajectories(parts: Sequence[Folder]) -> Folder:
    """TensorDicts [T], a trajectory each, one behind the other.

    Raises:
      SourceError: parts differ in their keys, have another batch size or no step; or the ends in them say that they are no trajectories.
    """
    name = "a list of TensorDicts"
    if not parts:
        raise SourceError(f"{name}: it is empty")
    first = parts[0]
    layout = _layout(first)
    for at, part in enumerate(parts):
        if len(part.batch) != 1 or not part.batch[0]:
            raise SourceError(
                f"{name}: number {at} has the batch size {list(part.batch)}; expected [steps], at least one, of one trajectory each. Join batches of a "
                "collector by torch.cat(list, -1), single steps by torch.stack(list)"
            )
        unlike = sorted(
            key for key in layout.keys() | _layout(part).keys() if layout.get(key) != _layout(part).get(key)
        )
        if unlike:
            here, there = (_layout(folder).get(unlike[0]) for folder in (part, first))
            raise SourceError(
                f"{name}: {unlike[0].replace('/', '.')}: number {at} has {_written(here)}, number 0 has {_written(there)}; expected the same keys in all"
            )
        _check_is_one(name, at, part)
    _check_apart(name, parts)
    leaves = {key: leaf_of(np.concatenate([_typed(part.leaves[key]) for part in parts])) for key in first.leaves}
    others: dict[str, Any] = {}
    for key in first.others:
        values = [part.others[key] for part in parts]
        if isinstance(values[0], PerRow) or any(_differ(value, values[0]) for value in values):
            of_each = [
                value.values if isinstance(value, PerRow) else [value] * part.batch[0]
                for value, part in zip(values, parts)
            ]
            others[key] = PerRow([value for of_part in of_each for value in of_part])
        else:
            others[key] = values[0]
    stops = np.cumsum([part.batch[0] for part in parts])
    return Folder((int(stops[-1]),), leaves, others, is_whole=True, time=0, stops=stops)


def _differ(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return not np.array_equal(value, other)
    return bool(type(value) is not type(other) or value != other)


def _layout(folder: Folder) -> Mapping[str, Any]:
    return {
        **{key: (leaf.dtype, leaf.shape[1:]) for key, leaf in folder.leaves.items()},
        **dict.fromkeys(folder.others, "a value that is no tensor"),
    }


def _written(layout: Any) -> str:
    if layout is None:
        return "no such key"
    return layout if isinstance(layout, str) else f"{layout[0]}{list(layout[1])}"


def _typed(leaf: Leaf) -> Array:
    values = leaf.read()
    return np.asarray(values != 0) if leaf.dtype == bool else values


def _flag(folder: Folder) -> Array | None:
    """[T] whether a trajectory ends there; None without end flags."""
    keys = [NEXT + key for key in ("done", *sorted(DONES - {"done"})) if NEXT + key in folder.leaves]
    if not keys:
        return None
    return np.asarray(
        np.logical_or.reduce(
            [(folder.leaves[key].read() != 0).reshape(folder.batch[0], -1).any(axis=1) for key in keys]
        )
    )


def _ids(folder: Folder) -> Array | None:
    """[T] the trajectory ids; None without any."""
    key = next((key for key in TRAJECTORY_IDS if key in folder.leaves), None)
    ids = None if key is None else folder.leaves[key].read()
    return ids.reshape(-1) if ids is not None and ids.shape[1:] in ((), (1,)) else None


def _check_is_one(name: str, at: int, part: Folder) -> None:
    """Refuses a part with the ends of several trajectories, as a batch of a collector has."""
    flag, ids = _flag(part), _ids(part)
    inside = 0 if flag is None else int(flag[:-1].sum())
    changes = 0 if ids is None else int((ids[1:] != ids[:-1]).sum())
    if inside or changes:
        what = (
            f"{counted(inside, 'end flag')} before its last step"
            if inside
            else f"{counted(changes, 'change')} of its trajectory id"
        )
        raise SourceError(
            f"{name}: number {at} has {what}; expected one trajectory each. Join batches of a collector: torch.cat(list, -1)"
        )


def _check_apart(name: str, parts: Sequence[Folder]) -> None:
    """Refuses parts of which the next one goes on where one stops, without an end, as a collector's batches do."""
    for at, (part, later) in enumerate(pairwise(parts)):
        flag, ids, later_ids = _flag(part), _ids(part), _ids(later)
        if flag is not None and flag[-1]:
            continue
        if ids is not None and later_ids is not None:
            goes_on = bool(ids[-1] == later_ids[0])
        else:
            followed = [key for key in part.leaves if NEXT + key in part.leaves and key not in DONES]
            goes_on = bool(followed) and all(_same_row(part.leaves[NEXT + key], later.leaves[key]) for key in followed)
        if goes_on:
            raise SourceError(
                f"{name}: number {at} has no end, and number {at + 1} goes on where it stops; expected one trajectory each. Join batches of a collector: "
                "torch.cat(list, -1)"
            )


def _same_row(leaf: Leaf, later: Leaf) -> bool:
    return bool(np.array_equal(leaf.stored[-1:] if leaf.held is not None else leaf.read()[-1:], later.read()[:1]))
