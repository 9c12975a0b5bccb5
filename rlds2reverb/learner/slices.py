"""Items cut out of sampled episodes on the way to the learner: fixed-length slices, or the items of a view.

`slices=SliceSpec(length=16)`:

| by | a sampled episode of T rows gives | so, of a uniform table |
| --- | --- | --- |
| "trajectory" | `per_episode` slices from random starts | every episode is equally likely, and every start within it |
| "step" | (T - length + 1) / (N P every) slices on average, from random starts | every start of every episode is equally likely |

P is the probability with which the server drew the episode and N the size of the table, so that N P is 1 for uniform tables.
"step" makes up for any prioritised sampler, too. A number of slices that is not whole is rounded up or down at random, so that
the average is exact. Under "trajectory" the table alone decides how likely an episode is.

A slice depends only on the seed, the item's key and its `times_sampled`, not on the order in which samples come,
which several streams to a server do not keep.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import DISCOUNT, FLAGS, IS_FIRST, IS_LAST, IS_TERMINAL, Array, Episode, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import in_structure
from rlds2reverb.learner.options import STEP, TRAJECTORY, ZERO, SliceSpec, ViewSpec
from rlds2reverb.prepare.conventions import fill_absent, filled_spec
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves
from rlds2reverb.views.base import View, spell_view
from rlds2reverb.views.trajectory import FIELDS, FIRST, LAST, NEXT_STEP_TYPE, STEP_TYPE
from rlds2reverb.wire.messages import TableInfo, priority_exponent
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo, join_columns, stack_values

_ALIKE = ("uniform", "fifo")  # samplers that hand out all items equally often; prioritised ones give the probability
_MOST_PER_SAMPLE = 1 << 20  # slices; more come of a probability near 0, and would fill the memory
_ROUNDING = -1  # in place of a slice's number: the draw that rounds the count of slices


class CutItems(NamedTuple):
    """The items that a batch of samples gives; nothing is cut yet.

    Attributes:
      counts: [S] int64 number of items of each sample.
      rows: cuts some of them: `samples`, [n] int64 in ascending order, and `numbers`, [n] int64, those of the items in their samples.
    """

    counts: Array
    rows: Callable[[Array, Array], CutRows]


class SampleCutter(Protocol):
    """Cuts sampled items into slices, or into the items of a view."""

    @property
    def signature(self) -> Nest | None:
        """The spec of an item that comes out; None if the spec of the samples is not known."""
        ...

    @property
    def nothing(self) -> str:
        """Why a sample may give no item at all, as the end of a sentence."""
        ...

    def items(self, flat: FlatBatch) -> CutItems:
        """What these samples give. Raises ConfigError for samples that cannot be cut so."""
        ...


class Slicing:
    """Cuts slices; a `SampleCutter`.

    Args:
      structure: nest of specs of the table's items; columns with a first axis of any size are cut, or all without any such column. None
        for a table without a signature: all columns are cut.

    Raises:
      ConfigError: steps shall be equally likely, and the table's sampler prefers some items without giving probabilities.
    """

    def __init__(self, table: TableInfo, structure: Nest | None, spec: SliceSpec) -> None:
        self._table, self._spec = table, spec
        self._structure = structure
        leaves = {} if structure is None else flatten(structure)
        is_free = [isinstance(leaf, ArraySpec) and leaf.shape[:1] == (None,) for leaf in leaves.values()]
        self._names, self._is_cut = list(leaves), is_free if any(is_free) else [True] * len(is_free)
        self._extra: tuple[int, ...] | None = None
        self._has_alpha = priority_exponent(table.sampler) is not None
        if spec.by == STEP and not self._has_alpha and table.sampler not in _ALIKE:
            raise ConfigError(
                f'table "{table.name}": slices: by="step" makes all starts equally likely; its sampler {table.sampler} prefers some'
                f" items for good. Expected one of {', '.join(_ALIKE)}, prioritized"
            )

    @property
    def nothing(self) -> str:
        return (
            f'they are shorter than length {self._spec.length}; use strict=False, or a smaller "every" with by="step"'
        )

    @property
    def signature(self) -> Nest | None:
        """The spec of a slice. Its rows are free where a column may have one row more than the rest, and the specs do not say so."""
        if self._structure is None:
            return None
        leaves = list(flatten(self._structure).values())
        rows = [
            leaf.shape[0] if isinstance(leaf, ArraySpec) and leaf.shape else None
            for leaf, is_cut in zip(leaves, self._is_cut)
            if is_cut
        ]
        sliced = [self._slice_spec(leaf, rows) if is_cut else leaf for leaf, is_cut in zip(leaves, self._is_cut)]
        return in_structure(sliced, self._structure)

    def _slice_spec(self, leaf: Any, rows: Sequence[int | None]) -> Any:
        """The spec of a cut column; `rows` are those of an item in each cut column, None where they are free."""
        if not isinstance(leaf, ArraySpec) or not leaf.shape:
            return leaf
        fixed = [count for count in rows if count is not None]
        more = None
        if len(rows) == 1:
            more = 0
        elif leaf.shape[0] is not None and len(fixed) == len(rows):
            more = leaf.shape[0] - min(fixed)
        return replace(leaf, shape=(None if more is None else self._spec.length + more, *leaf.shape[1:]))

    def items(self, flat: FlatBatch) -> CutItems:
        spec, info, columns = self._spec, flat.info, flat.columns
        if self._names and len(columns) != len(self._names):
            raise self._refusal(f"items have {len(columns)} columns", f"expected {len(self._names)}")
        is_cut = self._is_cut or [True] * len(columns)
        steps = self._count_steps(flat, is_cut)
        starts = steps - spec.length + 1
        starts = np.maximum(starts, 0 if spec.strict else steps > 0)
        counts = spec.per_episode * (starts > 0) if spec.by == TRAJECTORY else self._count_slices(flat, starts)
        chosen = picks_in_a_row(spec.seed, info.key, info.times_sampled, counts, starts)
        firsts, extra = np.cumsum(counts) - counts, iter(self._extra or ())
        lengths = [spec.length + next(extra) if is_column_cut else None for is_column_cut in is_cut]

        def rows(samples: Array, numbers: Array) -> CutRows:
            starts = chosen[firsts[samples] + numbers]
            cut = [
                _whole(column, samples) if length is None else self._cut_column(column, samples, starts, length)
                for column, length in zip(columns, lengths)
            ]
            mask = starts[:, np.newaxis] + np.arange(spec.length) < steps[samples, np.newaxis]
            return CutRows(cut, starts, mask)

        return CutItems(counts, rows)

    def _count_slices(self, flat: FlatBatch, starts: Array) -> Array:
        """[B] slices of each sample by "step"."""
        info, spec = flat.info, self._spec
        share: Array = np.multiply(info.table_size, info.probability) if self._has_alpha else np.ones(len(flat))
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = starts / (share * float(spec.length if spec.every is None else spec.every))  # [B]
        if not (expected <= _MOST_PER_SAMPLE).all():  # NaN, too
            at = int(np.argmin(expected <= _MOST_PER_SAMPLE))
            raise ConfigError(
                f'table "{self._table.name}": slices: by="step" wants {expected[at]:g} slices of an item of {starts[at]} starts that'
                f" was drawn with probability {info.probability[at]}; use a larger every, or an exponent and priorities nearer to the lengths"
            )
        rounding = uniforms(spec.seed, info.key, info.times_sampled, np.full(len(flat), _ROUNDING))
        counts: Array = np.floor(expected + rounding).astype(np.int64)
        return counts

    def _count_steps(self, flat: FlatBatch, is_cut: Sequence[bool]) -> Array:
        """[S] the rows that every item has in all cut columns. The first item decides which columns have one row more.

        One more is the final observation, which belongs to no step; slices of that column have one row more, too.
        """
        cut = [number for number, is_column_cut in enumerate(is_cut) if is_column_cut]
        rows = np.stack([self._count_rows(number, flat.columns[number]) for number in cut])  # [columns, S]
        steps: Array = rows.min(axis=0)
        extra = rows - steps
        self._extra = self._extra or tuple(extra[:, 0].tolist())
        is_wrong = ((extra > 1) | (extra != np.array(self._extra)[:, np.newaxis])).any(axis=0)
        if is_wrong.any():
            wrong = rows[:, int(np.argmax(is_wrong))].tolist()
            described = ", ".join(f"{self._name(number)} {count}" for number, count in zip(cut, wrong))
            raise self._refusal(
                f"rows differ between columns: {described}",
                "expected as many in all, or one more in some of them, such as that of observations, and so in all items",
            )
        return steps

    def _count_rows(self, number: int, column: Column) -> Array:
        """[S] the rows of every item in a column."""
        is_bare = any(value.ndim == 0 for value in column) if isinstance(column, list) else column.ndim == 1
        if is_bare:
            raise self._refusal(
                f"{self._name(number)} has no rows", "expected episodes, whose columns have an axis of steps"
            )
        if isinstance(column, list):
            return np.array([len(value) for value in column], np.int64)
        return np.full(len(column), column.shape[1], np.int64)

    def _name(self, number: int) -> str:
        return f'column "{self._names[number]}"' if self._names else f"column {number}"

    def _refusal(self, came: str, expected: str) -> ConfigError:
        return ConfigError(f'table "{self._table.name}": slices: {came}; {expected}')

    def _cut_column(self, column: Column, samples: Array, starts: Array, length: int) -> Column:
        """[n, length, ...] of a column; n arrays where their shapes differ."""
        if not isinstance(column, list):
            rows = starts[:, np.newaxis] + np.arange(length)  # [n, length]
            slices = column[samples[:, np.newaxis], np.minimum(rows, column.shape[1] - 1)]
            return self._fill_rows(slices, rows >= column.shape[1])
        values = [column[sample] for sample in samples.tolist()]
        parts = [value[start : start + length] for value, start in zip(values, starts.tolist())]
        if len({(value.shape[1:], value.dtype) for value in parts}) == 1:
            return self._equalise(np.concatenate(parts), np.array([len(part) for part in parts]), length)
        return stack_values([self._equalise(part.copy(), np.array([len(part)]), length)[0] for part in parts])

    def _equalise(self, rows: Array, lengths: Array, length: int) -> Array:
        """[sum of lengths, ...], slice after slice -> [n, length, ...]."""
        if (lengths == length).all():
            return rows.reshape(len(lengths), length, *rows.shape[1:])
        firsts, offsets = (np.cumsum(lengths) - lengths)[:, np.newaxis], np.arange(length)
        beyond = offsets >= lengths[:, np.newaxis]  # [n, length]
        return self._fill_rows(rows[firsts + np.minimum(offsets, lengths[:, np.newaxis] - 1)], beyond)

    def _fill_rows(self, slices: Array, beyond: Array) -> Array:
        """Fills rows beyond the end, which repeat the last one, as the spec wants them."""
        if self._spec.fill == ZERO and beyond.any():
            empty: Any = b"" if slices.dtype.kind == "O" else 0
            slices[beyond] = empty
        return slices


def _whole(column: Column, samples: Array) -> Column:
    """Repeats a column that is not cut, once for every slice."""
    if not isinstance(column, list):
        return column[samples]
    return stack_values([column[sample].copy() for sample in samples.tolist()])


_FLAG = ArraySpec((), np.dtype(bool))


class Viewing:
    """Cuts sampled episodes as a view does; a `SampleCutter`.

    Args:
      structure: nest of `ArraySpec` of the table's items: trajectories, or RLDS steps, with a first axis.

    Raises:
      ConfigError: the items are no episodes, or the names of their columns are not known.
      ViewError: the view needs a step field that they lack.
    """

    def __init__(self, table: TableInfo, structure: Nest | None, spec: ViewSpec) -> None:
        self._table, self._spec = table, spec
        self._names = [] if structure is None else list(flatten(structure))
        assert isinstance(spec.view, View)
        self._view: View = spec.view
        self._step_spec, self._is_trajectory = self._find_steps(structure)
        self.signature = self._view.signature(self._step_spec)
        self._order = list(flatten(self.signature))

    @property
    def nothing(self) -> str:
        return f"the view {spell_view(self._view)} cuts no item out of them"

    def items(self, flat: FlatBatch) -> CutItems:
        info, per_episode = flat.info, self._spec.per_episode
        cuts = []
        for number, key in enumerate(info.key.tolist()):
            columns = [column[number] if isinstance(column, list) else column[number, ...] for column in flat.columns]
            cuts.append(self._cut_episode(columns, key))
        counts = np.array([len(cut.anchors) for cut in cuts], np.int64)
        if per_episode is None:
            chosen = [np.arange(count) for count in counts]
        else:
            chosen = picks(self._spec.seed, info.key, info.times_sampled, per_episode * (counts > 0), counts)

        def rows(samples: Array, numbers: Array) -> CutRows:
            """Each item starts at the step that it is anchored at."""
            used, firsts = np.unique(samples, return_index=True)
            parts = []
            for sample, run in zip(used.tolist(), np.split(numbers, firsts[1:])):
                cut, picked = cuts[sample], chosen[sample][run]
                columns = [column.take(picked) for column in item_columns(cut, cut.rows)]
                parts.append(CutRows(columns, cut.steps[picked].astype(np.int64)))
            return join_rows(parts)

        return CutItems(np.array([len(items) for items in chosen], np.int64), rows)

    def _cut_episode(self, columns: Sequence[Array], key: int) -> Cut:
        if len(columns) != len(self._names):
            raise self._refusal(f"items have {len(columns)} columns, the structure has {len(self._names)}")
        named = dict(zip(self._names, columns))
        rows = {path: len(column) if column.ndim else 0 for path, column in named.items()}
        if len(set(rows.values())) != 1 or not next(iter(rows.values())):
            raise self._refusal(f"item {key}: expected as many rows in all columns, and at least one; found {rows}")
        if self._is_trajectory:
            named = self._as_steps(named)
        episode = fill_absent(Episode(named, id=f"item {key}"))
        if not (episode.columns[IS_FIRST][0] and episode.columns[IS_LAST][-1]):
            raise self._refusal(
                f"item {key} is no whole episode: expected that it begins with a first step and ends with a last. "
                "A view is cut out of whole episodes: sample a table that holds them (view `episode`), or leave out `view`"
            )
        return self._view.cut(episode).in_order(self._order)

    def _as_steps(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Rows of a trajectory -> columns of RLDS steps."""
        kinds = rows[STEP_TYPE]
        last = kinds == LAST
        first = kinds == FIRST
        if len(kinds) == 1:  # a single step is first and last; a trajectory calls it last
            first = last
        discounts = [column for path, column in rows.items() if is_under(path, DISCOUNT)]
        is_zero = np.all([(column.reshape(len(kinds), -1) == 0).all(axis=1) for column in discounts], axis=0)
        steps = {path: column for path, column in rows.items() if path not in (STEP_TYPE, NEXT_STEP_TYPE)}
        return {**steps, IS_FIRST: first, IS_LAST: last, IS_TERMINAL: last & is_zero}

    def _find_steps(self, structure: Nest | None) -> tuple[dict[str, Nest], bool]:
        """The spec of a step, and whether the items are trajectories."""
        if structure is None or not all(isinstance(leaf, ArraySpec) for leaf in flatten(structure).values()):
            raise self._refusal(
                "the names and specs of its columns are not known; give spec, a nest of ArraySpec as of the items"
            )
        fields = getattr(structure, "_fields", ())
        named = dict(zip(fields, structure)) if fields else structure
        if not isinstance(named, Mapping) or not ({STEP_TYPE} <= set(named) or {IS_FIRST, IS_LAST} <= set(named)):
            raise self._refusal(
                f"expected items of trajectories ({STEP_TYPE}, ...) or of RLDS steps ({', '.join(FLAGS)}, ...), found {self._names}"
            )
        if flat := [path for path, leaf in flatten(structure).items() if not leaf.shape]:
            raise self._refusal(f'column "{flat[0]}" has no rows, so the items are no episodes')
        steps = {
            name: map_leaves(lambda leaf: replace(leaf, shape=leaf.shape[1:]), field) for name, field in named.items()
        }
        if STEP_TYPE not in named:
            return filled_spec(steps), False
        if missing := [name for name in FIELDS if name not in named and name != "policy_info"]:
            raise self._refusal(f"trajectories without {', '.join(missing)}")
        kept = {
            name: field for name, field in steps.items() if name not in (STEP_TYPE, NEXT_STEP_TYPE) and flatten(field)
        }
        return {**kept, IS_FIRST: _FLAG, IS_LAST: _FLAG, IS_TERMINAL: _FLAG}, True

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(f'table "{self._table.name}": view {spell_view(self._view)}: {why}')


