"""The features of info.json, and the step columns that they become.

| feature | column |
| --- | --- |
| `observation.a.b`, `action.a` | `observation/a/b`, `action/a`; a dot behind the name of another feature stays one |
| `next.reward` | `reward` |
| `next.done` | `is_terminal` of the last row, see `recordings` |
| others | under their own names |

Where rlds2reverb wrote the dataset, a feature's `info` tells the column and its shape: LeRobot writes a number without axes as one of shape (1,).
Source of the kinds: feature_utils.py of lerobot 0.6.1 (`get_hf_features_from_features`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, OBSERVATION, REWARD
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wording import shortened

NUMBER, TEXT, IMAGE, VIDEO, LANGUAGE = "number", "text", "image", "video", "language"
KINDS = {"string": TEXT, "image": IMAGE, "video": VIDEO, "language": LANGUAGE}

TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX = RESERVED = (
    "timestamp",
    "frame_index",
    "episode_index",
    "index",
    "task_index",
)
DONE = "next.done"
NEXT_REWARD = "next.reward"
OURS = "rlds2reverb"
"""Key of a feature's `info` under which its column stands."""

DTYPES = {
    kind: np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
MOST_AXES = 5
_MOST_VALUES = 1 << 28
"""Of one step: a gigabyte of float32."""
_MOST_FEATURES = 10_000
_LONGEST_PATH = 1000
_CHANNELS = ("channel", "channels", "c")


@dataclass(frozen=True)
class Feature:
    """One feature.

    Attributes:
      name: LeRobot's.
      kind: one of the five above.
      path: of the step column.
      shape: of a step's value there; height, width and channels of an image.
      dtype: there; object for text.
      is_depth: whether an image or a video is a depth map.
    """

    name: str
    kind: str
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_depth: bool = False

    @property
    def spec(self) -> ArraySpec:
        """That of the column."""
        return ArraySpec(self.shape, self.dtype)

    @property
    def size(self) -> int:
        """Values of a step."""
        return math.prod(self.shape)


def tells_of_tasks(found: Any) -> bool:
    """Whether rlds2reverb wrote the dataset from one whose task is a column."""
    told = _of(found, TASK_INDEX) if isinstance(found, dict) else {}
    return _ours(told).get("task") == "column"


def features_of(path: Path, found: Any) -> dict[str, Feature]:
    """The features that info.json tells.

    Raises:
      SourceError: a feature is of a kind or a shape that is not read, or has a "/" in its name.
    """
    if not isinstance(found, dict) or not 0 < len(found) <= _MOST_FEATURES:
        raise SourceError(f"{path}: features: expected an object, found {shortened(repr(found))}")
    for name, told in found.items():
        if "/" in name or not name or not isinstance(told, dict):
            raise SourceError(
                f'{path}: feature "{shortened(name)}": expected a name without "/", and an object with dtype and shape'
            )
    columns = _paths(found)
    return {
        name: _feature(f'{path}: feature "{shortened(name)}"', name, told, columns[name])
        for name, told in found.items()
    }


def _feature(where: str, name: str, told: Mapping[str, Any], path: str) -> Feature:
    dtype = told.get("dtype")
    kind = KINDS.get(dtype, NUMBER) if isinstance(dtype, str) else NUMBER
    shape = _shape(where, told.get("shape"))
    if kind == NUMBER and (not isinstance(dtype, str) or dtype not in DTYPES):
        known = ", ".join((*DTYPES, *KINDS))
        raise SourceError(f"{where}: dtype {shortened(repr(dtype))} is not read; expected one of {known}")
    if kind in (IMAGE, VIDEO):
        return _picture(where, name, told, path, shape)
    if kind == LANGUAGE:
        return Feature(name, kind, path, (), np.dtype(object))
    if shape == (1,) and (kind == TEXT or _is_scalar(name, path)):
        shape = ()
    recorded = _ours(told).get("shape")
    if isinstance(recorded, list) and recorded == [] and shape == (1,):
        shape = ()
    elif recorded == [1] and shape == ():
        shape = (1,)
    return Feature(name, kind, path, shape, np.dtype(object) if kind == TEXT else DTYPES[str(dtype)])


def _is_scalar(name: str, path: str) -> bool:
    return name in RESERVED or name.startswith("next.") or path in (REWARD, DISCOUNT, *FLAGS)


def _picture(where: str, name: str, told: Mapping[str, Any], path: str, shape: tuple[int, ...]) -> Feature:
    if len(shape) != 3:
        raise SourceError(f"{where}: shape {shape}: expected three axes: height, width and channels")
    names = told.get("names")
    first = names[0] if isinstance(names, list) and names else None
    if first in _CHANNELS or (first is None and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4)):
        shape = (*shape[1:], shape[0])
    is_depth = _is_depth(told)
    dtype = np.dtype(np.uint16 if is_depth else np.uint8)
    if is_depth and told["dtype"] == IMAGE and _of(told, "info").get("depth_unit") == "m":
        dtype = np.dtype(np.float32)
    return Feature(name, told["dtype"], path, shape, dtype, is_depth)


def _is_depth(told: Mapping[str, Any]) -> bool:
    info, older = _of(told, "info"), _of(told, "video_info")
    return any(
        found is True for found in (info.get("is_depth_map"), *(one.get("video.is_depth_map") for one in (info, older)))
    )


def _shape(where: str, found: Any) -> tuple[int, ...]:
    sizes = found if isinstance(found, list) else [None]
    if not all(type(size) is int and size >= 0 for size in sizes) or not 0 < len(sizes) <= MOST_AXES:
        raise SourceError(f"{where}: shape {shortened(repr(found))}: expected a list of 1 to {MOST_AXES} sizes")
    if math.prod(max(1, size) for size in sizes) > _MOST_VALUES:
        raise SourceError(f"{where}: shape {shortened(repr(found))}: expected at most {_MOST_VALUES:,} values")
    return tuple(sizes)


def _paths(found: Mapping[str, Any]) -> dict[str, str]:
    """Name -> path of its column; no path twice."""
    paths: dict[str, str] = {}
    for name, told in found.items():
        ours = _ours(told).get("path")
        if isinstance(ours, str) and 0 < len(ours) <= _LONGEST_PATH and ours not in paths.values():
            paths[name] = ours
    for name in found:
        if name not in paths:
            path = _path(name, found)
            paths[name] = name if path in paths.values() else path
    return paths


def _path(name: str, names: Mapping[str, Any]) -> str:
    if name == NEXT_REWARD:
        return REWARD
    first, *rest = name.split(".")
    if first not in (OBSERVATION, ACTION) or not all(rest):
        return name
    path, until = first, first
    for part in rest:
        path += f"{'.' if until in names else '/'}{part}"
        until += f".{part}"
    return path


def _ours(told: Mapping[str, Any]) -> Mapping[str, Any]:
    return _of(_of(told, "info"), OURS)


def _of(told: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = told.get(key)
    return found if isinstance(found, dict) else {}
