"""Batches of items -> rows with RLlib's names for columns; see `adapters.rllib` for which view gives which rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.specs import Nest, flatten, map_leaves, map_with_path
from rlds2reverb.views.trajectory import FIELDS, FIRST, LAST

OBS, NEXT_OBS, ACTIONS = "obs", "new_obs", "actions"
REWARDS, TERMINATEDS, TRUNCATEDS = _PER_ROW = "rewards", "terminateds", "truncateds"

Rows = tuple[dict[str, Any], Array]
"""Column -> values [N, ...], and [N] the number of the item that each row is of."""


def rows_of(batch: Batch) -> Rows:
    """Of items of any view that RLlib can learn from.

    Raises:
      ConfigError: of another one.
    """
    data = batch.data
    if getattr(data, "_fields", ()) == FIELDS:
        return _of_trajectories(batch)
    names = set(data) if isinstance(data, dict) else set()
    if {OBS, ACTIONS} <= names:
        return _of_rllib(batch)
    if {"observation", "action", "next"} <= names:
        return _of_transitions(data, batch.size)
    if {"observation", "action", "next_observation", "reward", "discount"} <= names:
        return _of_n_steps(data, batch.size)
    raise ConfigError(
        "RLlib needs items of the views requirements, fragments, transition, n_step, or of one that makes trajectories; "
        f"got {told(data)}"
    )


def told(data: Nest) -> str:
    """What stands there instead, for an error."""
    return f"the columns {', '.join(flatten(data))}" if isinstance(data, (dict, tuple)) else "a list without names"


def _of_transitions(data: Any, count: int) -> Rows:
    following = data["next"]
    columns = {
        OBS: data["observation"],
        NEXT_OBS: following["observation"],
        ACTIONS: data["action"],
        REWARDS: following["reward"][..., 0],
        TERMINATEDS: following["terminated"][..., 0],
        TRUNCATEDS: following["truncated"][..., 0],
    }
    return columns, np.arange(count)


def _of_n_steps(data: Any, count: int) -> Rows:
    columns = {
        OBS: data["observation"],
        NEXT_OBS: data["next_observation"],
        ACTIONS: data["action"],
        REWARDS: data["reward"],
        TERMINATEDS: data["discount"] == 0,
        TRUNCATEDS: np.zeros(count, bool),
    }
    steps = {"n_step": data["steps"].astype(np.int64)} if "steps" in data else {}
    return {**columns, **steps}, np.arange(count)


def _of_rllib(batch: Batch) -> Rows:
    """Items are rows, or fragments of rows."""
    known = next((batch.data[name] for name in _PER_ROW if name in batch.data), None)
    if known is None or not (isinstance(known, list) or known.ndim > 1):
        return dict(batch.data), np.arange(batch.size)
    lengths = [len(one) for one in known] if batch.info.mask is None else batch.info.mask.sum(axis=1)
    rows = {name: _rows_joined(column, lengths) for name, column in batch.data.items()}
    return rows, np.repeat(np.arange(batch.size), lengths)


def _rows_joined(nest: Nest, lengths: Iterable[int]) -> Nest:
    """Of [B, L, ...], or of B arrays [L, ...]: [N, ...], of each item as many rows as it has; what follows them is padding."""
    if isinstance(nest, dict):
        return {name: _rows_joined(child, lengths) for name, child in nest.items()}
    return np.concatenate([rows[:length] for rows, length in zip(nest, lengths)])


def _of_trajectories(batch: Batch) -> Rows:
    if not isinstance(batch.data.step_type, list):  # all items have as many steps
        columns, is_pair = _pairs(batch.data, batch.info.mask)
        return columns, np.nonzero(is_pair)[0]
    made = [_pairs(item_of(batch.data, slice(number, number + 1))) for number in range(batch.size)]
    rows = {name: _joined([columns[name] for columns, _ in made]) for name in made[0][0]}
    return rows, np.repeat(np.arange(batch.size), [is_pair.sum() for _, is_pair in made])


def pairs_in(data: Any, mask: Array | None) -> Array:
    """[..., T - 1] whether a step of trajectories [..., T] is followed by another one of its episode.

    Only an episode's last step, and padding of a view, are followed by a first one.

    Args:
      data: trajectories.
      mask: [..., T] as `BatchInfo.mask`: the steps that are the item's, which come before its padding; None where there is none.
    """
    is_pair: Array = (data.step_type[..., :-1] != LAST) & (data.next_step_type[..., :-1] != FIRST)
    if mask is not None:
        is_pair &= mask[..., 1:]
    return is_pair


def _pairs(data: Any, mask: Array | None = None) -> tuple[dict[str, Any], Array]:
    """Rows of trajectories [B, T, ...], and [B, T - 1]: `pairs_in`."""
    if data.step_type.shape[1] < 2:
        raise ConfigError("RLlib needs trajectories of at least two steps: a row is a step and the next one")
    is_pair = pairs_in(data, mask)

    def first(nest: Nest) -> Nest:
        return map_leaves(lambda leaf: leaf[:, :-1][is_pair], nest)

    def second(nest: Nest) -> Nest:
        return map_leaves(lambda leaf: leaf[:, 1:][is_pair], nest)

    is_last = first(data.next_step_type) == LAST
    is_terminal = is_last & ((first(data.discount) == 0) | (second(data.discount) == 0))
    columns = {
        OBS: first(data.observation),
        NEXT_OBS: second(data.observation),
        ACTIONS: first(data.action),
        REWARDS: first(data.reward),
        TERMINATEDS: is_terminal,
        TRUNCATEDS: is_last & ~is_terminal,
    }
    return columns, is_pair


def item_of(nest: Nest, which: Any) -> Nest:
    """Of a batch's nest, whose leaves are arrays or lists of arrays: one item, or with a slice of one, a batch of it."""
    if isinstance(nest, dict):
        return {name: item_of(child, which) for name, child in nest.items()}
    if isinstance(nest, tuple):
        children = [item_of(child, which) for child in nest]
        return type(nest)(*children) if hasattr(nest, "_fields") else tuple(children)
    return np.stack(nest[which]) if isinstance(which, slice) else nest[which]


def _joined(nests: Sequence[Nest]) -> Nest:
    """Nests of rows -> one nest of all rows."""
    columns = [flatten(nest) for nest in nests]
    return map_with_path(lambda path, _: np.concatenate([one[path] for one in columns]), nests[0])