class ItemColumn(NamedTuple):
    """How one column of a cut's items is read: `rows[anchors + offsets]`, without the rows' axis if it is squeezed."""

    rows: Array  # [R, ...]
    anchors: Array  # [n]
    offsets: Array  # [L]
    is_squeezed: bool

    def take(self, items: Array) -> Array:
        """[m] numbers of items -> [m, L, ...], or [m, ...]; a copy."""
        first = self.anchors[items]
        at = first + self.offsets[0] if self.is_squeezed else first[:, np.newaxis] + self.offsets
        values: Array = np.take(self.rows, at, axis=0)
        return values


def item_columns(cut: Cut, rows: Mapping[str, Array]) -> list[ItemColumn]:
    """The columns of a cut's items, in the order of its fields; `rows` are the cut's, or what is stored of them."""
    return [
        ItemColumn(
            rows[field.column],
            cut.anchors if field.anchors is None else field.anchors,
            np.concatenate([np.arange(window.start, window.stop) for window in field.windows]),
            field.squeeze,
        )
        for field in cut.fields.values()
    ]


# After so many samples without an item, and so many per item of the table, no item is expected: of a table with one item in N that
# gives any, a uniform sampler passes over that one so often with a probability of exp(-40).
_EMPTY_LEAST, _EMPTY_PER_ITEM = 1000, 40


