"""RLlib's view requirements: columns shifted by an int, a list or a range, as its trajectory views build them.

An episode with transitions 0 to 2 and the final observation o3 gives:

| requirement | item 0 | item 1 | item 2 |
| --- | --- | --- | --- |
| obs: {} | o0 | o1 | o2 |
| new_obs: {data_col: obs, shift: 1} | o1 | o2 | o3 |
| prev_rewards: {data_col: rewards, shift: -1} | 0 | r0 | r1 |
| next_actions: {data_col: actions, shift: 1} | a1 | a2 | 0 |
| frames: {data_col: obs, shift: "-1:0"} | o0 o0 | o0 o1 | o1 o2 |
| picked: {data_col: obs, shift: [0, -1]} | o0 o0 | o1 o0 | o2 o1 |
| blank: {data_col: obs, shift: "-1:0", fill: zero} | 0 o0 | o0 o1 | o1 o2 |

Rules, as in RLlib (ViewRequirement, AgentCollector.build_for_training): "a:b" includes b, "a:b:s" has step s, a list keeps its
order, one element is squeezed. Rows before the start repeat the first value; those of actions and rewards are zeros when
prev_actions or prev_rewards are required, and those of t are -1. Rows past the end are zeros. `batch_repeat_value` r takes
the row of every r-th step for the r steps from there on. float64 becomes float32.

Two things are ours: a range that starts at 0 works, which RLlib loses; and `fill` overrides what stands before the start and
past the end.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> flags = dict(is_first=np.arange(3) == 0, is_last=np.arange(3) == 2, is_terminal=np.zeros(3, bool))
>>> episode = Episode({"observation": np.arange(3), "action": np.arange(3), **flags}, {}, "e")
>>> cut = Requirements({"obs": {}, "new_obs": {"data_col": "obs", "shift": 1}}).cut(episode)
>>> list(cut.rows), cut.anchors, cut.fields["new_obs"].windows
(['obs'], array([0, 1]), (Window(start=1, stop=2, squeeze=True),))
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut, Field, Window
from rlds2reverb.episode import ACTION, IS_LAST, OBSERVATION, REWARD, Array, Episode, columns_under
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves
from rlds2reverb.text import did_you_mean
from rlds2reverb.views.base import (
    CHANGES_NO_ITEM,
    END_FLAGS,
    UNSAID_AT_DEFAULT,
    BaseView,
    Fill,
    Wanted,
    as_float32,
    check_fit,
    check_made_up,
    check_options,
    checked_fill,
    end_flags,
    fields_of,
    fill_name,
    float32_spec,
    identity,
    need,
    one_per_transition,
    pad,
    transition_count,
)

_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(\d+))?")


@dataclass(frozen=True)
class ViewRequirement:
    """One column of an item; the fields are RLlib's.

    Attributes:
      data_col: the column it reads, by RLlib's name (obs, new_obs, actions, rewards, terminateds, truncateds, dones, t) or
        by that of any other step field; None for the requirement's own name.
      shift: an int, a list of ints, "a:b" or "a:b:s".
      space: ignored, the data has its shapes; RLlib fills with its zeros.
      index: ignored, it is for RLlib's inference.
      batch_repeat_value: number of successive items that get the rows of the first of them.
      used_for_compute_actions: ignored, there is no inference here.
      used_for_training: without it the column is left out.
      fill: ours, not RLlib's. None follows RLlib's rule. "first" puts the first value before the start and zeros past the end,
        "zero" puts zeros and a number puts itself in both places.

    Raises:
      ViewError: a shift, a repeat or a fill that makes no sense.
    """

    data_col: str | None = None
    shift: int | str | Sequence[int] = 0
    space: Any = field(default=None, metadata=CHANGES_NO_ITEM)
    index: Any = field(default=None, metadata=CHANGES_NO_ITEM)
    batch_repeat_value: int = 1
    used_for_compute_actions: bool = field(default=True, metadata=CHANGES_NO_ITEM)
    used_for_training: bool = field(default=True, metadata=CHANGES_NO_ITEM)
    fill: Fill | None = field(default=None, metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        if self.fill is not None:
            object.__setattr__(self, "fill", checked_fill("requirements", self.fill))
        if not isinstance(self.data_col, (str, type(None))):
            raise ViewError(f"requirements: data_col {self.data_col!r}: expected the name of a column")
        if not self.offsets:
            raise ViewError(f"requirements: shift {self.shift!r} names no row")
        check_options("requirements", 1.0, batch_repeat_value=self.batch_repeat_value)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Rows relative to the item's, in order."""
        shift = self.shift
        if isinstance(shift, (int, np.integer)) and not isinstance(shift, bool):
            return (int(shift),)
        if isinstance(shift, str):
            return _range(shift)
        if isinstance(shift, (Sequence, np.ndarray)) and all(isinstance(one, (int, np.integer)) for one in shift):
            return tuple(int(one) for one in shift)
        raise ViewError(f'requirements: shift {shift!r}, expected an int, a list of ints, "a:b" or "a:b:step"')

    def column_for(self, name: str) -> str:
        """The column that a requirement of that name reads."""
        return name if self.data_col is None else self.data_col

    def identity_for(self, name: str) -> list[object]:
        """The options of a requirement of that name that change its items, as plain values."""
        column, offsets = self.column_for(name), list(self.offsets)
        fill = None if self.fill is None else fill_name(self.fill)
        repeat = int(self.batch_repeat_value)
        return list(identity(self, data_col=column, shift=offsets, batch_repeat_value=repeat, fill=fill).values())

    @staticmethod
    def of(name: str, value: Any) -> ViewRequirement:
        """A requirement from another one, from a mapping of its fields, or from an object that has them (RLlib's own).

        Raises:
          ViewError: the mapping has an unknown field, or the object is no requirement.
        """
        if isinstance(value, ViewRequirement):
            return value
        known = [one.name for one in fields(ViewRequirement)]
        if isinstance(value, Mapping):
            unknown = sorted(map(str, set(value) - set(known)))
            if unknown:
                raise ViewError(
                    f'requirements: "{name}": unknown {", ".join(unknown)}; there are {", ".join(known)}{did_you_mean(unknown[0], known)}'
                )
            return ViewRequirement(**value)
        if not hasattr(value, "shift"):
            raise ViewError(f'requirements: "{name}": expected the fields of a ViewRequirement, got {value!r}')
        return ViewRequirement(**{key: getattr(value, key) for key in known if hasattr(value, key)})


