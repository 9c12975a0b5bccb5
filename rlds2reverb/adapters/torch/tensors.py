"""Batches as tensors, and tensors as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.specs import map_leaves

TensorBatch = Any
"""A `Batch` whose arrays are tensors."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


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
    # numpy has no bfloat16, and a double holds every smaller float.
    array: Array = (host.double() if host.is_floating_point() else host).numpy()
    return array


def tensor_of(values: Any, device: Any = None) -> Any:
    """An array as a tensor, see the table of the package; `device` is a `torch.device`, or None for the host."""
    array = np.asarray(values)
    if array.dtype.kind == "O":
        return array
    if not array.flags.writeable or min(array.strides, default=0) < 0:  # PyTorch has no such tensors
        array = array.copy()
    if array.dtype == _BFLOAT16:
        # `from_numpy` takes no dtype of ml_dtypes.
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    if device is None:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
