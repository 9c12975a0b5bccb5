"""The slow, obvious way from RLDS steps to stored items: one step at a time, in plain Python, as TF-Agents does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

FIRST, MID, LAST = 0, 1, 2

Step = Mapping[str, Any]
"""One RLDS step: a dict of nests."""

Row = list[Any]
"""One trajectory: its leaves in the order of TensorFlow's nest; those of row 0 are step_type, observation..., action..."""


PolicyInfoFn = Callable[[Step, Step], Any] | None


def leaves(nest: Any) -> list[Any]:
    """Leaves of dicts (keys sorted), tuples, lists and namedtuples, in the order of TensorFlow's nest."""
    if isinstance(nest, Mapping):
        return [leaf for key in sorted(nest) for leaf in leaves(nest[key])]
    if isinstance(nest, (list, tuple)):
        return [leaf for child in nest for leaf in leaves(child)]
    return [nest]


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """The nest with the function applied to every leaf."""
    if isinstance(nest, Mapping):
        return {key: mapped(function, child) for key, child in nest.items()}
    if isinstance(nest, (list, tuple)):
        return tuple(mapped(function, child) for child in nest)
    return function(nest)


def nested(columns: Mapping[str, Any]) -> dict[str, Any]:
    """'/'-joined paths -> nested dicts."""
    nest: dict[str, Any] = {}
    for path, column in columns.items():
        level = nest
        *parents, name = path.split("/")
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = column
    return nest


def _at(t: int, column: Any) -> Any:
    return column[t : t + 1].reshape(column.shape[1:])


def steps_of(columns: Any) -> list[Step]:
    """Columns [T, ...] of one episode -> T steps; a value of a text column is an array, too."""
    count = len(leaves(columns)[0])
    return [mapped(partial(_at, t), columns) for t in range(count)]


def padding_step(like: Step) -> Step:
    """The step that TF-Agents puts after the last one: first, zeros elsewhere."""
    return {**mapped(_zeros, like), "is_first": np.array(True)}


def _zeros(value: Any) -> Any:
    return np.full(value.shape, b"", object) if value.dtype == object else np.zeros_like(value)


def step_type(step: Step) -> int:
    if step["is_first"]:
        return FIRST
    return LAST if step["is_last"] else MID


def broken_rule(current: Step, following: Step) -> str | None:
    """TF-Agents' text for the first rule that the pair breaks."""
    if current["is_terminal"] and not current["is_last"]:
        return "Terminal step must be the last step of an episode."
    if not current["is_last"] and not current["is_first"] and following["is_first"]:
        return "Mid step should not be followed by a first step."
    if current["is_last"] and not following["is_first"]:
        return "Last step of an episode must be followed by a first step."
    return None


def pairs(steps: list[Step]) -> list[tuple[Step, Step]]:
    """Every step with the one after it; the last with the padding step."""
    return list(zip(steps, [*steps[1:], padding_step(steps[-1])])) if steps else []


def trajectory(current: Step, following: Step, policy_info_fn: PolicyInfoFn = None) -> Row:
    """The trajectory of a step, given the step after it."""
    kinds = step_type(current), step_type(following)
    if kinds == (FIRST, FIRST):
        kinds = LAST, LAST
    ended = current["is_last"] and current["is_terminal"]
    info = policy_info_fn(current, following) if policy_info_fn else ()
    return leaves(
        (
            np.array(kinds[0], np.int32),
            current["observation"],
            current["action"],
            mapped(np.asarray, info),
            np.array(kinds[1], np.int32),
            current["reward"],
            np.zeros_like(current["discount"]) if ended else current["discount"],
        )
    )


def trajectories(steps: list[Step], policy_info_fn: PolicyInfoFn = None) -> list[Row]:
    """A stream of steps -> one trajectory per step.

    Raises:
      ValueError: TF-Agents' text for the first pair that breaks a rule.
    """
    for current, following in pairs(steps):
        if message := broken_rule(current, following):
            raise ValueError(message)
    return [trajectory(current, following, policy_info_fn) for current, following in pairs(steps)]


def next_step_type_index(steps: list[Step], info_leaves: int = 0) -> int:
    """Which leaf of a row is next_step_type."""
    return 1 + len(leaves(steps[0]["observation"])) + len(leaves(steps[0]["action"])) + info_leaves


def boundary_row(like: Row, next_index: int) -> Row:
    """The padding row of TF-Agents' observers: zeros, (LAST, FIRST)."""
    row = [_zeros(leaf) for leaf in like]
    row[0] = np.array(LAST, np.int32)
    row[next_index] = np.array(FIRST, np.int32)
    return row


def stack(rows: list[Row]) -> list[Any]:
    """Rows -> one column per leaf, each with a leading axis."""
    return [np.stack(column) for column in zip(*rows)]


def sequence_items(
    rows: list[Row], next_index: int, length: int, stride: int = 1, pad: bool = False, tile: bool = False
) -> list[list[Any]]:
    """What `ReverbAddTrajectoryObserver` stores when it is called with every row."""
    items, cache = [], []

    def observe(row: Row) -> None:
        cache.append(row)
        if len(cache) >= length and (len(cache) - length) % stride == 0:
            items.append(stack(cache[-length:]))

    for row in rows:
        observe(row)
        if row[0] == LAST:
            for _ in range(length - 1 if tile else length - len(cache)) if pad else ():
                observe(boundary_row(row, next_index))
            cache.clear()
    return items


def episode_items(rows: list[Row], max_length: int | None = None) -> list[list[Any]]:
    """What `ReverbAddEpisodeObserver` stores, longer episodes bypassed."""
    items, cache = [], []
    for row in rows:
        cache.append(row)
        if row[0] == LAST:
            if max_length is None or len(cache) <= max_length:
                items.append(stack(cache))
            cache = []
    return items


def same(left: Any, right: Any) -> bool:
    """Whether two arrays agree in dtype, shape and every bit."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == object:
        return bool(left.ravel().tolist() == right.ravel().tolist())
    return bool(left.tobytes() == right.tobytes())


def assert_same_items(found: list[Any], expected: list[Any]) -> None:
    """Items (lists of columns) in the same number and order, with the same columns."""
    assert len(found) == len(expected)
    for number, (item, wanted) in enumerate(zip(found, expected)):
        assert len(item) == len(wanted), f"item {number}"
        for column, (value, want) in enumerate(zip(item, wanted)):
            assert same(value, want), (
                f"item {number}, column {column}: {value.dtype}{value.shape} {value!r}, "
                f"expected {want.dtype}{want.shape} {want!r}"
            )
