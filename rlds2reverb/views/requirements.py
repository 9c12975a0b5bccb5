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
prev_actions or prev_rewards are required, those of t are one less than its first value, and those of a column whose name begins
with state_out are the policy's initial state. Rows past the end are zeros; obs and infos have a last row there. A
`batch_repeat_value` of r takes the row of every r-th step for the r steps from there on. float64 becomes float32.

Columns that RLlib's sampler makes are made here, too: terminateds, truncateds, dones, t (from the episode's metadata `t` on, the
environment's step at which an agent entered, else from 0), and, unless the steps have columns of these names, eps_id (a hash of
the episode's id), agent_index (the metadata `agent_index`, else 0), unroll_id and env_id (0). Columns that the steps lack are left
out, as by RLlib, if the requirement is an object of RLlib's or its column is one that only a policy or its loss makes
(`MADE_BY_POLICIES`, state_in_N, state_out_N); `left_out` names them.

Three things are ours: a range that starts at 0 works, which RLlib loses; `fill` overrides what stands before the start and past
the end; and a column may be a path, such as obs/camera or observation/camera, or a nest, which stands for all below it.

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut, Field, Window
from rlds2reverb.episode import (
    ACTION,
    IS_LAST,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    columns_under,
    content_digest,
    is_under,
)
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves, nested, shape_fits
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
    check_flags,
    check_made_up,
    check_options,
    checked_fill,
    end_flags,
    episode_number,
    fields_of,
    fill_name,
    first_t,
    float32_spec,
    identity,
    metadata_number,
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
      data_col: the column it reads, by RLlib's name (obs, new_obs, actions, rewards, terminateds, truncateds, dones, t, ...) or
        by that of any other step field, or a path below one of these; None for the requirement's own name.
      shift: an int, a list of ints, "a:b" or "a:b:s".
      space: ignored, the data has its shapes; RLlib fills with its zeros.
      index: ignored, it is for RLlib's inference.
      batch_repeat_value: number of successive items that get the rows of the first of them.
      used_for_compute_actions: ignored, there is no inference here.
      used_for_training: without it the column is left out.
      fill: ours, not RLlib's. None follows RLlib's rule. "first" puts the first value before the start and zeros past the end,
        "zero" puts zeros and a number puts itself in both places.
      optional: ours. Whether it is left out where the steps lack its column; so are RLlib's own requirements.

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
    optional: bool = field(default=False, metadata=CHANGES_NO_ITEM)

    def __post_init__(self) -> None:
        if self.fill is not None:
            object.__setattr__(self, "fill", checked_fill("requirements", self.fill))
        if not isinstance(self.data_col, (str, type(None))):
            raise ViewError(f"requirements: data_col {self.data_col!r}: expected the name of a column")
        flags = {name: getattr(self, name) for name in ("used_for_training", "used_for_compute_actions", "optional")}
        check_flags("requirements", **flags)
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
        if isinstance(shift, (Sequence, np.ndarray)) and all(isinstance(offset, (int, np.integer)) for offset in shift):
            return tuple(int(offset) for offset in shift)
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
        names = [option.name for option in fields(ViewRequirement)]
        if isinstance(value, Mapping):
            unknown = sorted(map(str, set(value) - set(names)))
            if unknown:
                raise ViewError(
                    f'requirements: "{name}": unknown {", ".join(unknown)}; there are {", ".join(names)}{did_you_mean(unknown[0], names)}'
                )
            return ViewRequirement(**value)
        if not hasattr(value, "shift"):
            raise ViewError(f'requirements: "{name}": expected the fields of a ViewRequirement, got {value!r}')
        kept = [
            name for name in names if name not in ("space", "index")
        ]  # ignored here, and a space would need gymnasium in a worker
        return ViewRequirement(
            **{"optional": True, **{key: getattr(value, key) for key in kept if hasattr(value, key)}}
        )


def _is_rllibs(value: Any) -> bool:
    return not isinstance(value, (Mapping, ViewRequirement))


