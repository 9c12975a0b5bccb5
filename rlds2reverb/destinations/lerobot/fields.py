"""Which feature of LeRobot holds a column; the way back from `readers.lerobot.features`.

| column | feature |
| --- | --- |
| `a/b` | `a.b` |
| `observation` | `observation.state` |
| `reward` | `next.reward` |
| `is_terminal` | `next.done`, one row earlier |
| `timestamp` | `timestamp` |
| `language_instruction` | the row's task |
| `is_first`, `is_last` | none: the rows tell |

Every feature's `info` has the column's path and shape, so that reading gives them back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.destinations.base import Content, Loss
from rlds2reverb.destinations.lerobot import LOSSES
from rlds2reverb.episodes import IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD
from rlds2reverb.errors import ConfigError
from rlds2reverb.readers.lerobot.dataset import LANGUAGE_INSTRUCTION
from rlds2reverb.readers.lerobot.features import DONE, DTYPES, MOST_AXES, NEXT_REWARD, OURS, RESERVED, TIMESTAMP
from rlds2reverb.specs import ArraySpec

NUMBER, TEXT, PIXELS, FILES = "number", "text", "pixels", "files"
KEEP, DROP = "keep", "drop"
PNG, ARRAYS = "png", "arrays"

_CHANNELS = (1, 3)
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
    def told(self) -> dict[str, Any]:
        """What info.json says of it."""
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
      task: the column with the task; "" where it is a feature of the episode, or there is none.
      task_feature: that feature; "" where there is none.
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
        """Columns that are written, each of whose rows comes back."""
        time, task = [TIMESTAMP] if self.has_time else [], [self.task] if self.tells_task else []
        return [*(one.path for one in self.fields), *time, *task]

    @property
    def tells_task(self) -> bool:
        """Whether the column with the task is written as the task alone."""
        return self.task == LANGUAGE_INSTRUCTION


def plan(content: Content, choices: Choices) -> tuple[Plan, list[Loss]]:
    """How a content is written, and what is lost of it.

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
    told = {LANGUAGE_INSTRUCTION} if is_feature and task == LANGUAGE_INSTRUCTION else set()
    metadata = tuple(_metadata(content.metadata, told, losses))
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
    """The feature's name; with a number behind it where another column has it already."""
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
    is_image = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in _CHANNELS
    return PIXELS if is_image and choices.images == PNG else NUMBER


def holds_files(spec: ArraySpec) -> bool:
    """Whether a column of encoded images can be kept as the bytes of their files: one image of 8 bits and of a known size per step."""
    image = spec.image
    if image is None or spec.shape or image.dtype != np.uint8:
        return False
    return None not in image.shape and image.shape[2] in _CHANNELS


def _metadata(specs: Mapping[str, ArraySpec], told: Collection[str], losses: list[Loss]) -> Iterator[str]:
    for path, spec in specs.items():
        if path in told:
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
