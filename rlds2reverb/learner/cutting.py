"""Sampled items -> other items that are cut out of them on the way to the learner, in batches of the size that was asked for.

A sampled episode gives none, one or many items. So batches are made anew: what a sample gives beyond a batch goes into the next
one. Nothing is cut before a batch takes it, so a long episode waits as what it is, and not as all the items in it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import Nest
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo
from rlds2reverb.wire.sample.rows import joined

UNKNOWN_YIELD = 8
"""Samples that are asked for at a time where nobody knows how many items one gives."""

_EMPTY_LEAST, _EMPTY_PER_ITEM = 1000, 40
"""After so many samples without an item, and so many per item of the table, none is expected: of a table with one item in N that
gives any, a uniform sampler passes over that one so often with a probability of exp(-40)."""


@dataclass(frozen=True, eq=False)
class CutBatch(FlatBatch):
    """Items that were cut out of sampled ones; `info` is of the sample that each is from.

    Attributes:
      start: [B] int64, the row or step of the sampled item where each begins.
      mask: [B, L] bool, the rows that the sampled item has; None where there is no filling up.
    """

    start: Array
    mask: Array | None


class Rows(NamedTuple):
    """Some items, in memory of their own: `columns` as of a batch, `start` [n] int64, `mask` [n, L] bool or None."""

    columns: Sequence[Column]
    start: Array
    mask: Array | None = None


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """The items of all parts, of which there is one at least."""
    if len(parts) == 1:
        return parts[0]
    columns = [joined(values) for values in zip(*(part.columns for part in parts))]
    masks = [part.mask for part in parts if part.mask is not None]
    return Rows(columns, np.concatenate([part.start for part in parts]), np.concatenate(masks) if masks else None)


def item_columns(flat: FlatBatch, number: int) -> list[Array]:
    """The columns of one sample; those of a single value, too, are arrays."""
    return [column[number] if isinstance(column, list) else column[number, ...] for column in flat.columns]


class CutItems(Protocol):
    """The items that a batch of samples gives."""

    @property
    def counts(self) -> Array:
        """[S] int64, how many each sample gives."""
        ...

    def rows(self, samples: Array, numbers: Array) -> Rows:
        """Some of them: `samples`, [n] int64 in ascending order, tells of which sample; `numbers`, [n] int64, which of its items."""
        ...


class SampleCutter(Protocol):
    """A way to cut sampled items."""

    @property
    def signature(self) -> Nest | None:
        """The spec of an item that comes out; None where that of the samples is not known."""
        ...

    @property
    def nothing(self) -> str:
        """Why a sample may give no item at all, as the end of a sentence."""
        ...

    def items(self, flat: FlatBatch) -> CutItems:
        """What these samples give.

        Raises:
          ConfigError: the samples are not what can be cut so.
        """
        ...


class Cutting:
    """Makes batches of what a cutter makes of samples. Thread-safe.

    Args:
      table: its name.
      cutter: None leaves batches as they come.
      batch_size: items of a batch.
      drop_last: hold a batch that is shorter than others back.
    """

    def __init__(self, table: str, cutter: SampleCutter | None, batch_size: int, drop_last: bool = False) -> None:
        self._table, self._cutter, self._batch_size, self._drop_last = table, cutter, batch_size, drop_last
        self._lock = threading.Lock()
        self._ends_now = False  # the rest was handed out: what follows is the end
        self._held: deque[_Held] = deque()
        self._count = self._empty = 0

    def next(self, samples: Callable[[], FlatBatch | None]) -> FlatBatch | None:
        """The next batch; a shorter one, and then None, when there are no more samples. Raises as `samples` and the cutter do.

        Raises:
          ConfigError: so many samples in a row gave no item that none will.
        """
        if self._cutter is None:
            return samples()
        with self._lock:
            if self._ends_now:
                self._ends_now = False
                return None
            return self._next(self._cutter, samples)

    def drain(self) -> None:
        """From now on short batches are handed out, too, and an end that was due is none: more comes."""
        with self._lock:
            self._ends_now = self._drop_last = False

    @property
    def held(self) -> int:
        """Samples that came and have items left that are in no batch yet."""
        return sum(len(np.unique(held.samples[held.taken :])) for held in self._held)

    def _next(self, cutter: SampleCutter, samples: Callable[[], FlatBatch | None]) -> FlatBatch | None:
        while self._count < self._batch_size and (flat := samples()) is not None:
            self._take(flat.info, cutter.items(flat))
        if self._count >= self._batch_size:
            return self._batch()
        self._ends_now = self._count > 0 and not self._drop_last
        return self._batch() if self._ends_now else None

    def _take(self, info: SampleInfo, items: CutItems) -> None:
        counts = items.counts
        giving = np.flatnonzero(counts)
        if len(giving):
            samples = np.repeat(np.arange(len(counts)), counts)
            firsts = np.cumsum(counts) - counts
            self._held.append(_Held(info, items, samples, np.arange(len(samples)) - firsts[samples]))
            self._count += len(samples)
        self._empty = len(counts) - 1 - int(giving[-1]) if len(giving) else self._empty + len(counts)
        if self._empty > _EMPTY_LEAST + _EMPTY_PER_ITEM * int(info.table_size[-1]):
            why = "" if self._cutter is None else self._cutter.nothing
            raise ConfigError(f'table "{self._table}": {self._empty:,} samples in a row gave nothing: {why}')

    def _batch(self) -> CutBatch:
        """What is held, as far as it fills a batch."""
        parts: list[Rows] = []
        infos: list[SampleInfo] = []
        wanted = min(self._batch_size, self._count)
        self._count -= wanted
        while wanted:
            held = self._held[0]
            own = slice(held.taken, held.taken + wanted)
            samples = held.samples[own]
            parts.append(held.items.rows(samples, held.numbers[own]))
            infos.append(SampleInfo(*(values[samples] for values in held.info)))
            held.taken += len(samples)
            wanted -= len(samples)
            if held.taken == len(held.samples):
                self._held.popleft()
        rows = joined_rows(parts)
        info = SampleInfo(*map(np.concatenate, zip(*infos)))
        return CutBatch(tuple(rows.columns), info, rows.start, rows.mask)


@dataclass
class _Held:
    """What a batch of samples gives: `samples` [n] and `numbers` [n] tell all its items, `taken` of which are in batches."""

    info: SampleInfo
    items: CutItems
    samples: Array
    numbers: Array
    taken: int = 0
