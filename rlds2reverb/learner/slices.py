"""Fixed-length slices of sampled episodes: `slices=SliceSpec(length=16)`.

| by | a sampled episode of T rows gives | so, of a uniform table |
| --- | --- | --- |
| "trajectory" | `per_episode` slices from random starts | every episode is equally likely, and every start within it |
| "step" | (T - length + 1) / (N P every) slices on average, from random starts | every start of every episode is equally likely |

P is the probability with which the server drew the episode and N the size of the table, so that N P is 1 for uniform tables.
"step" makes up for any prioritised sampler, too. A number of slices that is not whole is rounded up or down at random, so that
the average is exact. Under "trajectory" how likely an episode is, is the table's business.

A slice depends on the seed, the item's key and its `times_sampled` only: not on the order in which samples come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.checks import check_count, check_word
from rlds2reverb.learner.cutting import Rows
from rlds2reverb.learner.draws import picks_in_a_row, uniforms
from rlds2reverb.learner.leaves import in_structure
from rlds2reverb.learner.weights import alpha_of
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import Column, FlatBatch
from rlds2reverb.wire.sample.rows import stacked

TRAJECTORY, STEP = "trajectory", "step"
ZERO, LAST = "zero", "last"
_ALIKE = ("uniform", "fifo")
"""Samplers that hand out all items equally often, besides the prioritised ones, which tell by how much they do not."""

_MOST_PER_SAMPLE = 1 << 20
_ROUNDING = -1
"""In place of a slice's number: the draw that rounds the count of slices."""


@dataclass(frozen=True)
class SliceSpec:
    """Which slices are cut out of sampled episodes.

    Attributes:
      length: rows of a slice.
      per_episode: by "trajectory": slices of each sampled episode, each start drawn for itself.
      strict: leave shorter episodes out; otherwise they give slices that are filled up at the end, and `info.mask` tells
        the rows that are the episode's.
      by: "trajectory" or "step", see above.
      every: by "step": one slice for so many starts on average; `length` by default.
      fill: what shorter episodes are filled up with: "zero" (or empty text), or "last", the last row again.
      seed: of the draws.

    Raises:
      ConfigError: a number out of its range, or options that do not go together.
    """

    length: int
    per_episode: int = 1
    strict: bool = True
    by: str = TRAJECTORY
    every: float | None = None
    fill: str = ZERO
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("slices: length", self.length)
        check_count("slices: per_episode", self.per_episode)
        check_word("slices: by", self.by, (TRAJECTORY, STEP))
        check_word("slices: fill", self.fill, (ZERO, LAST))
        if not isinstance(self.strict, bool):
            raise ConfigError(f"sample: slices: strict {self.strict!r}: expected true or false")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"sample: slices: seed {self.seed!r}: expected a whole number")
        if self.by == STEP and self.per_episode != 1:
            raise ConfigError('sample: slices: per_episode goes with by="trajectory"; by="step" takes every')
        if self.every is not None and (self.by != STEP or not _is_positive(self.every)):
            raise ConfigError(
                f'sample: slices: every {self.every!r}: expected a positive number, and by="step" beside it'
            )


