"""RLlib's view requirements: columns shifted by an int, a list or a range, as its trajectory views build them.

Of an episode with transitions 0 to 2 and the final observation o3:

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
order, one element is squeezed. Before the start stands the first value again, but zeros for actions and rewards when
prev_actions or prev_rewards are asked for, and -1 for t; past the end stand zeros. `batch_repeat_value` r takes the row of every
r-th step for the r steps from there on. float64 becomes float32. A range that starts at 0, which RLlib loses, works. `fill`, which RLlib does
not have, overrides what stands before the start and past the end.

>>> import numpy as np
>>> from rlds2reverb.episodes import Episode
>>> ViewRequirement(shift="-3:-1").offsets, ViewRequirement(shift="0:4:2").offsets, ViewRequirement(shift=[0, -2]).offsets
((-3, -2, -1), (0, 2, 4), (0, -2))
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, Array, Episode, columns_under
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves
from rlds2reverb.views.base import Cut, Field, Window, check_made_up, check_options
from rlds2reverb.views.steps import (
    Fill,
    as_float32,
    check_fit,
    checked_fill,
    end_flags,
    fill_name,
    float32_spec,
    need,
    pad,
    priorities,
    transition_count,
)

OBS, NEW_OBS, ACTIONS, REWARDS, TIME = "obs", "new_obs", "actions", "rewards", "t"
_STEP_FIELDS = {OBS: OBSERVATION, ACTIONS: ACTION, REWARDS: REWARD}
_DERIVED = {
    "terminateds": np.dtype(bool),
    "truncateds": np.dtype(bool),
    "dones": np.dtype(bool),
    TIME: np.dtype(np.int64),
}
_PREVIOUS = {"prev_actions": ACTIONS, "prev_rewards": REWARDS}
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
      batch_repeat_value: r.
      used_for_compute_actions: ignored, there is no inference here.
      used_for_training: without it the column is left out.
      fill: ours, not RLlib's: instead of its rule, "first" (before the start the first value, past the end zeros), "zero", or a
        number that stands in both places; None for the rule.

    Raises:
      ViewError: a shift, a repeat or a fill that makes no sense.
    """

    data_col: str | None = None
    shift: int | str | Sequence[int] = 0
    space: Any = None
    index: Any = None
    batch_repeat_value: int = 1
    used_for_compute_actions: bool = True
    used_for_training: bool = True
    fill: Fill | None = None

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
            match = _RANGE.fullmatch(shift.strip())
            if match is None or match[3] == "0":
                raise ViewError(f'requirements: shift "{shift}", expected an int, a list of ints, "a:b" or "a:b:step"')
            rows = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
            check_made_up(len(rows))
            return tuple(rows)
        if isinstance(shift, (Sequence, np.ndarray)) and all(isinstance(one, (int, np.integer)) for one in shift):
            return tuple(int(one) for one in shift)
        raise ViewError(f'requirements: shift {shift!r}, expected an int, a list of ints, "a:b" or "a:b:step"')

    @staticmethod
    def of(name: str, value: Any) -> ViewRequirement:
        """From one of these, a mapping of its fields, or an object that has them (RLlib's own).

        Raises:
          ViewError: a field that there is not.
        """
        if isinstance(value, ViewRequirement):
            return value
        known = [field.name for field in fields(ViewRequirement)]
        if isinstance(value, Mapping):
            unknown = sorted(map(str, set(value) - set(known)))
            if unknown:
                raise ViewError(f'requirements: "{name}": unknown {", ".join(unknown)}; there are {", ".join(known)}')
            return ViewRequirement(**value)
        if not hasattr(value, "shift"):
            raise ViewError(f'requirements: "{name}": expected the fields of a ViewRequirement, got {value!r}')
        return ViewRequirement(**{key: getattr(value, key) for key in known if hasattr(value, key)})


