"""A LeRobot dataset to be.

| option | values | meaning |
| --- | --- | --- |
| `fps` | a number | rows per second; by default as the column `timestamp` tells, else 10 |
| `robot` | a name | `robot_type` |
| `task` | a path | the column, or the feature of the episode, that is the task; `language_instruction` by default |
| `last_step` | `drop`, `keep` | whether the last step, which has no action, is a row |
| `images` | `png`, `arrays` | how uint8 columns of the shape (height, width, 1 or 3) are stored |
| `file_mb` | a number | about how large files with rows may be; 100 by default, as in LeRobot |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.episode import IS_TERMINAL, OBSERVATION, Array, Episode, is_under, metadata_path
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import put
from rlds2reverb.formats.destination import LAST_ROW, Content, Encode, Loss, State, are_equal, made_flags
from rlds2reverb.formats.lerobot import LOSSES
from rlds2reverb.formats.lerobot.features import (
    ARRAYS,
    DONE,
    DROP,
    EPISODE_INDEX,
    FILES,
    FRAME_INDEX,
    INDEX,
    KEEP,
    LANGUAGE_INSTRUCTION,
    PIXELS,
    PNG,
    TASK_INDEX,
    TEXT,
    TIMESTAMP,
    Choices,
    Plan,
    holds_files,
    plan_of,
)
from rlds2reverb.formats.lerobot.meta import (
    CHUNK,
    DATA,
    FPS,
    METADATA,
    Stats,
    cut,
    finish,
    fps_of,
    info_features,
    sampled_images,
    stats_of_images,
    stats_of_numbers,
    write_episodes,
    write_tasks,
    written_tasks,
)
from rlds2reverb.formats.lerobot.read import row_behind
from rlds2reverb.formats.lerobot.values import arrow_column, arrow_numbers, arrow_schema, as_texts
from rlds2reverb.formats.options import Parse, at_least_one, escaped, one_of, path_and_options, some_text, unescaped
from rlds2reverb.images import check_png_library, decode_images
from rlds2reverb.specs import ArraySpec, ImageSpec

OPTIONS: dict[str, Parse] = {
    "fps": at_least_one,
    "robot": some_text,
    "task": some_text,
    "last_step": one_of(drop=DROP, keep=KEEP),
    "images": one_of(png=PNG, arrays=ARRAYS),
    "file_mb": at_least_one,
}
"""The options, and how each is read."""


def open_lerobot(text: str) -> LeRobotDestination:
    """The destination that the text after "lerobot:" names.

    Raises:
      ConfigError: the path is missing, or an option has no valid value.
    """
    people = f"lerobot:{text}"
    path, wanted = path_and_options(people, text, OPTIONS, ConfigError)
    if not path or "\0" in path:
        raise ConfigError(f'"{people}": expected lerobot:PATH, the folder of the dataset to be')
    file_bytes = wanted.pop("file_mb", 100) << 20
    return LeRobotDestination(people, Path(unescaped(path)).expanduser(), Choices(**wanted, file_bytes=file_bytes))


class LeRobotDestination:
    """A folder to be.

    Attributes:
      name: for messages.
      path: the folder.
    """

    def __init__(self, name: str, path: Path, choices: Choices) -> None:
        self.name, self.path, self._choices = name, path, choices

    def source(self, path: Path) -> str:
        """`lerobot:PATH`."""
        return f"lerobot:{escaped(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        """Those of a dataset, of any version."""
        return (
            "meta/info.json",
            *(f"meta/**/*.{kind}" for kind in ("json", "jsonl", "parquet", "safetensors")),
            "data/**/*.parquet",
            "videos/**/*.mp4",
            *(f"images/**/*.{kind}" for kind in ("png", "jpg", "jpeg")),
            "README.md",
            ".gitattributes",
        )

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """One image of 8 bits and of a known size per step; LeRobot decodes by Pillow."""
        return {path: replace(image, is_accurate=True) for path, image in images.items() if holds_files(columns[path])}

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns that no feature holds, LeRobot's own numbers, and the time if there are no timestamps.

        Raises:
          ConfigError: the option `task` names no text.
        """
        return plan_of(content, self._choices)[1]

    @property
    def least_rows(self) -> int:
        """Two, where the last step is dropped."""
        return 1 if self._choices.last_step == KEEP else 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """Kept with last_step=keep; else from the length, and from whether the last step is terminal."""
        return {} if self._choices.last_step == KEEP else made_flags(episode)

    def encoder(self, content: Content) -> Encode:
        """Makes columns of Arrow."""
        return Encoder(self._plan(content))

    def sink(self, work: Path, content: Content, state: State | None) -> LeRobotSink:
        """Starts to write, or continues from a state."""
        return LeRobotSink(work, self._plan(content), state)

    def _plan(self, content: Content) -> Plan:
        plan, _ = plan_of(content, self._choices)
        if any(one.kind in (PIXELS, FILES) for one in plan.fields):
            check_png_library("images=arrays")
        return plan


