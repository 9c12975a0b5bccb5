"""Columns of Arrow as the columns of an episode.

| feature | in Arrow |
| --- | --- |
| number of shape (1,) | a plain column |
| shape (n,) | lists of n, of fixed size or not |
| 2 to 5 axes | lists within lists; the shape stands in info.json |
| string | text |
| language_persistent, language_events | lists of structs; here a text of JSON |

Source: feature_utils.py of lerobot 0.6.1 (`get_hf_features_from_features`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.episodes import Array
from rlds2reverb.readers.lerobot.features import LANGUAGE, TEXT, Feature
from rlds2reverb.readers.lerobot.tables import ERRORS
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.wording import line_of


def column(feature: Feature, found: pa.Array, path: Path) -> Array:
    """[T, ...] of a feature that is no image.

    Raises:
      BrokenEpisode: a value is missing, of another shape, or one that the feature's dtype does not hold.
    """
    try:
        stored = _stored(found)
        if feature.kind == LANGUAGE:
            return _as_json(stored)
        if stored.null_count:
            raise BrokenEpisode(
                feature.path, f'{path}: column "{feature.name}": {stored.null_count:,} rows without a value'
            )
        flat = _flat(feature, stored, path)
        return _text(feature, flat, path) if feature.kind == TEXT else _numbers(feature, flat, len(stored), path)
    except ERRORS as error:
        raise BrokenEpisode(
            feature.path, f'{path}: column "{feature.name}": cannot be read: {line_of(error)}'
        ) from error


def image_files(feature: Feature, found: pa.Array, path: Path) -> list[bytes]:
    """The bytes of every row's file.

    Raises:
      BrokenEpisode: a row has none; LeRobot always puts them into the table.
    """
    try:
        stored = _stored(found)
        bytes_ = stored.field("bytes") if pa.types.is_struct(stored.type) else stored
        files: list[bytes] = bytes_.to_pylist()
    except ERRORS as error:
        raise BrokenEpisode(
            feature.path, f'{path}: column "{feature.name}": cannot be read: {line_of(error)}'
        ) from error
    for row, file in enumerate(files):
        if not isinstance(file, bytes):
            raise BrokenEpisode(
                feature.path,
                f'{path}: column "{feature.name}", row {row}: no bytes of an image file; only images inside the table are read',
            )
    return files


def _stored(found: pa.Array) -> pa.Array:
    return found.storage if isinstance(found, pa.ExtensionArray) else found


def _flat(feature: Feature, stored: pa.Array, path: Path) -> pa.Array:
    """The values without lists around them; every list has the size that the feature tells."""
    for axis, size in enumerate(feature.shape):
        if not _is_list(stored.type):
            if axis == 0 and feature.size == 1 and axis == len(feature.shape) - 1:
                return stored
            raise BrokenEpisode(
                feature.path,
                f'{path}: column "{feature.name}": expected lists of the shape {list(feature.shape)}, found {stored.type} at axis {axis}',
            )
        rows, sizes = len(stored), _sizes(stored)
        if (sizes != size).any():
            raise BrokenEpisode(
                feature.path,
                f'{path}: column "{feature.name}": a list of {int(sizes[sizes != size][0]):,} values at axis {axis}; expected {size:,}',
            )
        stored = _stored(stored.flatten())
        if len(stored) != rows * size or stored.null_count:
            raise BrokenEpisode(feature.path, f'{path}: column "{feature.name}": a value is missing')
    if _is_list(stored.type) and feature.shape == ():
        return _flat(Feature(feature.name, feature.kind, feature.path, (1,), feature.dtype), stored, path)
    return stored


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _sizes(stored: Any) -> Array:
    if pa.types.is_fixed_size_list(stored.type):
        return np.array([stored.type.list_size])
    return np.diff(stored.offsets.to_numpy())


def _numbers(feature: Feature, flat: pa.Array, rows: int, path: Path) -> Array:
    values = np.asarray(flat.to_numpy(zero_copy_only=False))
    if values.dtype != feature.dtype:
        if values.dtype.kind not in "biuf":
            raise BrokenEpisode(
                feature.path, f'{path}: column "{feature.name}": holds {flat.type}; expected {feature.dtype}'
            )
        with np.errstate(all="ignore"):
            cast = values.astype(feature.dtype)
            differs = (cast.astype(values.dtype) != values) & ~((cast != cast) & (values != values))
        if differs.any():
            raise BrokenEpisode(
                feature.path,
                f'{path}: column "{feature.name}": holds {flat.type}, of which {feature.dtype} of info.json does not hold every value',
            )
        values = cast
    return values.reshape(rows, *feature.shape)


def _text(feature: Feature, flat: pa.Array, path: Path) -> Array:
    if not (pa.types.is_string(flat.type) or pa.types.is_large_string(flat.type)):
        raise BrokenEpisode(feature.path, f'{path}: column "{feature.name}": holds {flat.type}; expected text')
    values = flat.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    return np.asarray(values, object).reshape(-1, *feature.shape)


def _as_json(stored: pa.Array) -> Array:
    """One text per row; rows without any have "[]"."""
    texts = np.empty(len(stored), object)
    texts[:] = [
        json.dumps(row or [], ensure_ascii=False).encode(errors="backslashreplace") for row in stored.to_pylist()
    ]
    return texts
