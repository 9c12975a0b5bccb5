"""Whether what was read of a pickle can be walked by whoever uses it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlds2reverb.readers.pickle_values import Function, Inert, Refused, Unfinished

_MOST_DEPTH = 64
_MOST_VALUES = 20_000_000


def checked(value: Any) -> Any:
    """What was read, when it is a tree that can be walked: not deep, and not endless.

    Raises:
      Refused: it refers to itself, is too deep, or has more values than can be when each reference is followed.
    """
    size, _ = _measured(value, 0, {})
    if size > _MOST_VALUES:
        raise Refused(f"the pickle has more than {_MOST_VALUES:,} values when every reference is followed")
    return value


_IN_PROGRESS = (-1, 0)


def _measured(value: Any, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many values there are, each counted as often as it is referred to; and how many containers within one another."""
    children = _children(value)
    if children is None:
        return 1, 0
    size, height = known.get(id(value), (0, 0))
    if (size, height) == _IN_PROGRESS:
        raise Refused("the pickle has something that holds itself")
    if depth + height > _MOST_DEPTH:
        raise Refused(f"the pickle has more than {_MOST_DEPTH} containers within one another")
    if not size:
        known[id(value)] = _IN_PROGRESS
        size = 1
        for child in children:
            of_child, below = _measured(child, depth + 1, known)
            size, height = size + of_child, max(height, below)
        height += 1
        known[id(value)] = size, height
    return size, height


_LEAVES = frozenset({int, float, str, bytes, bool, type(None), complex, bytearray, set, frozenset})


def _children(value: Any) -> Iterable[Any] | None:
    """What a container holds; None for what is none."""
    kind = type(value)
    if kind in _LEAVES:
        return None
    if kind in (list, tuple):
        return value  # type: ignore[no-any-return]
    if kind in (dict, OrderedDict):
        return value.values()  # type: ignore[no-any-return]
    if isinstance(value, Inert):
        return value.arguments, value.state
    if isinstance(value, (Function, Unfinished)):
        raise Refused(f"the pickle has {getattr(value, 'name', 'an array without contents')} as a value")
    return value.ravel().tolist() if kind is np.ndarray and value.dtype == object else None
