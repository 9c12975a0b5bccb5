"""TorchRL: batches as TensorDicts in its layout (TED), and a replay buffer on a table, for its trainers and collectors.

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

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import ml_dtypes
import numpy as np

from rlds2reverb.adapters.ted import Transitions, flatten_valid, mark_ends, read_items, transitions_of
from rlds2reverb.adapters.ted_writing import TrajectoryRecorder
from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, InvalidEpisode, Rlds2ReverbError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.ted.memory import takes
from rlds2reverb.formats.ted.read import open_tensordicts
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.learner.joining import Batches
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.learner.recording import WriteOptions
from rlds2reverb.learner.writer import EpisodeWriter
from rlds2reverb.servers.keys import check_priorities
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for TorchRL", "torchrl", ModuleNotFoundError):
    import torch
    from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_leaf_nontensor

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


def tensordict_source(data: TensorDictBase | Sequence[TensorDictBase] | Any, options: str = "") -> Source:
    """TensorDicts, or a replay buffer, in memory as a source, for `push`, `local`, `convert` and others. These take the object itself, too; this is for options.

    Args:
      data: steps [N], trajectories [N, T], a list of trajectories [T] each, or a `ReplayBuffer`, as docs/formats/ted.md says. They must not change while they are read.
      options: as behind the "?" of `ted:PATH?OPTIONS`, such as "items=trajectories,done_means=terminal"; those about files are none.

    Raises:
      SourceError: `data` is none of these or may be read in several ways, a tensor is of a kind that cannot be read, or an option makes no sense.
    """
    if not takes(data):
        raise SourceError(f"{type(data).__name__}: expected a TensorDict, a list of them, or a ReplayBuffer")
    return open_tensordicts(data, options)


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
    leaves = map_leaves(lambda leaf: _leaf(leaf, device, len(sizes)), shaped)
    names = (None, "time")[: len(sizes)]  # as TorchRL's environments and collectors name the axis of time
    return TensorDict(leaves, batch_size=sizes, device=device, names=names if len(sizes) > 1 else None)


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


def composite_of(signature: Nest, layout: Layout = Layout()) -> Any:
    """The Composite spec of a transition of a table: what `tensordict_of` gives of each, without sizes of batches; needs torchrl.

    Bounds in the signature, of observations and actions, become Bounded, or Categorical of whole numbers from 0; all else is Unbounded. The
    keys of a batch, "collector" and "index", are not in it.

    Args:
      signature: of the table: `client.server_info().tables["replay"].signature`.
      layout: as of the TensorDicts.

    Raises:
      ConfigError: as `tensordict_of`.
    """
    with needing("specs of TorchRL", "torchrl", ModuleNotFoundError):
        from torchrl.data import Bounded, Categorical, Composite, NonTensor, Unbounded
    specs: dict[str, ArraySpec] = flatten(signature)
    zeros = map_leaves(_zeros_of, signature)
    nothing = np.zeros(1)
    data = tensordict_of(Batch(zeros, BatchInfo(np.zeros(1, np.uint64), nothing, nothing, nothing, nothing)), layout)
    composite = Composite(shape=())
    for key, leaf in data.exclude("collector", "index").items(True, True, is_leaf=is_leaf_nontensor):
        path = key if isinstance(key, str) else "/".join(key)
        if not isinstance(leaf, torch.Tensor):
            composite[key] = NonTensor(shape=())
            continue
        shape, spec = leaf.shape[data.ndim :], specs.get(path)
        low, high = (
            (None, None) if spec is None else (_bound_of(spec, bound, shape) for bound in (spec.minimum, spec.maximum))
        )
        if low is None or high is None:
            composite[key] = Unbounded(shape=shape, dtype=leaf.dtype)
        elif not shape and leaf.dtype == torch.int64 and low == 0:
            composite[key] = Categorical(int(high) + 1, shape=shape, dtype=leaf.dtype)
        else:
            low, high = (torch.as_tensor(bound, dtype=leaf.dtype) for bound in (low, high))
            composite[key] = Bounded(low, high, shape=shape, dtype=leaf.dtype)
    return composite


def _bound_of(spec: ArraySpec, bound: Any, shape: tuple[int, ...]) -> Array | None:
    """A bound of a row, whose shape is what the spec's ends with; None without one. The spec's own may have one bound for each row."""
    if bound is None:
        return None
    rows = len(spec.shape) - len(shape)
    sizes = [1 if size is None or at < rows else size for at, size in enumerate(spec.shape)]
    whole = np.asarray(bound) if np.ndim(bound) > len(shape) else np.broadcast_to(bound, sizes)
    return np.array(whole[(0,) * rows])


def _zeros_of(spec: ArraySpec) -> Array:
    """[1, ...]: three rows where a size is free, since an item of two is a single transition."""
    zeros = np.zeros((1, *(3 if size is None else size for size in spec.shape)), spec.dtype)
    if spec.dtype == object:
        zeros[...] = b""
    return zeros


class TableReplayBuffer:
    """A replay buffer for TorchRL on a table: samples, writes, and updates priorities. The server keeps the data.

    Close it, or use it as a context manager. Its stream opens with the first sample, and prefetches samples as `SampleOptions` says.

    Args:
      client: an open one; it stays open.
      table: its name.
      batch_size: items per batch; a slice has several transitions.
      priority_key: under which losses write priorities.
      layout: see `Layout`.
      transform: of batches, as `append_transform` takes it.
      collate_fn: called with each batch, a TensorDict, before the transforms.
      write: for `extend`: the view by which the table's items are made, as {"view": "transition"}, and further options of `Client.writer`.
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
        *,
        transform: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        write: Mapping[str, Any] | None = None,
        **options: Unpack[SampleKeywords],
    ) -> None:
        make_options(SampleOptions, "TableReplayBuffer", batch_size, **options)
        self._write = dict(write or {})
        chosen = make_options(WriteOptions, "TableReplayBuffer: write", table, **self._write)
        self._recorder = TrajectoryRecorder(chosen.max_steps, chosen.most_episode_bytes)
        self.priority_key = priority_key
        self._client, self._table, self._batch_size = client, table, batch_size
        self._layout, self._options, self._collate = layout, options, collate_fn
        self._sampler: Batches | None = None
        self._writer: EpisodeWriter | None = None
        self._writers = 0  # that were opened so far
        self._lock = threading.RLock()  # collectors write in threads of their own
        self._has_priorities: bool | None = None
        self._transforms: Any = None  # a buffer of TorchRL's without data, which has the transforms
        if transform is not None:
            self.append_transform(transform)

    def __enter__(self) -> TableReplayBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it. After an error in the block the trajectories that had ended are still sent, and that error is the one raised."""
        if error is None:
            self.close()
            return
        self._close_sampler()
        with self._lock:
            self._recorder.discard()
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.__exit__(kind, error, at)

    def __len__(self) -> int:
        """Items in the table; asks the server, and raises as `Client.sample` does."""
        return table_of(self._client.server_info(), self._table).current_size

    def __iter__(self) -> Iterator[Any]:
        """TensorDicts, until the samples end. Raises as `sample` does otherwise."""
        while (batch := self._open_sampler().next_batch()) is not None:
            yield self._present(tensordict_of(batch, self._layout))

    @property
    def spec(self) -> Any:
        """The Composite spec of a transition, see `composite_of`; asks the server.

        Raises:
          ConfigError: the table has no signature, or no such items as `tensordict_of` takes.
        """
        signature = table_of(self._client.server_info(), self._table).signature
        if signature is None:
            raise ConfigError(f'table "{self._table}" has no signature; look at buffer.sample()')
        return composite_of(signature, self._layout)

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
        data = self._present(tensordict_of(batch, self._layout))
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

    def extend(self, data: Any, *, update_priority: bool | None = None) -> None:
        """Writes steps, in the order of recording. Their items are in the table when their trajectory has ended, after some milliseconds.

        It returns no indices, unlike TorchRL's: items get their keys when their trajectory ends.

        Args:
          data: steps in TED, as a collector hands them over: a TensorDict of batch size [T], or [B, T] with time last, or a PyTree, a dict
            of arrays [T, ...], where lists and tuples are groups whose keys are numbers; or a list of single steps. What TED does not name becomes a column of the steps, and must be in the table's items.
            A trajectory may go on in the next call: by its id ("collector", "traj_ids"), else in the same row of the batch.
          update_priority: refused; new items have the priority that the view gives.

        Raises:
          ConfigError: keys are missing or differ from earlier ones; the table takes no such steps; or what `Client.writer` raises.
          InvalidEpisode: a trajectory is bad. Nothing of it is stored; the others of the batch are.
          Rlds2ReverbError: sending has failed meanwhile. Unfinished trajectories are dropped.
        """
        if update_priority is not None:
            raise ConfigError(
                f'table "{self._table}": update_priority: new items have the priority that the view gives'
            )
        steps = _as_steps(data)
        if self._transforms is not None:
            steps = self._transforms.transform.inv(steps)
            if steps is None:  # a transform may keep everything for later, as TorchRL's do
                return
        with self._lock:
            self._write_episodes(self._recorder.take(_leaves_of(steps)))

    def add(self, data: Any) -> None:
        """Writes a single step: a TensorDict of batch size [], or a dict of values. Raises as `extend`."""
        self.extend([data])

    def end_trajectories(self) -> None:
        """Ends the unfinished trajectories as truncated ones, so that they are stored. Raises as `extend`."""
        with self._lock:
            self._write_episodes(self._recorder.finish())

    def _write_episodes(self, episodes: Iterator[dict[str, Array]]) -> None:
        """Writes episodes. A bad one does not hold up those behind it: it is raised when all are written, the first one of several.

        After any other error nothing can be stored, and unfinished trajectories are dropped, too: they may lie in a collector's memory.
        """
        bad: InvalidEpisode | None = None
        for columns in episodes:
            try:
                self._open_writer().write_episode(columns)
            except InvalidEpisode as error:
                bad = bad or error
            except Rlds2ReverbError:
                self._recorder.discard()
                raise
        if bad is not None:
            raise bad

    def flush(self) -> None:
        """Waits until every item of the trajectories that have ended is stored. Raises as `EpisodeWriter.flush`."""
        if self._writer is not None:
            self._writer.flush()

    def append_transform(self, transform: Any, *, invert: bool = False) -> TableReplayBuffer:
        """Adds a transform of batches, as `torchrl.data.ReplayBuffer.append_transform` does; needs torchrl.

        Args:
          transform: a Transform of TorchRL, whose inverse is applied by `extend`; or a function of a batch.
          invert: use the inverse for batches, and the transform itself in `extend`.
        """
        self._need_transforms().append_transform(transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> TableReplayBuffer:
        """Adds a transform in front of the one at `index`; otherwise as `append_transform`."""
        self._need_transforms().insert_transform(index, transform, invert=invert)
        return self

    def __getitem__(self, index: Any) -> Any:
        """Transitions of the table as it is now: buffer[:], buffer[3], buffer[:10], buffer["next", "reward"].

        The whole table is read, every time, in no special order: by a checkpoint of a server on this machine, else by sampling until every item
        was seen (docs/formats/reverb.md). Keep `buffer[:]` rather than index again.

        Raises:
          ConfigError: items of another view; see `tensordict_of`.
          SourceError: the table holds no items, or cannot be read without disturbing it.
          IndexError, KeyError: as a TensorDict does.
        """
        whole = self._present(tensordict_of(read_items(self._client, self._table), self._layout))
        is_all = isinstance(index, slice) and index == slice(None)
        return whole if is_all else whole[index]

    def set_at(self, index: Any, value: Any) -> NoReturn:
        """Refused: items of a table do not change.

        Raises:
          ConfigError: always; says what to do instead.
        """
        raise ConfigError(
            f'table "{self._table}": items do not change, for other processes may be reading them. update_priority changes priorities; '
            "client.delete(...) takes items out, extend(...) writes others"
        )

    __setitem__ = set_at

    def empty(self) -> None:
        """Empties the table, for everyone. What this buffer was given before, unfinished trajectories and prefetched samples too, is gone.

        Raises as `flush` and `Client.reset` do.
        """
        with self._lock:
            self._recorder.discard()
            self.flush()  # else it would arrive in the empty table
            self._close_sampler()
            self._client.reset(self._table)

    def dumps(self, path: Any) -> NoReturn:
        """Refused: the server keeps the data.

        Raises:
          ConfigError: always; says what to do instead.
        """
        raise ConfigError(
            f'table "{self._table}": the server keeps the data: client.checkpoint() saves all tables with their priorities, and '
            f'"rlds2reverb convert reverb:HOST:PORT/{self._table} ted:{path}" writes what loads of a buffer of TorchRL\'s reads'
        )

    def loads(self, path: Any) -> NoReturn:
        """Refused: a table is filled by a push. Raises as `dumps`."""
        raise ConfigError(
            f'table "{self._table}": client.push("ted:{path}", "{self._table}", view=...) stores what a buffer of TorchRL\'s dumped'
        )

    def __getstate__(self) -> NoReturn:
        """Refused, as for a worker of another process. Raises ConfigError."""
        raise ConfigError(
            f'table "{self._table}": a buffer has connections, which other processes cannot use; let each connect and make a buffer of its own'
        )

    def state_dict(self) -> dict[str, Any]:
        """The transforms' state. Data and priorities are the server's: `Client.checkpoint` saves them."""
        return {} if self._transforms is None else {"transforms": self._transforms.transform.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Accepts the result of `state_dict`.

        Raises:
          ConfigError: it is another buffer's, or of other transforms.
        """
        expected = {} if self._transforms is None else {"transforms"}
        if state_dict.keys() != set(expected):
            raise ConfigError(
                f"TableReplayBuffer: state with {sorted(state_dict) or 'nothing'}; expected {sorted(expected) or 'nothing'}: "
                "data and priorities are the server's"
            )
        if self._transforms is not None:
            self._transforms.transform.load_state_dict(state_dict["transforms"])

    def close(self) -> None:
        """Ends unfinished trajectories as truncated, waits until all is stored, and ends its streams; prefetched samples are lost.

        The next `sample` or `extend` opens another stream. Raises as `extend` and `flush`.
        """
        self._close_sampler()
        with self._lock, ExitStack() as closing_writer:
            closing_writer.callback(self._close_writer)
            self.end_trajectories()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _close_sampler(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()

    def _open_writer(self) -> EpisodeWriter:
        if self._writer is None:
            options = dict(self._write)
            if self._writers and options.get("name") is not None:  # another writer's episodes need other names
                options["name"] = f"{options['name']}+{self._writers}"
            self._writer = self._client.writer(self._table, **options)
            self._writers += 1
        return self._writer

    def _need_transforms(self) -> Any:
        """A buffer of TorchRL's that holds the transforms, so that functions, inverses and their state are handled as it does."""
        if self._transforms is None:
            with needing("transforms of a TableReplayBuffer", "torchrl", ModuleNotFoundError):
                from torchrl.data import ListStorage, ReplayBuffer
            self._transforms = ReplayBuffer(storage=ListStorage(1))
        return self._transforms

    def _present(self, data: Any) -> Any:
        if self._collate is not None:
            data = self._collate(data)
        if self._transforms is None:
            return data
        with data.unlock_() if isinstance(data, TensorDictBase) else nullcontext():
            return self._transforms.transform(data)

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


def _as_steps(data: Any) -> Any:
    """What `extend` takes -> a TensorDict [T] or [B, T]."""
    if isinstance(data, list):
        if not data:
            raise ConfigError("TED: extend with an empty list; expected steps")
        return torch.stack([_as_step(step) for step in data])
    if isinstance(data, TensorDictBase):
        if not data.ndim:
            raise ConfigError("TED: extend with a single step; add(...) takes it")
        return data
    if isinstance(data, Mapping):
        return TensorDict.from_dict(_named(data), auto_batch_size=True, batch_dims=1)
    raise ConfigError(
        f"TED: extend with a {type(data).__name__}; expected a TensorDict, a dict of arrays, or a list of single steps: a table's columns have names"
    )


def _named(tree: Any) -> Any:
    """A PyTree as dicts: lists and tuples of arrays become groups whose keys are numbers; lists of numbers stay, they are arrays."""
    if isinstance(tree, Mapping):
        return {name: _named(child) for name, child in tree.items()}
    if isinstance(tree, (list, tuple)) and any(
        isinstance(leaf, (torch.Tensor, np.ndarray)) for leaf in _leaves_in(tree)
    ):
        return {str(number): _named(child) for number, child in enumerate(tree)}
    return tree


def _leaves_in(tree: Any) -> Iterator[Any]:
    children = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple)) else None
    if children is None:
        yield tree
    else:
        for child in children:
            yield from _leaves_in(child)


