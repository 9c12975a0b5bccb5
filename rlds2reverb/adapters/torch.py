"""PyTorch: batches of tables, datasets and mixes as tensors, made in this process or by the workers of a DataLoader.

| dataset for a DataLoader | reads | its workers |
| --- | --- | --- |
| `TableDataset` | a table of a server | sample by themselves |
| `LocalDataset` | a dataset on disk | make the batches in turn, in the order of a single process |
| `MixDataset` | several of both | the same for what is on disk |

Columns:

| numpy | tensor |
| --- | --- |
| bool, int8 to int64, uint8, float16/32/64, complex | the same dtype, over the same memory |
| uint16, uint32, uint64 | torch.uint16, uint32, uint64, over the same memory; PyTorch has few operations for them |
| bfloat16 | torch.bfloat16, over the same memory |
| text, encoded images | a numpy array of `bytes` |
| info.key, uint64 | int64 of the same bits, on the host, for `update_priorities` and `delete` of a client |
| a list of arrays (`ragged="list"`) | a list of tensors |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import ml_dtypes
import numpy as np

from rlds2reverb.adapters.common import Server, check_pickles, open_client
from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, TransportError
from rlds2reverb.extras import needing
from rlds2reverb.keywords import make_options, refuse_unknown, takes_options
from rlds2reverb.learner.batch import Batch, BatchInfo, BatchIterator
from rlds2reverb.learner.local import Local, open_for_local
from rlds2reverb.learner.local.options import LocalKeywords, LocalOptions
from rlds2reverb.learner.local.shares import Share
from rlds2reverb.learner.mix import Mix, MixKeywords, MixOptions, PartChoices, Parts, mix, pairs_of, parts_of_mixture
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.learner.states import FORMAT, State, check_state, count_in, state_of
from rlds2reverb.prepare.preparation import Preparation, outputs_of, view_for
from rlds2reverb.specs import map_leaves
from rlds2reverb.text import shortened
from rlds2reverb.transport.grpc import check_not_forked
from rlds2reverb.views import ViewLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for PyTorch", "torch", ModuleNotFoundError):
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
    from torch.utils.data._utils.collate import default_collate_fn_map

TensorBatch = Any
"""A `Batch` whose arrays are tensors."""

BatchFunction: TypeAlias = Callable[[TensorBatch], Any]
"""What a worker makes of each batch: augmented images, tokens, another structure."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class TableDataset(IterableDataset):  # type: ignore[misc]  # PyTorch is Any where it is not installed
    """Samples of a table as ready batches of tensors, for `DataLoader(dataset, batch_size=None, num_workers=n)`.

    It holds no connection, so it pickles: each worker connects for itself when it begins to iterate, and closes its streams when
    it ends or is dropped; a persistent worker whose epoch ended early, when the next one begins. Every worker samples by itself. From
    a table that draws at random the workers' samples are independent; a table that hands items out once (fifo, max_times_sampled=1)
    divides them between the workers, in no fixed order.

    gRPC does not survive a fork. Where this process has connected to a server, give the loader
    `multiprocessing_context="forkserver"` or "spawn"; the workers of a fork raise an error that says so.

    Args:
      server: "host:port", a list of addresses, a function without arguments that connects, or an open client, see
        `adapters.common.Server`. Workers that are not forked get it pickled: a function must be `functools.partial(...)` or of a
        module, and a client cannot be pickled.
      table: its name.
      batch_size: samples per batch.
      map: called in the worker with every batch of tensors; what it returns is what the loader gives.
      options: the other fields of `SampleOptions`, by name. `samples` are divided between the ranks, and a rank's between its workers;
        each may end with a short batch.

    Raises:
      ConfigError: an option makes no sense; in the workers: `epochs` with several workers. The server is asked when iterating begins,
        which raises as `connect` and `Client.sample` do.
      TransportError (when iterating): this worker was forked from a process that had connected.
    """

    @takes_options(SampleOptions)
    def __init__(
        self,
        server: Server,
        table: str,
        batch_size: int = SampleOptions.batch_size,
        map: BatchFunction | None = None,  # noqa: A002  # the word that users of `datasets` and tf.data know
        **options: Unpack[SampleKeywords],
    ) -> None:
        super().__init__()
        make_options(SampleOptions, "TableDataset", batch_size, **options)  # wrong ones fail here, not in a worker
        self.server, self.table, self.batch_size, self.options = server, table, batch_size, options
        self.map = check_map("TableDataset", map)
        self._given = self._behind = 0  # samples of this pass; those of them that a state says were given before

    def __iter__(self) -> Iterator[Any]:
        """Batches of this worker, see `tensors`; a new connection each time."""
        worker, workers = _worker()
        options = self._options_of(worker, workers)
        samples, self._behind, self._given = options.get("samples"), 0, self._behind
        if samples is not None:
            if samples <= self._given:  # more workers than samples, or all were given
                return
            options["samples"] = samples - self._given
        with ExitStack() as stack:
            for batch in self._sample(stack, options):
                self._given += batch.size
                yield _apply(self.map, tensors(batch))

    def state_dict(self) -> State:
        """How many of `samples` this process gave: a server keeps no account of which. Other batches follow, and together they are as many."""
        return state_of(_TABLE_KIND, {"table": self.table}, _VERSION, given=self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the next pass after the samples that were given; raises ConfigError for the state of another table."""
        self._behind = count_in(check_state(state, _TABLE_KIND, {"table": self.table}, _VERSION), "given")

    def __getstate__(self) -> dict[str, Any]:
        """For workers. Raises ConfigError where the server is an open client."""
        check_pickles(self.server)
        return dict(vars(self))

    def _options_of(self, worker: int, workers: int) -> SampleKeywords:
        """The options of one worker: its share of the samples of its rank."""
        options = self.options.copy()
        if workers > 1 and options.get("epochs") is not None:
            raise ConfigError(
                f'table "{self.table}": epochs, with {workers} workers: each would wait for all samples of an epoch; take one worker, '
                "or samples=, which is shared out"
            )
        samples = options.get("samples")
        if samples is not None:
            samples //= options.get("world_size", 1)
            options["samples"] = samples // workers + (worker < samples % workers)
        options.pop("rank", None)
        options.pop("world_size", None)
        return options

    def _sample(self, stack: ExitStack, options: SampleKeywords) -> BatchIterator:
        """A sampler with a connection of its own, closed with the stack."""
        if get_worker_info() is not None:
            try:
                check_not_forked()
            except TransportError as error:
                raise TransportError(f'{error}. Of a DataLoader: multiprocessing_context="forkserver"') from error
        client = stack.enter_context(open_client(self.server))
        return stack.enter_context(client.sample(self.table, self.batch_size, **options))


_KIND, _TABLE_KIND, _VERSION = "torch dataset", "torch table", 1
_MOST_WORKERS = 4096
# In the state of a StatefulDataLoader: batches that it gave since its workers' states; whether its pass was at the end.
_STEPS_SINCE, _IS_FINISHED = "_steps_since_snapshot", "_iterator_finished"


class _OrderedDataset(IterableDataset):  # type: ignore[misc]  # PyTorch is Any where it is not installed
    """Batches in one order, which workers make in turn: with any number of them the loader gives the same batches in the same order.

    Each pass over the loader has an order of its own: its number is the epoch. It goes up by itself; `set_epoch` sets it.
    """

    def __init__(self, where: str, map: BatchFunction | None) -> None:  # noqa: A002  # as of `TableDataset`
        super().__init__()
        self.map = check_map(where, map)
        # [workers] epoch of the next pass. Workers may be new in every pass, and only shared memory outlives them.
        self._epochs = torch.zeros(_MOST_WORKERS, dtype=torch.int64).share_memory_()
        self._first_epoch = 0
        self._start: State | None = None
        self._pass: _Pass | None = None

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass that of this epoch, counted from 0, as a `DistributedSampler` does; also for workers that run already.

        Raises:
          ConfigError: it is no whole number of at least 0.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ConfigError(f"set_epoch: epoch {epoch!r}: expected a whole number of at least 0")
        self._epochs.fill_(epoch)
        self._first_epoch, self._pass = epoch, None

    def state_dict(self, batches: int | None = None) -> State:
        """The position in the pass that began last, as plain values.

        A StatefulDataLoader of torchdata asks for it by itself, in its workers. With a plain DataLoader count the batches.

        Args:
          batches: number of batches that the loop took of this pass; None for those that this process made.

        Raises:
          ConfigError: workers make the batches, and their number is not given.
        """
        begun = int(self._epochs.max())
        if batches is not None:
            epoch = max(self._first_epoch, begun - 1)
            start = self._start_of(epoch)
            return {**start, "ahead": start["ahead"] + count_in({"batches": batches}, "batches")}
        is_made_elsewhere = get_worker_info() is None and begun > (
            self._first_epoch if self._pass is None else self._pass.epoch + 1
        )
        if self._pass is not None and not is_made_elsewhere:
            return self._pass.state()
        if is_made_elsewhere:
            raise ConfigError(
                "state_dict: the workers of a DataLoader make the batches, and this process does not know how many came; give "
                "state_dict(batches=number), or take a StatefulDataLoader (torchdata), whose state has it"
            )
        return self._start_of(self._first_epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass continue at a position: each of the rest of its batches comes, once.

        Args:
          state: of `state_dict`, or of a whole StatefulDataLoader. The number of workers may be another one.

        Raises:
          ConfigError: it is no such state. One of other data is refused when iterating begins.
        """
        states = [check_state(inside, _KIND, {}, _VERSION) for inside in _states_in(state)]
        if not states:
            raise ConfigError(f"load_state_dict: {shortened(repr(state), 80)}: expected what state_dict() gave")
        for inside in states:
            for name in ("epoch", "batches", "ahead", "turn", "workers"):
                count_in(inside, name)
        # Each is a position in the same order, and workers take turns: the farthest is that of the batch that came last.
        start = dict(max(states, key=lambda inside: (inside["epoch"], inside["batches"])))
        if get_worker_info() is None:
            steps = count_in({_STEPS_SINCE: 0, **state}, _STEPS_SINCE)
            start.update(ahead=start["ahead"] + steps, turn=0, workers=0)
            if state.get(_IS_FINISHED) is True:
                start = self._start_of(start["epoch"] + 1)
            self._epochs.fill_(start["epoch"])
        else:  # a StatefulDataLoader gives every worker its own state
            self._epochs[_worker()[0]] = start["epoch"]
        self._start, self._first_epoch, self._pass = start, start["epoch"], None

    def __iter__(self) -> Iterator[Any]:
        """Batches of this worker."""
        worker, workers = _worker()
        if workers > _MOST_WORKERS:
            raise ConfigError(f"DataLoader: num_workers={workers}: expected at most {_MOST_WORKERS}")
        epoch = int(self._epochs[worker])
        self._epochs[worker] += 1
        self._pass = _Pass(self, self._start_of(epoch), worker, workers)
        return iter(self._pass)

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without the pass of this process."""
        return {**vars(self), "_pass": None}

    def open_at(
        self, stack: ExitStack, start: State, first: int, workers: int
    ) -> tuple[BatchIterator, Callable[[], object]]:
        """Opens the batches of one worker.

        Args:
          stack: closes what is opened.
          start: the position.
          first: number of the worker's first batch from there on.
          workers: how many there are; every so-many-th batch is the worker's.

        Returns:
          An iterator that stands before the worker's first batch, and what is to be called between two of them.
        """
        raise NotImplementedError

    def _start_of(self, epoch: int) -> State:
        """Where the pass of this epoch begins."""
        if self._start is not None and self._start["epoch"] == epoch:
            return self._start
        return state_of(_KIND, {}, _VERSION, epoch=epoch, batches=0, at=None, ahead=0, turn=0, workers=0)


class _Pass:
    """One pass of one worker, and its position, as values of a state.

    | value | is |
    | --- | --- |
    | epoch | of the pass |
    | at | the position, as of `Local.state` or `Mix.state`; None at the begin of the pass |
    | batches | number of batches of all workers up to there |
    | ahead | number of batches from there on that were given, too |
    | turn | number of batches after these that are of other workers, before this one's next |
    | workers | that `turn` is for; with any other number, each worker waits for those before it |
    """

    def __init__(self, dataset: _OrderedDataset, start: State, worker: int, workers: int) -> None:
        self.epoch: int = start["epoch"]
        self._dataset, self._start, self._workers = dataset, start, workers
        self._turn = start["turn"] if start["workers"] == workers else worker
        self._first = start["ahead"] + self._turn  # number of its first batch, from the position on
        self._batches: BatchIterator | None = None
        self._made = 0  # batches of this worker

    def __iter__(self) -> Iterator[Any]:
        with ExitStack() as stack:
            batches, pass_over = self._dataset.open_at(stack, self._start, self._first, self._workers)
            while True:
                if self._made:
                    pass_over()
                if (batch := batches.next_batch()) is None:
                    return
                self._batches = batches
                self._made += 1
                yield _apply(self._dataset.map, tensors(batch))

    def state(self) -> State:
        if self._batches is None:
            return {**self._start, "turn": self._turn, "workers": self._workers}
        behind = self._start["batches"] + self._first + (self._made - 1) * self._workers + 1
        return {
            **self._start,
            "batches": behind,
            "at": self._batches.state(),  # type: ignore[attr-defined]  # of a `Local` or a `Mix`
            "ahead": 0,
            "turn": self._workers - 1,
            "workers": self._workers,
        }


class LocalDataset(_OrderedDataset):
    """Batches of a dataset on disk, for `DataLoader(dataset, batch_size=None, num_workers=n)`: `rlds2reverb.local` in workers.

    Reading, decoding, resizing (`decode=(224, 224)`) and `map` happen in the workers, which make the batches in turn: the loader gives what
    a single process gives, in the same order, with any number of workers. Each worker reads the episodes of its batches, or, without
    shuffle="global", all of them; keep images encoded then (`encoded="all"`), so that each worker decodes those of its batches only.

    Each pass over the loader is the next `epochs` epochs; `set_epoch` sets the number. `state_dict` and `load_state_dict` resume it in the
    middle of an epoch, with the same or another number of workers and of ranks, see `load_state_dict`.

    Args:
      source: anything that `local` takes; it is pickled for workers that are not forked.
      view: of the items; by default that of a mixture file, else "two_step".
      batch_size: samples per batch.
      map: called in the worker with every batch of tensors; what it returns is what the loader gives.
      map_episodes: called with every episode before it is cut, as the option `map` of `local` and of a push.
      options: the other fields of `LocalOptions`, by name: `shuffle`, `rank`, `world_size`, ...

    Raises:
      ConfigError, ViewError: an option or a view makes no sense. The source is opened when iterating begins, which raises as `local` does.
    """

    @takes_options(LocalOptions)
    def __init__(  # type: ignore[misc]  # `map` is left out of the keywords: here it means batches
        self,
        source: Any,
        view: ViewLike | None = None,
        batch_size: int = LocalOptions.batch_size,
        map: BatchFunction | None = None,  # noqa: A002  # as of `TableDataset`
        map_episodes: str | Callable[[Any], Any] | None = None,
        **options: Unpack[LocalKeywords],
    ) -> None:
        super().__init__("LocalDataset", map)
        refuse_unknown("LocalDataset", options, LocalOptions)
        self.source, self.view = source, view_for(source, view)
        self.options = LocalOptions(batch_size, map=map_episodes, **options)
        outputs_of(self.options.table, self.view)  # a wrong view fails here, not in a worker
        self._opened: tuple[int, Preparation] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without open files."""
        return {**super().__getstate__(), "_opened": None}

    def make_local(self, options: LocalOptions, share: Share | None) -> Local:
        """Batches of the source. A process opens it once, and counts its items once, whatever number of passes it makes."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_for_local(self.source, self.view, options)
        return Local(self._opened[1], options, share)

    def open_at(
        self, stack: ExitStack, start: State, first: int, workers: int
    ) -> tuple[BatchIterator, Callable[[], object]]:
        """See `_OrderedDataset`. The share of a worker has no places of the others, so there is nothing to pass over."""
        options, batch_size = self.options, self.options.batch_size
        turn, place = divmod(first, workers)
        share = Share(options.rank, options.world_size, place, workers, batch_size) if workers > 1 else None
        batches = stack.enter_context(self.make_local(options, share))
        if start["at"] is not None:
            batches.restore(start["at"])
        elif start["epoch"]:
            batches.begin_epoch(start["epoch"] * (options.epochs or 1))
        batches.skip(turn * batch_size)
        return batches, _do_nothing


class MixDataset(_OrderedDataset):
    """Batches mixed of several datasets and tables, for `DataLoader(dataset, batch_size=None, num_workers=n)`: `rlds2reverb.mix` in workers.

    Workers make the batches in turn, each by the whole mix, and pass over the batches of the others: what is on disk is read by every worker,
    and decoded by one. Tables have no order: each worker samples for itself.

    Args:
      parts: part -> weight, or pairs of them. A part is a `LocalDataset`, a `TableDataset` or another `MixDataset`, all without `map`; or
        anything that `local` takes, as 2-step items. Or a mixture file or a `Mixture`, whose sets are the parts. The mix's rank is that of its parts. Without `samples` a pass has no end.
      batch_size: samples per batch.
      map: called in the worker with every batch of tensors; what it returns is what the loader gives.
      options: the other fields of `MixOptions`, by name.

    Raises:
      ConfigError: parts, weights or options make no sense. Parts are opened when iterating begins, which raises as `mix` does.
    """

    @takes_options(MixOptions)
    def __init__(
        self,
        parts: Parts,
        batch_size: int = MixOptions.batch_size,
        map: BatchFunction | None = None,  # noqa: A002  # as of `TableDataset`
        **options: Unpack[MixKeywords],
    ) -> None:
        super().__init__("MixDataset", map)
        parts, options = parts_of_mixture(parts, options, partial(LocalDataset, batch_size=batch_size))
        self.options = make_options(MixOptions, "MixDataset", batch_size, **options)
        self.parts: list[tuple[_OrderedDataset | TableDataset, float]] = []
        for number, (part, weight) in enumerate(pairs_of(parts)):
            is_dataset = isinstance(part, (_OrderedDataset, TableDataset))
            if is_dataset and part.map is not None:
                raise ConfigError(
                    f"MixDataset: part {number} has a map; expected it of the whole: MixDataset(parts, map=...)"
                )
            if isinstance(part, BatchIterator):
                raise ConfigError(
                    f"MixDataset: part {number} is a {type(part).__name__}, which is open in this process; expected what workers can open: "
                    "LocalDataset, TableDataset, MixDataset, or a source"
                )
            self.parts.append((part if is_dataset else LocalDataset(part, batch_size=batch_size), weight))
        PartChoices(self.options.seed, [weight for _, weight in self.parts])  # wrong weights fail here, not in a worker

    def open_at(
        self, stack: ExitStack, start: State, first: int, workers: int
    ) -> tuple[BatchIterator, Callable[[], object]]:
        """See `_OrderedDataset`."""
        batch_size = self.options.batch_size
        mixed = stack.enter_context(self._mix(stack, self.options.rank, self.options.world_size, *_worker()))
        mixed.begin_epoch(start["epoch"])
        if start["at"] is not None:
            mixed.restore(start["at"], anew=True)
        for _ in range(first):
            mixed.skip(batch_size)

        def pass_over() -> None:
            for _ in range(workers - 1):
                mixed.skip(batch_size)

        return mixed, pass_over

    def _mix(self, stack: ExitStack, rank: int, world_size: int, worker: int, workers: int) -> Mix:
        """The mix of the parts, each opened for this worker."""
        # Places are dealt also in a world of one rank: all workers must pass over the same places of what others were given.
        share = Share(rank, world_size)
        pairs: list[tuple[BatchIterator, float]] = []
        for part, weight in self.parts:
            if isinstance(part, MixDataset):
                pairs.append((part._mix(stack, rank, world_size, worker, workers), weight))
            elif isinstance(part, LocalDataset):
                local_options = replace(part.options, rank=rank, world_size=world_size)
                pairs.append((part.make_local(local_options, share), weight))
            elif isinstance(part, TableDataset):
                pairs.append((part._sample(stack, part._options_of(worker, workers)), weight))
        options = replace(self.options, rank=rank, world_size=world_size)
        return mix(pairs, **{field.name: getattr(options, field.name) for field in fields(options)})


def _do_nothing() -> None:
    pass


def check_map(where: str, map: object) -> BatchFunction | None:  # noqa: A002  # as of `TableDataset`
    if map is not None and not callable(map):
        raise ConfigError(f"{where}: map {map!r}: expected a function of a batch")
    return map


def _apply(map: BatchFunction | None, batch: TensorBatch) -> Any:  # noqa: A002  # as of `TableDataset`
    return batch if map is None else map(batch)


def _worker() -> tuple[int, int]:
    """The number of this worker of a DataLoader, and how many there are; 0 and 1 in any other process."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


def _states_in(value: object) -> Iterator[Mapping[str, Any]]:
    """All states of a dataset in a state, such as those of the workers in a StatefulDataLoader's."""
    if isinstance(value, Mapping):
        if value.get(FORMAT) == f"rlds2reverb.{_KIND}":
            yield value
            return
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inside in value:
            yield from _states_in(inside)


def _refuse_to_collate(batch: Any, *_: Any, **__: Any) -> NoReturn:
    raise ConfigError(
        "torch: a DataLoader joins several batches to one; they are whole batches already: DataLoader(dataset, batch_size=None), and the size "
        "of a batch is an argument of the dataset: TableDataset(..., batch_size=), LocalDataset(..., batch_size=)"
    )


# `default_collate` looks a type up here; without this it would stack our batches.
default_collate_fn_map[Batch] = _refuse_to_collate


def batches(sampled: Iterable[Batch], device: Any = None) -> Iterator[TensorBatch]:
    """The batches of a sampler as tensors; see `tensors`."""
    for batch in sampled:
        yield tensors(batch, device)


def tensors(batch: Batch, device: Any = None) -> TensorBatch:
    """A batch of tensors; on the host, only arrays that cannot be written to are copied.

    Args:
      batch: of a sampler.
      device: of the tensors; None for the host. To CUDA devices they are copied through pinned memory, asynchronously.
        `info.key` stays on the host.

    Returns:
      The same structure.
    """
    to = None if device is None else torch.device(device)
    key, *info_values = batch.info

    def tensor(leaf: Any) -> Any:
        return tensor_of(leaf, to)

    fields: list[Any] = [None if values is None else map_leaves(tensor, values) for values in info_values]
    columns = map_leaves(tensor, batch.data)
    return Batch(columns, BatchInfo(tensor_of(np.asarray(key).view(np.int64), None), *fields))


def update_priorities(client: Client, table: str, keys: Any, priorities: Any) -> None:
    """Changes priorities: `Client.update_priorities` for tensors of any device, also of a graph.

    Args:
      client: an open one.
      table: its name.
      keys: [n] int64, as `info.key` of `tensors` has them.
      priorities: [n] or [n, 1], finite and at least 0.

    Raises:
      ConfigError, ServerUnreachable, TransportError: as `Client.update_priorities`.
    """
    client.update_priorities(table, on_host(keys), on_host(priorities))


def on_host(values: Any) -> Array:
    """A tensor of any device as a numpy array, floats as float64. An array is returned unchanged."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    host = values.detach().cpu()
    array: Array = (host.double() if host.is_floating_point() else host).numpy()
    return array


def tensor_of(values: Any, device: Any = None) -> Any:
    """An array as a tensor, see the module's table; `device` is a `torch.device`, or None for the host."""
    array = np.asarray(values)
    if array.dtype.kind == "O":
        return array
    if not array.flags.writeable or min(array.strides, default=0) < 0:  # PyTorch has no such tensors
        array = array.copy()
    if array.dtype == _BFLOAT16:
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    if device is None:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
