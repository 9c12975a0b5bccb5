"""JAX: a table's batches on devices, put there ahead, over several devices and processes.

What becomes of a column, with JAX's x64 off as it is by default:

| numpy | jax.Array |
| --- | --- |
| float32, float16, bfloat16, int8 to int32, uint8 to uint32, bool, complex64 | the same dtype |
| float64, complex128 | float32, complex64: rounded, as JAX does everywhere |
| int64, uint64 | int32, uint32; a value that does not fit is an error, not another value |
| text, encoded images | an error, unless `host` names the column: then it stays a numpy array |
| info.key, uint64 | stays a numpy array: 32 bits of it are no key |

With x64 on, every dtype stays what it is.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.specs import Nest, flatten, map_leaves, map_with_path

with needing("the adapter for JAX", "jax", ModuleNotFoundError):
    import jax

_FAREWELL_SECONDS = 5.0  # for the thread to see that its iterator is closed; it is a daemon

JaxBatch = Any
"""A `Batch` whose arrays are `jax.Array`; but for `info.key` and what stays on the host."""


class ExperiencePair(NamedTuple):
    """Two steps that follow one another, each [B, ...]; as Flashbax's flat buffers return them."""

    first: Nest
    second: Nest


@dataclass(frozen=True)
class Placement:
    """Where batches go.

    Attributes:
      device: a `jax.Device`; None for the default one, where there is no sharding either.
      sharding: such as `NamedSharding(mesh, PartitionSpec("batch"))`, over all processes' devices: the first axis of every leaf is
        shared out. Each process gives its own part of a batch, and the parts become one array.
      host: paths of columns that stay numpy arrays ("observation/text").

    Raises:
      ConfigError: both a device and a sharding.
    """

    device: Any = None
    sharding: Any = None
    host: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.device is not None and self.sharding is not None:
            raise ConfigError("jax: a device and a sharding: expected one of them; a sharding says which devices")

    def put(self, batch: Batch) -> JaxBatch:
        """The batch on the devices; does not wait until it is there.

        Raises:
          ConfigError: a column that JAX cannot hold, a path in `host` that is no column, or a size that the devices cannot share.
        """
        if unknown := sorted(set(self.host) - set(flatten(batch.data))):
            raise ConfigError(f"jax: host names {', '.join(unknown)}; the columns are {', '.join(flatten(batch.data))}")
        self._check_rows(batch)
        self._check_size(batch.size)
        columns = map_with_path(self._placed, batch.data)
        key, *others = batch.info
        fields: list[Any] = [self._known(values) for values in others]
        return Batch(columns, BatchInfo(key, *fields))

    def _placed(self, path: str, column: Any) -> Any:
        return column if path in self.host else self._put(_held(path, column))

    def _check_rows(self, batch: Batch) -> None:
        for path, column in flatten(batch.data).items():
            if len(column) != batch.size:
                raise ConfigError(f'jax: "{path}" is of one item only: they differ in shape; sample with ragged="pad"')

    def _known(self, values: Any) -> Any:
        """What the info has: nothing, an array, or one for each column."""
        if isinstance(values, Mapping):
            return {name: self._put(array) for name, array in values.items()}
        return None if values is None else self._put(values)

    def _put(self, array: Array) -> Any:
        array = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
        if self.sharding is not None:
            return jax.make_array_from_process_local_data(self.sharding, array)
        return jax.device_put(array, self.device)

    def _check_size(self, size: int) -> None:
        if self.sharding is None:
            return
        whole = size * jax.process_count()
        try:
            self.sharding.shard_shape((whole,))
        except ValueError as error:
            raise ConfigError(f"jax: a batch of {whole} over {self.sharding}: {error}") from error


