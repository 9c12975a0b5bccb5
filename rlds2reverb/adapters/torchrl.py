"""TorchRL: batches as TensorDicts in its layout (TED), and a replay buffer on a table for its trainers.

| key | shape | what |
| --- | --- | --- |
| observation, action, done, terminated, truncated, next.* | as TorchRL's environments write them | see `adapters.ted` |
| index | [B], of slices [N, 1], int64 | the item's key, same bits: for priorities |
| priority_weight | [B], [N], float32 | `info.weight`, where the sampler computes weights |
| (collector, traj_ids) | [B], [N], int64 | the column that `trajectory` names; of slices otherwise the slice's number in its batch (an item over several episodes has several numbers) |
| (collector, mask) | [S, L] bool | of `layout="slices"` only: true for transitions, false for padding |

It needs PyTorch and tensordict; TorchRL itself only where its losses and trainers are used. Sources of layout and calls:
`TensorDictReplayBuffer`, `SliceSampler`, `ReplayBufferTrainer`, observed with TorchRL 0.14.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.adapters.ted import Transitions, flatten_valid, mark_ends, transitions_of
from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.joining import Batches
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.servers.keys import check_priorities
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import Nest, map_leaves

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for TorchRL", "torchrl", ModuleNotFoundError):
    import torch
    from tensordict import NonTensorStack, TensorDict

    from rlds2reverb.adapters.torch import on_host, tensor_of, tensors

FLAT, SLICES = "flat", "slices"
LAYOUTS = (FLAT, SLICES)


@dataclass(frozen=True)
class Layout:
    """The layout of TensorDicts.

    Attributes:
      layout: of items with several transitions: "flat", [N] one slice after the other, as `SliceSampler` returns them, without
        padding; or "slices", [S, L], with (collector, mask).
      mark_ends: mark the last transition of a slice as truncated and done, as `SliceSampler` does. Items of one transition
        do not change.
      trajectory: a column of whole numbers that identify the trajectory ("extras/episode"); it becomes (collector, traj_ids).
      device: of the tensors; None for the host.

    Raises:
      ConfigError: an unknown layout.
    """

    layout: str = FLAT
    mark_ends: bool = True
    trajectory: str = ""
    device: Any = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f"TED: layout {self.layout!r}: expected one of {', '.join(LAYOUTS)}")


def tensordict_of(batch: Batch, layout: Layout = Layout()) -> Any:
    """Converts a batch to a TensorDict; `adapters.ted` lists the views.

    Raises:
      ConfigError: items of another view, without a transition, or without the column `trajectory`.
    """
    transitions = transitions_of(batch)
    if not transitions.valid.any():
        raise ConfigError(
            f"TED: a batch of {batch.size} items without a transition: all start at an episode's last row"
        )
    if layout.mark_ends and not transitions.is_single:
        transitions = mark_ends(transitions)
    columns = _columns(batch, transitions, layout)
    if layout.layout == FLAT or transitions.is_single:
        sizes: tuple[int, ...] = (int(transitions.valid.sum()),)
        shaped = map_leaves(lambda leaf: flatten_valid(transitions, leaf), columns)
    else:
        sizes, shaped = transitions.valid.shape, columns
        shaped["collector"]["mask"] = transitions.valid
    device = torch.device("cpu" if layout.device is None else layout.device)
    return TensorDict(map_leaves(lambda leaf: _leaf(leaf, device, len(sizes)), shaped), batch_size=sizes, device=device)


def tensordicts(sampled: Iterable[Batch], layout: Layout = Layout()) -> Iterator[Any]:
    """Converts the batches of a sampler; see `tensordict_of`."""
    for batch in sampled:
        yield tensordict_of(batch, layout)


def _columns(batch: Batch, transitions: Transitions, layout: Layout) -> dict[str, Any]:
    """TED and the further keys, all [S, L, ...]."""
    columns: dict[str, Any] = _dicts(transitions.columns)
    count = transitions.valid.shape
    keys = np.broadcast_to(batch.info.key.view(np.int64)[:, np.newaxis], count)
    columns["index"] = keys if transitions.is_single else keys[..., np.newaxis]
    if batch.info.weight is not None:
        columns["priority_weight"] = np.broadcast_to(batch.info.weight[:, np.newaxis], count)
    collector = {}
    if layout.trajectory:
        collector["traj_ids"] = _pop_trajectories(columns, layout.trajectory, count)
    elif not transitions.is_single:
        # Each run of consecutive transitions gets a number; most slices are one run.
        before = np.zeros_like(transitions.valid)
        before[:, 1:] = transitions.valid[:, :-1]
        collector["traj_ids"] = np.cumsum(transitions.valid & ~before).reshape(count) - 1
    if collector:
        columns["collector"] = collector
    return columns


def _pop_trajectories(columns: dict[str, Any], path: str, count: tuple[int, ...]) -> Array:
    """Removes a column: [S, L] whole numbers."""
    *parents, name = path.split("/")
    place: Any = columns
    for parent in parents:
        place = place.get(parent) if isinstance(place, dict) else None
    column = place.pop(name, None) if isinstance(place, dict) else None
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu" or column.size != count[0] * count[1]:
        came = (
            "no such column" if column is None else f"{getattr(column, 'dtype', 'a nest')}{list(np.shape(column)[2:])}"
        )
        raise ConfigError(f'TED: trajectory "{path}": expected a whole number per item or row, found {came}')
    return column.astype(np.int64).reshape(count)


def _dicts(nest: Nest) -> Any:
    """The nest as dicts, without empty ones."""
    if isinstance(nest, Mapping):
        named = {str(key): _dicts(child) for key, child in nest.items()}
    elif hasattr(nest, "_fields"):
        named = {key: _dicts(child) for key, child in zip(nest._fields, nest)}
    elif isinstance(nest, (list, tuple)):
        named = {str(number): _dicts(child) for number, child in enumerate(nest)}
    else:
        return nest
    return {key: child for key, child in named.items() if not isinstance(child, dict) or child}


def _leaf(leaf: Array, device: Any, axes: int) -> Any:
    if leaf.dtype.kind != "O":
        return tensor_of(np.ascontiguousarray(leaf), device)
    if leaf.ndim != axes:
        raise ConfigError(
            f"TED: a column of text {list(leaf.shape[axes:])} per transition; TorchRL takes one text each"
        )
    return NonTensorStack.from_list(leaf.tolist())


class TableReplayBuffer:
    """A replay buffer for TorchRL on a table: samples, and updates priorities. The server keeps the data.

    Close it, or use it as a context manager. Its stream opens with the first sample, and prefetches samples as `SampleOptions` says.

    Args:
      client: an open one; it stays open.
      table: its name.
      batch_size: items per batch; a slice has several transitions.
      priority_key: under which losses write priorities.
      layout: see `Layout`.
      options: the other fields of `SampleOptions`, by name.

    Raises:
      ConfigError: an option makes no sense.
    """

    @takes_options(SampleOptions)
    def __init__(
        self,
        client: Client,
        table: str,
        batch_size: int = SampleOptions.batch_size,
        priority_key: str = "td_error",
        layout: Layout = Layout(),
        **options: Unpack[SampleKeywords],
    ) -> None:
        make_options(SampleOptions, "TableReplayBuffer", batch_size, **options)
        self.priority_key = priority_key
        self._client, self._table, self._batch_size = client, table, batch_size
        self._layout, self._options = layout, options
        self._sampler: Batches | None = None
        self._has_priorities: bool | None = None

    def __enter__(self) -> TableReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Items in the table; asks the server, and raises as `Client.sample` does."""
        return table_of(self._client.server_info(), self._table).current_size

    def __iter__(self) -> Iterator[Any]:
        """TensorDicts, until the samples end. Raises as `sample` does otherwise."""
        while (batch := self._open_sampler().next_batch()) is not None:
            yield tensordict_of(batch, self._layout)

    @property
    def batch_size(self) -> int:
        """Items per batch."""
        return self._batch_size

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Returns the next batch.

        Args:
          batch_size: items; another number than the buffer's opens a stream for this batch, which is slower.
          return_info: return (TensorDict, info), with the fields of `BatchInfo` as a dict of tensors.

        Raises:
          ConfigError: the samples have ended (`samples`, `end_after_seconds`), or what `tensordict_of` raises.
          Rlds2ReverbError: as a sampler's iteration raises.
        """
        batch = self._open_sampler().next_batch() if batch_size in (None, self._batch_size) else self._once(batch_size)
        if batch is None:
            raise ConfigError(f'table "{self._table}": no sample is left; "samples" or "end_after_seconds" ended them')
        data = tensordict_of(batch, self._layout)
        if not return_info:
            return data
        fields: dict[str, Any] = tensors(batch).info._asdict()
        fields["index"], fields["priority_weight"] = fields.pop("key"), fields.pop("weight")
        return data, {name: values for name, values in fields.items() if values is not None}

    def update_tensordict_priority(self, data: Any) -> None:
        """Sets the priorities of the items of a sampled TensorDict to the values that the loss wrote under `priority_key`.

        An item with several transitions gets the largest. Where neither the table's sampler nor its remover uses priorities, it
        does nothing, as TorchRL does without a prioritized sampler.

        Raises:
          ConfigError: the TensorDict lacks "index" or the priorities, or they make no sense.
          ServerUnreachable, TransportError: as `Client.update_priorities`.
        """
        if not self._uses_priorities():
            return
        index, priority = data.get("index", None), data.get(self.priority_key, None)
        if index is None or priority is None:
            raise ConfigError(
                f'priorities: the TensorDict needs "index" and "{self.priority_key}", and has {sorted(map(str, data.keys()))}'
            )
        keys, priorities = on_host(index).ravel(), _per_transition(on_host(priority), len(data.batch_size))
        mask = data.get(("collector", "mask"), None)
        if mask is not None:
            shown = on_host(mask).ravel()
            keys, priorities = keys[shown], priorities[shown]
        self._update(keys, priorities)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Changes priorities; an item that is given several gets the largest.

        Args:
          index: [n] or [n, 1] int64, as in a sampled TensorDict.
          priority: [n] or [n, 1], finite and at least 0; or one for all.

        Raises:
          ConfigError, ServerUnreachable, TransportError: as `Client.update_priorities`.
        """
        keys, values = on_host(index).ravel(), on_host(priority)
        self._update(keys, _per_transition(values, 1) if values.ndim else np.full(len(keys), values))

    def extend(self, *_: object, **__: object) -> None:
        """Refused: this object does not write.

        Raises:
          ConfigError: always; says how to write.
        """
        raise ConfigError(
            f'table "{self._table}": a TableReplayBuffer samples only; store episodes with client.push(...), steps with client.writer(...)'
        )

    add = extend

    def empty(self) -> None:
        """Empties the table, for everyone. Raises as `Client.reset` does."""
        self._client.reset(self._table)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the data and the priorities are the server's; `Client.checkpoint` saves them."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Accepts the result of `state_dict`.

        Raises:
          ConfigError: it is not empty, so it is another buffer's.
        """
        if state_dict:
            raise ConfigError(f"a TableReplayBuffer has no state of its own; got {sorted(state_dict)}")

    def close(self) -> None:
        """Ends its stream; prefetched samples are lost. The next `sample` opens another stream."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()

    def _open_sampler(self) -> Batches:
        if self._sampler is None:
            self._sampler = self._client.sample(self._table, self._batch_size, **self._options)
        return self._sampler

    def _once(self, batch_size: int | None) -> Batch | None:
        size = self._batch_size if batch_size is None else batch_size
        options: SampleKeywords = {**self._options, "samples": size, "prefetch": 1, "streams": 1}
        with closing(self._client.sample(self._table, size, **options)) as sampler:
            return sampler.next_batch()

    def _uses_priorities(self) -> bool:
        if self._has_priorities is None:
            table = table_of(self._client.server_info(), self._table)
            kinds = f"{table.sampler} {table.remover}"
            self._has_priorities = "prioritized" in kinds or "heap" in kinds
        return self._has_priorities

    def _update(self, keys: Array, priorities: Array) -> None:
        """Sets the largest of the priorities that an item is given; [n] each."""
        item_keys, values = check_priorities(keys, priorities)
        items, inverse = np.unique(item_keys, return_inverse=True)
        largest = np.full(len(items), -np.inf)
        np.maximum.at(largest, inverse, values)
        self._client.update_priorities(self._table, items, largest)


def _per_transition(priority: Array, axes: int) -> Array:
    """[n]: the largest priority of each transition."""
    largest: Array = priority.reshape(*priority.shape[:axes], -1).max(axis=-1).ravel()
    return largest


__all__ = ["Layout", "TableReplayBuffer", "tensordict_of", "tensordicts"]