def _range(shift: str) -> tuple[int, ...]:
    match = _RANGE.fullmatch(shift.strip())
    if match is None or match[3] == "0":
        raise ViewError(f'requirements: shift "{shift}", expected an int, a list of ints, "a:b" or "a:b:step"')
    rows = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    check_made_up(len(rows))
    return tuple(rows)


OBS, NEW_OBS, ACTIONS, REWARDS, TIME, INFOS = "obs", "new_obs", "actions", "rewards", "t", "infos"
EPISODE_ID, UNROLL_ID, AGENT_INDEX, ENV_ID = "eps_id", "unroll_id", "agent_index", "env_id"
_STEP_FIELDS = {OBS: OBSERVATION, ACTIONS: ACTION, REWARDS: REWARD}
_DERIVED = {
    "terminateds": np.dtype(bool),
    "truncateds": np.dtype(bool),
    "dones": np.dtype(bool),
    TIME: np.dtype(np.int64),
}
_MADE_OF = {"terminateds": END_FLAGS, "truncateds": END_FLAGS, "dones": (IS_LAST,)}
_ALWAYS = (REWARDS, "terminateds", "truncateds")
"""Columns that a policy of RLlib's adds to what its model requires. Source: Policy._get_default_view_requirements."""
_PREVIOUS = {"prev_actions": ACTIONS, "prev_rewards": REWARDS}
_NUMBERS = (EPISODE_ID, UNROLL_ID, AGENT_INDEX, ENV_ID)
"""int64 columns that are made where the steps do not have them."""

MADE_BY_POLICIES = frozenset(
    (
        INFOS,
        "weights",
        "advantages",
        "value_targets",
        "values_bootstrapped",
        "vf_preds",
        "action_dist_inputs",
        "action_logp",
        "action_prob",
        "q_values",
        "returns_to_go",
        "seq_lens",
    )
)
"""RLlib's columns that a sampler, a policy or its loss adds, so that most datasets lack them. Source: RLlib's SampleBatch, Postprocessing."""

_STATE_OUT, _STATES = "state_out", ("state_out", "state_in")
_INITIAL = "initial"
"""The fill of a column of states whose initial state is not zero."""