def _range(shift: str) -> tuple[int, ...]:
    match = _RANGE.fullmatch(shift.strip())
    if match is None or match[3] == "0":
        raise ViewError(f'requirements: shift "{shift}", expected an int, a list of ints, "a:b" or "a:b:step"')
    rows = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    check_made_up(len(rows))
    return tuple(rows)


OBS, NEW_OBS, ACTIONS, REWARDS, TIME = "obs", "new_obs", "actions", "rewards", "t"
_STEP_FIELDS = {OBS: OBSERVATION, ACTIONS: ACTION, REWARDS: REWARD}
_DERIVED = {
    "terminateds": np.dtype(bool),
    "truncateds": np.dtype(bool),
    "dones": np.dtype(bool),
    TIME: np.dtype(np.int64),
}
_MADE_OF = {"terminateds": END_FLAGS, "truncateds": END_FLAGS, "dones": (IS_LAST,)}
_PREVIOUS = {"prev_actions": ACTIONS, "prev_rewards": REWARDS}


class Requirements(BaseView):
    """One item per transition, with the columns that are required.

    Args:
      requirements: name -> `ViewRequirement`, a mapping of its fields, or RLlib's own.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: none for training, or one that makes no sense.
    """

    _name = "requirements"

    def __init__(self, requirements: Mapping[str, Any], priority: float = 1.0, extras: Wanted = ()) -> None:
        self.priority, self.extras = priority, extras
        self._settle()
        if not isinstance(requirements, Mapping):
            raise ViewError(f"requirements: expected a mapping of columns, got {type(requirements).__name__}")
        if strange := [name for name in requirements if not isinstance(name, str)]:
            raise ViewError(f"requirements: {strange[0]!r}: expected the name of a column")
        every = {name: ViewRequirement.of(name, value) for name, value in requirements.items()}
        self.requirements = {name: one for name, one in every.items() if one.used_for_training}
        if not self.requirements:
            raise ViewError("requirements: no column is used for training")
        self._zero_before = {column for name, column in _PREVIOUS.items() if name in every}

    @property
    def label(self) -> str:
        plain = {name: one.identity_for(name) for name, one in sorted(self.requirements.items())}
        further = f",extras={self.extras}" if self.extras else ""
        return f"requirements:{json.dumps(plain)},zero={sorted(self._zero_before)}{further}"

    def __repr__(self) -> str:
        further = f", extras={self.extras!r}" if self.extras else ""
        return f"Requirements({ {name: asdict(one) for name, one in self.requirements.items()} }{further})"

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """For every name a nest of [...] leaves, or [offsets, ...] for more than one offset.

        Raises:
          ViewError: the steps lack a column, or a fill does not fit its dtype.
        """
        steps = need("requirements", step_spec, OBSERVATION, ACTION, REWARD)
        items = {name: self._spec(name, one, steps) for name, one in self.requirements.items()}
        return map_leaves(float32_spec, self._with_extras(items, steps, metadata_spec))

    def _spec(self, name: str, one: ViewRequirement, steps: Mapping[str, Nest]) -> Nest:
        column, _ = _source(name, one)
        if column in _DERIVED:
            spec: Nest = ArraySpec((), _DERIVED[column])
        else:
            field = _STEP_FIELDS.get(column, column)
            if field not in steps:
                raise ViewError(f'requirements: "{name}" reads "{column}", which the steps lack; found {sorted(steps)}')
            spec = steps[field]
        spec = map_leaves(float32_spec, spec)
        for path, leaf in flatten(spec, column).items():
            _check_fill(name, one, path, leaf.dtype)
        count = len(one.offsets)
        return spec if count == 1 else map_leaves(lambda leaf: leaf.with_leading(count), spec)

    @property
    def _reads(self) -> tuple[str, ...]:
        """What the requirements name, and the flags that terminateds, truncateds and dones are made of."""
        columns = {_source(name, one)[0] for name, one in self.requirements.items()}
        made = {flag for column in columns for flag in _MADE_OF.get(column, ())}
        return tuple(sorted(made | {_STEP_FIELDS.get(column, column) for column in columns - _DERIVED.keys()}))

    def item_count(self, rows: int | None) -> int | None:
        return one_per_transition(rows)

    def cut(self, episode: Episode) -> Cut:
        """Every stored column has rows before and after the episode's; shifted columns are windows into it."""
        count = transition_count(episode)
        offsets = [offset for name, one in self.requirements.items() for offset in _source(name, one)[1]]
        before, after = max(0, -min(offsets)), max(0, *offsets)
        anchors = before + np.arange(count, dtype=np.int64)
        rows: dict[str, Array] = {}
        made: dict[str, Field] = {}
        marks: set[str] = set()
        for (column, fill), names in self._sharing().items():
            mark = f" (fill {fill})" if column in marks else ""  # the column is stored with another fill already
            marks.add(column)
            values = self._columns(episode, column)
            for name in names:
                made |= self._fields(name, values, mark, anchors, before)
            for path, leaf in values.items():
                real = leaf if column == OBS else leaf[:count]  # the final row holds an observation only
                rows[path + mark] = _padded(real, before, len(leaf) - len(real) + after, fill)
        further = self._extras_rows(episode)
        stored = {path: f"{path} (extra)" for path in further}  # a step field may be called extras
        rows |= {stored[path]: pad(as_float32(column), before, after) for path, column in further.items()}
        made |= fields_of(stored)
        return Cut(rows, made, anchors, np.full(count, self.priority, np.float64), before)

    def _fields(
        self, name: str, values: Mapping[str, Array], mark: str, anchors: Array, before: int
    ) -> dict[str, Field]:
        """The fields of one requirement, which read the columns of `values`; these are stored with the mark."""
        one = self.requirements[name]
        column, offsets = _source(name, one)
        for path, leaf in values.items():
            _check_fill(name, one, path, leaf.dtype)
        windows, repeat = _windows(offsets), one.batch_repeat_value
        own = None if repeat == 1 else before + (anchors - before) // repeat * repeat
        return {name + path[len(column) :]: Field(path + mark, windows, own) for path in values}

    def _sharing(self) -> dict[tuple[str, Fill | None], list[str]]:
        """Column and fill -> the requirements that read them; those that read no made-up row share what there is."""
        shared: dict[tuple[str, Fill | None], list[str]] = {}
        inside = []
        for name, one in self.requirements.items():
            column, offsets = _source(name, one)
            if min(offsets) >= 0 and max(offsets) <= (column == OBS):
                inside.append((column, name))
            else:
                fill = self._rule(column) if one.fill is None else fill_name(one.fill)
                shared.setdefault((column, fill), []).append(name)
        for column, name in inside:
            key = next((key for key in shared if key[0] == column), (column, self._rule(column)))
            shared.setdefault(key, []).append(name)
        return shared

    def _rule(self, column: str) -> Fill | None:
        """RLlib's fill; None for that of t."""
        if column == TIME:
            return None
        return "zero" if column in self._zero_before else "first"

    def _columns(self, episode: Episode, column: str) -> dict[str, Array]:
        """RLlib path -> [T, ...] values of one column."""
        terminated, truncated = end_flags(episode)
        derived = {"terminateds": terminated, "truncateds": truncated, "dones": terminated | truncated}
        if column in derived:
            return {column: derived[column]}
        if column == TIME:
            return {column: np.arange(len(episode), dtype=np.int64)}
        field = _STEP_FIELDS.get(column, column)
        found = columns_under(episode.columns, field)
        if not found:
            raise ViewError(f'requirements: the steps lack "{field}"; found {sorted(episode.columns)}')
        return {column + path[len(field) :]: as_float32(values) for path, values in found.items()}


