"""JAX: a table's batches on devices, prefetched, over several devices and processes.

Columns, with JAX's x64 off as it is by default:

| numpy | jax.Array |
| --- | --- |
| float32, float16, bfloat16, int8 to int32, uint8 to uint32, bool, complex64 | the same dtype |
| float64, complex128 | float32, complex64: rounded, as everywhere in JAX |
| int64, uint64 | int32, uint32; a value that does not fit is an error |
| text, encoded images | an error, unless `host` names the column: then it stays a numpy array |
| info.key, uint64 | stays a numpy array: 32 bits of it are no key |

With x64 on, dtypes do not change.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.keywords import takes_options
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.learner.options import SampleKeywords, SampleOptions, check_count
from rlds2reverb.specs import Nest, flatten, map_leaves, map_with_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for JAX", "jax", ModuleNotFoundError):
    import jax

_FAREWELL_SECONDS = 5.0  # for the thread to see that its iterator is closed; it is a daemon

JaxBatch = Any
"""A `Batch` of `jax.Array`, except `info.key` and columns on the host."""


class ExperiencePair(NamedTuple):
    """Two steps that follow one another, each [B, ...]; as Flashbax's flat buffers return them."""

    first: Nest
    second: Nest


@dataclass(frozen=True)
class Placement:
    """The devices of batches.

    Attributes:
      device: a `jax.Device`; None for the default one, or with a sharding.
      sharding: such as `NamedSharding(mesh, PartitionSpec("batch"))`, over all processes' devices: the first axis of every leaf is
        divided. Each process gives its own part of a batch, and the parts become one array.
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
        """Puts a batch on the devices; does not wait for the transfer.

        Raises:
          ConfigError: a column that JAX cannot hold, a path in `host` that is no column, or a size that the devices cannot share.
        """
        if unknown := sorted(set(self.host) - set(flatten(batch.data))):
            raise ConfigError(f"jax: host names {', '.join(unknown)}; the columns are {', '.join(flatten(batch.data))}")
        for path, column in flatten(batch.data).items():
            if len(column) != batch.size:
                raise ConfigError(f'jax: "{path}" is of one item only: they differ in shape; sample with ragged="pad"')
        if self.sharding is not None:
            whole = batch.size * jax.process_count()
            try:
                self.sharding.shard_shape((whole,))
            except ValueError as error:
                raise ConfigError(f"jax: a batch of {whole} over {self.sharding}: {error}") from error
        columns = map_with_path(
            lambda path, column: column if path in self.host else self._put(_check_column(path, column)), batch.data
        )
        key, *info_values = batch.info
        fields: list[Any] = [None if values is None else map_leaves(self._put, values) for values in info_values]
        return Batch(columns, BatchInfo(key, *fields))

    def _put(self, array: Array) -> Any:
        array = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
        if self.sharding is not None:
            return jax.make_array_from_process_local_data(self.sharding, array)
        return jax.device_put(array, self.device)


@takes_options(SampleOptions, drop_last=True)
def sample(
    client: Client,
    table: str,
    batch_size: int = SampleOptions.batch_size,
    placement: Placement = Placement(),
    ahead: int = 2,
    **options: Unpack[SampleKeywords],
) -> Generator[JaxBatch, None, None]:
    """Samples a table, and prefetches batches to the devices.

    Every process of a program calls it, each with a client of its own; each samples `batch_size / jax.process_count()`. All batches
    have one size, so nothing is compiled twice: a short last one is left out, unless `drop_last=False` is given.

    Args:
      client: an open one; it stays open.
      table: its name.
      batch_size: samples per batch, of all processes together.
      placement: the devices.
      ahead: batches that are prefetched to the devices; `SampleOptions.prefetch` counts beside them.
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
    options.setdefault("drop_last", True)
    sampler = client.sample(table, batch_size // processes, **options)
    return put_ahead(sampler, placement, ahead, sampler.close)


def put_ahead(
    sampled: Iterable[Batch], placement: Placement = Placement(), ahead: int = 2, close: Callable[[], object] = tuple
) -> Generator[JaxBatch, None, None]:
    """Yields batches that a thread puts on the devices, in their order.

    A batch that is ready is never held back for the next one. An error of the thread is raised after the batches before it.

    Args:
      sampled: a sampler, or another iterable of batches.
      placement: the devices.
      ahead: most batches that wait on the devices.
      close: called when the iterator is closed, dropped or over; it must end an iteration of `sampled` that waits.

    Raises:
      ConfigError: `ahead` is no whole number of at least 1; or what `Placement.put` raises.
    """
    check_count("jax: ahead", ahead)
    return _prefetch(sampled, placement.put, ahead, close)


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


def _prefetch(
    sampled: Iterable[Batch], put: Callable[[Batch], JaxBatch], most: int, close: Callable[[], object]
) -> Generator[JaxBatch, None, None]:
    ready: queue.SimpleQueue[tuple[JaxBatch | None, BaseException | None]] = queue.SimpleQueue()
    free, closed = threading.Semaphore(most), threading.Event()

    def run() -> None:
        error = None
        try:
            for batch in sampled:
                free.acquire()
                if closed.is_set():
                    return
                ready.put((put(batch), None))
        except BaseException as caught:  # raised in the consumer's thread
            error = caught
        ready.put((None, error))

    thread = threading.Thread(target=run, name="rlds2reverb-jax", daemon=True)
    thread.start()
    try:
        while (result := ready.get())[0] is not None:
            free.release()
            yield result[0]
        if result[1] is not None:
            raise result[1]
    finally:
        closed.set()
        free.release()
        close()
        if not sys.is_finalizing() and thread is not threading.current_thread():
            thread.join(_FAREWELL_SECONDS)


def _check_column(path: str, column: Any) -> Array:
    """Returns a column that JAX can hold; raises ConfigError for text, and for whole numbers beyond JAX's dtype."""
    if column.dtype.kind == "O":
        raise ConfigError(
            f'jax: column "{path}" is text, which JAX does not have; name it in host=, or leave it out of the table'
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
