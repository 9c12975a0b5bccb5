"""What becomes of a dataset's columns in a dataset of LeRobot: features, the task, metadata and losses.

| column | feature |
| --- | --- |
| `a/b` | `a.b` |
| `observation` | `observation.state` |
| `reward` | `next.reward` |
| `is_terminal` | `next.done`, one row earlier |
| `timestamp` | `timestamp` |
| `language_instruction` | the row's task |
| `is_first`, `is_last` | none: they follow from the rows |

The feature's `info` keeps the column and its shape, so that reading gives them back: LeRobot writes a number without axes with shape (1,).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from rlds2reverb.episode import IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.destination import NEAR_ROWS, NO_ROWS, Content, Loss
from rlds2reverb.formats.lerobot import LOSSES
from rlds2reverb.formats.lerobot.clips import VideoEncoding
from rlds2reverb.formats.lerobot.features import (
    DONE,
    LANGUAGE_INSTRUCTION,
    MOST_AXES,
    NEXT_REWARD,
    NUMBER,
    OURS,
    RESERVED,
    TASK_INDEX,
    TEXT,
    TIMESTAMP,
    VIDEO,
)
from rlds2reverb.specs import REAL_NUMBERS, ArraySpec, ImageSpec

PIXELS, FILES = "pixels", "files"
KEEP, DROP = "keep", "drop"
PNG, ARRAYS = "png", "arrays"

_WRITTEN_CHANNELS = (1, 3)
_VIDEO_CHANNELS = 3
_NAMED = {OBSERVATION: "observation.state", REWARD: NEXT_REWARD}
# Of torch.tensor(number). To be compared with Python's numbers: as floats, as which numpy 1 compares its own, this is 2^63.
MOST_INTEGER = (1 << 63) - 1
DEFAULT_FPS = 10  # used if there are no timestamps
_MOST_LOOKED_AT = 100  # episodes, for their rate
ROBOT, _NAMES_OF = "robot_type", "names/"  # facts of a dataset of LeRobot


@dataclass(frozen=True)
class WrittenFeature:
    """A column that is written, and its feature: of kind NUMBER, TEXT, PIXELS, VIDEO, or FILES for images that come encoded."""

    path: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spec: ArraySpec
    names: Any = None  # of the numbers, as another dataset of LeRobot has them

    @property
    def entry(self) -> dict[str, Any]:
        names = ["height", "width", "channels"] if self.kind in (PIXELS, FILES, VIDEO) else self.names
        dtype = {TEXT: "string", PIXELS: "image", FILES: "image", VIDEO: "video"}.get(self.kind, self.dtype.name)
        ours = {"path": self.path, "shape": list(self.spec.shape)}
        return {"dtype": dtype, "shape": list(self.shape or (1,)), "names": names, "info": {OURS: ours}}


@dataclass(frozen=True)
class LeRobotChoices:
    """The options; see the module."""

    fps: int | None = None
    robot: str = ""
    task: str = ""
    last_step: str = DROP
    images: str = PNG
    file_bytes: int = 100 << 20
    video: VideoEncoding | None = None
    video_bytes: int = 200 << 20


@dataclass(frozen=True)
class LeRobotPlan:
    """How a content is written. Without a task, `task` and `task_feature` are "".

    Attributes:
      features: columns that become features of their own.
      done: whether `is_terminal` becomes `next.done`.
      task, task_feature: the column with the task, or the feature of the episode.
      about: what the source, another dataset of LeRobot, says of itself in info.json.
      rate: rows per second, by the column of times; None without one, or where no time follows another.
    """

    features: tuple[WrittenFeature, ...]
    has_time: bool
    done: bool
    task: str
    task_feature: str
    metadata: tuple[str, ...]
    choices: LeRobotChoices
    about: Mapping[str, Any] = field(default_factory=dict)
    rate: int | None = None

    @property
    def fps(self) -> int:
        """Rows per second of all episodes."""
        return self.choices.fps or self.rate or _fps_in(self.about) or DEFAULT_FPS

    @property
    def videos(self) -> tuple[WrittenFeature, ...]:
        """The features whose frames become videos."""
        return tuple(feature for feature in self.features if feature.kind == VIDEO)

    @property
    def kept(self) -> Collection[str]:
        """Names of the facts that are written, or replaced by an option."""
        has_fps = self.has_time or self.choices.fps or _fps_in(self.about)
        return {
            *(name for name in self.about if name != "fps" or has_fps),
            *([ROBOT] if self.choices.robot else []),
            *(f"{_NAMES_OF}{feature.path}" for feature in self.features if feature.names),
        }

    @property
    def paths(self) -> list[str]:
        """Columns whose rows are all read back."""
        time, task = [TIMESTAMP] if self.has_time else [], [self.task] if self.is_task_only else []
        return [*(feature.path for feature in self.features), *time, *task]

    @property
    def is_task_only(self) -> bool:
        """Whether the task's column is written as the task only, not as a feature."""
        return self.task == LANGUAGE_INSTRUCTION

    @property
    def info_features(self) -> dict[str, dict[str, Any]]:
        """The entry `features` of info.json, in the order of the tables' columns."""
        entries = {feature.name: feature.entry for feature in self.features}
        dtypes = {DONE: "bool"} if self.done else {}
        dtypes |= {name: "float32" if name == TIMESTAMP else "int64" for name in RESERVED}
        entries |= {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in dtypes.items()}
        if self.task:
            entries[TASK_INDEX]["info"] = {OURS: {"task": "column"}}
        return entries


