"""Items cut into pieces and put together: against a slow obvious reference."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Client
from rlds2reverb.adapters import common
from rlds2reverb.adapters.common import INFO_DTYPES, Arrays, Cutter, check_pickles, open_client, poll
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info


def item(number: int, length: int) -> tuple[list[Array], list[Array]]:
    """Columns [length, ...] and infos of an item; no two values are alike."""
    steps = np.arange(length) + 100 * number
    return [steps.astype(np.float32), np.stack([steps, -steps], 1)], [dtype(number + 1) for dtype in INFO_DTYPES]  # type: ignore[misc]


def batches(lengths: Sequence[int], size: int) -> Iterator[Batch]:
    """Items of these lengths, in batches as the client makes them: lists where lengths differ."""
    made = [item(number, length) for number, length in enumerate(lengths)]
    for start in range(0, len(made), size):
        part = made[start : start + size]
        columns: list[Sequence[Array]] = [list(column) for column in zip(*(columns for columns, _ in part))]
        if len({len(column) for column in columns[0]}) == 1:
            columns = [np.stack(column) for column in columns]  # type: ignore[misc]
        yield Batch(columns, BatchInfo(*(np.stack(values) for values in zip(*(infos for _, infos in part)))))


def slow_pieces(lengths: Sequence[int], num_steps: int | None) -> list[list[list[float]]]:
    """The leaves of each piece, in order."""
    pieces = []
    for number, length in enumerate(lengths):
        columns, infos = item(number, length)
        steps = num_steps or length
        for start in range(0, length - steps + 1, steps):
            cut = [column[start : start + steps].tolist() for column in columns]
            pieces.append(cut + [[info.tolist()] * steps for info in infos])
    return pieces


def as_lists(pieces: Arrays) -> list[list[list[float]]]:
    return [[array[number].tolist() for array in pieces] for number in range(len(pieces[0]))]


LENGTHS = st.lists(st.integers(1, 9), max_size=12)


@given(LENGTHS, st.integers(1, 5), st.none() | st.integers(1, 4))
def test_single_pieces_in_order(lengths: list[int], size: int, num_steps: int | None) -> None:
    cutter = Cutter("t", size, None, num_steps, is_shuffled=False)
    found = [[array.tolist() for array in piece] for piece in cutter.single(batches(lengths, size))]
    assert found == slow_pieces(lengths, num_steps)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 4))
def test_batches_of_pieces_in_order(lengths: list[int], size: int, num_steps: int) -> None:
    expected = slow_pieces(lengths, num_steps)
    full = list(Cutter("t", size, None, num_steps, is_shuffled=False).batched(batches(lengths, size)))
    assert [len(batch[0]) for batch in full] == [size] * (len(expected) // size)
    found = [piece for batch in full for piece in as_lists(batch)]
    assert found == expected[: len(found)]


@given(st.integers(0, 4), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_shuffled_pieces_are_the_same_ones_in_an_order_that_the_samples_decide(
    count: int, size: int, num_steps: int
) -> None:
    def made() -> list[list[list[float]]]:
        cutter = Cutter("t", size, 8, num_steps, is_shuffled=True)
        return [piece for batch in cutter.batched(batches([8] * count * size, size)) for piece in as_lists(batch)]

    assert sorted(made()) == sorted(slow_pieces([8] * count * size, num_steps))
    assert made() == made()


def test_pieces_of_one_item_do_not_stand_together() -> None:
    cutter = Cutter("t", 16, 32, 2, is_shuffled=True)
    first = next(cutter.batched(batches([32] * 16, 16)))
    assert len(set(first[2][:, 0])) > 4  # keys; in order there would be one


def test_whole_items_of_one_length_are_not_copied() -> None:
    (batch,) = batches([3, 3], 2)
    ((column, *_),) = Cutter("t", 2, 3, None, is_shuffled=True).batched(iter([batch]))
    assert np.shares_memory(column, batch.data[0])


def test_items_of_two_lengths_are_no_batch() -> None:
    cutter = Cutter("replay", 2, None, None, is_shuffled=True)
    with pytest.raises(
        ConfigError, match='table "replay": items of 2, 3 steps do not fit into one batch; give num_steps'
    ):
        list(cutter.batched(batches([3, 2], 2)))


def test_items_of_another_length_than_was_said() -> None:
    cutter = Cutter("replay", 1, 4, 2, is_shuffled=True)
    with pytest.raises(ConfigError, match="expected items of 4 steps, as sequence_length says; got 6"):
        list(cutter.batched(batches([4, 6], 1)))


# Values are passed on in order; a wait is never longer than asked, and ends when nobody wants the values.

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
    assert next(number for number in polls if number is not None) == 1
    assert [next(polls) for _ in range(3)] == [None] * 3
    goes_on.set()
    assert [number for number in polls if number is not None] == [2]


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
    assert next(number for number in polls if number is not None) == 1
    polls.close()
    assert reading_threads()
    ends.set()
    join_readers()


# Whatever adapters take for a server becomes a client, and is closed unless it was given.


def one() -> Client:
    return Client(MemoryTransport(MemoryServer(table_info())))


def two() -> Client:
    return Client([MemoryTransport(MemoryServer(table_info()), f"{name}:1") for name in "ab"])


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The clients that were closed."""
    found: list[Any] = []
    for kind in (Client,):
        monkeypatch.setattr(kind, "close", lambda self: found.append(self))
    return found


@pytest.mark.parametrize("make", [one, two])
def test_a_client_stays_open(make: Callable[[], Client], closed: list[Any]) -> None:
    client = make()
    with open_client(client) as found:
        assert found is client
    assert closed == []


@pytest.mark.parametrize("make", [one, two])
def test_what_a_function_connects_is_closed(make: Callable[[], Client], closed: list[Any]) -> None:
    with open_client(make) as found:
        assert list(found.tables()) == ["replay"]
    assert closed == [found]


@pytest.mark.parametrize("address", ["a:1", ["a:1", "b:1"], ("a:1", "b:1")])
def test_addresses_are_connected_to(address: Any, closed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    client, asked = one(), []
    monkeypatch.setattr(common, "connect", lambda given: (asked.append(given), client)[1])
    with open_client(address) as found:
        assert found is client
    assert asked == [address]
    assert closed == [client]


def test_a_function_that_connects_nothing_is_told() -> None:
    with pytest.raises(ConfigError, match="it returned a str and not a client"):
        open_client(lambda: "localhost:1")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("make", [one, two])
def test_an_open_client_is_for_no_worker(make: Callable[[], Client]) -> None:
    check_pickles(make)
    check_pickles(["a:1", "b:1"])
    with pytest.raises(ConfigError, match=r"an open client cannot be pickled for workers; give .*functools\.partial"):
        check_pickles(make())
