"""Values from an iterator that may wait for long, for a user that must not: TensorFlow cannot end a call into Python that waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from rlds2reverb.transport.stream_user import Reason

T = TypeVar("T")


class Left(Exception):
    """Nobody wants the values any more."""


class Leaving:
    """Ends a sampler's wait from another thread: give `on_wait` to the sampler, and set `is_left`.

    Args:
      on_wait: what the sampler would have called.
    """

    def __init__(self, on_wait: Callable[[Reason], object]) -> None:
        self._on_wait = on_wait
        self.is_left = threading.Event()

    def on_wait(self, reason: Reason) -> None:
        """Passes the reason on.

        Raises:
          Left: nobody waits any more.
        """
        if self.is_left.is_set():
            raise Left
        self._on_wait(reason)


def polled(values: Iterator[T], leaving: Leaving, seconds: float) -> Generator[T | None, None, None]:
    """The values, read one ahead by a thread, and None whenever none came for so long.

    Args:
      values: used by the thread only.
      leaving: is left when this generator is closed.
      seconds: how long one step of this generator waits at most.

    Raises:
      Exception: what `values` raises, after the values before it.
    """
    table: queue.Queue[tuple[T | None, Exception | None]] = queue.Queue(1)
    thread = threading.Thread(target=_read, args=(values, table, leaving), name="rlds2reverb-polled", daemon=True)
    thread.start()
    try:
        while True:
            try:
                value, error = table.get(timeout=seconds)
            except queue.Empty:
                yield None
                continue
            if error is not None:
                raise error
            if value is None:
                return
            yield value
    finally:
        leaving.is_left.set()
        _make_room(table)


def _make_room(table: queue.Queue[Any]) -> None:
    """The reading thread may wait for room."""
    if not table.empty():  # nobody else takes
        table.get()


def _read(values: Iterator[T], table: queue.Queue[Any], leaving: Leaving) -> None:
    """What the thread does."""
    end: tuple[T | None, Exception | None] = (None, None)
    try:
        for value in values:
            table.put((value, None))
            if leaving.is_left.is_set():
                return
    except Exception as error:  # raised in the thread of whoever wants the values
        end = (None, error)
    if not leaving.is_left.is_set():
        table.put(end)
