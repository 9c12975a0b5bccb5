"""Writes a LeRobot dataset of version 3.0: `lerobot:PATH[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `fps` | a number | rows per second; by default from the column `timestamp`, else that of another dataset of LeRobot, else 10 |
| `robot` | a name | `robot_type` |
| `task` | a path | the column, or the feature of the episode, that is the task; `language_instruction` by default |
| `last_step` | `drop`, `keep` | whether the last step, which has no action, is a row |
| `images` | `png`, `arrays` | storage of uint8 columns of the shape (height, width, 1 or 3) |
| `file_mb` | a number | size at which a file of rows is closed; 100 by default, as in LeRobot |

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

Statistics are those that LeRobot normalizes by: for each place of the last axis, over all rows and other axes; for each channel of an
image, [channels, 1, 1], over at most a hundred images and every few pixels of them, divided by 255. An episode's quantiles are exact;
those of the dataset are the episodes' averages, as in LeRobot. Source: compute_stats.py and feature_utils.py of lerobot 0.6.1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.episode import (
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    is_under,
    metadata_path,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import put, whole, write_json
from rlds2reverb.formats.destination import (
    LAST_ROW,
    NO_ROWS,
    Content,
    Destination,
    Encode,
    Loss,
    State,
    UnfitEpisode,
    are_equal,
    made_flags,
    place_named,
)
from rlds2reverb.formats.lerobot import LOSSES
from rlds2reverb.formats.lerobot.features import (
    DONE,
    DTYPES,
    EPISODE_INDEX,
    FRAME_INDEX,
    INDEX,
    LANGUAGE_INSTRUCTION,
    MOST_AXES,
    NEXT_REWARD,
    NUMBER,
    OURS,
    RESERVED,
    TASK_INDEX,
    TEXT,
    TIMESTAMP,
)
from rlds2reverb.formats.lerobot.meta import METADATA
from rlds2reverb.formats.lerobot.read import row_behind
from rlds2reverb.formats.options import Parse, at_least_one, escape_text, one_of, read_path_and_options, some_text
from rlds2reverb.images import check_png_library, decode_images, png_files
from rlds2reverb.specs import ArraySpec, ImageSpec

PIXELS, FILES = "pixels", "files"
KEEP, DROP = "keep", "drop"
PNG, ARRAYS = "png", "arrays"

_WRITTEN_CHANNELS = (1, 3)
_NAMED = {OBSERVATION: "observation.state", REWARD: NEXT_REWARD}

OPTIONS: dict[str, Parse] = {
    "fps": at_least_one,
    "robot": some_text,
    "task": some_text,
    "last_step": one_of(drop=DROP, keep=KEEP),
    "images": one_of(png=PNG, arrays=ARRAYS),
    "file_mb": at_least_one,
}


def open_lerobot(text: str) -> LeRobotDestination:
    """The destination that the text after "lerobot:" names.

    Raises:
      ConfigError: the path is missing, or an option has no valid value.
    """
    name = f"lerobot:{text}"
    path, options = read_path_and_options(name, text, OPTIONS, ConfigError)
    if not path or "\0" in path:
        raise ConfigError(f'"{name}": expected lerobot:PATH, the folder of the dataset to be')
    file_bytes = options.pop("file_mb", 100) << 20
    return LeRobotDestination(name, place_named(path), LeRobotChoices(**options, file_bytes=file_bytes))


class LeRobotDestination(Destination):
    def __init__(self, name: str, path: Path, choices: LeRobotChoices) -> None:
        self.name, self.path, self._choices = name, path, choices

    def source(self, path: Path) -> str:
        return f"lerobot:{escape_text(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        return (  # of a dataset of any version
            "meta/info.json",
            *(f"meta/**/*.{kind}" for kind in ("json", "jsonl", "parquet", "safetensors")),
            "data/**/*.parquet",
            "videos/**/*.mp4",
            *(f"images/**/*.{kind}" for kind in ("png", "jpg", "jpeg")),
            "README.md",
            ".gitattributes",
        )

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """One image of 8 bits and of a known size per step; LeRobot decodes by Pillow, and turns images by EXIF."""
        return {
            path: replace(image, is_accurate=True, is_upright=True)
            for path, image in images.items()
            if _holds_files(columns[path])
        }

    def losses(self, content: Content) -> Sequence[Loss]:
        return _plan_of(content, self._choices)[1]

    def kept_facts(self, content: Content) -> Collection[str]:
        return _plan_of(content, self._choices)[0].kept

    @property
    def least_rows(self) -> int:
        return 1 if self._choices.last_step == KEEP else 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        return {} if self._choices.last_step == KEEP else made_flags(episode)

    def encoder(self, content: Content) -> Encode:
        return self._plan(content).encode

    def sink(self, work: Path, content: Content, state: State | None) -> LeRobotSink:
        return LeRobotSink(work, self._plan(content), state)

    def _plan(self, content: Content) -> LeRobotPlan:
        plan, _ = _plan_of(content, self._choices)
        if any(feature.kind in (PIXELS, FILES) for feature in plan.features):
            check_png_library("images=arrays")
        return plan


@dataclass(frozen=True)
class EncodedEpisode:
    """The part of an episode's rows that depends on no other episode.

    Attributes:
      columns: feature -> [rows], in the order of the table; without those that count through the dataset.
      tasks: the task of each row, or the one of all rows.
      metadata: further columns of meta/episodes.
      fps: rows per second, from the option or from this episode.
    """

    rows: int
    columns: Mapping[str, pa.Array]
    stats: Mapping[str, Stats]
    tasks: list[str]
    metadata: Mapping[str, Any]
    fps: int
    losses: tuple[Loss, ...]


def _last_row_losses(columns: Mapping[str, Array], plan: LeRobotPlan, rows: int) -> Iterator[Loss]:
    odd = [path for path in plan.paths if not are_equal(columns[path][rows:], row_behind(path, columns[path][:rows]))]
    if any(is_under(path, OBSERVATION) for path in odd):
        yield Loss("last_observation", LOSSES["last_observation"], OBSERVATION, LAST_ROW)
    for path in odd:
        if not is_under(path, OBSERVATION):
            yield Loss("last_row", LOSSES["last_row"], path, LAST_ROW)


def _plain(value: Any) -> Any:
    """A text as it is or as a Python object, numbers as an array."""
    if isinstance(value, (bytes, str)):
        return value
    array = np.asarray(value)
    return array if array.dtype.kind in "biuf" else array.item()


_MOST_IMAGE_BYTES = 1 << 30  # of a row group; Arrow's columns of bytes hold twice as much


class LeRobotSink:
    """Episodes -> the files of a LeRobot dataset.

    While it is written, data/ and meta/episodes/ have complete files; each is closed when it is large enough, and at every `sync`.
    meta/tasks.parquet is written by `sync`, meta/stats.json and meta/info.json by `finish`, from the contents of meta/episodes/.
    """

    def __init__(self, work: Path, plan: LeRobotPlan, state: State | None) -> None:
        self._work, self._plan = work, plan
        counts = dict.fromkeys(("episodes", "frames", "files", "tables", "tasks"), 0)
        self._state: State = state or {**counts, "fps": plan.choices.fps}
        for folder, count in (("data", self._state["files"]), ("meta/episodes", self._state["tables"])):
            for path in (work / folder).glob("chunk-*/file-*.parquet"):  # written after the state
                chunk, file = (int(part.rpartition("-")[2]) for part in (path.parent.name, path.stem))
                if chunk * _CHUNK + file >= count:
                    path.unlink()
        self._tasks: dict[str, int] = {}
        if count := self._state["tasks"]:
            with parquet.ParquetFile(work / _TASKS) as table:
                texts = table.read(["task"])["task"].to_pylist()[:count]
            self._tasks = {text: at for at, text in enumerate(texts)}
        self._rows: list[dict[str, Any]] = []  # of the next table of meta/episodes
        self._file: BinaryIO | None = None
        self._writer: parquet.ParquetWriter | None = None

    def write(self, encoded: EncodedEpisode) -> Sequence[Loss]:
        self._state["fps"] = self._state["fps"] or encoded.fps
        rows, first = encoded.rows, self._state["frames"]
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in encoded.tasks]
        counted: dict[str, Array] = {
            EPISODE_INDEX: np.full(rows, self._state["episodes"]),
            INDEX: np.arange(first, first + rows),
            TASK_INDEX: np.array(numbers if len(numbers) == rows else np.full(rows, numbers[0]), np.int64),
        }
        stats = {**encoded.stats, **{name: _stats_of_numbers(values) for name, values in counted.items()}}
        columns = {**encoded.columns, **{name: _arrow_numbers(values) for name, values in counted.items()}}
        table = pa.table(columns)
        self._append(table.cast(_arrow_schema(table, _info_features(self._plan))), rows)
        self._rows.append(
            {
                EPISODE_INDEX: self._state["episodes"],
                "tasks": list(dict.fromkeys(encoded.tasks)),
                "length": rows,
                "data/chunk_index": self._state["files"] // _CHUNK,
                "data/file_index": self._state["files"] % _CHUNK,
                "dataset_from_index": first,
                "dataset_to_index": first + rows,
                **encoded.metadata,
                **{f"stats/{name}/{key}": value for name, values in stats.items() for key, value in values.items()},
            }
        )
        self._state["episodes"] += 1
        self._state["frames"] += rows
        if self._file is not None and self._file.tell() >= self._plan.choices.file_bytes:
            self._close_file()
        return encoded.losses

    def sync(self) -> State:
        self._close_file()
        if self._rows:
            self._write_episodes()
            self._state["tables"] += 1
            self._rows = []
        texts = list(self._tasks)
        tasks = pa.table({TASK_INDEX: pa.array(range(len(texts)), pa.int64()), "task": pa.array(texts, pa.string())})
        columns = [
            {"field_name": name, "name": name, "numpy_type": numpy_type, "pandas_type": pandas_type, "metadata": None}
            for name, numpy_type, pandas_type in ((TASK_INDEX, "int64", "int64"), ("task", "object", "unicode"))
        ]  # as pandas writes an index of texts named `task`, which lerobot expects
        pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
        _replace(self._work / _TASKS, tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}))
        self._state["tasks"] = len(texts)
        return dict(self._state)

    def _write_episodes(self) -> None:
        chunk, file = divmod(self._state["tables"], _CHUNK)
        columns: dict[str, pa.Array] = {}
        for name, first in self._rows[0].items():
            values = [row[name] for row in self._rows]
            if isinstance(first, np.ndarray):
                # Numbers keep their dtype; statistics become lists, nested once for each axis.
                columns[name] = pa.array([value.tolist() for value in values] if first.ndim else np.stack(values))
            else:
                columns[name] = pa.array(values)
        columns["meta/episodes/chunk_index"] = pa.array([chunk] * len(self._rows), pa.int64())
        columns["meta/episodes/file_index"] = pa.array([file] * len(self._rows), pa.int64())
        _replace(self._work / _EPISODES.format(chunk, file), pa.table(columns))

    def finish(self) -> None:
        self.sync()
        state, choices, features = self._state, self._plan.choices, _info_features(self._plan)
        if state["tables"]:
            stats = dict(_merge_episodes(self._work, features))
            write_json(self._work / "meta/stats.json", stats, allow_nan=False, **_JSON)
        info = {
            **self._plan.about,
            "codebase_version": "v3.0",
            "robot_type": choices.robot or self._plan.about.get(_ROBOT),
            "total_episodes": state["episodes"],
            "total_frames": state["frames"],
            "total_tasks": state["tasks"],
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": max(1, choices.file_bytes >> 20),
            "video_files_size_in_mb": 200,
            "fps": state["fps"] or self._plan.fps,
            "splits": {"train": f"0:{state['episodes']}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": None,
            "features": features,
        }
        write_json(self._work / "meta/info.json", info, **_JSON)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None

    def _append(self, table: pa.Table, count: int) -> None:
        """Writes an episode as one row group, as LeRobot does; with very large images, as more than one."""
        if self._writer is None:
            path = self._work / _DATA.format(*divmod(self._state["files"], _CHUNK))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
            repeating = [
                column.name
                for column in table.schema
                if not pa.types.is_floating(column.type) and not column.type.num_fields
            ]
            self._writer = parquet.ParquetWriter(
                self._file, table.schema, compression="snappy", use_dictionary=repeating
            )
        rows = max(1, count * _MOST_IMAGE_BYTES // max(table.nbytes, 1))
        self._writer.write_table(table, row_group_size=min(rows, count))

    def _close_file(self) -> None:
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        put(self._file)
        self.close()
        self._state["files"] += 1


@dataclass(frozen=True)
class WrittenFeature:
    """A column that is written, and its feature: of kind NUMBER, TEXT, PIXELS, or FILES for images that come encoded."""

    path: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spec: ArraySpec
    names: Any = None  # of the numbers, as another dataset of LeRobot has them

    @property
    def entry(self) -> dict[str, Any]:
        names = ["height", "width", "channels"] if self.kind in (PIXELS, FILES) else self.names
        dtype = {TEXT: "string", PIXELS: "image", FILES: "image"}.get(self.kind, self.dtype.name)
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


@dataclass(frozen=True)
class LeRobotPlan:
    """How a content is written. Without a task, `task` and `task_feature` are "".

    Attributes:
      features: columns that become features of their own.
      done: whether `is_terminal` becomes `next.done`.
      task, task_feature: the column with the task, or the feature of the episode.
      about: what the source, another dataset of LeRobot, says of itself in info.json.
    """

    features: tuple[WrittenFeature, ...]
    has_time: bool
    done: bool
    task: str
    task_feature: str
    metadata: tuple[str, ...]
    choices: LeRobotChoices
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fps(self) -> int:
        """Rows per second where no column of times says them."""
        return self.choices.fps or _fps_in(self.about) or _FPS

    @property
    def kept(self) -> Collection[str]:
        """Names of the facts that are written, or replaced by an option."""
        has_fps = self.has_time or self.choices.fps or _fps_in(self.about)
        return {
            *(name for name in self.about if name != "fps" or has_fps),
            *([_ROBOT] if self.choices.robot else []),
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

    def encode(self, episode: Episode) -> EncodedEpisode:
        """Encodes what depends on this episode alone: its columns, statistics and tasks."""
        steps = episode.columns
        rows = len(episode) if self.choices.last_step == KEEP else len(episode) - 1
        losses = [] if rows == len(episode) else list(_last_row_losses(steps, self, rows))
        columns: dict[str, pa.Array] = {}
        stats: dict[str, Stats] = {}
        changed: list[str] = []
        for feature in self.features:
            written = steps[feature.path][:rows]
            if written.dtype == np.uint64 and written.size and int(written.max()) > _MOST_INTEGER:
                raise UnfitEpisode(
                    feature.path,
                    f"has {written.max():,}, and LeRobot reads whole numbers below 2^63 only; on_invalid=skip (--on-invalid skip) leaves such "
                    f"episodes out, --transform drop={feature.path} --restart the column",
                )
            columns[feature.name], is_changed = _arrow_column(feature, written)
            changed += [feature.path] if is_changed else []
            if feature.kind in (PIXELS, FILES):
                sample = written[_sampled_images(rows)]
                pixels = sample if feature.kind == PIXELS else decode_images(sample, feature.spec, exact=True)
                stats[feature.name] = _stats_of_images(pixels)
            elif feature.kind != TEXT:
                stats[feature.name] = _stats_of_numbers(written)
        counted = {DONE: np.asarray(steps[IS_TERMINAL][1:], bool)} if self.done else {}
        evenly = (np.arange(rows) / self.fps).astype(np.float32)
        counted |= {
            TIMESTAMP: steps[TIMESTAMP][:rows] if self.has_time else evenly,
            FRAME_INDEX: np.arange(rows),
        }
        for name, numbers in counted.items():
            columns[name], stats[name] = _arrow_numbers(numbers), _stats_of_numbers(numbers)
        texts = steps[self.task][:rows] if self.task else episode.metadata.get(self.task_feature, b"")
        is_column = isinstance(texts, np.ndarray) and texts.ndim
        tasks, is_changed = _as_texts(list(texts) if is_column else [_plain(texts)])
        if is_changed and self.is_task_only:
            changed.append(self.task)
        elif is_changed and self.task_feature == LANGUAGE_INSTRUCTION:
            changed.append(metadata_path(self.task_feature))
        metadata: dict[str, Any] = {}
        for path in self.metadata:
            value = _plain(episode.metadata[path])
            if isinstance(value, (bytes, str)):
                (value,), is_changed = _as_texts([value])
                changed += [metadata_path(path)] if is_changed else []
            metadata[METADATA + path] = value
        losses += [Loss("text", LOSSES["text"], path) for path in changed]
        fps = self.choices.fps or (_fps_of(episode) if self.has_time else self.fps)
        return EncodedEpisode(rows, columns, stats, tasks, metadata, fps, tuple(losses))


def _plan_of(content: Content, choices: LeRobotChoices) -> tuple[LeRobotPlan, list[Loss]]:
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
    return LeRobotPlan(tuple(features), has_time, done, column, of_episode, metadata, choices, about), losses


_ROBOT, _NAMES_OF = "robot_type", "names/"  # facts of a dataset of LeRobot


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
        shape = spec.image.shape if kind == FILES and spec.image else spec.shape
        yield WrittenFeature(path, name, kind, tuple(int(size or 0) for size in shape), spec.dtype, spec)


def _kind(spec: ArraySpec, choices: LeRobotChoices) -> str | None:
    if spec.image is not None:
        return FILES if _holds_files(spec) else None
    if spec.dtype.kind == "O":
        return TEXT if spec.shape == () else None
    if spec.dtype.newbyteorder("=").name not in DTYPES or None in spec.shape or len(spec.shape) > MOST_AXES:
        return None
    if not math.prod(size or 0 for size in spec.shape):
        return None
    if spec.minimum is not None and spec.dtype == np.uint64 and int(np.min(spec.minimum)) > _MOST_INTEGER:
        return None
    is_image = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in _WRITTEN_CHANNELS
    return PIXELS if is_image and choices.images == PNG else NUMBER


def _holds_files(spec: ArraySpec) -> bool:
    """Whether encoded images can be stored as their files: one image of 8 bits and of a known size per step."""
    image = spec.image
    if image is None or spec.shape or image.dtype != np.uint8:
        return False
    return None not in image.shape and image.shape[2] in _WRITTEN_CHANNELS


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


_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _arrow_column(feature: WrittenFeature, values: Array) -> tuple[pa.Array, bool]:
    """[T, ...] as a column; and whether a text was changed because it is not UTF-8."""
    if feature.kind in (PIXELS, FILES):
        files = pa.array(png_files(values) if feature.kind == PIXELS else list(values), pa.binary())
        return pa.StructArray.from_arrays([files, pa.nulls(len(files), pa.string())], fields=list(_IMAGE)), False
    if feature.kind == TEXT:
        texts, is_changed = _as_texts(values)
        return pa.array(texts, pa.string()), is_changed
    return _arrow_numbers(values.reshape(len(values), *feature.shape)), False


def _arrow_numbers(values: Array) -> pa.Array:
    """[T, ...] -> a plain column for one value per row, lists of a fixed size for one axis, nested lists for more."""
    flat = pa.array(np.ascontiguousarray(values.reshape(-1), values.dtype.newbyteorder("=")))
    *inner, last = values.shape[1:] or (1,)
    if values.size == len(values) and values.ndim <= 2:
        return flat
    if not inner:
        return pa.FixedSizeListArray.from_arrays(flat, last)
    for size in reversed(values.shape[1:]):
        flat = pa.ListArray.from_arrays(np.arange(0, len(flat) + 1, size, dtype=np.int32), flat)
    return flat


def _as_texts(values: Iterable[Any]) -> tuple[list[str], bool]:
    """Texts as `str`; and whether one was changed because it is not UTF-8."""
    values = list(values)
    texts = [
        bytes(value).decode(errors="backslashreplace") if not isinstance(value, str) else value for value in values
    ]
    return texts, any(not isinstance(value, str) and text.encode() != value for text, value in zip(texts, values))


def _arrow_schema(table: pa.Table, entries: Mapping[str, Any]) -> pa.Schema:
    """The table's schema, with the features as the library `datasets` expects them."""
    features: dict[str, Any] = {}
    for name, entry in entries.items():
        shape, dtype = entry["shape"], entry["dtype"]
        plain = {"dtype": dtype, "_type": "Value"}
        if dtype == "image":
            features[name] = {"_type": "Image"}
        elif shape == [1]:
            features[name] = plain
        elif len(shape) == 1:
            features[name] = {"feature": plain, "length": shape[0], "_type": "Sequence"}
        else:
            features[name] = {"shape": shape, "dtype": dtype, "_type": f"Array{len(shape)}D"}
    return table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


