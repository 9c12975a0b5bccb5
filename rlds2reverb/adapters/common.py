"""What adapters share: the client of a server, items cut into pieces, and an iterator with bounded waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar

import numpy as np

from rlds2reverb.client import Client, connect
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo

Server: TypeAlias = str | list[str] | tuple[str, ...] | Callable[[], Client] | Client
"""One of these:

| server | client |
| --- | --- |
| "host:port", or a list or tuple of addresses | a new one, as `rlds2reverb.connect` makes it |
| a function without arguments | its result, which is closed after use |
| a client | itself; it stays open |
"""


def open_client(server: Server) -> AbstractContextManager[Client]:
    """The client of a server, closed at the end unless it was given.

    Raises:
      ConfigError: a function returned no client.
      Rlds2ReverbError: as `rlds2reverb.connect` does.
    """
    if isinstance(server, Client):
        return nullcontext(server)
    if not callable(server):
        return connect(server)
    client = server()
    if not isinstance(client, Client):
        raise ConfigError(f"server: a function that connects; it returned a {type(client).__name__} and not a client")
    return client


def check_pickles(server: Server) -> None:
    """Raises ConfigError for an open client, which workers in other processes cannot use."""
    if isinstance(server, Client):
        raise ConfigError(
            'server: an open client cannot be pickled for workers; give "host:port", a list of them, or a function that connects '
            "(functools.partial(rlds2reverb.connect, ...))"
        )


INFO_DTYPES = (np.uint64, np.float64, np.int64, np.float64, np.int32)
"""Dtypes of key, probability, table_size, priority and times_sampled: the fields of `BatchInfo` that every sample has."""

Arrays = tuple[Array, ...]
"""One array per tensor of an element."""


def infos_of(info: BatchInfo) -> Arrays:
    """The fields of `INFO_DTYPES`."""
    return info.key, info.probability, info.table_size, info.priority, info.times_sampled


class Cutter:
    """Makes elements of batches: cuts items into pieces, and joins pieces.

    Args:
      table: its name, for errors.
      size: pieces per element.
      length: steps of every item; None where they differ.
      num_steps: steps of a piece; None for whole items. The remainder at the end of an item is dropped.
      is_shuffled: pieces of one item are not neighbours; their order is a function of the samples.
    """

    def __init__(self, table: str, size: int, length: int | None, num_steps: int | None, is_shuffled: bool) -> None:
        self._table, self._size, self._length, self._num_steps = table, size, length, num_steps
        self._is_shuffled = is_shuffled and num_steps is not None and num_steps != length

    def single(self, batches: Iterator[Batch]) -> Iterator[Arrays]:
        """Yields single pieces."""
        for pieces in self._pieces(batches):
            for number in range(len(pieces[0])):
                yield tuple(array[number] for array in pieces)

    def batched(self, batches: Iterator[Batch]) -> Iterator[Arrays]:
        """Yields full batches of pieces; an incomplete last one is dropped."""
        held: list[Arrays] = []
        count = 0
        for pieces in self._pieces(batches):
            held.append(pieces)
            count += len(pieces[0])
            if count >= self._size:
                whole = self._join_pieces(held)
                if self._is_shuffled:
                    order = np.random.default_rng(int(whole[-len(INFO_DTYPES)][0, 0])).permutation(count)
                    whole = tuple(array[order] for array in whole)
                for start in range(0, count - self._size + 1, self._size):
                    yield tuple(array[start : start + self._size] for array in whole)
                count %= self._size
                held = [tuple(array[len(array) - count :] for array in whole)]

    def _pieces(self, batches: Iterator[Batch]) -> Iterator[Arrays]:
        """Columns and infos [n, steps, ...] of batches, or of single items where these differ in steps."""
        for columns, info in batches:
            infos = infos_of(info)
            if not any(isinstance(column, list) for column in columns):
                yield self._cut(columns, infos)
                continue
            for number in range(len(info.key)):
                yield self._cut(
                    [column[number][None] for column in columns], [values[number : number + 1] for values in infos]
                )

    def _cut(self, columns: Sequence[Array], infos: Sequence[Array]) -> Arrays:
        length = columns[0].shape[1]
        if self._length is not None and length != self._length:
            raise ConfigError(
                f'table "{self._table}": expected items of {self._length} steps, as sequence_length says; got {length}'
            )
        whole = (*columns, *(np.repeat(array[:, None], length, axis=1) for array in infos))
        steps = self._num_steps or length
        if steps == length:
            return whole
        count = length // steps
        return tuple(
            array[:, : count * steps].reshape(len(array) * count, steps, *array.shape[2:]) for array in whole
        )  # [n * count, steps, ...]

    def _join_pieces(self, held: list[Arrays]) -> Arrays:
        if len(held) == 1:
            return held[0]
        lengths = {pieces[0].shape[1] for pieces in held if len(pieces[0])}
        if len(lengths) > 1:
            raise ConfigError(
                f'table "{self._table}": items of {", ".join(map(str, sorted(lengths)))} steps do not fit into one batch; '
                "give num_steps, or leave sample_batch_size out"
            )
        return tuple(np.concatenate(arrays) for arrays in zip(*(pieces for pieces in held if len(pieces[0]))))


T = TypeVar("T")


def poll(values: Iterator[T], seconds: float) -> Generator[T | None, None, None]:
    """Yields the values, read one ahead by a thread, and None whenever none came for `seconds`.

    Closing it does not wait for the thread, which ends with the next value. The caller must end a wait for that value.

    Raises:
      Exception: from `values`, after the values before it.
    """
    ready: queue.Queue[tuple[T | None, Exception | None]] = queue.Queue(1)
    is_left = threading.Event()
    threading.Thread(target=_read, args=(values, ready, is_left), name="rlds2reverb-polled", daemon=True).start()
    try:
        while True:
            try:
                value, error = ready.get(timeout=seconds)
            except queue.Empty:
                yield None
                continue
            if error is not None:
                raise error
            if value is None:
                return
            yield value
    finally:
        is_left.set()
        if not ready.empty():
            ready.get()  # the thread may wait in `put`


def _read(values: Iterator[T], ready: queue.Queue[Any], is_left: threading.Event) -> None:
    end: tuple[T | None, Exception | None] = (None, None)
    try:
        for value in values:
            ready.put((value, None))
            if is_left.is_set():
                return
    except Exception as error:  # raised in the consumer's thread
        end = (None, error)
    if not is_left.is_set():
        ready.put(end)
