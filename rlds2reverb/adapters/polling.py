"""Values from an iterator that may wait for long, for a user that must not: TensorFlow cannot end a call into Python that waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def polled(values: Iterator[T], seconds: float) -> Generator[T | None, None, None]:
    """The values, read one ahead by a thread, and None whenever none came for so long.

    Closed, it does not wait for the thread, which ends with the next value. Whoever closes it ends a wait for that.

    Args:
      values: used by the thread only.
      seconds: how long one step of this generator waits at most.

    Raises:
      Exception: what `values` raises, after the values before it.
    """
    table: queue.Queue[tuple[T | None, Exception | None]] = queue.Queue(1)
    is_left = threading.Event()
    threading.Thread(target=_read, args=(values, table, is_left), name="rlds2reverb-polled", daemon=True).start()
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
        is_left.set()
        if not table.empty():  # nobody else takes
            table.get()  # the thread may wait for room


def _read(values: Iterator[T], table: queue.Queue[Any], is_left: threading.Event) -> None:
    """What the thread does."""
    end: tuple[T | None, Exception | None] = (None, None)
    try:
        for value in values:
            table.put((value, None))
            if is_left.is_set():
                return
    except Exception as error:  # raised in the thread of whoever wants the values
        end = (None, error)
    if not is_left.is_set():
        table.put(end)