def sample(
    client: Client,
    table: str,
    batch_size: int = SampleOptions.batch_size,
    placing: Placement = Placement(),
    ahead: int = 2,
    **options: Any,
) -> Generator[JaxBatch, None, None]:
    """Samples a table, with batches on the devices ahead of whoever uses them.

    Every process of a program calls it, each with a client of its own; each samples `batch_size / jax.process_count()`. All batches
    have one size, so nothing is compiled twice: a short last one is left out, unless `drop_last=False` is given.

    Args:
      client: an open one; it stays open.
      table: its name.
      batch_size: samples per batch, of all processes together.
      placing: where batches go.
      ahead: batches that are on the devices, or on their way, before they are asked for; beside those of `SampleOptions.prefetch`.
      options: the other fields of `SampleOptions`, by name; `samples` are those of this process.

    Returns:
      An iterator; close it, or drop it, and its stream ends.

    Raises:
      ConfigError: an option makes no sense, or the processes cannot share the batch size.
      Rlds2ReverbError: as `Client.sample` and a sampler's iteration.
    """
    processes = jax.process_count()
    if batch_size % processes:
        raise ConfigError(
            f"jax: a batch of {batch_size} over {processes} processes; expected a multiple of {processes}"
        )
    sampler = client.sample(table, batch_size // processes, **{"drop_last": True, **options})
    return put_ahead(sampler, placing, ahead, sampler.close)


def put_ahead(
    sampled: Iterable[Batch], placing: Placement = Placement(), ahead: int = 2, close: Callable[[], object] = tuple
) -> Generator[JaxBatch, None, None]:
    """Batches on the devices, put there by a thread, in their order.

    A batch that is there is never held back for the next one. What the thread meets is raised after the batches before it.

    Args:
      sampled: a sampler, or anything else that gives batches.
      placing: where batches go.
      ahead: batches that wait on the devices at most.
      close: called when the iterator is closed, dropped or over; it must end an iteration of `sampled` that waits.

    Raises:
      ConfigError: `ahead` is no whole number of at least 1; or what `Placement.put` raises.
    """
    if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 1:
        raise ConfigError(f"jax: ahead {ahead!r}: expected a whole number of at least 1")
    return _ahead(_Ahead(sampled, placing.put, ahead), close)


def experience_pair(data: Nest) -> ExperiencePair:
    """Items of two steps ([B, 2, ...], view `two_step`) as the pair that Flashbax's flat buffers return.

    Raises:
      ConfigError: a column with another number of steps.
    """
    for path, column in flatten(data).items():
        if np.ndim(column) < 2 or column.shape[1] != 2:
            raise ConfigError(
                f'jax: column "{path}" is {list(np.shape(column))}: expected [B, 2, ...], two steps an item'
            )
    return ExperiencePair(map_leaves(lambda column: column[:, 0], data), map_leaves(lambda column: column[:, 1], data))


def _ahead(made: _Ahead, close: Callable[[], object]) -> Generator[JaxBatch, None, None]:
    thread = threading.Thread(target=made.run, name="rlds2reverb-jax", daemon=True)
    thread.start()
    try:
        while (batch := made.take()) is not None:
            yield batch
    finally:
        made.close()
        close()
        if not sys.is_finalizing() and thread is not threading.current_thread():
            thread.join(_FAREWELL_SECONDS)


class _Ahead:
    """Batches that a thread makes, up to `most` of them ahead of the one who takes them."""

    def __init__(self, sampled: Iterable[Batch], put: Callable[[Batch], JaxBatch], most: int) -> None:
        self._sampled, self._put, self._most = sampled, put, most
        self._changed = threading.Condition()
        self._made: deque[JaxBatch] = deque()
        self._error: BaseException | None = None
        self._is_over = self._is_closed = False

    def run(self) -> None:
        """What the thread does."""
        try:
            for batch in self._sampled:
                if not self._has_room():
                    break
                self._add(self._put(batch))
        except BaseException as error:
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def take(self) -> JaxBatch | None:
        """Waits for a batch; None at the end. Raises the error with which it ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._is_over)
            self._changed.notify_all()
            if self._made:
                return self._made.popleft()
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Nothing is taken any more."""
        with self._changed:
            self._is_closed = True
            self._made.clear()
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Waits for room; False when nobody takes anything any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._made) < self._most or self._is_closed)
            return not self._is_closed

    def _add(self, batch: JaxBatch) -> None:
        with self._changed:
            self._made.append(batch)
            self._changed.notify_all()


def _held(path: str, column: Any) -> Array:
    """A column, when JAX can hold its values.

    Raises:
      ConfigError: text, items of several shapes, or whole numbers that do not fit the dtype that JAX has for them.
    """
    if column.dtype.kind == "O":
        raise ConfigError(
            f'jax: column "{path}" is text, which JAX has not; name it in host=, or leave it out of the table'
        )
    held_as = jax.dtypes.canonicalize_dtype(column.dtype)
    if column.dtype.kind in "iu" and held_as.itemsize < column.dtype.itemsize and column.size:
        limits, least, most = np.iinfo(held_as), column.min(), column.max()
        if least < limits.min or most > limits.max:
            raise ConfigError(
                f'jax: column "{path}" has values from {least} to {most}, which {held_as} cannot hold; name it in host=, or '
                'switch x64 on: jax.config.update("jax_enable_x64", True)'
            )
    array: Array = column
    return array
