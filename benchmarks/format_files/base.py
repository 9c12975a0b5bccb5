"""One format as a benchmark sees it, the episodes that every format holds, and columns of Parquet files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks import data
from rlds2reverb.episode import Array

TRANSITIONS = data.STEPS - 1
"""Actions of an episode."""

Columns = dict[str, Array]


@dataclass(frozen=True)
class FormatFiles:
    """One format.

    Attributes:
      name: of the benchmark's case.
      write: (folder, episodes) -> the source's name.
      read: folder -> how many transitions the bare library read.
      share: of the benchmark's items; formats that hold each step as text or as a file of its own get fewer.
      is_pushed: whether its steps are those of the TFDS dataset, so that pushes can be compared.
      is_mapped: whether the bare library does nothing but copy memory.
    """

    name: str
    write: Callable[[Path, int], str]
    read: Callable[[Path], int]
    share: float = 1.0
    is_pushed: bool = True
    is_mapped: bool = False


def episodes(count: int) -> Iterator[Columns]:
    """T + 1 observations, T of all else."""
    for columns in itertools.islice(itertools.cycle(data.half_cheetah()), count):
        ends = np.arange(TRANSITIONS) == TRANSITIONS - 1
        yield {
            "observations": columns["observation"],
            "actions": columns["action"][:-1],
            "rewards": columns["reward"][:-1],
            "ends": ends,
        }


def fixed(column: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(column.ravel()), column.shape[1])


def read_numbers(table: pa.Table) -> int:
    """Columns of numbers, of lists of one length and of text as arrays; how many rows there are."""
    for name in table.column_names:
        column = table[name].combine_chunks()
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        values.to_numpy(zero_copy_only=False)
    return int(table.num_rows)
