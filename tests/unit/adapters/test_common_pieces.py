"""Items cut into pieces and put together: against a slow obvious reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.adapters.common import INFO_DTYPES, Arrays, Cutter
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo


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
    assert [len(one[0]) for one in full] == [size] * (len(expected) // size)
    found = [piece for one in full for piece in as_lists(one)]
    assert found == expected[: len(found)]


@given(st.integers(0, 4), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_shuffled_pieces_are_the_same_ones_in_an_order_that_the_samples_decide(
    count: int, size: int, num_steps: int
) -> None:
    def made() -> list[list[list[float]]]:
        cutter = Cutter("t", size, 8, num_steps, is_shuffled=True)
        return [piece for one in cutter.batched(batches([8] * count * size, size)) for piece in as_lists(one)]

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