def _as_step(step: Any) -> Any:
    if isinstance(step, TensorDictBase) and not step.ndim:
        return step
    if isinstance(step, Mapping):
        return TensorDict.from_dict(_named(step), batch_size=[])
    came = (
        f"TensorDict of batch size {list(step.batch_size)}" if isinstance(step, TensorDictBase) else type(step).__name__
    )
    raise ConfigError(f"TED: a step that is a {came}; expected a TensorDict of batch size [], or a dict of values")


def _leaves_of(steps: Any) -> dict[str, Array]:
    """A TensorDict [T] or [..., T] -> "/"-joined key -> [B, T, ...], on the host."""
    time = [axis for axis, name in enumerate(steps.names or ()) if name == "time"]
    if time and time[0] != steps.ndim - 1:
        others = [axis for axis in range(steps.ndim) if axis != time[0]]
        steps = steps.permute(*others, time[0])
    rows, count = int(np.prod(steps.shape[:-1])), steps.shape[-1]
    leaves = {}
    for key, leaf in steps.items(True, True, is_leaf=is_leaf_nontensor):
        path = key if isinstance(key, str) else "/".join(key)
        array = _array_of(leaf) if isinstance(leaf, torch.Tensor) else _texts_of(path, leaf, steps.shape)
        leaves[path] = array.reshape(rows, count, *array.shape[steps.ndim :])
    return leaves


def _array_of(leaf: Any) -> Array:
    host = leaf.detach().cpu()
    if host.dtype == torch.bfloat16:
        return np.asarray(host.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(host.numpy())


def _texts_of(path: str, leaf: Any, shape: tuple[int, ...]) -> Array:
    """Of a NonTensorStack, or of NonTensorData with one text for all steps or an array: [...] of bytes, one for each step."""
    value = leaf.data if isinstance(leaf, NonTensorData) else leaf.tolist()
    texts = np.array(value, object)
    if not texts.ndim:
        texts = np.full(shape, value, object)
    encoded = [text.encode() if isinstance(text, str) else text for text in texts.ravel().tolist()]
    if len(encoded) != int(np.prod(shape)) or not all(isinstance(text, bytes) for text in encoded):
        raise ConfigError(
            f'TED: "{path}" has values that are neither tensors nor a text for each step; leave the key out'
        )
    flat = np.empty(len(encoded), object)
    flat[:] = encoded
    return flat.reshape(shape)


__all__ = ["Layout", "TableReplayBuffer", "composite_of", "tensordict_of", "tensordict_source", "tensordicts"]
