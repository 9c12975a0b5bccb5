"""What a dataset says of a whole episode (its name, its task, its language), as columns of the steps: the value in every row.

Paths of such columns begin with `metadata/`, as in `metadata/language_instruction`. A repeated value takes no memory here. What it
costs on the server depends on its dtype: docs/views/extras.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.episodes import IS_FIRST, Array, Episode
from rlds2reverb.specs import ArraySpec, column_spec

METADATA = "metadata"
"""The field of a step under which metadata stands."""


def metadata_path(name: str) -> str:
    """The column of a feature of the episode: `metadata/` and its path."""
    return f"{METADATA}/{name}"


def metadata_specs(episode: Episode) -> dict[str, ArraySpec]:
    """Path of a feature (without `metadata/`) -> its spec, of every feature that a column can hold."""
    values = {name: _as_array(value) for name, value in episode.metadata.items()}
    return {name: column_spec(value[None]) for name, value in values.items() if value is not None}


def metadata_columns(episode: Episode, names: Collection[str]) -> dict[str, Array]:
    """Column path -> [T, ...] of the features of these names (without `metadata/`); what is absent, or no array, is left out.

    T is the number of rows of is_first, or of the first column where that is absent. The arrays are read-only.
    """
    rows = len(episode.columns.get(IS_FIRST, ())) or len(episode)
    values = {name: _as_array(episode.metadata[name]) for name in names if name in episode.metadata}
    return {metadata_path(name): _repeated(value, rows) for name, value in values.items() if value is not None}


def metadata_values(episode: Episode, names: Collection[str]) -> dict[str, Any]:
    """Name -> value, as a column of steps would hold it: an array, a number, or `bytes`; what is absent, or no array, is left out."""
    values = {name: _as_array(episode.metadata[name]) for name in names if name in episode.metadata}
    return {name: value[()] for name, value in values.items() if value is not None}


def with_metadata(episode: Episode, columns: Mapping[str, ArraySpec]) -> Episode:
    """The episode with these features of it as further columns; `columns` has their names (without `metadata/`) as keys."""
    if not columns:
        return episode
    return replace(episode, columns={**episode.columns, **metadata_columns(episode, columns)})


def _repeated(value: Array, rows: int) -> Array:
    return np.broadcast_to(value, (rows, *value.shape))


def _as_array(value: Any) -> Array | None:
    """One row of a column: numbers as they are, text as an array of `bytes`; None for what is neither."""
    if isinstance(value, (bytes, str)):
        return _text([value], ())
    if isinstance(value, (bool, int, float, complex)):
        try:
            plain = np.asarray(value)
        except OverflowError:
            return None
        return None if plain.dtype == object else plain
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    array = np.asarray(value)
    return _text(array.ravel().tolist(), array.shape) if array.dtype.kind in "OSU" else array


def _text(values: list[Any], shape: tuple[int, ...]) -> Array | None:
    """An array of `bytes`; None when a value is no text."""
    flat = np.empty(len(values), object)
    for number, value in enumerate(values):
        if not isinstance(value, (bytes, str)):
            return None
        try:
            flat[number] = value.encode() if isinstance(value, str) else bytes(value)
        except UnicodeEncodeError:
            return None
    return flat.reshape(shape)
