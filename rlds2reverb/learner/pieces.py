"""Batches that came in parts -> batches of one size, and what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample import rows
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo


def pieces(parts: Sequence[FlatBatch], size: int) -> Iterator[FlatBatch]:
    """The samples of all parts, in their order, in batches of `size`; the last one may be shorter.

    Raises:
      WireError: the parts differ in their number of columns.
    """
    if not parts:
        return
    whole = joined(parts)
    for start in range(0, len(whole), size):
        yield _cut(whole, start, start + size)


def joined(parts: Sequence[FlatBatch]) -> FlatBatch:
    """One batch of at least one part.

    Raises:
      WireError: the parts differ in their number of columns.
    """
    if len(parts) == 1:
        return parts[0]
    numbers = sorted({len(part.columns) for part in parts})
    if len(numbers) > 1:
        raise WireError(f"samples of one table have {' and '.join(map(str, numbers))} columns")
    info = SampleInfo(*(np.concatenate(values) for values in zip(*(part.info for part in parts))))
    return FlatBatch(tuple(rows.joined(columns) for columns in zip(*(part.columns for part in parts))), info)


def _cut(whole: FlatBatch, start: int, stop: int) -> FlatBatch:
    if start == 0 and stop >= len(whole):
        return whole
    info = SampleInfo(*(values[start:stop] for values in whole.info))
    return FlatBatch(tuple(_cut_column(column, start, stop) for column in whole.columns), info)


def _cut_column(column: Column, start: int, stop: int) -> Column:
    if isinstance(column, np.ndarray):
        return column[start:stop]
    return rows.stacked(column[start:stop])
