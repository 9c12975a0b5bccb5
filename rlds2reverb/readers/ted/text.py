"""Values that are no tensors, as columns and metadata."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array


def as_column(values: list[Any]) -> Array:
    """[T]: bools and numbers of one kind as such, anything else as text."""
    kinds = {type(value) for value in values}
    if kinds in ({bool}, {int}, {float}):
        plain = np.array(values)
        if plain.dtype != object:
            return plain
    column = np.empty(len(values), object)
    column[:] = [as_text(value) for value in values]
    return column


def as_metadata(value: Any) -> Any:
    """A number as numpy's, anything else as text."""
    if isinstance(value, (bool, int, float)):
        plain = np.asarray(value)
        if plain.dtype != object:
            return plain[()]
    return value if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object else as_text(value)


def as_text(value: Any) -> bytes:
    """Text as it is, anything else as JSON or as Python writes it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return repr(value).encode("utf-8", "backslashreplace")