def _source(name: str, one: ViewRequirement) -> tuple[str, tuple[int, ...]]:
    """The stored column and the offsets; new_obs is obs one step later."""
    column = one.column_for(name)
    if column == NEW_OBS:
        return OBS, tuple(offset + 1 for offset in one.offsets)
    return column, one.offsets


def _padded(real: Array, before: int, after: int, fill: Fill | None) -> Array:
    """Rows before and after; None is RLlib's fill of t, whose reset observation stands at -1."""
    if fill is not None:
        return pad(real, before, after, fill)
    return np.concatenate((np.full(before, -1, real.dtype), pad(real, 0, after)))


def _check_fill(name: str, one: ViewRequirement, path: str, dtype: np.dtype[Any]) -> None:
    if one.fill is not None:
        check_fit(f'requirements: "{name}"', path, one.fill, dtype)


def _windows(offsets: tuple[int, ...]) -> tuple[Window, ...]:
    """Runs of consecutive rows as one window each; one row alone is squeezed."""
    if len(offsets) == 1:
        return (Window(offsets[0], offsets[0] + 1, squeeze=True),)
    ends = [i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1]
    runs = zip([0, *ends], [*ends, len(offsets)])
    return tuple(Window(offsets[first], offsets[last - 1] + 1) for first, last in runs)
