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

Rules, as in RLlib (ViewRequirement, AgentCollector.build_for_training): "a:b" includes b, "a:b:s" has step s, a list keeps its
order, one element is squeezed. Before the start stands the first value again, but zeros for actions and rewards when
prev_actions or prev_rewards are asked for, and -1 for t; past the end stand zeros. `batch_repeat_value` r takes the row of every r-th step
for the r steps from there on. float64 becomes float32. A range that starts at 0, which RLlib loses, works.

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
from rlds2reverb.specs import ArraySpec, Nest, map_leaves
from rlds2reverb.views.base import Cut, Field, Window, check_options
from rlds2reverb.views.steps import end_flags, need, priorities, transition_count, zeros_like

OBS, NEW_OBS, ACTIONS, REWARDS = "obs", "new_obs", "actions", "rewards"
_STEP_FIELDS = {OBS: OBSERVATION, ACTIONS: ACTION, REWARDS: REWARD}
_DERIVED = {
    "terminateds": np.dtype(bool),
    "truncateds": np.dtype(bool),
    "dones": np.dtype(bool),
    "t": np.dtype(np.int64),
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

    Raises:
      ViewError: a shift or a repeat that makes no sense.
    """

    data_col: str | None = None
    shift: int | str | Sequence[int] = 0
    space: Any = None
    index: Any = None
    batch_repeat_value: int = 1
    used_for_compute_actions: bool = True
    used_for_training: bool = True

    def __post_init__(self) -> None:
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
            return tuple(range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)))
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
            unknown = sorted(set(value) - set(known))
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
            name: [_data_col(name, one), list(one.offsets), one.batch_repeat_value]
            for name, one in sorted(self._requirements.items())
        }
        return f"requirements:{json.dumps(plain)},zero={sorted(self._zero_before)}"

    def __repr__(self) -> str:
        return f"Requirements({ {name: asdict(one) for name, one in self._requirements.items()} })"

    def signature(self, step_spec: Nest) -> Nest:
        """For every name a nest of [...] leaves, or [offsets, ...] where there are several."""
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
        count = len(one.offsets)
        return map_leaves(lambda leaf: _as_float32(leaf) if count == 1 else _as_float32(leaf).with_leading(count), spec)

    def cut(self, episode: Episode) -> Cut:
        """Rows before and after stand in every column that is stored; shifted columns are windows into it."""
        count = transition_count(episode)
        sources = {name: _source(name, one) for name, one in self._requirements.items()}
        lowest = min(min(offsets) for _, offsets in sources.values())
        highest = max(max(offsets) for _, offsets in sources.values())
        before, after = max(0, -lowest), max(0, highest)
        anchors = before + np.arange(count, dtype=np.int64)
        rows: dict[str, Array] = {}
        for column in dict.fromkeys(column for column, _ in sources.values()):
            for path, values in self._columns(episode, column).items():
                rows[path] = self._padded(column, values, count, before, after)
        made: dict[str, Field] = {}
        for name, one in self._requirements.items():
            column, offsets = sources[name]
            own = (
                None
                if one.batch_repeat_value == 1
                else before + (anchors - before) // one.batch_repeat_value * one.batch_repeat_value
            )
            for path in columns_under(rows, column):
                made[name + path[len(column) :]] = Field(path, _windows(offsets), own)
        return Cut(rows, made, anchors, priorities(count, self._priority))

    def _columns(self, episode: Episode, column: str) -> dict[str, Array]:
        """RLlib path -> values of one column."""
        terminated, truncated = end_flags(episode)
        derived = {"terminateds": terminated, "truncateds": truncated, "dones": terminated | truncated}
        if column in derived:
            return {column: derived[column]}
        if column == "t":
            return {column: np.arange(len(episode), dtype=np.int64)}
        field = _STEP_FIELDS.get(column, column)
        found = columns_under(episode.steps, field)
        if not found:
            raise ViewError(f'requirements: the steps lack "{field}"; found {sorted(episode.steps)}')
        return {column + path[len(field) :]: values for path, values in found.items()}

    def _padded(self, column: str, values: Array, count: int, before: int, after: int) -> Array:
        """[before + T + after, ...]; the final row is real for observations, and zero for everything else."""
        values = values.astype(np.float32) if values.dtype == np.float64 else values
        real = values if column == OBS else values[:count]
        is_zero = column in self._zero_before or not len(values)
        first = np.full_like(values[:1], -1) if column == "t" else values[:1]  # RLlib's reset observation has t = -1
        head = zeros_like(values, before) if is_zero else np.repeat(first, before, axis=0)
        return np.concatenate((head, real, zeros_like(values, len(values) - len(real) + after)))


def _data_col(name: str, one: ViewRequirement) -> str:
    return name if one.data_col is None else one.data_col


def _source(name: str, one: ViewRequirement) -> tuple[str, tuple[int, ...]]:
    """The stored column and the offsets; new_obs is obs one step later."""
    column = _data_col(name, one)
    if column == NEW_OBS:
        return OBS, tuple(offset + 1 for offset in one.offsets)
    return column, one.offsets


def _windows(offsets: tuple[int, ...]) -> tuple[Window, ...]:
    """Runs of consecutive rows as one window each; one row alone is squeezed."""
    if len(offsets) == 1:
        return (Window(offsets[0], offsets[0] + 1, squeeze=True),)
    ends = [i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1]
    runs = zip([0, *ends], [*ends, len(offsets)])
    return tuple(Window(offsets[first], offsets[last - 1] + 1) for first, last in runs)


def _as_float32(leaf: ArraySpec) -> ArraySpec:
    return ArraySpec(leaf.shape, np.dtype(np.float32), leaf.name) if leaf.dtype == np.float64 else leaf
