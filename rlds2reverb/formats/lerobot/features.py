"""The features of LeRobot's info.json, and the columns of RLDS' steps: which becomes which, read and written.

| feature, when it is read | column |
| --- | --- |
| `observation.a.b`, `action.a` | `observation/a/b`, `action/a`; a dot behind the name of another feature stays one |
| `next.reward` | `reward` |
| `next.done` | `is_terminal` of the last row, see `read` |
| others | under their own names |

| column, when it is written | feature |
| --- | --- |
| `a/b` | `a.b` |
| `observation` | `observation.state` |
| `reward` | `next.reward` |
| `is_terminal` | `next.done`, one row earlier |
| `timestamp` | `timestamp` |
| `language_instruction` | the row's task |
| `is_first`, `is_last` | none: the rows tell |

What is written here tells the column and its shape in the feature's `info`, so that reading gives them back: LeRobot writes a number
without axes as one of shape (1,).
Source of the kinds: feature_utils.py of lerobot 0.6.1 (`get_hf_features_from_features`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, DISCOUNT, FLAGS, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.destination import Content, Loss
from rlds2reverb.formats.lerobot import LOSSES
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import shortened

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
LANGUAGE_INSTRUCTION = "language_instruction"
"""The column, or the feature of the episode, with the text of the task."""
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
    """Whether rlds2reverb wrote the dataset from data with the task as a column."""
    entry = _of(found, TASK_INDEX) if isinstance(found, dict) else {}
    return _ours(entry).get("task") == "column"


def features_of(path: Path, found: Any) -> dict[str, Feature]:
    """The features of info.json.

    Raises:
      SourceError: a feature has an unsupported kind or shape, or a "/" in its name.
    """
    if not isinstance(found, dict) or not 0 < len(found) <= _MOST_FEATURES:
        raise SourceError(f"{path}: features: expected an object, found {shortened(repr(found))}")
    for name, entry in found.items():
        if "/" in name or not name or not isinstance(entry, dict):
            raise SourceError(
                f'{path}: feature "{shortened(name)}": expected a name without "/", and an object with dtype and shape'
            )
    columns = _paths(found)
    return {
        name: _feature(f'{path}: feature "{shortened(name)}"', name, entry, columns[name])
        for name, entry in found.items()
    }


def _feature(where: str, name: str, entry: Mapping[str, Any], path: str) -> Feature:
    dtype = entry.get("dtype")
    kind = KINDS.get(dtype, NUMBER) if isinstance(dtype, str) else NUMBER
    shape = _shape(where, entry.get("shape"))
    if kind == NUMBER and (not isinstance(dtype, str) or dtype not in DTYPES):
        known = ", ".join((*DTYPES, *KINDS))
        raise SourceError(f"{where}: dtype {shortened(repr(dtype))} is not read; expected one of {known}")
    if kind in (IMAGE, VIDEO):
        return _picture(where, name, entry, path, shape)
    if kind == LANGUAGE:
        return Feature(name, kind, path, (), np.dtype(object))
    if shape == (1,) and (kind == TEXT or _is_scalar(name, path)):
        shape = ()
    recorded = _ours(entry).get("shape")
    if isinstance(recorded, list) and recorded == [] and shape == (1,):
        shape = ()
    elif recorded == [1] and shape == ():
        shape = (1,)
    return Feature(name, kind, path, shape, np.dtype(object) if kind == TEXT else DTYPES[str(dtype)])


def _is_scalar(name: str, path: str) -> bool:
    return name in RESERVED or name.startswith("next.") or path in (REWARD, DISCOUNT, *FLAGS)


def _picture(where: str, name: str, entry: Mapping[str, Any], path: str, shape: tuple[int, ...]) -> Feature:
    if len(shape) != 3:
        raise SourceError(f"{where}: shape {shape}: expected three axes: height, width and channels")
    names = entry.get("names")
    first = names[0] if isinstance(names, list) and names else None
    if first in _CHANNELS or (first is None and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4)):
        shape = (*shape[1:], shape[0])
    is_depth = _is_depth(entry)
    dtype = np.dtype(np.uint16 if is_depth else np.uint8)
    if is_depth and entry["dtype"] == IMAGE and _of(entry, "info").get("depth_unit") == "m":
        dtype = np.dtype(np.float32)
    return Feature(name, entry["dtype"], path, shape, dtype, is_depth)


def _is_depth(entry: Mapping[str, Any]) -> bool:
    info, older = _of(entry, "info"), _of(entry, "video_info")
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
    """Name -> path of its column. No two features share a path."""
    paths: dict[str, str] = {}
    for name, entry in found.items():
        ours = _ours(entry).get("path")
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


def _ours(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _of(_of(entry, "info"), OURS)


def _of(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = entry.get(key)
    return found if isinstance(found, dict) else {}


PIXELS, FILES = "pixels", "files"
KEEP, DROP = "keep", "drop"
PNG, ARRAYS = "png", "arrays"

_WRITTEN_CHANNELS = (1, 3)
_NAMED = {OBSERVATION: "observation.state", REWARD: NEXT_REWARD}


@dataclass(frozen=True)
class Field:
    """A column and its feature.

    Attributes:
      path: the column's.
      name: the feature's.
      kind: one of the four above; FILES are images that come encoded.
      shape: of a value; height, width and channels of an image.
      dtype: of a number.
      spec: the column's.
    """

    path: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spec: ArraySpec

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in info.json."""
        names = ["height", "width", "channels"] if self.kind in (PIXELS, FILES) else None
        dtype = {TEXT: "string", PIXELS: "image", FILES: "image"}.get(self.kind, self.dtype.name)
        ours = {"path": self.path, "shape": list(self.spec.shape)}
        return {"dtype": dtype, "shape": list(self.shape or (1,)), "names": names, "info": {OURS: ours}}