@dataclass(frozen=True, eq=False)
class CutBatch(FlatBatch):
    """Items that were cut out of sampled items; `info` describes the sample that each comes from.

    Attributes:
      start: [B] int64, the row or step of the sampled item where each begins.
      mask: [B, L] bool, true for rows of the sampled item, false for filling; None if nothing is filled up.
    """

    start: Array
    mask: Array | None


class CutRows(NamedTuple):
    """Cut items, in memory of their own; fields as of `CutBatch`."""

    columns: Sequence[Column]
    start: Array
    mask: Array | None = None


def join_rows(parts: Sequence[CutRows]) -> CutRows:
    """Joins the items of one part or more."""
    if len(parts) == 1:
        return parts[0]
    columns = [join_columns(values) for values in zip(*(part.columns for part in parts))]
    masks = [part.mask for part in parts if part.mask is not None]
    return CutRows(columns, np.concatenate([part.start for part in parts]), np.concatenate(masks) if masks else None)


def cut_each(cutter: SampleCutter, samples: FlatBatch) -> CutBatch | None:
    """All items that these samples give, in their order; None where they give none."""
    items = cutter.items(samples)
    if not items.counts.any():
        return None
    numbers = np.repeat(np.arange(len(samples)), items.counts)
    firsts = np.cumsum(items.counts) - items.counts
    rows = items.rows(numbers, np.arange(len(numbers)) - firsts[numbers])
    return CutBatch(
        tuple(rows.columns), SampleInfo(*(values[numbers] for values in samples.info)), rows.start, rows.mask
    )