class Requirements(BaseView):
    """One item per transition, with the columns that are required.

    Args:
      requirements: name -> `ViewRequirement`, a mapping of its fields, or RLlib's own. Names with "/" make nested items. Rewards and ends
        are added to RLlib's own, which may be a model's and lack them: so do RLlib's policies.
      priority: of every item.
      extras: further columns in the items, see `views.base`.
      initial_state: the policy's state before the first step, which stands before the start of columns such as state_out_0: a list
        of one value per state, as `policy.get_initial_state()`, or a mapping of columns to values. A value is a number, an array
        of a row's shape, or a mapping for a nested column. Zeros by default.

    Raises:
      ViewError: no requirement is for training, or one makes no sense.
    """

    _name = "requirements"

    def __init__(
        self, requirements: Mapping[str, Any], priority: float = 1.0, extras: Wanted = (), initial_state: Any = None
    ) -> None:
        self.priority, self.extras = priority, extras
        self._settle()
        if not isinstance(requirements, Mapping):
            raise ViewError(f"requirements: expected a mapping of columns, got {type(requirements).__name__}")
        if strange := [name for name in requirements if not isinstance(name, str)]:
            raise ViewError(f"requirements: {strange[0]!r}: expected the name of a column")
        every = {name: ViewRequirement.of(name, value) for name, value in requirements.items()}
        if any(map(_is_rllibs, requirements.values())):
            every = {**every, **{name: ViewRequirement() for name in _ALWAYS if name not in every}}
        self.requirements = {name: requirement for name, requirement in every.items() if requirement.used_for_training}
        if not self.requirements:
            raise ViewError("requirements: no column is used for training")
        _check_names(self.requirements)
        self._initial = _initial_values(initial_state, self._state_columns())
        self._zero_before = {column for name, column in _PREVIOUS.items() if name in every}
        self._zero_before |= {column for column in self._state_columns() if not self._has_initial(column)}

    @property
    def label(self) -> str:
        plain = {name: self._identity_of(name, requirement) for name, requirement in sorted(self.requirements.items())}
        initial = {path: content_digest({"": value[None]}) for path, value in sorted(self._initial.items())}
        first = f",initial={json.dumps(initial)}" if initial else ""
        further = f",extras={self.extras}" if self.extras else ""
        return f"requirements:{json.dumps(plain)},zero={sorted(self._zero_before)}{first}{further}"

    def spell(self, priority: str | None = None) -> str:
        """Its label: requirements fit into no text that `view_of` reads."""
        return self.label

    def __repr__(self) -> str:
        initial = {path: value.tolist() for path, value in self._initial.items()}
        first = f", initial_state={initial}" if initial else ""
        further = f", extras={self.extras!r}" if self.extras else ""
        options = {name: asdict(requirement) for name, requirement in self.requirements.items()}
        return f"Requirements({options}{further}{first})"

    @staticmethod
    def _identity_of(name: str, requirement: ViewRequirement) -> list[object]:
        """The options that change a requirement's items. One of `observation` that reaches the final observation says obs, which has the same rows."""
        options = requirement.identity_for(name)
        if requirement.column_for(name) == OBSERVATION and max(requirement.offsets) > 0:
            options[0] = OBS
        return options

    def _state_columns(self) -> set[str]:
        """The columns of states that are read before the first step, where no `fill` says what stands there."""
        return {
            requirement.column_for(name)
            for name, requirement in self.requirements.items()
            if requirement.column_for(name).startswith(_STATE_OUT)
            and requirement.fill is None
            and min(requirement.offsets) < 0
        }

    def left_out(self, step_spec: Nest) -> tuple[str, ...]:
        """The requirements whose columns steps of `step_spec` lack, and which items are made without."""
        kept = self._kept(flatten(step_spec))
        return tuple(name for name in self.requirements if name not in kept)

    def _kept(self, paths: Collection[str]) -> dict[str, ViewRequirement]:
        """The requirements without those that are left out where the steps have these columns."""
        kept = {}
        for name, requirement in self.requirements.items():
            column = _source(name, requirement)[0]
            may_lack = requirement.optional or column in MADE_BY_POLICIES or column.startswith(_STATES)
            is_made = column in _DERIVED or column in _NUMBERS  # from the episode, whatever its steps hold
            if not may_lack or is_made or any(is_under(path, _step_path(column)) for path in paths):
                kept[name] = requirement
        return kept

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """For every name a nest of [...] leaves, or [offsets, ...] for more than one offset.

        Raises:
          ViewError: the steps lack a column, or a fill or an initial state does not fit its dtype or shape.
        """
        steps = need("requirements", step_spec, OBSERVATION, ACTION, REWARD)
        kept = self._kept(flatten(steps))
        if not kept:
            raise ViewError(f"requirements: the steps lack every column that is required; found {sorted(steps)}")
        items = {name: self._spec(name, requirement, steps) for name, requirement in kept.items()}
        self._check_initial(list(flatten(steps)))
        return map_leaves(float32_spec, self._with_extras(nested(items), steps, metadata_spec))

    def _spec(self, name: str, requirement: ViewRequirement, steps: Mapping[str, Nest]) -> Nest:
        column, _ = _source(name, requirement)
        spec = _spec_at(steps, _step_path(column))
        if column in _DERIVED:
            spec = ArraySpec((), _DERIVED[column])
        elif spec is None and column in _NUMBERS:
            spec = ArraySpec((), np.dtype(np.int64))
        elif spec is None:
            names = [*steps, *_STEP_FIELDS, NEW_OBS, *_DERIVED]
            raise ViewError(
                f'requirements: "{name}" reads "{column}", which the steps lack; found {sorted(steps)}{did_you_mean(column, names)}'
            )
        spec = map_leaves(float32_spec, spec)
        for path, leaf in flatten(spec, column).items():
            _check_fill(name, requirement, path, leaf.dtype)
            if requirement.fill is None and min(requirement.offsets) < 0:
                self._initial_row(path, leaf)
        count = len(requirement.offsets)
        return spec if count == 1 else map_leaves(lambda leaf: leaf.with_leading(count), spec)

    @property
    def _reads(self) -> tuple[str, ...]:
        """What the requirements name, and the flags that terminateds, truncateds and dones are made of."""
        columns = {_source(name, requirement)[0] for name, requirement in self.requirements.items()}
        flags = {flag for column in columns for flag in _MADE_OF.get(column, ())}
        return tuple(sorted(flags | {_step_path(column) for column in columns - _DERIVED.keys()}))

    def item_count(self, rows: int | None) -> int | None:
        return one_per_transition(rows)

    def cut(self, episode: Episode) -> Cut:
        """Every stored column has rows before and after the episode's; shifted columns are windows into it."""
        count = transition_count(episode)
        kept = self._kept(episode.columns)
        offsets = [offset for name, requirement in kept.items() for offset in _source(name, requirement)[1]]
        before, after = max(0, -min(offsets, default=0)), max(0, *offsets, 0)
        anchors = before + np.arange(count, dtype=np.int64)
        rows: dict[str, Array] = {}
        fields: dict[str, Field] = {}
        stored: dict[tuple[str, Fill | None], str] = {}  # path of a column and its fill -> its name among the rows
        for (column, fill), names in self._sharing(kept).items():
            values = self._columns(episode, column)
            for path, leaf in values.items():
                if (path, fill) in stored:
                    continue
                # a column that is stored with another fill already is stored once more
                stored[path, fill] = row_name = f"{path} (fill {fill})" if path in rows else path
                real = leaf if _is_observed(column) else leaf[:count]  # the final row holds an observation only
                rows[row_name] = self._padded(path, real, before, len(leaf) - len(real) + after, fill)
            for name in names:
                row_names = {path: stored[path, fill] for path in values}
                fields |= self._fields(name, values, row_names, anchors, before)
        further = self._extras_rows(episode)
        extras = {path: f"{path} (extra)" for path in further}  # a step field may be called extras
        rows |= {extras[path]: pad(as_float32(column), before, after) for path, column in further.items()}
        fields |= fields_of(extras)
        return Cut(rows, fields, anchors, np.full(count, self.priority, np.float64), before)

    def _fields(
        self, name: str, values: Mapping[str, Array], row_names: Mapping[str, str], anchors: Array, before: int
    ) -> dict[str, Field]:
        """The fields of one requirement, which read the columns of `values`; `row_names` says as what these are stored."""
        requirement = self.requirements[name]
        column, offsets = _source(name, requirement)
        for path, leaf in values.items():
            _check_fill(name, requirement, path, leaf.dtype)
        windows, repeat = _windows(offsets), requirement.batch_repeat_value
        own = None if repeat == 1 else before + (anchors - before) // repeat * repeat
        return {name + path[len(column) :]: Field(row_names[path], windows, own) for path in values}

    def _sharing(self, kept: Mapping[str, ViewRequirement]) -> dict[tuple[str, Fill | None], list[str]]:
        """Column and fill -> the requirements that read them; those that read no made-up row share what there is."""
        shared: dict[tuple[str, Fill | None], list[str]] = {}
        inside = []
        for name, requirement in kept.items():
            column, offsets = _source(name, requirement)
            if min(offsets) >= 0 and max(offsets) <= _is_observed(column):
                inside.append((column, name))
            else:
                fill = self._rule(column) if requirement.fill is None else fill_name(requirement.fill)
                shared.setdefault((column, fill), []).append(name)
        for column, name in inside:
            key = next((key for key in shared if key[0] == column), (column, self._rule(column)))
            shared.setdefault(key, []).append(name)
        return shared

    def _rule(self, column: str) -> Fill | None:
        """RLlib's fill of a column; None for t, and for states that begin with other values than zeros: those are no `Fill`."""
        if column == TIME or self._has_initial(column):
            return None
        is_zero = column in self._zero_before or column.split("/")[0] in self._zero_before
        return "zero" if is_zero else "first"

    def _padded(self, path: str, real: Array, before: int, after: int, fill: Fill | None) -> Array:
        """Adds rows before and after a column. Without a fill, t has that of RLlib's reset observation, one less than the first, and a state its initial value."""
        if fill is not None:
            return pad(real, before, after, fill)
        if path == TIME:
            head = np.full(before, real[0] - 1 if len(real) else -1, real.dtype)
        else:
            state = self._initial_row(path, ArraySpec(real.shape[1:], real.dtype))
            head = np.broadcast_to(state, (before, *real.shape[1:]))
        return np.concatenate((head, pad(real, 0, after)))

    def _check_initial(self, paths: Sequence[str]) -> None:
        """Raises ViewError for an initial state below a column that the steps have, at a path that they lack."""
        for name in self._initial:
            beside = [
                path
                for column in self._state_columns()
                if is_under(name, column)
                for path in paths
                if is_under(path, column)
            ]
            if beside and not any(is_under(path, name) for path in beside):
                raise ViewError(
                    f'requirements: initial_state of "{name}": the steps have {", ".join(beside)} there{did_you_mean(name, beside)}'
                )

    def _initial_row(self, path: str, leaf: ArraySpec) -> Array:
        """[...] of the column's dtype: the initial state of a column of states; zeros where none is given.

        Raises:
          ViewError: the state that is given has another shape or kind.
        """
        at = next((name for name in self._initial if is_under(path, name)), None)
        if at is None:
            return np.zeros((), leaf.dtype)
        value = self._initial[at]
        fits = not value.shape or (at == path and shape_fits(value.shape, leaf.shape))
        if leaf.dtype.kind == "O" or not np.can_cast(value.dtype, leaf.dtype, "same_kind") or not fits:
            raise ViewError(
                f'requirements: initial_state of "{at}": expected a number or {leaf} for "{path}", '
                f"got {ArraySpec(value.shape, value.dtype)}"
            )
        with np.errstate(over="ignore"):
            row = value.astype(leaf.dtype)
        if not np.isfinite(row).all():
            raise ViewError(
                f'requirements: initial_state of "{at}": {value.tolist()} is beyond {leaf.dtype}, of "{path}"'
            )
        return row

    def _has_initial(self, column: str) -> bool:
        """Whether a column of states begins with a state that is not zero."""
        return any(is_under(column, name) or is_under(name, column) for name in self._initial)

    def _columns(self, episode: Episode, column: str) -> dict[str, Array]:
        """RLlib path -> [T, ...] values of one column."""
        terminated, truncated = end_flags(episode)
        derived = {"terminateds": terminated, "truncateds": truncated, "dones": terminated | truncated}
        if column in derived:
            return {column: derived[column]}
        if column == TIME:
            return {column: first_t(episode) + np.arange(len(episode), dtype=np.int64)}
        field = _step_path(column)
        columns = columns_under(episode.columns, field)
        if not columns and column in _NUMBERS:
            agent = metadata_number(episode, AGENT_INDEX) if column == AGENT_INDEX else 0
            number = episode_number(episode) if column == EPISODE_ID else agent
            return {column: np.full(len(episode), number, np.int64)}
        if not columns:
            raise ViewError(f'requirements: the steps lack "{field}"; found {sorted(episode.columns)}')
        return {column + path[len(field) :]: as_float32(values) for path, values in columns.items()}


