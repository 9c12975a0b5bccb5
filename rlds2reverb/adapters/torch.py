"""PyTorch: a table's batches as tensors, made in this process or by the workers of a DataLoader.

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

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import ml_dtypes
import numpy as np

from rlds2reverb.adapters.common import Server, check_pickles, open_client
from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, TransportError
from rlds2reverb.extras import needing
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.specs import map_leaves
from rlds2reverb.transport.grpc import check_not_forked

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for PyTorch", "torch", ModuleNotFoundError):
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
    from torch.utils.data._utils.collate import default_collate_fn_map

TensorBatch = Any
"""A `Batch` whose arrays are tensors."""

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
      options: the other fields of `SampleOptions`, by name. `samples` are divided between the workers; each may end with a short
        batch.

    Raises:
      ConfigError: an option makes no sense; in the workers: `epochs` with several workers. The server is asked when iterating begins,
        which raises as `connect` and `Client.sample` do.
      TransportError (when iterating): this worker was forked from a process that had connected.
    """

    @takes_options(SampleOptions)
    def __init__(
        self, server: Server, table: str, batch_size: int = SampleOptions.batch_size, **options: Unpack[SampleKeywords]
    ) -> None:
        super().__init__()
        make_options(SampleOptions, "TableDataset", batch_size, **options)  # wrong ones fail here, not in a worker
        self.server, self.table, self.batch_size, self.options = server, table, batch_size, options

    def __iter__(self) -> Iterator[TensorBatch]:
        """Batches of this worker, see `tensors`; a new connection each time."""
        worker = get_worker_info()
        options = self.options.copy()
        if worker is not None:
            workers, samples = worker.num_workers, options.get("samples")
            if workers > 1 and options.get("epochs") is not None:
                raise ConfigError(
                    f'table "{self.table}": epochs, with {workers} workers: each would wait for all samples of an epoch; take one worker, '
                    "or samples=, which is shared out"
                )
            try:
                check_not_forked()
            except TransportError as error:
                raise TransportError(f'{error}. Of a DataLoader: multiprocessing_context="forkserver"') from error
            if samples is not None:
                options["samples"] = samples // workers + (worker.id < samples % workers)
        if options.get("samples") == 0:  # more workers than samples
            return
        with open_client(self.server) as client, client.sample(self.table, self.batch_size, **options) as sampler:
            yield from batches(sampler)

    def __getstate__(self) -> dict[str, Any]:
        """For workers. Raises ConfigError where the server is an open client."""
        check_pickles(self.server)
        return dict(vars(self))


def _refuse_to_collate(batch: Any, *_: Any, **__: Any) -> NoReturn:
    raise ConfigError(
        "torch: a DataLoader joins several of a table's batches to one; they are whole batches already: DataLoader(dataset, batch_size=None), "
        "and the size of a batch is TableDataset(..., batch_size=)"
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