_CHUNK = 1000  # files in a folder
_DATA = "data/chunk-{:03d}/file-{:03d}.parquet"
_EPISODES = "meta/episodes/chunk-{:03d}/file-{:03d}.parquet"
_TASKS = "meta/tasks.parquet"
_STATS = "stats/"
# Of torch.tensor(number). To be compared with Python's numbers: as floats, as which numpy 1 compares its own, this is 2^63.
_MOST_INTEGER = (1 << 63) - 1
_FPS = 10  # used if there are no timestamps
_JSON: dict[str, Any] = {"indent": 4, "ensure_ascii": False}


def _info_features(plan: LeRobotPlan) -> dict[str, dict[str, Any]]:
    """The entry `features` of info.json, in the order of the tables' columns."""
    entries = {feature.name: feature.entry for feature in plan.features}
    dtypes = {DONE: "bool"} if plan.done else {}
    dtypes |= {name: "float32" if name == TIMESTAMP else "int64" for name in RESERVED}
    entries |= {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in dtypes.items()}
    if plan.task:
        entries[TASK_INDEX]["info"] = {OURS: {"task": "column"}}
    return entries


def _fps_of(episode: Episode) -> int:
    steps = np.diff(episode.columns[TIMESTAMP].astype(np.float64))
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    return max(1, round(1 / step)) if step and np.isfinite(step) else _FPS


