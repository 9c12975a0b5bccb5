"""Values are passed on in order; a wait is never longer than asked, and ends when nobody wants the values."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rlds2reverb.adapters.common import poll

SOON, LATE = 0.01, 60.0


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-polled"]


def join_readers() -> None:
    for thread in reading_threads():
        thread.join(LATE)
        assert not thread.is_alive()


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_all_values_in_order_and_then_the_end(count: int) -> None:
    assert list(poll(iter(range(1, count + 1)), LATE)) == list(range(1, count + 1))


def test_an_error_comes_after_the_values_before_it() -> None:
    def values() -> Iterator[str]:
        yield "one"
        raise OSError("gone")

    polls = poll(values(), LATE)
    assert next(polls) == "one"
    with pytest.raises(OSError, match="gone"):
        next(polls)


def test_while_nothing_comes_it_says_so_and_loses_nothing() -> None:
    goes_on = threading.Event()

    def values() -> Iterator[int]:
        yield 1
        goes_on.wait(LATE)
        yield 2

    polls = poll(values(), SOON)
    assert next(one for one in polls if one is not None) == 1
    assert [next(polls) for _ in range(3)] == [None] * 3
    goes_on.set()
    assert [one for one in polls if one is not None] == [2]


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_closed_with_more_to_come_the_thread_ends(taken: int) -> None:
    polls = poll(iter(int, 1), LATE)  # zeros without end
    for _ in range(taken):
        next(polls)
    polls.close()
    join_readers()


def test_closed_in_a_wait_it_does_not_wait_and_the_thread_ends_with_the_wait() -> None:
    ends = threading.Event()

    def values() -> Iterator[int]:
        yield 1
        ends.wait(LATE)
        yield 2
        raise AssertionError("nobody wants more")

    polls = poll(values(), SOON)
    assert next(one for one in polls if one is not None) == 1
    polls.close()
    assert reading_threads()
    ends.set()
    join_readers()
