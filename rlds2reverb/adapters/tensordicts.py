"""A table's batches as TensorDicts in TorchRL's layout (TED).

| key | shape | what |
| --- | --- | --- |
| observation, action, done, terminated, truncated, next.* | as TorchRL's environments write them | see `adapters.ted` |
| index | [B], of slices [N, 1], int64 | the item's key, same bits: for priorities |
| priority_weight | [B], [N], float32 | `info.weight`, where the sampler makes weights |
| (collector, traj_ids) | [B], [N], int64 | the column that `trajectory` names; of slices otherwise the slice's number in its batch (an item over several episodes is several) |
| (collector, mask) | [S, L] bool | of `layout="slices"` only: what is a transition; the rest is padding |

Sources: `TensorDictReplayBuffer` and `SliceSampler`, observed with TorchRL 0.14.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.adapters.ted import Transitions, ends_marked, flattened, transitions_of
from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.learner.batch import Batch
from rlds2reverb.specs import Nest

with needing("the adapter for TorchRL", "torchrl", ModuleNotFoundError):
    import torch
    from tensordict import NonTensorStack, TensorDict

    from rlds2reverb.adapters.torch import tensor_of

FLAT, SLICES = "flat", "slices"
LAYOUTS = (FLAT, SLICES)


@dataclass(frozen=True)
class Layout:
    """How items become TensorDicts.

    Attributes:
      layout: of items with several transitions: "flat", [N] one slice after the other, as `SliceSampler` returns them, without what
        is padding; or "slices", [S, L], with (collector, mask).
      mark_ends: the last transition of a slice is truncated and done, as `SliceSampler` marks it. Items that are one transition
        are left as they are.
      trajectory: a column of whole numbers that tells the trajectory ("extras/episode"); it becomes (collector, traj_ids).
      device: where the tensors go; None for the host.

    Raises:
      ConfigError: another layout.
    """

    layout: str = FLAT
    mark_ends: bool = True
    trajectory: str = ""
    device: Any = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f"TED: layout {self.layout!r}: expected one of {', '.join(LAYOUTS)}")


def tensordict_of(batch: Batch, layout: Layout = Layout()) -> Any:
    """A batch as a TensorDict; its table says what views are understood.

    Raises:
      ConfigError: items of another kind, without a transition, or without the column `trajectory`.
    """
    made = transitions_of(batch)
    if not made.valid.any():
        raise ConfigError(
            f"TED: a batch of {batch.size} items without a transition: all start at an episode's last row"
        )
    if layout.mark_ends and not made.is_single:
        made = ends_marked(made)
    columns = _columns(batch, made, layout)
    if layout.layout == FLAT or made.is_single:
        sizes: tuple[int, ...] = (int(made.valid.sum()),)
        shaped = _mapped(columns, lambda leaf: flattened(made, leaf))
    else:
        sizes, shaped = made.valid.shape, columns
        shaped["collector"]["mask"] = made.valid
    device = torch.device("cpu" if layout.device is None else layout.device)
    return TensorDict(_mapped(shaped, lambda leaf: _leaf(leaf, device, len(sizes))), batch_size=sizes, device=device)


def tensordicts(sampled: Iterable[Batch], layout: Layout = Layout()) -> Iterator[Any]:
    """The batches of a sampler; see `tensordict_of`."""
    for batch in sampled:
        yield tensordict_of(batch, layout)


def _columns(batch: Batch, made: Transitions, layout: Layout) -> dict[str, Any]:
    """TED and what goes beside it, all [S, L, ...]."""
    columns: dict[str, Any] = _dicts(made.columns)
    count = made.valid.shape
    keys = np.broadcast_to(batch.info.key.view(np.int64)[:, np.newaxis], count)
    columns["index"] = keys if made.is_single else keys[..., np.newaxis]
    if batch.info.weight is not None:
        columns["priority_weight"] = np.broadcast_to(batch.info.weight[:, np.newaxis], count)
    collector = {}
    if layout.trajectory:
        collector["traj_ids"] = _taken(columns, layout.trajectory, count)
    elif not made.is_single:
        collector["traj_ids"] = _stretches(made.valid)
    if collector:
        columns["collector"] = collector
    return columns


def _stretches(valid: Array) -> Array:
    """[S, L]: each stretch of transitions that follow one another has a number of its own; most slices are one stretch."""
    before = np.zeros_like(valid)
    before[:, 1:] = valid[:, :-1]
    return np.cumsum(valid & ~before).reshape(valid.shape) - 1


def _taken(columns: dict[str, Any], path: str, count: tuple[int, ...]) -> Array:
    """Takes a column out: [S, L] whole numbers."""
    *parents, name = path.split("/")
    place: Any = columns
    for parent in parents:
        place = place.get(parent) if isinstance(place, dict) else None
    column = place.pop(name, None) if isinstance(place, dict) else None
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu" or column.size != count[0] * count[1]:
        found = (
            "no such column" if column is None else f"{getattr(column, 'dtype', 'a nest')}{list(np.shape(column)[2:])}"
        )
        raise ConfigError(f'TED: trajectory "{path}": expected a whole number per item or row, found {found}')
    return column.astype(np.int64).reshape(count)


def _dicts(nest: Nest) -> Any:
    """The nest in dicts, without empty ones."""
    if isinstance(nest, Mapping):
        named = {str(key): _dicts(child) for key, child in nest.items()}
    elif hasattr(nest, "_fields"):
        named = {key: _dicts(child) for key, child in zip(nest._fields, nest)}
    elif isinstance(nest, (list, tuple)):
        named = {str(number): _dicts(child) for number, child in enumerate(nest)}
    else:
        return nest
    return {key: child for key, child in named.items() if not isinstance(child, dict) or child}


def _mapped(nest: dict[str, Any], function: Callable[[Array], Any]) -> dict[str, Any]:
    return {
        key: _mapped(child, function) if isinstance(child, dict) else function(child) for key, child in nest.items()
    }


def _leaf(leaf: Array, device: Any, axes: int) -> Any:
    if leaf.dtype.kind != "O":
        return tensor_of(np.ascontiguousarray(leaf), device)
    if leaf.ndim != axes:
        raise ConfigError(
            f"TED: a column of text {list(leaf.shape[axes:])} per transition; TorchRL takes one text each"
        )
    return NonTensorStack.from_list(leaf.tolist())