class Requirements:
    """One item a transition, with the columns that are required.

    Args:
      requirements: name -> `ViewRequirement`, a mapping of its fields, or RLlib's own.
      priority: of every item.

    Raises:
      ViewError: none for training, or one that makes no sense.
    """

    def __init__(self, requirements: Mapping[str, Any], priority: float = 1.0) -> None:
        check_options("requirements", priority)
        if not isinstance(requirements, Mapping):
            raise ViewError(f"requirements: expected a mapping of columns, got {type(requirements).__name__}")
        if strange := [name for name in requirements if not isinstance(name, str)]:
            raise ViewError(f"requirements: {strange[0]!r}: expected the name of a column")
        every = {name: ViewRequirement.of(name, value) for name, value in requirements.items()}
        self._requirements = {name: one for name, one in every.items() if one.used_for_training}
        if not self._requirements:
            raise ViewError("requirements: no column is used for training")
        self._zero_before = {column for name, column in _PREVIOUS.items() if name in every}
        self._priority = priority

    @property
    def label(self) -> str:
        """Name and requirements."""
        plain = {
            name: [_data_col(name, one), list(one.offsets), int(one.batch_repeat_value), *_given(one.fill)]
            for name, one in sorted(self._requirements.items())
        }
        return f"requirements:{json.dumps(plain)},zero={sorted(self._zero_before)}"

    def __repr__(self) -> str:
        return f"Requirements({ {name: asdict(one) for name, one in self._requirements.items()} })"

    def signature(self, step_spec: Nest) -> Nest:
        """For every name a nest of [...] leaves, or [offsets, ...] where there are several.

        Raises:
          ViewError: the steps lack a column, or a fill does not fit its dtype.
        """
        steps = need("requirements", step_spec, OBSERVATION, ACTION, REWARD)
        return {name: self._spec(name, one, steps) for name, one in self._requirements.items()}

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

    def cut(self, episode: Episode) -> Cut:
        """Rows before and after stand in every column that is stored; shifted columns are windows into it."""
        count = transition_count(episode)
        sources = {name: _source(name, one) for name, one in self._requirements.items()}
        lowest = min(min(offsets) for _, offsets in sources.values())
        highest = max(max(offsets) for _, offsets in sources.values())
        before, after = max(0, -lowest), max(0, highest)
        anchors = before + np.arange(count, dtype=np.int64)
        rows: dict[str, Array] = {}
        made: dict[str, Field] = {}
        marks: set[str] = set()
        for (column, fill), names in self._sharing().items():
            mark = f" (fill {fill})" if column in marks else ""  # of a column that stands there with another fill
            marks.add(column)
            values = self._columns(episode, column)
            for name in names:
                one, windows = self._requirements[name], _windows(sources[name][1])
                repeat = one.batch_repeat_value
                own = None if repeat == 1 else before + (anchors - before) // repeat * repeat
                for path, leaf in values.items():
                    _check_fill(name, one, path, leaf.dtype)
                    made[name + path[len(column) :]] = Field(path + mark, windows, own)
            for path, leaf in values.items():
                real = leaf if column == OBS else leaf[:count]  # the final row holds an observation only
                rows[path + mark] = _padded(real, before, len(leaf) - len(real) + after, fill)
        return Cut(rows, made, anchors, priorities(count, self._priority), before)

    def _sharing(self) -> dict[tuple[str, Fill | None], list[str]]:
        """Column and fill -> the requirements that read them; those that read no made-up row share what there is."""
        shared: dict[tuple[str, Fill | None], list[str]] = {}
        inside = []
        for name, one in self._requirements.items():
            column, offsets = _source(name, one)
            if min(offsets) >= 0 and max(offsets) <= (column == OBS):
                inside.append((column, name))
            else:
                shared.setdefault((column, self._fill(column, one)), []).append(name)
        for column, name in inside:
            key = next((key for key in shared if key[0] == column), (column, self._rule(column)))
            shared.setdefault(key, []).append(name)
        return shared

    def _fill(self, column: str, one: ViewRequirement) -> Fill | None:
        if one.fill is None:
            return self._rule(column)
        return one.fill if one.fill != 0 else "zero"

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
        found = columns_under(episode.steps, field)
        if not found:
            raise ViewError(f'requirements: the steps lack "{field}"; found {sorted(episode.steps)}')
        return {column + path[len(field) :]: as_float32(values) for path, values in found.items()}


def _data_col(name: str, one: ViewRequirement) -> str:
    return name if one.data_col is None else one.data_col


def _source(name: str, one: ViewRequirement) -> tuple[str, tuple[int, ...]]:
    """The stored column and the offsets; new_obs is obs one step later."""
    column = _data_col(name, one)
    if column == NEW_OBS:
        return OBS, tuple(offset + 1 for offset in one.offsets)
    return column, one.offsets


def _given(fill: Fill | None) -> list[Fill]:
    return [] if fill is None else [fill_name(fill)]


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
