"""The order in which several files are read, beside a slot machine that goes record by record."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.formats.tfds.selection import BLOCK, runs


def record_by_record(lengths: list[int], cycle: int, block: int) -> Iterator[tuple[int, int]]:
    """(file, record) as the interleaving gives them: one slot after the other, one record after the other."""
    unopened = [iter(file) for file in files(lengths)]
    slots: list[Iterator[tuple[int, int]] | None] = [None] * cycle
    at = given_in_turn = 0
    while unopened or any(slots):
        if slots[at] is None and unopened:
            slots[at] = unopened.pop(0)
        slot = slots[at]
        record = None if slot is None else next(slot, None)
        if record is None:
            slots[at] = None
        else:
            yield record
            given_in_turn += 1
        if record is None or given_in_turn == block:
            at, given_in_turn = (at + 1) % cycle, 0


def records(lengths: list[int], cycle: int, block: int) -> list[tuple[int, int]]:
    return [
        (run.file, run.first + number) for run in runs(lengths, cycle, block=block) for number in range(run.records)
    ]


def files(lengths: list[int]) -> list[list[tuple[int, int]]]:
    return [[(file, record) for record in range(length)] for file, length in enumerate(lengths)]


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 5), st.integers(1, 20))
def test_every_record_comes_in_the_order_of_the_interleaving(lengths: list[int], cycle: int, block: int) -> None:
    assert records(lengths, cycle, block) == list(record_by_record(lengths, cycle, block))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 20))
def test_a_cycle_of_one_reads_file_by_file(lengths: list[int], block: int) -> None:
    assert records(lengths, 1, block) == [record for file in files(lengths) for record in file]


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(1, 5), st.data())
def test_a_part_of_the_order_is_that_part_of_the_whole(lengths: list[int], cycle: int, data: st.DataObject) -> None:
    whole = records(lengths, cycle, BLOCK)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    part = runs(lengths, cycle, start, stop)
    assert [(run.file, run.first + number) for run in part for number in range(run.records)] == whole[start:stop]