def _source(name: str, requirement: ViewRequirement) -> tuple[str, tuple[int, ...]]:
    """The stored column and the offsets; new_obs is obs one step later."""
    column = requirement.column_for(name)
    if is_under(column, NEW_OBS):
        return OBS + column[len(NEW_OBS) :], tuple(offset + 1 for offset in requirement.offsets)
    return column, requirement.offsets


def _step_path(column: str) -> str:
    """The path of a column, or of a nest of columns, in the steps: obs/camera is observation/camera."""
    head, slash, below = column.partition("/")
    return _STEP_FIELDS.get(head, head) + slash + below


def _is_observed(column: str) -> bool:
    """Whether the final row of a column is a real one: infos come with observations, in RLlib as in Gymnasium."""
    return column.split("/")[0] in (OBS, OBSERVATION, INFOS)


def _spec_at(steps: Mapping[str, Nest], path: str) -> Nest | None:
    """The spec of a column, or of all columns below a path; None if there are none."""
    if path in steps:
        return steps[path]
    below = {name[len(path) + 1 :]: leaf for name, leaf in flatten(steps).items() if is_under(name, path)}
    return below.get("", nested(below) if below else None)


def _check_names(names: Collection[str]) -> None:
    """Raises ViewError where two requirements would be one field of the nested items."""
    for name in names:
        if "/" in name and not all(name.split("/")):
            raise ViewError(f'requirements: "{name}": expected names with "/" between them')
        above = next((other for other in names if other != name and is_under(name, other)), None)
        if above is not None:
            raise ViewError(
                f'requirements: "{name}" lies below "{above}", which is a column of its own; rename one of them'
            )