def plan_of(content: Content, choices: LeRobotChoices) -> tuple[LeRobotPlan, list[Loss]]:
    """How a content is written, and the losses; raises `ConfigError` if the option `task` names no text."""
    keeps = choices.last_step == KEEP
    task = choices.task or LANGUAGE_INSTRUCTION
    is_column = _is_text(content.columns.get(task))
    if choices.task and not is_column and not _is_text(content.metadata.get(task)):
        raise ConfigError(f'task "{choices.task}": expected a column or a feature of the episode that is a text')
    losses: list[Loss] = []
    implied = {IS_FIRST, IS_LAST, IS_TERMINAL} if not keeps else set()
    implied |= {LANGUAGE_INSTRUCTION} if task == LANGUAGE_INSTRUCTION and is_column else set()
    time = content.columns.get(TIMESTAMP)
    has_time = time is not None and time.dtype == np.float32 and time.shape == ()
    features = list(_choose_features(content.columns, implied | ({TIMESTAMP} if has_time else set()), choices, losses))
    facts = content.about.facts if content.about.system == "lerobot" else {}
    features = [replace(feature, names=_names_in(facts, feature)) for feature in features]
    about = {name: value for name, value in facts.items() if name != "splits" and not name.startswith(_NAMES_OF)}
    if not has_time and choices.fps is None and not _fps_in(about):
        losses.append(Loss("time", LOSSES["time"], TIMESTAMP))
    is_feature = not is_column and _is_text(content.metadata.get(task))
    written = {LANGUAGE_INSTRUCTION} if is_feature and task == LANGUAGE_INSTRUCTION else set()
    metadata = tuple(_choose_metadata(content.metadata, written, losses))
    done = IS_TERMINAL in content.columns and not keeps
    column, of_episode = task if is_column else "", task if is_feature else ""
    rate = _rate_of(content.episodes) if has_time and not choices.fps else None
    return LeRobotPlan(tuple(features), has_time, done, column, of_episode, metadata, choices, about, rate), losses


def _rate_of(episodes: Iterable[Episode]) -> int | None:
    """The rows per second of the first episode whose times rise. Every worker has to find the same, whatever part of the episodes it reads."""
    for episode in islice(episodes, _MOST_LOOKED_AT):
        times = episode.columns.get(TIMESTAMP)
        steps = np.diff(np.asarray([] if times is None else times, np.float64))
        step = float(np.median(steps[steps > 0])) if (steps > 0).any() else math.inf
        if math.isfinite(step):
            return max(1, round(1 / step))
    return None


def _fps_in(about: Mapping[str, Any]) -> int | None:
    """The rows per second that a dataset says; None if it says no whole number of them."""
    fps = about.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or fps < 1 or fps != fps // 1:
        return None
    return int(fps)


def _names_in(facts: Mapping[str, Any], feature: WrittenFeature) -> Any:
    """The names that another dataset has of a column's numbers; None if there are none, or the column has another shape now."""
    said = facts.get(f"{_NAMES_OF}{feature.path}")
    return said["names"] if said and feature.kind == NUMBER and tuple(said["shape"]) == feature.spec.shape else None


def _choose_features(
    columns: Mapping[str, ArraySpec], implied: set[str], choices: LeRobotChoices, losses: list[Loss]
) -> Iterator[WrittenFeature]:
    names = {*RESERVED, *((DONE,) if IS_TERMINAL in implied and IS_TERMINAL in columns else ())}
    for path, spec in columns.items():
        if path in implied:
            continue
        if path in RESERVED:
            losses.append(Loss("renumbered", LOSSES["renumbered"], path))
            continue
        kind = _kind(spec, choices) if path else None
        if kind is None:
            losses.append(Loss("column", f"{spec}: {LOSSES['column']}", path))
            continue
        name = plain = _NAMED.get(path, path.replace("/", "."))
        number = 2
        while name in names:  # another column has taken it
            name, number = f"{plain}_{number}", number + 1
        names.add(name)
        if kind == NUMBER and spec.dtype.newbyteorder("=") == np.float64:
            losses.append(Loss("float64", LOSSES["float64"], path, NO_ROWS))
        if kind == VIDEO:
            losses.append(Loss("video", LOSSES["video"], path, NEAR_ROWS))
        shape = spec.image.shape if kind == FILES and spec.image else spec.shape
        yield WrittenFeature(path, name, kind, tuple(int(size or 0) for size in shape), spec.dtype, spec)


def _kind(spec: ArraySpec, choices: LeRobotChoices) -> str | None:
    if spec.image is not None:
        return FILES if holds_files(spec) else None
    if spec.dtype.kind == "O":
        return TEXT if spec.shape == () else None
    if spec.dtype.newbyteorder("=").name not in REAL_NUMBERS or None in spec.shape or len(spec.shape) > MOST_AXES:
        return None
    if not math.prod(size or 0 for size in spec.shape):
        return None
    if spec.minimum is not None and spec.dtype == np.uint64 and int(np.min(spec.minimum)) > MOST_INTEGER:
        return None
    is_image = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in _WRITTEN_CHANNELS
    if is_image and choices.video is not None and spec.shape[2] == _VIDEO_CHANNELS:
        return VIDEO
    return PIXELS if is_image and choices.images == PNG else NUMBER


def holds_files(spec: ArraySpec) -> bool:
    """Whether encoded images can be stored as their files: one image of 8 bits and of a known size per step."""
    image = spec.image
    if image is None or spec.shape or image.dtype != np.uint8:
        return False
    return None not in image.shape and image.shape[2] in _WRITTEN_CHANNELS


def becomes_video(image: ImageSpec, choices: LeRobotChoices) -> bool:
    """Whether encoded images are decoded, because their frames become a video."""
    return choices.video is not None and image.shape[2] == _VIDEO_CHANNELS


def _choose_metadata(specs: Mapping[str, ArraySpec], written: Collection[str], losses: list[Loss]) -> Iterator[str]:
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