class Slicing:
    """Cuts slices; a `cutting.SampleCutter`.

    Args:
      table: as the server tells of it.
      structure: nest of specs of its items; those with a first axis of any size are cut, or all when there are none. None
        for a table without a signature: all columns are cut.
      spec: which slices.

    Raises:
      ConfigError: the table's sampler prefers some items, and does not tell by how much, where steps shall be equally likely.
    """

    def __init__(self, table: TableInfo, structure: Nest | None, spec: SliceSpec) -> None:
        self._table, self._spec = table, spec
        self._structure = structure
        self._names, self._is_cut = _columns(structure)
        self._extra: tuple[int, ...] | None = None
        self._is_told = alpha_of(table.sampler) is not None
        if spec.by == STEP and not self._is_told and table.sampler not in _ALIKE:
            raise ConfigError(
                f'table "{table.name}": slices: by="step" makes all starts equally likely; its sampler {table.sampler} prefers some'
                f" items for good. Expected one of {', '.join(_ALIKE)}, prioritized"
            )

    @property
    def nothing(self) -> str:
        """Why an episode may give no slice."""
        return (
            f'they are shorter than length {self._spec.length}; use strict=False, or a smaller "every" with by="step"'
        )

    @property
    def signature(self) -> Nest | None:
        """The spec of a slice. Rows are free where a column may have one more than others, and nothing tells whether it has."""
        if self._structure is None:
            return None
        leaves = list(flatten(self._structure).values())
        rows = [_rows_of(leaf) for leaf, is_cut in zip(leaves, self._is_cut) if is_cut]
        sliced = [self._of_slice(leaf, rows) if is_cut else leaf for leaf, is_cut in zip(leaves, self._is_cut)]
        return in_structure(sliced, self._structure)

    def _of_slice(self, leaf: Any, rows: Sequence[int | None]) -> Any:
        """The spec of a column that is cut, whose items have such rows in the columns that are."""
        if not isinstance(leaf, ArraySpec) or not leaf.shape:
            return leaf
        known = [count for count in rows if count is not None]
        more = None
        if len(rows) == 1:
            more = 0
        elif leaf.shape[0] is not None and len(known) == len(rows):
            more = leaf.shape[0] - min(known)
        return replace(leaf, shape=(None if more is None else self._spec.length + more, *leaf.shape[1:]))

    def items(self, flat: FlatBatch) -> Slices:
        """The slices of every sample."""
        spec, info = self._spec, flat.info
        if self._names and len(flat.columns) != len(self._names):
            raise self._refused(f"items have {len(flat.columns)} columns", f"expected {len(self._names)}")
        steps = self._steps(flat)
        starts = steps - spec.length + 1
        starts = np.maximum(starts, 0 if spec.strict else steps > 0)
        counts = spec.per_episode * (starts > 0) if spec.by == TRAJECTORY else self._counts(flat, starts)
        chosen = picks_in_a_row(spec.seed, info.key, info.times_sampled, counts, starts)
        return Slices(flat.columns, self._cuts(len(flat.columns)), steps, counts, chosen, spec)

    def _counts(self, flat: FlatBatch, starts: Array) -> Array:
        """[B] slices of each sample by "step"."""
        info, spec = flat.info, self._spec
        share: Array = np.multiply(info.table_size, info.probability) if self._is_told else np.ones(len(flat))
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = starts / (share * float(spec.length if spec.every is None else spec.every))  # [B]
        if not (wanted <= _MOST_PER_SAMPLE).all():  # NaN, too
            at = int(np.argmin(wanted <= _MOST_PER_SAMPLE))
            raise ConfigError(
                f'table "{self._table.name}": slices: by="step" wants {wanted[at]:g} slices of an item of {starts[at]} starts that'
                f" was drawn with probability {info.probability[at]}; use a larger every, or an exponent and priorities nearer to the lengths"
            )
        rounding = uniforms(spec.seed, info.key, info.times_sampled, np.full(len(flat), _ROUNDING))
        counts: Array = np.floor(wanted + rounding).astype(np.int64)
        return counts

    def _cuts(self, columns: int) -> tuple[int | None, ...]:
        """For every column how many rows more than `length` a slice of it has; None for one that is not cut."""
        extra = iter(self._extra or ())
        return tuple(next(extra) if one else None for one in self._cut_columns(columns))

    def _cut_columns(self, columns: int) -> Sequence[bool]:
        return self._is_cut or [True] * columns

    def _steps(self, flat: FlatBatch) -> Array:
        """[S] the rows that every item has in all columns that are cut."""
        cut = [number for number, one in enumerate(self._cut_columns(len(flat.columns))) if one]
        rows = np.stack([self._rows(number, flat.columns[number]) for number in cut])  # [columns, S]
        steps: Array = rows.min(axis=0)
        extra = rows - steps
        self._extra = self._extra or tuple(extra[:, 0].tolist())
        is_wrong = ((extra > 1) | (extra != np.array(self._extra)[:, np.newaxis])).any(axis=0)
        if is_wrong.any():
            wrong = rows[:, int(np.argmax(is_wrong))].tolist()
            described = ", ".join(f"{self._name(number)} {count}" for number, count in zip(cut, wrong))
            raise self._refused(
                f"rows differ between columns: {described}",
                "expected as many in all, or one more in some of them, such as that of observations, and so in all items",
            )
        return steps

    def _rows(self, number: int, column: Column) -> Array:
        """[S] the rows of every item in a column."""
        is_bare = any(value.ndim == 0 for value in column) if isinstance(column, list) else column.ndim == 1
        if is_bare:
            raise self._refused(
                f"{self._name(number)} has no rows", "expected episodes, whose columns have an axis of steps"
            )
        if isinstance(column, list):
            return np.array([len(value) for value in column], np.int64)
        return np.full(len(column), column.shape[1], np.int64)

    def _name(self, number: int) -> str:
        return f'column "{self._names[number]}"' if self._names else f"column {number}"

    def _refused(self, came: str, expected: str) -> ConfigError:
        return ConfigError(f'table "{self._table.name}": slices: {came}; {expected}')


