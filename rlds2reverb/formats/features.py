"""Metadata of episodes: Minari's `seed`, `options/...` and `rewards_sum`, robomimic's attributes, numbers beside arrays.

A feature is part of the metadata's spec when every episode has it, in one shape. Minari draws seeds from 64 random bits and writes each in
the dtype that it needs, so seeds are uint64 where the dtype of all of them is not one, or is not stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episode import Notice
from rlds2reverb.formats.rows import exactly
from rlds2reverb.specs import ArraySpec

SEED = "seed"
_NO_SEED = (b"None", "None")
_UINT64 = np.dtype(np.uint64)
_MOST_DEEP = 16


@dataclass(frozen=True)
class Features:
    """The metadata of all episodes.

    Attributes:
      of_each: for each episode, feature -> value; text as `bytes`.
      spec: of the features that all have.
      left_out: the remaining ones.
    """

    of_each: tuple[Mapping[str, Any], ...]
    spec: Mapping[str, ArraySpec]
    left_out: tuple[str, ...]

    def common(self, place: int) -> dict[str, Any]:
        """The features that all episodes have, of one of them, in the dtype of all."""
        return fitted(self.of_each[place], self.spec)


def fitted(values: Mapping[str, Any], specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
    """The features that all episodes have, of one of them, in the dtype of all; {} where its features are unknown."""
    if not values:
        return {}
    return {
        name: values[name] if spec.dtype == object else np.asarray(values[name], spec.dtype)[()]
        for name, spec in specs.items()
    }


def gathered(stored: Iterable[Mapping[str, Any] | None]) -> Features:
    """The features of all episodes, from the stored ones of each; None stands for one whose metadata cannot be read, which does not count."""
    read = [
        None if metadata is None else {name: value for name, value in _flat(metadata, "", 0) if value is not None}
        for metadata in stored
    ]
    of_each = tuple(features or {} for features in read)
    readable = [features for features in read if features is not None]
    names = dict.fromkeys(name for features in readable for name in features)
    specs = {name: _spec_of_all([features.get(name) for features in readable]) for name in names}
    return Features(
        of_each,
        {name: spec for name, spec in specs.items() if spec is not None},
        tuple(name for name, spec in specs.items() if spec is None),
    )


def left_out_notices(names: Collection[str]) -> tuple[Notice, ...]:
    """A notice about the features that are not in the metadata, if there are any."""
    text = (
        f"metadata that not every episode has, or not of one kind: {', '.join(names)}; left out, where= still knows it"
    )
    return (Notice("left_out", text, len(names)),) if names else ()


def _flat(stored: Mapping[str, Any], above: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in stored.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and depth < _MOST_DEEP:
            yield from _flat(value, f"{name}/", depth + 1)
        elif name == SEED:
            yield name, _seed(value)
        else:
            yield name, _value(value)


def is_no_seed(name: str, value: Any) -> bool:
    """Whether a feature is the seed that Minari writes of a reset without one; it is read as if it were not there."""
    return name == SEED and (value is None or (isinstance(value, (bytes, str)) and value in _NO_SEED))


def _seed(value: Any) -> Any:
    if is_no_seed(SEED, value):
        return None
    return np.uint64(value) if isinstance(value, int) and 0 <= value < 1 << 64 else _value(value)


def _value(value: Any) -> Any:
    """A number, an array of numbers, or text as `bytes`; None for anything else."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    if isinstance(value, bytes):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    are_texts = array.dtype.kind == "O" and all(isinstance(item, bytes) for item in array.flat)
    return array[()] if array.dtype.kind in "biufc" or are_texts else None


def _spec_of_all(values: list[Any]) -> ArraySpec | None:
    """The spec of a feature; None if an episode lacks it, shapes differ, or no dtype holds all values."""
    if any(value is None for value in values):
        return None
    are_texts = [np.asarray(value).dtype.kind in "OS" for value in values]
    if any(are_texts):
        sizes = {np.shape(value) for value in values}
        return ArraySpec(sizes.pop(), np.dtype(object)) if all(are_texts) and len(sizes) == 1 else None
    shapes, dtypes = {np.shape(value) for value in values}, {value.dtype for value in values}
    if len(shapes) > 1 or len({dtype.kind == "b" for dtype in dtypes}) > 1:
        return None
    dtype = np.result_type(*dtypes)
    if dtype.kind == "f" and all(each.kind in "iu" for each in dtypes):  # floats do not hold all of these
        return ArraySpec(shapes.pop(), _UINT64) if all(np.all(value >= 0) for value in values) else None
    if any(value.dtype != dtype and exactly(np.atleast_1d(value), dtype) is None for value in values):
        return None
    return ArraySpec(shapes.pop(), dtype)