@dataclass(frozen=True)
class Choices:
    """The options.

    Attributes:
      fps: rows per second; None for those of the timestamps.
      robot: `robot_type`.
      task: the column or the episode's feature that is the task; "" for `language_instruction`.
      last_step: "drop" or "keep".
      images: "png" or "arrays".
      file_bytes: about how large files with rows may be.
    """

    fps: int | None = None
    robot: str = ""
    task: str = ""
    last_step: str = DROP
    images: str = PNG
    file_bytes: int = 100 << 20


@dataclass(frozen=True)
class Plan:
    """How a content is written.

    Attributes:
      fields: columns that become features of their own.
      has_time: whether there is a column `timestamp`.
      done: whether `is_terminal` becomes `next.done`.
      task: the column with the task; "" if it is a feature of the episode, or if there is none.
      task_feature: that feature; "" if there is none.
      metadata: features of episodes that are written.
      choices: the options.
    """

    fields: tuple[Field, ...]
    has_time: bool
    done: bool
    task: str
    task_feature: str
    metadata: tuple[str, ...]
    choices: Choices = field(default_factory=Choices)

    @property
    def paths(self) -> list[str]:
        """Columns whose rows are all read back."""
        time, task = [TIMESTAMP] if self.has_time else [], [self.task] if self.tells_task else []
        return [*(one.path for one in self.fields), *time, *task]

    @property
    def tells_task(self) -> bool:
        """Whether the column is written as the task only, not as a feature."""
        return self.task == LANGUAGE_INSTRUCTION