@dataclass(frozen=True, eq=False)
class Slices:
    """The slices of a batch of samples; a `cutting.CutItems`.

    Attributes:
      columns: of the samples.
      cuts: for every column how many rows more than `length` a slice of it has; None for one that is not cut.
      steps: [S] int64, rows of every sample.
      counts: [S] int64, slices of every sample.
      starts: [sum of counts] int64, where each slice begins, sample after sample.
      spec: which slices.
    """

    columns: Sequence[Column]
    cuts: tuple[int | None, ...]
    steps: Array
    counts: Array
    starts: Array
    spec: SliceSpec

    def rows(self, samples: Array, numbers: Array) -> Rows:
        """Some slices: [n, length, ...], and [n, length] bool, the rows that are the sample's."""
        starts = self.starts[(np.cumsum(self.counts) - self.counts)[samples] + numbers]
        columns = [
            _whole(column, samples) if cut is None else self._cut(column, samples, starts, self.spec.length + cut)
            for column, cut in zip(self.columns, self.cuts)
        ]
        mask = starts[:, np.newaxis] + np.arange(self.spec.length) < self.steps[samples, np.newaxis]
        return Rows(columns, starts, mask)

    def _cut(self, column: Column, samples: Array, starts: Array, length: int) -> Column:
        """[n, length, ...] of a column; n arrays where they differ."""
        if not isinstance(column, list):
            rows = starts[:, np.newaxis] + np.arange(length)  # [n, length]
            found = column[samples[:, np.newaxis], np.minimum(rows, column.shape[1] - 1)]
            return self._filled(found, rows >= column.shape[1])
        values = [column[sample] for sample in samples.tolist()]
        there = [value[start : start + length] for value, start in zip(values, starts.tolist())]
        if len({(value.shape[1:], value.dtype) for value in there}) == 1:
            return self._of_lengths(np.concatenate(there), np.array([len(one) for one in there]), length)
        return stacked([self._of_lengths(one.copy(), np.array([len(one)]), length)[0] for one in there])

    def _of_lengths(self, rows: Array, lengths: Array, length: int) -> Array:
        """[sum of lengths, ...], slice after slice -> [n, length, ...]."""
        if (lengths == length).all():
            return rows.reshape(len(lengths), length, *rows.shape[1:])
        firsts, offsets = (np.cumsum(lengths) - lengths)[:, np.newaxis], np.arange(length)
        beyond = offsets >= lengths[:, np.newaxis]  # [n, length]
        return self._filled(rows[firsts + np.minimum(offsets, lengths[:, np.newaxis] - 1)], beyond)

    def _filled(self, found: Array, beyond: Array) -> Array:
        """Slices whose rows beyond the end repeat the last one, as the spec wants them."""
        if self.spec.fill == ZERO and beyond.any():
            empty: Any = b"" if found.dtype.kind == "O" else 0
            found[beyond] = empty
        return found


def _whole(column: Column, samples: Array) -> Column:
    """What is not cut, once for every slice."""
    if not isinstance(column, list):
        return column[samples]
    return stacked([column[sample].copy() for sample in samples.tolist()])


def _columns(structure: Nest | None) -> tuple[list[str], list[bool]]:
    """Paths of the columns, and which are cut: those of any number of rows, or all when none is."""
    leaves = {} if structure is None else flatten(structure)
    free = [isinstance(leaf, ArraySpec) and leaf.shape[:1] == (None,) for leaf in leaves.values()]
    return list(leaves), free if any(free) else [True] * len(free)


def _rows_of(leaf: object) -> int | None:
    """The rows of an item, where its spec says them."""
    return leaf.shape[0] if isinstance(leaf, ArraySpec) and leaf.shape else None


def _is_positive(number: object) -> bool:
    return isinstance(number, (int, float, np.number)) and number is not True and 0 < float(number) < np.inf
