"""The order in which several files are read, beside a slot machine that goes record by record."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.tfds_files.order import turns


def record_by_record(lengths: list[int], cycle: int, block: int) -> Iterator[tuple[int, int]]:
    """(file, record) as the interleaving gives them: one slot after the other, one record after the other."""
    files = [iter([(file, record) for record in range(length)]) for file, length in enumerate(lengths)]
    slots: list[Iterator[tuple[int, int]] | None] = [None] * cycle
    at = given_in_turn = 0
    while files or any(slots):
        if slots[at] is None and files:
            slots[at] = files.pop(0)
        slot = slots[at]
        record = None if slot is None else next(slot, None)
        if record is None:
            slots[at] = None
        else:
            yield record
            given_in_turn += 1
        if record is None or given_in_turn == block:
            at, given_in_turn = (at + 1) % cycle, 0


def spelled_out(lengths: list[int], cycle: int, block: int) -> list[tuple[int, int]]:
    """The same from `turns`."""
    read = [0] * len(lengths)
    found = []
    for file, count in turns(lengths, cycle, block):
        assert 1 <= count <= block
        found += [(file, read[file] + number) for number in range(count)]
        read[file] += count
    return found


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 5), st.integers(1, 20))
def test_turns_give_every_record_in_the_order_of_the_interleaving(lengths: list[int], cycle: int, block: int) -> None:
    assert spelled_out(lengths, cycle, block) == list(record_by_record(lengths, cycle, block))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 20))
def test_a_cycle_of_one_reads_file_by_file(lengths: list[int], block: int) -> None:
    wanted = [(file, record) for file, length in enumerate(lengths) for record in range(length)]
    assert spelled_out(lengths, 1, block) == wanted


def test_short_files_are_read_in_the_order_of_the_files() -> None:
    assert list(turns([16] * 40)) == [(file, 16) for file in range(40)]
    assert list(turns([])) == []


def test_very_long_files_are_told_bit_by_bit() -> None:
    told = turns([1 << 62] * 2)
    assert [next(told) for _ in range(3)] == [(0, 16), (1, 16), (0, 16)]