@dataclass(frozen=True)
class _Encoded:
    """The part of an episode's rows that depends on no other episode.

    Attributes:
      rows: how many.
      columns: feature -> [rows], in the order of the table; without those that count through the dataset.
      stats: of these.
      tasks: the task of each row, or the one of all rows.
      metadata: further columns of meta/episodes.
      fps: rows per second, from the option or from this episode.
      losses: what is lost.
    """

    rows: int
    columns: Mapping[str, pa.Array]
    stats: Mapping[str, Stats]
    tasks: list[str]
    metadata: Mapping[str, Any]
    fps: int
    losses: tuple[Loss, ...]


@dataclass(frozen=True)
class Encoder:
    """Encodes as a plan says."""

    plan: Plan

    def __call__(self, episode: Episode) -> _Encoded:
        """See `formats.destination.Encode`."""
        plan, steps = self.plan, episode.columns
        rows = len(episode) if plan.choices.last_step == KEEP else len(episode) - 1
        losses = [] if rows == len(episode) else list(_last_row_losses(steps, plan, rows))
        columns: dict[str, pa.Array] = {}
        stats: dict[str, Stats] = {}
        changed: list[str] = []
        for one in plan.fields:
            written = steps[one.path][:rows]
            columns[one.name], is_changed = arrow_column(one, written)
            changed += [one.path] if is_changed else []
            if one.kind in (PIXELS, FILES):
                some = written[sampled_images(rows)]
                stats[one.name] = stats_of_images(
                    some if one.kind == PIXELS else decode_images(some, one.spec, exact=True)
                )
            elif one.kind != TEXT:
                stats[one.name] = stats_of_numbers(written)
        for name, counted in self._counted(steps, rows).items():
            columns[name], stats[name] = arrow_numbers(counted), stats_of_numbers(counted)
        tasks, is_changed = self._tasks(episode, rows)
        if is_changed and plan.tells_task:
            changed.append(plan.task)
        elif is_changed and plan.task_feature == LANGUAGE_INSTRUCTION:
            changed.append(metadata_path(plan.task_feature))
        metadata, changed_too = self._metadata(episode)
        losses += [Loss("text", LOSSES["text"], path) for path in (*changed, *changed_too)]
        fps = plan.choices.fps or (fps_of(episode) if plan.has_time else FPS)
        return _Encoded(rows, columns, stats, tasks, metadata, fps, tuple(losses))

    def _counted(self, steps: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """LeRobot's own columns that restart with every episode."""
        plan = self.plan
        fps = plan.choices.fps or FPS
        return {
            **({DONE: np.asarray(steps[IS_TERMINAL][1:], bool)} if plan.done else {}),
            TIMESTAMP: steps[TIMESTAMP][:rows] if plan.has_time else (np.arange(rows) / fps).astype(np.float32),
            FRAME_INDEX: np.arange(rows),
        }

    def _tasks(self, episode: Episode, rows: int) -> tuple[list[str], bool]:
        """The task of each row, or one for all rows; and whether a text was changed because it is not UTF-8."""
        plan = self.plan
        tasks = episode.columns[plan.task][:rows] if plan.task else episode.metadata.get(plan.task_feature, b"")
        is_column = isinstance(tasks, np.ndarray) and tasks.ndim
        return as_texts(list(tasks) if is_column else [_plain(tasks)])

    def _metadata(self, episode: Episode) -> tuple[dict[str, Any], list[str]]:
        """Metadata for meta/episodes; and the paths of texts that were changed because they are not UTF-8."""
        found: dict[str, Any] = {}
        changed = []
        for path in self.plan.metadata:
            value = _plain(episode.metadata[path])
            if isinstance(value, (bytes, str)):
                (value,), is_changed = as_texts([value])
                changed += [metadata_path(path)] if is_changed else []
            found[METADATA + path] = value
        return found, changed


def _last_row_losses(columns: Mapping[str, Array], plan: Plan, rows: int) -> Iterator[Loss]:
    """What is lost because reading puts `row_behind` in place of the last row."""
    odd = [path for path in plan.paths if not are_equal(columns[path][rows:], row_behind(path, columns[path][:rows]))]
    if any(is_under(path, OBSERVATION) for path in odd):
        yield Loss("last_observation", LOSSES["last_observation"], OBSERVATION, LAST_ROW)
    for path in odd:
        if not is_under(path, OBSERVATION):
            yield Loss("last_row", LOSSES["last_row"], path, LAST_ROW)


def _plain(value: Any) -> Any:
    """A numpy scalar as a Python number or text."""
    array = value if isinstance(value, (bytes, str)) else np.asarray(value)
    return array if isinstance(array, (bytes, str)) else array if array.dtype.kind in "biuf" else array.item()


_MOST_IMAGE_BYTES = 1 << 30
"""Of a row group; Arrow's columns of bytes hold twice as much."""


class LeRobotSink:
    """Episodes -> the files of a LeRobot dataset.

    While it is written, data/ and meta/episodes/ have files that are whole, each of which is closed when it is large enough, and at every
    `sync`. meta/tasks.parquet is written by `sync`, meta/stats.json and meta/info.json by `finish`, from what stands in meta/episodes/.

    Args:
      work: the folder to be.
      plan: what is written, and how.
      state: of an earlier run.

    Raises:
      OSError: the disk.
    """

    def __init__(self, work: Path, plan: Plan, state: State | None) -> None:
        self._work, self._plan = work, plan
        self._state: State = state or {
            "episodes": 0,
            "frames": 0,
            "files": 0,
            "tables": 0,
            "tasks": 0,
            "fps": plan.choices.fps,
        }
        cut(work, self._state)
        self._tasks: dict[str, int] = {text: at for at, text in enumerate(written_tasks(work, self._state["tasks"]))}
        self._told: list[dict[str, Any]] = []
        self._file: BinaryIO | None = None
        self._writer: parquet.ParquetWriter | None = None

    def write(self, encoded: _Encoded) -> Sequence[Loss]:
        """Writes an episode."""
        self._state["fps"] = self._state["fps"] or encoded.fps
        counted = self._counted(encoded)
        stats = {**encoded.stats, **{name: stats_of_numbers(values) for name, values in counted.items()}}
        columns = {**encoded.columns, **{name: arrow_numbers(values) for name, values in counted.items()}}
        table = pa.table(columns)
        self._append(table.cast(arrow_schema(table, info_features(self._plan))), encoded.rows)
        files = {
            "data/chunk_index": self._state["files"] // CHUNK,
            "data/file_index": self._state["files"] % CHUNK,
        }
        first = self._state["frames"]
        self._told.append(
            {
                EPISODE_INDEX: self._state["episodes"],
                "tasks": list(dict.fromkeys(encoded.tasks)),
                "length": encoded.rows,
                **files,
                "dataset_from_index": first,
                "dataset_to_index": first + encoded.rows,
                **encoded.metadata,
                **{f"stats/{name}/{key}": value for name, one in stats.items() for key, value in one.items()},
            }
        )
        self._state["episodes"] += 1
        self._state["frames"] += encoded.rows
        self._close_large()
        return encoded.losses

    def sync(self) -> State:
        """Puts everything on disk: closes the file of rows and writes the table of its episodes."""
        self._close_file()
        if self._told:
            write_episodes(self._work, self._state["tables"], self._told)
            self._state["tables"] += 1
            self._told = []
        write_tasks(self._work, list(self._tasks))
        self._state["tasks"] = len(self._tasks)
        return dict(self._state)

    def finish(self) -> None:
        """Writes meta/stats.json and meta/info.json."""
        self.sync()
        finish(self._work, self._plan, self._state)

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None

    def _counted(self, encoded: _Encoded) -> dict[str, Array]:
        """LeRobot's own columns that count through the whole dataset."""
        rows, first = encoded.rows, self._state["frames"]
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in encoded.tasks]
        return {
            EPISODE_INDEX: np.full(rows, self._state["episodes"]),
            INDEX: np.arange(first, first + rows),
            TASK_INDEX: np.array(numbers if len(numbers) == rows else np.full(rows, numbers[0]), np.int64),
        }

    def _append(self, table: pa.Table, count: int) -> None:
        """Writes an episode as one row group, as LeRobot does, or as several if its images are very large."""
        if self._writer is None:
            path = self._work / DATA.format(*divmod(self._state["files"], CHUNK))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
            repeating = [
                one.name for one in table.schema if not pa.types.is_floating(one.type) and not one.type.num_fields
            ]
            self._writer = parquet.ParquetWriter(
                self._file, table.schema, compression="snappy", use_dictionary=repeating
            )
        rows = max(1, count * _MOST_IMAGE_BYTES // max(table.nbytes, 1))
        self._writer.write_table(table, row_group_size=min(rows, count))

    def _close_large(self) -> None:
        if self._file is not None and self._file.tell() >= self._plan.choices.file_bytes:
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        put(self._file)
        self.close()
        self._state["files"] += 1