def join_cut(parts: Sequence[CutBatch]) -> CutBatch:
    """Joins the items of one batch or more."""
    if len(parts) == 1:
        return parts[0]
    rows = join_rows([CutRows(part.columns, part.start, part.mask) for part in parts])
    info = SampleInfo(*map(np.concatenate, zip(*(part.info for part in parts))))
    return CutBatch(tuple(rows.columns), info, rows.start, rows.mask)


class Cutting:
    """Makes batches of the items that a cutter makes of samples. Thread-safe.

    A sampled episode gives none, one or many items. So batches are made anew: the items of a sample beyond a batch are put into the next
    batch. Nothing is cut before a batch needs it, so a long episode waits as itself, and not as all its items.
    """

    def __init__(self, table: str, cutter: SampleCutter, batch_size: int, drop_last: bool = False) -> None:
        self._table, self._cutter, self._batch_size, self._drop_last = table, cutter, batch_size, drop_last
        self._lock = threading.Lock()
        self._ends_now = False  # the rest was handed out: the end follows
        self._held: deque[HeldItems] = deque()
        self._count = self._empty = 0

    def next(self, samples: Callable[[], FlatBatch | None]) -> FlatBatch | None:
        """The next batch; a shorter one, and then None, after the last samples.

        Too many samples in a row without an item raise ConfigError.
        """
        with self._lock:
            if self._ends_now:
                self._ends_now = False
                return None
            while self._count < self._batch_size and (flat := samples()) is not None:
                self._take(flat.info, self._cutter.items(flat))
            if self._count >= self._batch_size:
                return self._batch()
            self._ends_now = self._count > 0 and not self._drop_last
            return self._batch() if self._ends_now else None

    def drain(self) -> None:
        """Hands out short batches from now on, and skips an end that was due: more samples come."""
        with self._lock:
            self._ends_now = self._drop_last = False

    @property
    def held(self) -> int:
        """Number of samples with items that are in no batch yet."""
        return sum(len(np.unique(held.samples[held.taken :])) for held in self._held)

    def _take(self, info: SampleInfo, items: CutItems) -> None:
        counts = items.counts
        giving = np.flatnonzero(counts)
        if len(giving):
            samples = np.repeat(np.arange(len(counts)), counts)
            firsts = np.cumsum(counts) - counts
            self._held.append(HeldItems(info, items, samples, np.arange(len(samples)) - firsts[samples]))
            self._count += len(samples)
        self._empty = len(counts) - 1 - int(giving[-1]) if len(giving) else self._empty + len(counts)
        if self._empty > _EMPTY_LEAST + _EMPTY_PER_ITEM * int(info.table_size[-1]):
            raise ConfigError(
                f'table "{self._table}": {self._empty:,} samples in a row gave nothing: {self._cutter.nothing}'
            )

    def _batch(self) -> CutBatch:
        parts: list[CutRows] = []
        infos: list[SampleInfo] = []
        missing = min(self._batch_size, self._count)
        self._count -= missing
        while missing:
            held = self._held[0]
            own = slice(held.taken, held.taken + missing)
            samples = held.samples[own]
            parts.append(held.items.rows(samples, held.numbers[own]))
            infos.append(SampleInfo(*(values[samples] for values in held.info)))
            held.taken += len(samples)
            missing -= len(samples)
            if held.taken == len(held.samples):
                self._held.popleft()
        rows = join_rows(parts)
        info = SampleInfo(*map(np.concatenate, zip(*infos)))
        return CutBatch(tuple(rows.columns), info, rows.start, rows.mask)


