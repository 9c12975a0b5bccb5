"""Reading ahead in a thread: the same items, a bounded number ahead, and no thread left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.formats.source import read_ahead

MEGABYTE = 1 << 20


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-read-ahead"]


class Items:
    """Numbers that say how far they were read."""

    def __init__(self, count: int, breaks: bool = False) -> None:
        self.count, self.breaks = count, breaks
        self.read = 0
        self.is_closed = False

    def __call__(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                self.read += 1
                yield number
            if self.breaks:
                raise ValueError("damaged")
        finally:
            self.is_closed = True


@given(st.lists(st.integers(0, MEGABYTE), max_size=100))
def test_the_same_items_come_in_the_same_order(sizes: list[int]) -> None:
    assert list(read_ahead((size for size in sizes), lambda size: size)) == sizes
    assert threads() == []


@given(st.integers(0, 100))
def test_what_was_read_before_an_error_comes_before_it(count: int) -> None:
    items = Items(count, breaks=True)
    found: list[int] = []
    with pytest.raises(ValueError, match="damaged"):
        found += read_ahead(items(), lambda _: 1)
    # The list is extended item by item, so it has all that came.
    assert found == list(range(count))
    assert items.is_closed
    assert threads() == []


def test_of_large_items_two_are_read_ahead_at_most() -> None:
    items = Items(1000)
    reading = read_ahead(items(), lambda _: MEGABYTE)
    for number in range(20):
        assert next(reading) == number
        assert items.read <= number + 3
    close(reading)
    assert items.read <= 23


def test_small_items_come_by_the_batch() -> None:
    items = Items(10_000)
    reading = read_ahead(items(), lambda _: 1)
    for number in range(200):
        assert next(reading) == number
        assert items.read <= number + 1 + 3 * 32
    close(reading)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_reading_that_is_dropped_ends_its_thread(taken: int) -> None:
    items = Items(10_000)
    reading = read_ahead(items(), lambda _: MEGABYTE)
    for _ in range(taken):
        next(reading)
    assert len(threads()) == (1 if taken else 0)
    del reading
    gc.collect()
    assert threads() == []
    assert items.is_closed == bool(taken)


def test_nothing_is_read_before_the_first_item_is_asked_for() -> None:
    items = Items(3)
    reading = read_ahead(items(), lambda _: 1)
    assert items.read == 0
    assert threads() == []
    assert list(reading) == [0, 1, 2]


def test_a_program_ends_that_has_not_read_all() -> None:
    """From Python 3.13 on, a thread that is joined when the interpreter shuts down never ends."""
    lines = (
        "from itertools import count",
        "from rlds2reverb.formats.source import read_ahead",
        "reading = read_ahead((number for number in count()), lambda number: 1 << 20)",
        "print(next(reading))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def close(reading: Iterator[int]) -> None:
    reading.close()  # type: ignore[attr-defined]
    assert threads() == []
