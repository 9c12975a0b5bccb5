"""In which order the records of several files are read.

TFDS reads without shuffling through `tf.data.Dataset.interleave` with 16 files open at a time and 16 records from each in
turn. An ordered dataset (`disable_shuffling`) is read file by file. Source: TensorFlow 2.15, interleave_dataset_op.cc;
tensorflow-datasets 4.9.10, core/reader.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

CYCLE, BLOCK = 16, 16


def turns(lengths: Sequence[int], cycle: int = CYCLE, block: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Which file is read next, and how many records of it.

    A cycle of slots is gone round. A slot's turn gives up to `block` records of its file. A file ends when a turn finds
    less than that; the slot's next turn opens the next file. So a file whose length is a multiple of `block` has one more
    turn, without a record, which is not told here.

    Args:
      lengths: records of every file, in the order in which files are opened.
      cycle: how many files are open at a time; 1 reads file by file.
      block: most records of a turn.

    Yields:
      number of a file, and how many of its records follow; never 0.
    """
    unopened = iter(range(len(lengths)))
    slots: list[tuple[int, int] | None] = [None] * min(cycle, len(lengths))
    is_any_open = bool(slots)
    while is_any_open:
        is_any_open = False
        for place, slot in enumerate(slots):
            if slot is None:
                file = next(unopened, None)
                if file is None:
                    continue
                slot = file, lengths[file]
            is_any_open = True
            file, left = slot
            if left:
                yield file, min(left, block)
            slots[place] = (file, left - block) if left >= block else None
