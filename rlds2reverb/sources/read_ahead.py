"""Reads in a thread of its own, a little ahead of whoever uses what is read.

Items come by the batch, for handing one over costs as much as reading a short episode. A batch is full with a megabyte, or
with as many items as it may have; the first has one item, so that the first comes at once, and each next one has room for
twice as many. One batch waits while another is in the making: of large items no more than two are read ahead.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_FULL_BYTES = 1 << 20
_MOST_ITEMS = 32


def read_ahead(items: Generator[T, None, None], size_of: Callable[[T], int]) -> Iterator[T]:
    """The same items, read by a thread.

    The thread begins with the first item that is asked for. It ends with the items, and when this iterator is closed or
    dropped; then `items` is closed, too, before `close` returns. At the end of the program nothing is waited for. What `items`
    raises comes after the items before it.

    Args:
      items: what is read; used by the thread only.
      size_of: bytes of an item.
    """
    shelf: _Shelf[list[T]] = _Shelf()
    thread = threading.Thread(target=_read, args=(items, size_of, shelf), name="rlds2reverb-read-ahead", daemon=True)
    thread.start()
    try:
        while (batch := shelf.take()) is not None:
            yield from batch
    finally:
        if not sys.is_finalizing():  # no other thread runs then, and joining one would wait for ever
            shelf.close()
            if thread is not threading.current_thread():  # which is where the garbage collector may run
                thread.join()


@dataclass
class _Batch(Generic[T]):
    """Items on their way, and room for so many."""

    items: list[T]
    room: int
    size: int = 0

    def add(self, item: T, size: int) -> bool:
        """Takes an item; whether it is full then."""
        self.items.append(item)
        self.size += size
        return len(self.items) >= self.room or self.size >= _FULL_BYTES


class _Shelf(Generic[T]):
    """Room for one thing, between the thread that makes it and the one that takes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thing: T | None = None
        self._error: BaseException | None = None
        self._is_ended = self._is_closed = False

    def put(self, thing: T) -> bool:
        """Waits for room; False when nobody takes anything any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._thing is None or self._is_closed)
            self._thing = thing
            self._changed.notify_all()
            return not self._is_closed

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes, or this error after what was put."""
        with self._changed:
            self._error, self._is_ended = error, True
            self._changed.notify_all()

    def take(self) -> T | None:
        """Waits for a thing; None at the end. Raises the error with which it ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._thing is not None or self._is_ended)
            thing, self._thing = self._thing, None
            self._changed.notify_all()
            if thing is None and self._error is not None:
                raise self._error
            return thing

    def close(self) -> None:
        """Nothing is taken any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _read(items: Generator[T, None, None], size_of: Callable[[T], int], shelf: _Shelf[list[T]]) -> None:
    """What the thread does."""
    batch: _Batch[T] = _Batch([], 1)
    failure: BaseException | None = None
    try:
        with closing(items):
            for item in items:
                if batch.add(item, size_of(item)):
                    full, batch = batch.items, _Batch([], min(2 * batch.room, _MOST_ITEMS))
                    if not shelf.put(full):
                        return
    except BaseException as error:
        failure = error
    if batch.items:
        shelf.put(batch.items)
    shelf.end(failure)
