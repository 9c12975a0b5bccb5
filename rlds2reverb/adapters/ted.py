"""Batches in the layout of TorchRL's environments (TED), as arrays: the step at the root, its result under "next".

| items of the view | a transition is | ends |
| --- | --- | --- |
| `transition` | an item | its own flags |
| `two_step`, `sequence`, `episode`: TF-Agents' trajectories | two rows that follow one another | the later row is LAST; terminal where the discount of either row is 0 |
| `slices`: steps as recorded, with is_last and is_terminal | two rows that follow one another | the later row is the last one; terminal where is_terminal is set |

The sources write a discount of 0 into different rows: RLDS and TF-Agents' drivers into the one that led to the end, TF-Agents'
`rlds_to_reverb` into the last one.

No transition starts from an episode's last row, nor from a padded row: see `Transitions.valid`. All other columns of
the items stay at the root, under their own names, with the value of the earlier row.

Source: TED of TorchRL 0.5; observed with TorchRL 0.14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.client import Client
from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    is_under,
)
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.options import escape_text
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.specs import Nest, flatten, map_leaves, nested
from rlds2reverb.views.trajectory import LAST, NEXT_STEP_TYPE, STEP_TYPE

NEXT, DONE, TERMINATED, TRUNCATED = "next", "done", "terminated", "truncated"
FLAGS = (DONE, TERMINATED, TRUNCATED)
_NEXT_FIELDS = (OBSERVATION, REWARD, *FLAGS)


class Transitions(NamedTuple):
    """The transitions of S items, L each.

    Attributes:
      columns: observation, action, done, terminated, truncated, next, and further ones; leaves [S, L, ...], reward and flags [S, L, 1].
      valid: [S, L] bool, false where a place holds no transition.
      is_single: each item is one transition; L is 1.
    """

    columns: dict[str, Nest]
    valid: Array
    is_single: bool


def transitions_of(batch: Batch) -> Transitions:
    """The transitions of a batch's items.

    Raises:
      ConfigError: the items are of no kind in the module's table, or differ in their rows.
    """
    fields = _as_fields(batch.data)
    if NEXT in fields:
        return _from_single(fields)
    if STEP_TYPE in fields:
        last = _rows(fields[STEP_TYPE]) == LAST
        zero = _is_zero(_need(fields, DISCOUNT))
        kept = _without(fields, STEP_TYPE, NEXT_STEP_TYPE)
        return _from_rows(kept, last, zero[:, 1:] | zero[:, :-1], batch.info.mask)
    if IS_LAST in fields and IS_TERMINAL in fields:
        last, terminal = _rows(fields[IS_LAST]), _rows(fields[IS_TERMINAL])
        kept = _without(fields, IS_FIRST, IS_LAST, IS_TERMINAL, TRUNCATED)  # `truncated` of the view `slices`
        return _from_rows(kept, last, terminal[:, 1:], batch.info.mask)
    raise ConfigError(
        f"TED: items have the columns {', '.join(flatten(batch.data))}; expected those of the view transition, of trajectories "
        "(two_step, sequence, episode) or of slices: observation, action, reward, and flags of the ends of episodes"
    )


def read_items(client: Client, table: str) -> Batch:
    """All items that a table holds now, on all servers of the client, as one batch; shorter ones are padded at their end.

    The table is read as the source `reverb:` reads it (docs/formats/reverb.md). Probabilities are not known: they are 1 over the number.

    Raises:
      SourceError: the table holds no items, or cannot be read without disturbing it.
    """
    items: list[Episode] = []
    for address in client.addresses:
        if client.servers()[address].tables[table].current_size:
            items += open_source(f"reverb:{address}/{escape_text(table)}?as=items")
    if not items:
        raise SourceError(f'table "{table}" holds no items')
    counts = np.array([len(item) for item in items])
    mask = np.arange(counts.max()) < counts[:, np.newaxis]
    paths = list(items[0].columns)
    if STEP_TYPE in paths or any(is_under(path, NEXT) for path in paths):
        paths = [path for path in paths if path not in (IS_FIRST, IS_LAST)]  # of the item's ends, and not its columns
    columns = {path: _pad_rows([item.columns[path] for item in items], mask) for path in paths}
    if any(is_under(path, NEXT) for path in paths):
        columns = {path: column[:, 0] for path, column in columns.items()}  # a transition's item has no axis of rows
    keys, priorities, times = (
        np.array([item.metadata[name] for item in items]) for name in ("item_key", "priority", "times_sampled")
    )
    info = BatchInfo(
        keys.astype(np.uint64),
        np.full(len(items), 1 / len(items)),
        np.full(len(items), len(items)),
        priorities.astype(np.float64),
        times.astype(np.int32),
        mask=None if mask.all() else mask,
    )
    return Batch(nested(columns), info)


def _pad_rows(columns: Sequence[Array], mask: Array) -> Array:
    """[R, ...] of each item -> [items, most rows, ...], zeros behind the shorter ones."""
    padded = np.zeros((*mask.shape, *columns[0].shape[1:]), columns[0].dtype)
    if padded.dtype == object:
        padded[...] = b""
    padded[mask] = np.concatenate(columns)
    return padded


def mark_ends(transitions: Transitions) -> Transitions:
    """Marks the last transition of each item as truncated and done, as `SliceSampler` does; terminated ones stay terminated."""
    numbers = np.arange(transitions.valid.shape[1])
    last = np.where(transitions.valid, numbers, -1).max(axis=1, initial=-1)[:, None] == numbers  # [S, L]
    following = dict(transitions.columns[NEXT])
    for name in (TRUNCATED, DONE):
        following[name] = following[name] | last[..., None]
    return transitions._replace(columns={**transitions.columns, NEXT: following})


def flatten_valid(transitions: Transitions, leaf: Array) -> Array:
    """[S, L, ...] -> [N, ...]: the valid transitions, one item after the other."""
    rows: Array = leaf.reshape(-1, *leaf.shape[2:])
    if not transitions.valid.all():
        rows = rows[transitions.valid.ravel()]
    return rows


def _from_single(fields: Mapping[str, Nest]) -> Transitions:
    following = _as_fields(fields[NEXT])
    if missing := [name for name in _NEXT_FIELDS if name not in following]:
        raise ConfigError(
            f"TED: items have no {', '.join(f'next/{name}' for name in missing)}; see the view transition"
        )
    flag = np.asarray(following[DONE])
    if flag.ndim != 2 or flag.shape[1] != 1:
        raise ConfigError(f"TED: next/done is {list(flag.shape)}: expected [B, 1]")
    root = {name: np.zeros_like(flag) for name in FLAGS} | dict(fields)
    return Transitions(map_leaves(lambda leaf: leaf[:, np.newaxis], root), np.ones(flag.shape, bool), is_single=True)


def _from_rows(fields: Mapping[str, Nest], last: Array, terminal: Array, mask: Array | None) -> Transitions:
    """Transitions of rows.

    Args:
      fields: [S, R, ...], R rows per item.
      last: [S, R], true for an episode's last row.
      terminal: [S, R - 1], whether the later row, if it is the last one, is terminal.
      mask: [S, R], the item's own rows; None for all.
    """
    for path, leaf in flatten(dict(fields)).items():
        if np.shape(leaf)[:2] != last.shape:
            raise ConfigError(
                f'TED: column "{path}" is {list(np.shape(leaf))}: expected {list(last.shape)} rows, as all have'
            )
    done = last[:, 1:]  # [S, L], L = R - 1
    valid = ~last[:, :-1] if mask is None else ~last[:, :-1] & mask[:, 1:]
    flags = {DONE: done, TERMINATED: done & terminal, TRUNCATED: done & ~terminal}
    following = {
        OBSERVATION: map_leaves(lambda leaf: leaf[:, 1:], _need(fields, OBSERVATION)),
        REWARD: map_leaves(lambda leaf: leaf[:, :-1, ..., np.newaxis], _need(fields, REWARD)),
        **{name: flag[..., np.newaxis] for name, flag in flags.items()},
    }
    now = {name: map_leaves(lambda leaf: leaf[:, :-1], nest) for name, nest in _without(fields, REWARD).items()}
    _need(now, ACTION)
    root = {name: np.zeros((*done.shape, 1), bool) for name in FLAGS}
    return Transitions({**now, **root, NEXT: following}, valid, is_single=done.shape[1] == 1)


def _as_fields(data: Nest) -> dict[str, Any]:
    if isinstance(data, Mapping):
        return dict(data)
    if hasattr(data, "_fields"):
        return dict(zip(data._fields, data))
    raise ConfigError(
        f"TED: items are a {type(data).__name__} of columns without names; give the table a signature, or sample with spec=..."
    )


def _need(fields: Mapping[str, Nest], name: str) -> Nest:
    if name not in fields:
        raise ConfigError(f'TED: items have no column "{name}"; found {sorted(fields)}')
    return fields[name]


def _without(fields: Mapping[str, Nest], *names: str) -> dict[str, Nest]:
    return {name: nest for name, nest in fields.items() if name not in names}


def _rows(column: Any) -> Array:
    """[S, R], at least two rows."""
    if isinstance(column, list):
        raise ConfigError('TED: items differ in their rows; sample them with ragged="pad"')
    if column.ndim != 2 or column.shape[1] < 2:
        raise ConfigError(f"TED: items are rows {list(column.shape[1:])}; a transition needs two, one after the other")
    rows: Array = column
    return rows


def _is_zero(discount: Nest) -> Array:
    """[S, R]: every discount of the row is 0."""
    leaves = flatten(discount).values()
    zeros = [np.all(leaf.reshape(*leaf.shape[:2], -1) == 0, axis=2) for leaf in leaves]
    all_zero: Array = np.logical_and.reduce(zeros)
    return all_zero