@dataclass
class HeldItems:
    """Items of a batch of samples: `samples` [n] and `numbers` [n] as of `CutItems.rows`; the first `taken` are in batches."""

    info: SampleInfo
    items: CutItems
    samples: Array
    numbers: Array
    taken: int = 0


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BITS = 53  # of a float64's fraction


def uniforms(seed: int, *numbers: Array) -> Array:
    """[n] float64 in [0, 1), one for each row of `numbers`: a function of these and the seed, so that the order of samples does not matter.

    Source: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), with one round per number.

    Args:
      seed: any whole number.
      numbers: each [n], whole numbers of 64 bits.
    """
    state = np.full(len(numbers[0]), seed % (1 << 64), np.uint64)
    for number in numbers:
        state = _mix_bits((state ^ number.astype(np.uint64)) + _GOLDEN)
    fractions: Array = (state >> np.uint64(64 - _BITS)).astype(np.float64) / (1 << _BITS)
    return fractions


def _mix_bits(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    mixed: Array = state ^ (state >> np.uint64(31))
    return mixed


def picks(seed: int, keys: Array, times: Array, counts: Array, among: Array) -> list[Array]:
    """Draws numbers below `among` for every item, independently and each equally likely: B arrays [count] int64.

    Args:
      keys, times: [B], which together identify a sample of an item.
      counts: [B], how many to draw.
      among: [B], at least 1 where the count is.
    """
    return np.split(picks_in_a_row(seed, keys, times, counts, among), np.cumsum(counts)[:-1])


def picks_in_a_row(seed: int, keys: Array, times: Array, counts: Array, among: Array) -> Array:
    """[sum of counts] int64: the arrays of `picks`, one after the other."""
    ends = np.cumsum(counts)
    ranks = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    drawn = uniforms(seed, np.repeat(keys, counts), np.repeat(times, counts), ranks)
    chosen: Array = (drawn * np.repeat(among, counts)).astype(np.int64)
    return chosen