def _initial_values(initial_state: Any, columns: Collection[str]) -> dict[str, Array]:
    """Path of a column -> its initial state, as numbers that are finite; zeros, and states of other columns in a list, are left out.

    Raises:
      ViewError: no list and no mapping, a value that is no number and no array, or a mapping that names other columns.
    """
    where = "requirements: initial_state"
    if initial_state is None:
        return {}
    by_name = isinstance(initial_state, Mapping)
    if not by_name and not isinstance(initial_state, (list, tuple)):
        raise ViewError(
            f"{where}: expected a list of one value per state, or a mapping of columns, got {initial_state!r}"
        )
    if by_name and not all(isinstance(name, str) for name in initial_state):
        raise ViewError(f"{where}: expected the names of columns, got {list(initial_state)}")
    states = initial_state if by_name else {f"{_STATE_OUT}_{i}": value for i, value in enumerate(initial_state)}
    values = {}
    for path, value in flatten(_with_arrays(states)).items():
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise ViewError(f'{where} of "{path}": expected finite numbers, got {value.tolist()!r}')
        if any(is_under(column, path) or is_under(path, column) for column in columns):
            values[path] = value
        elif by_name:
            there = ", ".join(sorted(columns)) or "none"
            raise ViewError(
                f'{where} of "{path}": no requirement reads that column before the first step; they read {there}'
            )
    return {path: value for path, value in values.items() if value.any()}


def _with_arrays(value: Any) -> Any:
    """Lists of numbers, as YAML has them, and tensors are arrays; mappings stay."""
    if isinstance(value, Mapping):
        return {str(name): _with_arrays(child) for name, child in value.items()}
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a ragged list, a tensor on another device
        raise ViewError(f"requirements: initial_state: expected a number or an array: {error}") from error


def _check_fill(name: str, requirement: ViewRequirement, path: str, dtype: np.dtype[Any]) -> None:
    if requirement.fill is not None:
        check_fit(f'requirements: "{name}"', path, requirement.fill, dtype)


def _windows(offsets: tuple[int, ...]) -> tuple[Window, ...]:
    """Runs of consecutive rows as one window each; one row alone is squeezed."""
    if len(offsets) == 1:
        return (Window(offsets[0], offsets[0] + 1, squeeze=True),)
    ends = [i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1]
    runs = zip([0, *ends], [*ends, len(offsets)])
    return tuple(Window(offsets[first], offsets[last - 1] + 1) for first, last in runs)
