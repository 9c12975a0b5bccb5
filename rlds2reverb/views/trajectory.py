"""The rows of a TF-Agents trajectory: step_type, observation, action, policy_info, next_step_type, reward, discount.

Source: `tf_agents.replay_buffers.rlds_to_reverb`, tf-agents 0.19 (probed). Row t comes from RLDS step t; its
next_step_type from step t+1, and the step after an episode's last is a padding step of type FIRST::

    RLDS         first  .     .     last+terminal
    step_type    FIRST  MID   MID   LAST
    next         MID    MID   LAST  FIRST
    discount     d0     d1    d2    0

A single-step episode is (LAST, LAST). The zero discount stands on the boundary row, where TF-Agents puts it;
`conventions.terminal_discount` puts it on the transition as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    columns_under,
)
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves, named_tuple_type, with_view
from rlds2reverb.views.extras import Wanted, extras_columns, extras_spec
from rlds2reverb.views.steps import zeros_like

FIRST, MID, LAST = 0, 1, 2
"""Values of step_type, int32; as in `dm_env` and TF-Agents."""

TRAJECTORY = "Trajectory"
POLICY_INFO = "policy_info"
STEP_TYPE = "step_type"
NEXT_STEP_TYPE = "next_step_type"
FIELDS = (STEP_TYPE, OBSERVATION, ACTION, POLICY_INFO, NEXT_STEP_TYPE, REWARD, DISCOUNT)
"""Fields of `tf_agents.trajectories.Trajectory`, in order."""

READS = (OBSERVATION, ACTION, POLICY_INFO, REWARD, DISCOUNT, *FLAGS)
"""Step fields that a trajectory is made of."""

_INT32 = np.dtype(np.int32)


def trajectory_spec(step_spec: Nest) -> Nest:
    """Spec of one trajectory row for steps of `step_spec`: a namedtuple Trajectory of nests.

    Raises:
      ViewError: the steps lack observation, action, reward or discount.
    """
    if not isinstance(step_spec, Mapping):
        raise ViewError(f"step spec: expected a dict of step fields, got {type(step_spec).__name__}")
    missing = [name for name in (OBSERVATION, ACTION, REWARD, DISCOUNT) if name not in step_spec]
    if missing:
        raise ViewError(
            f"step spec without {', '.join(missing)}: a trajectory needs them; found {sorted(step_spec)}; "
            "a transform must not leave them out, and can rename columns to them"
        )
    step_type = ArraySpec((), _INT32, STEP_TYPE)
    trajectory = named_tuple_type(TRAJECTORY, FIELDS)
    return trajectory(
        step_type,
        step_spec[OBSERVATION],
        step_spec[ACTION],
        step_spec.get(POLICY_INFO, ()),
        step_type,
        step_spec[REWARD],
        step_spec[DISCOUNT],
    )


def spec_with_extras(view: str, wanted: Wanted, step_spec: Nest, metadata_spec: Nest) -> Nest:
    """Spec of one trajectory row whose policy_info has the extras, beside what the steps call policy_info.

    Raises:
      ViewError: as `trajectory_spec` and `extras_spec`; or the steps have a policy_info with which extras do not go.
    """
    plain = trajectory_spec(step_spec)
    found = extras_spec(view, wanted, READS, step_spec, metadata_spec)
    if not found:
        return plain
    own = plain.policy_info
    if flatten(own) and not isinstance(own, Mapping):
        raise ViewError(f"{view}: extras: they go into {POLICY_INFO}, and that of the steps is no dict; rename it")
    if both := sorted(found.keys() & dict(own).keys()):
        raise ViewError(
            f"{view}: extras: they go into {POLICY_INFO}, and that of the steps has {', '.join(both)} already; rename it"
        )
    return plain._replace(policy_info={**dict(own), **found})


def columns_with_extras(view: str, wanted: Wanted, episode: Episode) -> Mapping[str, Array]:
    """The columns of an episode with its extras as policy_info; for `trajectory_rows`."""
    found = extras_columns(view, wanted, READS, episode)
    return {**episode.columns, **{f"{POLICY_INFO}/{path}": column for path, column in found.items()}}


def step_types(is_first: Array, is_last: Array) -> Array:
    """[T] int32: FIRST where is_first (it wins), LAST where is_last, else MID."""
    return np.where(is_first, FIRST, np.where(is_last, LAST, MID)).astype(_INT32)


def trajectory_rows(
    columns: Mapping[str, Array], next_is_first: bool = True, next_is_last: bool = False
) -> dict[str, Array]:
    """Columns of [T] steps -> columns of [T] trajectory rows, in the order of `FIELDS`.

    Args:
      columns: [T, ...] by path; the three flags, discount, and observation, action and reward (nested or not); optionally
        policy_info.
      next_is_first, next_is_last: flags of the step that follows the last row; by default the padding step.

    Raises:
      ViewError: a column is missing.
    """
    missing = [name for name in (IS_FIRST, IS_LAST, IS_TERMINAL, DISCOUNT) if name not in columns]
    if not columns_under(columns, REWARD):
        missing.append(REWARD)
    if missing:
        raise ViewError(f"steps without {', '.join(missing)}; found {sorted(columns)}")
    kinds = step_types(columns[IS_FIRST], columns[IS_LAST])
    following = np.append(kinds[1:], step_types(np.array(next_is_first), np.array(next_is_last)))
    alone = (kinds == FIRST) & (following == FIRST)
    discount = columns[DISCOUNT]  # [T, ...]
    ended = (columns[IS_LAST] & columns[IS_TERMINAL]).reshape(-1, *(1,) * (discount.ndim - 1))
    computed: dict[str, dict[str, Any]] = {
        STEP_TYPE: {STEP_TYPE: np.where(alone, LAST, kinds).astype(_INT32)},
        NEXT_STEP_TYPE: {NEXT_STEP_TYPE: np.where(alone, LAST, following).astype(_INT32)},
        DISCOUNT: {DISCOUNT: np.where(ended, np.zeros((), discount.dtype), discount)},
    }
    rows: dict[str, Array] = {}
    for name in FIELDS:
        rows.update(computed.get(name) or columns_under(columns, name))
    return rows


def padding_rows(rows: Mapping[str, Array], count: int) -> dict[str, Array]:
    """`count` boundary rows (LAST, FIRST, zeros elsewhere; empty text) as TF-Agents pads episodes."""
    padding = {path: zeros_like(column, count) for path, column in rows.items()}
    padding[STEP_TYPE] = np.full(count, LAST, _INT32)
    padding[NEXT_STEP_TYPE] = np.full(count, FIRST, _INT32)
    return padding


def table_signature(items: Nest, view: str = "") -> Nest:
    """The signature for a table of such items.

    A table of trajectories has the one signature that TF-Agents' own `push_rlds_to_reverb` takes: the number of rows is free, and
    a float32 discount is named and bounded. A table of any other items has their spec.

    Args:
      items: `view.signature(step_spec)`.
      view: what people call the view (`name_of(view)`): a push by another one is refused. "" for a table that takes items of any view.
    """
    if type(items).__name__ == TRAJECTORY and getattr(items, "_fields", ()) == FIELDS:
        free: Any = map_leaves(lambda leaf: replace(leaf, shape=(None, *leaf.shape[1:])), items)
        items = free._replace(discount=_bounded_discount(free.discount))
    return with_view(items, view) if view else items


def _bounded_discount(leaf: Nest) -> Nest:
    if leaf != ArraySpec((None,), np.dtype(np.float32)):
        return leaf  # TF-Agents' functions refuse it anyway
    return replace(leaf, name=DISCOUNT, minimum=np.float32(0), maximum=np.float32(1))


def with_window(spec: Nest, size: int | None) -> Nest:
    """A trajectory spec with a leading axis of `size` on every leaf."""
    return map_leaves(lambda leaf: leaf.with_leading(size), spec)
