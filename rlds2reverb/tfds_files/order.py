"""In which order the records of several files are read.

TFDS reads without shuffling through `tf.data.Dataset.interleave` with 16 files open at a time and 16 records from each in
turn. An ordered dataset (`disable_shuffling`) is read file by file. Source: TensorFlow 2.15, interleave_dataset_op.cc;
tensorflow-datasets 4.9.10, core/reader.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple, TypeVar

CYCLE, BLOCK = 16, 16

T = TypeVar("T")


def interleaved(files: Iterable[Iterable[T]], cycle: int = CYCLE, block: int = BLOCK) -> Iterator[T]:
    """The records of all files, as TensorFlow interleaves them.

    A cycle of slots is gone round. A slot's turn gives up to `block` records of its file. A file ends when a turn finds
    less than that; the slot's next turn opens the next file. So a file whose length is a multiple of `block` has one more
    turn, without a record.

    Args:
      files: the records of every file, in the order in which files are opened. Each is iterated when its turn comes; an
        iterator with `close` is closed when this one is.
      cycle: how many files are open at a time; 1 reads file by file.
      block: most records of a turn.
    """
    unopened = iter(files)
    slots: list[Iterator[T] | None] = [None] * cycle
    is_any_open = True
    with ExitStack() as closing:
        closing.callback(_close, slots)
        while is_any_open:
            is_any_open = False
            for place, slot in enumerate(slots):
                records = _opened(unopened) if slot is None else slot
                if records is None:
                    continue
                is_any_open, slots[place], given = True, records, 0
                for record in islice(records, block):
                    given += 1
                    yield record
                if given < block:
                    slots[place] = None


class Run(NamedTuple):
    """Records that come one after the other.

    Attributes:
      file: its place among the files.
      first: number of the first record in it.
      records: how many; at least 1.
    """

    file: int
    first: int
    records: int


def runs(lengths: Sequence[int], cycle: int = CYCLE, block: int = BLOCK) -> Iterator[Run]:
    """Which records `interleaved` gives, and in which order, without reading any.

    Args:
      lengths: records of every file.
      cycle, block: as there.
    """
    unopened = iter(range(len(lengths)))
    slots: list[Run | None] = [None] * cycle
    is_any_open = True
    while is_any_open:
        is_any_open = False
        for place, slot in enumerate(slots):
            file, first = _turn(slot, unopened)
            if file is None:
                continue
            turn = Run(file, first, min(block, lengths[file] - first))
            is_any_open, slots[place] = True, turn if turn.records == block else None
            if turn.records:
                yield turn


def _turn(slot: Run | None, unopened: Iterator[int]) -> tuple[int | None, int]:
    """The file of a slot's turn, None when none is left, and its first record."""
    return (next(unopened, None), 0) if slot is None else (slot.file, slot.first + slot.records)


def _opened(unopened: Iterator[Iterable[T]]) -> Iterator[T] | None:
    file = next(unopened, None)
    return None if file is None else iter(file)


def _close(slots: list[Iterator[T] | None]) -> None:
    for slot in slots:
        close = getattr(slot, "close", None)
        if close is not None:
            close()