def plan_of(content: Content, choices: Choices) -> tuple[Plan, list[Loss]]:
    """How a content is written, and what is lost.

    Raises:
      ConfigError: the option `task` names no text.
    """
    keeps = choices.last_step == KEEP
    task = choices.task or LANGUAGE_INSTRUCTION
    is_column = _is_text(content.columns.get(task))
    if choices.task and not is_column and not _is_text(content.metadata.get(task)):
        raise ConfigError(f'task "{choices.task}": expected a column or a feature of the episode that is a text')
    losses: list[Loss] = []
    made = {IS_FIRST, IS_LAST, IS_TERMINAL} if not keeps else set()
    made |= {LANGUAGE_INSTRUCTION} if task == LANGUAGE_INSTRUCTION and is_column else set()
    has_time = _is_time(content.columns.get(TIMESTAMP))
    fields = list(_fields(content.columns, made | ({TIMESTAMP} if has_time else set()), choices, losses))
    if not has_time and choices.fps is None:
        losses.append(Loss("time", LOSSES["time"], TIMESTAMP))
    is_feature = not is_column and _is_text(content.metadata.get(task))
    written = {LANGUAGE_INSTRUCTION} if is_feature and task == LANGUAGE_INSTRUCTION else set()
    metadata = tuple(_metadata(content.metadata, written, losses))
    done = IS_TERMINAL in content.columns and not keeps
    return Plan(
        tuple(fields), has_time, done, task if is_column else "", task if is_feature else "", metadata, choices
    ), losses


def _fields(columns: Mapping[str, ArraySpec], made: set[str], choices: Choices, losses: list[Loss]) -> Iterator[Field]:
    names = {*RESERVED, *((DONE,) if IS_TERMINAL in made and IS_TERMINAL in columns else ())}
    for path, spec in columns.items():
        if path in made:
            continue
        if path in RESERVED:
            losses.append(Loss("renumbered", LOSSES["renumbered"], path))
            continue
        kind = _kind(spec, choices) if path else None
        if kind is None:
            losses.append(Loss("column", f"{spec}: {LOSSES['column']}", path))
            continue
        name = _name(path, names)
        names.add(name)
        shape = spec.image.shape if kind == FILES and spec.image else spec.shape
        yield Field(path, name, kind, tuple(int(size or 0) for size in shape), spec.dtype, spec)


def _name(path: str, taken: set[str]) -> str:
    """The feature's name, with a number at its end if another column has taken the name."""
    name = plain = _NAMED.get(path, path.replace("/", "."))
    number = 2
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    return name


def _kind(spec: ArraySpec, choices: Choices) -> str | None:
    if spec.image is not None:
        return FILES if holds_files(spec) else None
    if spec.dtype.kind == "O":
        return TEXT if spec.shape == () else None
    if spec.dtype.newbyteorder("=").name not in DTYPES or None in spec.shape or len(spec.shape) > MOST_AXES:
        return None
    if not math.prod(size or 0 for size in spec.shape):
        return None
    is_image = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in _WRITTEN_CHANNELS
    return PIXELS if is_image and choices.images == PNG else NUMBER


def holds_files(spec: ArraySpec) -> bool:
    """Whether encoded images can be stored as their files: one image of 8 bits and of a known size per step."""
    image = spec.image
    if image is None or spec.shape or image.dtype != np.uint8:
        return False
    return None not in image.shape and image.shape[2] in _WRITTEN_CHANNELS


def _metadata(specs: Mapping[str, ArraySpec], written: Collection[str], losses: list[Loss]) -> Iterator[str]:
    for path, spec in specs.items():
        if path in written:
            continue
        if path in RESERVED:
            losses.append(Loss("renumbered", LOSSES["renumbered"], f"metadata/{path}"))
        elif spec.shape or (spec.dtype.kind not in "biuO" and spec.dtype.name not in ("float32", "float64")):
            losses.append(Loss("feature", f"{spec}: {LOSSES['feature']}", f"metadata/{path}"))
        else:
            yield path


def _is_text(spec: ArraySpec | None) -> bool:
    return spec is not None and spec.dtype.kind == "O" and spec.shape == () and spec.image is None


def _is_time(spec: ArraySpec | None) -> bool:
    return spec is not None and spec.dtype == np.float32 and spec.shape == ()