def _merge_episodes(work: Path, features: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Feature -> the statistics of all episodes, with one table in memory at a time; without features whose numbers are not all finite."""
    merged: dict[str, dict[str, Array]] = {}
    for path in sorted((work / "meta/episodes").glob("*/*.parquet")):
        with parquet.ParquetFile(path) as file:
            table = file.read([name for name in file.schema_arrow.names if name.startswith(_STATS)])
        of_episodes: dict[str, list[dict[str, Array]]] = {}  # feature -> the statistics of each episode
        for column in table.column_names:
            name, _, key = column.removeprefix(_STATS).rpartition("/")
            values = table[column].to_pylist()
            for stats, value in zip(of_episodes.setdefault(name, [{} for _ in values]), values):
                stats[key] = np.array(value)
        for name, many in of_episodes.items():
            merged[name] = _merge([*([merged[name]] if name in merged else []), *many])
    for name in features:
        if name in merged and all(np.isfinite(values).all() for values in merged[name].values()):
            yield name, {key: value.tolist() for key, value in merged[name].items()}


def _replace(path: Path, table: pa.Table) -> None:
    """Writes a table, whole or not at all; it is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as unfinished, unfinished.open("wb") as file:
        parquet.write_table(table, file)


_QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
_MOST_IMAGES = 100
_SIDE = 150
_NAMES = tuple(f"q{round(100 * quantile):02d}" for quantile in _QUANTILES)

Stats = Mapping[str, Array]  # min, max, mean, std, count, q01, q10, q50, q90, q99


def _stats_of_numbers(values: Array) -> dict[str, Array]:
    return _stats(values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1), len(values))


