"""Views of sampled episodes: `view="n_step:n=5"` cuts whole episodes as a push with that view would have cut them.

So a table of whole episodes feeds learners that want other items, and every learner may want others. An item comes out as a push
stores it, to the bit, when the push made no other difference, with these exceptions:

| what | why |
| --- | --- |
| a view that draws (slices, goal, jigsaw) draws otherwise | an item does not tell its episode's id; its key stands for that |
| an episode ends terminal where its last discount is 0 | that is what a trajectory tells; items of steps have is_terminal |
| extras are fields of policy_info | that is where a trajectory has them |

A view whose items hold steps of several episodes is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.conventions import fill_absent, filled_spec
from rlds2reverb.cuts import Cut, Field
from rlds2reverb.episodes import (
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    Array,
    Episode,
    is_under,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.checks import check_count
from rlds2reverb.learner.cutting import Rows, item_columns, joined_rows
from rlds2reverb.learner.draws import picks
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.views.registry import view_from
from rlds2reverb.views.trajectory import FIELDS, FIRST, LAST, NEXT_STEP_TYPE, STEP_TYPE
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import FlatBatch

_FLAG = ArraySpec((), np.dtype(bool))


@dataclass(frozen=True)
class ViewSpec:
    """Which items are cut out of sampled episodes.

    Attributes:
      view: a view, or how configs write one: "n_step:n=5", or a mapping with `view` and its options.
      per_episode: so many items of each sampled episode, each drawn for itself; None for all, in order.
      seed: of the draws.

    Raises:
      ConfigError: a view of several episodes, or a number out of its range.
      ViewError: no such view, or options of it that make no sense.
    """

    view: View | str | Mapping[str, Any]
    per_episode: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.view, View):
            object.__setattr__(self, "view", view_from(self.view, "sample: view"))
        if isinstance(self.view, StreamView):
            raise ConfigError(
                f"sample: view {self.view}: its items hold steps of several episodes; a sample is one episode"
            )
        if self.per_episode is not None:
            check_count("view: per_episode", self.per_episode)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"sample: view: seed {self.seed!r}: expected a whole number")

    @staticmethod
    def of(given: ViewSpec | View | str | Mapping[str, Any]) -> ViewSpec:
        """What an option may be, as a spec; raises as the class does."""
        return given if isinstance(given, ViewSpec) else ViewSpec(given)


class Viewing:
    """Cuts sampled episodes as a view does; a `cutting.SampleCutter`.

    Args:
      table: as the server tells of it.
      structure: nest of `ArraySpec` of its items: trajectories, or RLDS steps, with a first axis.
      spec: which view.

    Raises:
      ConfigError: the items are no episodes, or nothing tells what their columns are.
      ViewError: the view needs a step field that they lack.
    """

    def __init__(self, table: TableInfo, structure: Nest | None, spec: ViewSpec) -> None:
        self._table, self._spec = table, spec
        self._names = [] if structure is None else list(flatten(structure))
        self._step_spec, self._is_trajectory = self._steps_of(structure)
        assert isinstance(spec.view, View)
        self._view: View = spec.view
        self.signature = self._view.signature(self._step_spec)
        self._order = list(flatten(self.signature))

    @property
    def nothing(self) -> str:
        """Why an episode may give no item."""
        return f"the view {self._view} cuts no item out of them"

    def items(self, flat: FlatBatch) -> ViewItems:
        """The items of every sampled episode."""
        info, wanted = flat.info, self._spec.per_episode
        cuts = [self._cut(item_columns(flat, number), int(info.key[number])) for number in range(len(flat))]
        counts = np.array([len(cut.anchors) for cut in cuts], np.int64)
        if wanted is None:
            chosen = [np.arange(count) for count in counts]
        else:
            chosen = picks(self._spec.seed, info.key, info.times_sampled, wanted * (counts > 0), counts)
        return ViewItems(cuts, chosen)

    def _cut(self, columns: Sequence[Array], key: int) -> Cut:
        if len(columns) != len(self._names):
            raise self._refused(f"items have {len(columns)} columns, the structure has {len(self._names)}")
        named = dict(zip(self._names, columns))
        rows = {path: len(column) if column.ndim else 0 for path, column in named.items()}
        if len(set(rows.values())) != 1 or not next(iter(rows.values())):
            raise self._refused(f"item {key}: expected as many rows in all columns, and at least one; found {rows}")
        if self._is_trajectory:
            named = self._steps(named)
        episode = fill_absent(Episode(named, id=f"item {key}"))
        if not (episode.columns[IS_FIRST][0] and episode.columns[IS_LAST][-1]):
            raise self._refused(
                f"item {key} is no whole episode: expected that it begins with a first step and ends with a last. "
                "A view is cut out of whole episodes: sample a table that holds them (view `episode`), or leave out `view`"
            )
        return self._view.cut(episode).in_order(self._order)

    def _steps(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """The columns of steps that such rows of a trajectory are made of."""
        kinds = rows[STEP_TYPE]
        last = kinds == LAST
        first = kinds == FIRST
        if len(kinds) == 1:  # a single step is first and last; a trajectory calls it last
            first = last
        discounts = [column for path, column in rows.items() if is_under(path, DISCOUNT)]
        is_zero = np.all([(column.reshape(len(kinds), -1) == 0).all(axis=1) for column in discounts], axis=0)
        steps = {path: column for path, column in rows.items() if path not in (STEP_TYPE, NEXT_STEP_TYPE)}
        return {**steps, IS_FIRST: first, IS_LAST: last, IS_TERMINAL: last & is_zero}

    def _steps_of(self, structure: Nest | None) -> tuple[dict[str, Nest], bool]:
        """The spec of a step, and whether the items are trajectories."""
        if structure is None or not all(isinstance(leaf, ArraySpec) for leaf in flatten(structure).values()):
            raise self._refused("it tells nothing of its columns; give spec, a nest of ArraySpec as of the items")
        fields = getattr(structure, "_fields", ())
        named = dict(zip(fields, structure)) if fields else structure
        if not isinstance(named, Mapping) or not ({STEP_TYPE} <= set(named) or {IS_FIRST, IS_LAST} <= set(named)):
            raise self._refused(
                f"expected items of trajectories ({STEP_TYPE}, ...) or of RLDS steps ({', '.join(FLAGS)}, ...), found {self._names}"
            )
        if flat := [path for path, leaf in flatten(structure).items() if not leaf.shape]:
            raise self._refused(f'column "{flat[0]}" has no rows, so the items are no episodes')
        steps = {name: map_leaves(_of_row, field) for name, field in named.items()}
        if STEP_TYPE not in named:
            return filled_spec(steps), False
        if missing := [name for name in FIELDS if name not in named and name != "policy_info"]:
            raise self._refused(f"trajectories without {', '.join(missing)}")
        kept = {
            name: field for name, field in steps.items() if name not in (STEP_TYPE, NEXT_STEP_TYPE) and flatten(field)
        }
        return {**kept, IS_FIRST: _FLAG, IS_LAST: _FLAG, IS_TERMINAL: _FLAG}, True

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(f'table "{self._table.name}": view {self._spec.view}: {why}')


@dataclass(frozen=True, eq=False)
class ViewItems:
    """Items of sampled episodes; a `cutting.CutItems`.

    Attributes:
      cuts: of every episode.
      chosen: [n] int64 of every episode, which of its items.
    """

    cuts: Sequence[Cut]
    chosen: Sequence[Array]

    @property
    def counts(self) -> Array:
        """[S] int64, how many items each episode gives."""
        return np.array([len(one) for one in self.chosen], np.int64)

    def rows(self, samples: Array, numbers: Array) -> Rows:
        """Some items; each starts at the step that it is anchored at."""
        own, firsts = np.unique(samples, return_index=True)
        runs = np.split(numbers, firsts[1:])
        return joined_rows([_rows(self.cuts[one], self.chosen[one][run]) for one, run in zip(own.tolist(), runs)])


def _rows(cut: Cut, chosen: Array) -> Rows:
    """These items of one episode."""
    columns = [_values(cut, field, chosen) for field in cut.fields.values()]
    return Rows(columns, cut.steps[chosen].astype(np.int64))


def _values(cut: Cut, field: Field, chosen: Array) -> Array:
    """[n, ...] what a field of these items holds."""
    anchors = (cut.anchors if field.anchors is None else field.anchors)[chosen]
    offsets = np.concatenate([np.arange(window.start, window.stop) for window in field.windows])
    rows = anchors[:, np.newaxis] + offsets  # [n, rows of an item]
    found: Array = cut.rows[field.column][rows[:, 0] if field.squeeze else rows]
    return found


def _of_row(leaf: ArraySpec) -> ArraySpec:
    return replace(leaf, shape=leaf.shape[1:])
