"""The features of LeRobot's info.json, and the columns of RLDS' steps that they become.

| feature | column |
| --- | --- |
| `observation.a.b`, `action.a` | `observation/a/b`, `action/a`; a dot behind the name of another feature stays one |
| `next.reward` | `reward` |
| `next.done` | `is_terminal` of the last row, see `read` |
| any other | the same name |

A feature that rlds2reverb wrote has its column and shape in `info`; see `write`.
Source of the kinds: feature_utils.py of lerobot 0.6.1 (`get_hf_features_from_features`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, DISCOUNT, FLAGS, OBSERVATION, REWARD
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import REAL_NUMBERS, ArraySpec
from rlds2reverb.text import shortened

NUMBER, TEXT, IMAGE, VIDEO, LANGUAGE = "number", "text", "image", "video", "language"
KINDS = {"string": TEXT, "image": IMAGE, "video": VIDEO, "language": LANGUAGE}

RESERVED = ("timestamp", "frame_index", "episode_index", "index", "task_index")
TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX = RESERVED
DONE = "next.done"
LANGUAGE_INSTRUCTION = "language_instruction"  # the column, or the feature of the episode, with the text of the task
NEXT_REWARD = "next.reward"
OURS = "rlds2reverb"  # key of a feature's `info` that holds its column

MOST_AXES = 5
_MOST_VALUES = 1 << 28  # of one step: a gigabyte of float32
_MOST_FEATURES = 10_000
_LONGEST_PATH = 1000
_CHANNELS = ("channel", "channels", "c")


@dataclass(frozen=True)
class Feature:
    """A feature of a kind above: the path of its step column, and the shape of a value there: height, width and channels of an image."""

    name: str
    kind: str
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_depth: bool = False

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape, self.dtype)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def task_is_column(entries: Mapping[str, Any]) -> bool:
    """Whether rlds2reverb wrote the dataset from data with the task as a column."""
    return _ours(_object_in(entries, TASK_INDEX)).get("task") == "column"


def read_features(path: Path, entries: Any) -> dict[str, Feature]:
    """Reads the features of info.json; raises `SourceError` for an unsupported kind or shape, or a "/" in a name."""
    if not isinstance(entries, dict) or not 0 < len(entries) <= _MOST_FEATURES:
        raise SourceError(f"{path}: features: expected an object, found {shortened(repr(entries))}")
    for name, entry in entries.items():
        if "/" in name or not name or not isinstance(entry, dict):
            raise SourceError(
                f'{path}: feature "{shortened(name)}": expected a name without "/", and an object with dtype and shape'
            )
    columns = _choose_paths(entries)
    return {
        name: _read_feature(f'{path}: feature "{shortened(name)}"', name, entry, columns[name])
        for name, entry in entries.items()
    }


def _read_feature(where: str, name: str, entry: Mapping[str, Any], path: str) -> Feature:
    dtype = entry.get("dtype")
    kind = KINDS.get(dtype, NUMBER) if isinstance(dtype, str) else NUMBER
    shape = _read_shape(where, entry.get("shape"))
    if kind == NUMBER and (not isinstance(dtype, str) or dtype not in REAL_NUMBERS):
        names = ", ".join((*REAL_NUMBERS, *KINDS))
        raise SourceError(f"{where}: dtype {shortened(repr(dtype))} is not read; expected one of {names}")
    if kind in (IMAGE, VIDEO):
        return _read_picture(where, name, entry, path, shape)
    if kind == LANGUAGE:
        return Feature(name, kind, path, (), np.dtype(object))
    # LeRobot writes a number without axes with the shape [1]. Its own counters and flags are numbers; of others, `info` says what they were.
    is_scalar = name in RESERVED or name.startswith("next.") or path in (REWARD, DISCOUNT, *FLAGS)
    if shape == (1,) and (kind == TEXT or is_scalar):
        shape = ()
    recorded = _ours(entry).get("shape")
    if recorded in ([], [1]) and shape in ((), (1,)):
        shape = tuple(recorded)
    return Feature(name, kind, path, shape, np.dtype(object) if kind == TEXT else REAL_NUMBERS[str(dtype)])


def _read_picture(where: str, name: str, entry: Mapping[str, Any], path: str, shape: tuple[int, ...]) -> Feature:
    if len(shape) != 3:
        raise SourceError(f"{where}: shape {shape}: expected three axes: height, width and channels")
    names = entry.get("names")
    first = names[0] if isinstance(names, list) and names else None
    # Channels come first where the names say so; without names, where the sizes allow nothing else.
    if first in _CHANNELS or (first is None and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4)):
        shape = (*shape[1:], shape[0])
    info, older = _object_in(entry, "info"), _object_in(entry, "video_info")
    marks = (info.get("is_depth_map"), info.get("video.is_depth_map"), older.get("video.is_depth_map"))
    is_depth = any(mark is True for mark in marks)
    dtype = np.dtype(np.uint16 if is_depth else np.uint8)
    if is_depth and entry["dtype"] == IMAGE and info.get("depth_unit") == "m":
        dtype = np.dtype(np.float32)
    return Feature(name, entry["dtype"], path, shape, dtype, is_depth)


def _read_shape(where: str, value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else [None]
    if not all(type(size) is int and size >= 0 for size in sizes) or not 0 < len(sizes) <= MOST_AXES:
        raise SourceError(f"{where}: shape {shortened(repr(value))}: expected a list of 1 to {MOST_AXES} sizes")
    if math.prod(max(1, size) for size in sizes) > _MOST_VALUES:
        raise SourceError(f"{where}: shape {shortened(repr(value))}: expected at most {_MOST_VALUES:,} values")
    return tuple(sizes)


def _choose_paths(entries: Mapping[str, Any]) -> dict[str, str]:
    """Name -> path of its column. No two features share a path."""
    paths: dict[str, str] = {}
    for name, entry in entries.items():
        ours = _ours(entry).get("path")
        if isinstance(ours, str) and 0 < len(ours) <= _LONGEST_PATH and ours not in paths.values():
            paths[name] = ours
    for name in entries:
        if name not in paths:
            path = _path_of(name, entries)
            paths[name] = name if path in paths.values() else path
    return paths


def _path_of(name: str, names: Mapping[str, Any]) -> str:
    if name == NEXT_REWARD:
        return REWARD
    first, *parts_below = name.split(".")
    if first not in (OBSERVATION, ACTION) or not all(parts_below):
        return name
    path, until = first, first
    for part in parts_below:
        path += f"{'.' if until in names else '/'}{part}"
        until += f".{part}"
    return path


def _ours(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object_in(_object_in(entry, "info"), OURS)


def _object_in(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}