def _sampled_images(rows: int) -> Array:
    """Numbers of the images of an episode that its statistics use."""
    return np.asarray(np.unique(np.linspace(0, rows - 1, min(rows, _MOST_IMAGES)).round().astype(int)))


def _stats_of_images(pixels: Array) -> dict[str, Array]:
    """Statistics of [n, height, width, channels] uint8: [channels, 1, 1]."""
    step = max(1, math.ceil(max(pixels.shape[1:3]) / _SIDE))
    stats = _stats(pixels[:, ::step, ::step].reshape(-1, pixels.shape[3]), len(pixels))
    return {name: values if name == "count" else values.reshape(-1, 1, 1) / 255 for name, values in stats.items()}


def _stats(values: Array, count: int) -> dict[str, Array]:
    exact = values.astype(np.float64)
    with np.errstate(all="ignore"):
        moments = {"min": exact.min(0), "max": exact.max(0), "mean": exact.mean(0), "std": exact.std(0)}
        quantiles = np.quantile(exact, _QUANTILES, axis=0, method="inverted_cdf")
    return {**moments, "count": np.array([count]), **dict(zip(_NAMES, quantiles))}


def _merge(many: Sequence[Stats]) -> dict[str, Array]:
    stacked = {name: np.stack([np.asarray(stats[name]) for stats in many]) for name in many[0]}
    counts = stacked["count"].reshape(-1)
    weights = (counts / counts.sum()).reshape(-1, *[1] * (stacked["mean"].ndim - 1))
    with np.errstate(all="ignore"):
        mean = (stacked["mean"] * weights).sum(0)
        variance = ((stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2) * weights).sum(0)
        moments = {"min": stacked["min"].min(0), "max": stacked["max"].max(0), "mean": mean, "std": np.sqrt(variance)}
        quantiles = {name: (stacked[name] * weights).sum(0) for name in _NAMES}
    return {**moments, "count": np.array([counts.sum()]), **quantiles}
