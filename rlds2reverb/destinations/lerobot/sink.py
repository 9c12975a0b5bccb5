"""Episodes -> the files of a LeRobot dataset.

While it is written, data/ and meta/episodes/ have files that are whole, each of which is closed when it is large enough, and at every
`sync`. meta/tasks.parquet is written by `sync`, meta/stats.json and meta/info.json by `finish`, from what stands in meta/episodes/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.destinations.base import Loss, State
from rlds2reverb.destinations.growing_files import put
from rlds2reverb.destinations.lerobot import LOSSES, arrow, finishing, stats
from rlds2reverb.destinations.lerobot.fields import FILES, PIXELS, TEXT, Plan
from rlds2reverb.destinations.lerobot.rows import Written, rows_of
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.images import decode_images
from rlds2reverb.metadata import metadata_path
from rlds2reverb.readers.lerobot.dataset import LANGUAGE_INSTRUCTION
from rlds2reverb.readers.lerobot.episodes import METADATA
from rlds2reverb.readers.lerobot.features import (
    DONE,
    EPISODE_INDEX,
    FRAME_INDEX,
    INDEX,
    TASK_INDEX,
    TIMESTAMP,
)

_MOST_IMAGE_BYTES = 1 << 30
"""Of a row group; Arrow's columns of bytes hold twice as much."""


class LeRobotSink:
    """Writes one dataset.

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
        finishing.cut(work, self._state)
        self._tasks: dict[str, int] = {text: at for at, text in enumerate(finishing.tasks(work, self._state["tasks"]))}
        self._told: list[dict[str, Any]] = []
        self._file: BinaryIO | None = None
        self._writer: parquet.ParquetWriter | None = None

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Takes an episode."""
        written = rows_of(episode, self._plan, self._fps(episode))
        table, told, changed = self._table(written)
        self._append(table, written)
        tasks = list(dict.fromkeys(self._texts(written.tasks)[0]))
        metadata, changed_too = self._metadata(episode)
        files = {
            "data/chunk_index": self._state["files"] // finishing.CHUNK,
            "data/file_index": self._state["files"] % finishing.CHUNK,
        }
        first = self._state["frames"]
        self._told.append(
            {
                EPISODE_INDEX: self._state["episodes"],
                "tasks": tasks,
                "length": written.rows,
                **files,
                "dataset_from_index": first,
                "dataset_to_index": first + written.rows,
                **metadata,
                **{f"stats/{name}/{key}": value for name, one in told.items() for key, value in one.items()},
            }
        )
        self._state["episodes"] += 1
        self._state["frames"] += written.rows
        self._close_large()
        return (*written.losses, *(Loss("text", LOSSES["text"], path) for path in (*changed, *changed_too)))

    def sync(self) -> State:
        """Puts all on disk: closes the file with rows, and tells its episodes."""
        self._close_file()
        if self._told:
            finishing.write_episodes(self._work, self._state["tables"], self._told)
            self._state["tables"] += 1
            self._told = []
        finishing.write_tasks(self._work, list(self._tasks))
        self._state["tasks"] = len(self._tasks)
        return dict(self._state)

    def finish(self) -> None:
        """Writes meta/stats.json and meta/info.json."""
        self.sync()
        finishing.finish(self._work, self._plan, self._state)

    def close(self) -> None:
        """Lets go of the file."""
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None

    def _fps(self, episode: Episode) -> int:
        """Rows per second; the first episode tells where no option does."""
        if not self._state["fps"]:
            self._state["fps"] = finishing.fps_of(episode) if self._plan.has_time else finishing.FPS
        return int(self._state["fps"])

    def _table(self, written: Written) -> tuple[pa.Table, dict[str, stats.Stats], list[str]]:
        """The rows, the statistics of each feature, and the columns with texts that were changed."""
        columns: dict[str, pa.Array] = {}
        told: dict[str, stats.Stats] = {}
        changed = self._changed_task(written)
        for one in self._plan.fields:
            values = written.columns[one.path]
            columns[one.name], is_changed = arrow.column(one, values)
            changed += [one.path] if is_changed else []
            if one.kind in (PIXELS, FILES):
                some = values[stats.sampled(len(values))]
                told[one.name] = stats.of_images(some if one.kind == PIXELS else decode_images(some, one.spec))
            elif one.kind != TEXT:
                told[one.name] = stats.of_numbers(values)
        for name, values in self._counted(written).items():
            columns[name] = arrow.numbers(values)
            told[name] = stats.of_numbers(values)
        table = pa.table(columns)
        return table.cast(arrow.schema(table, finishing.features(self._plan))), told, changed

    def _counted(self, written: Written) -> dict[str, Array]:
        rows, first = written.rows, self._state["frames"]
        texts, _ = self._texts(written.tasks)
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in texts]
        return {
            **({} if written.done is None else {DONE: written.done}),
            TIMESTAMP: written.timestamp,
            FRAME_INDEX: np.arange(rows),
            EPISODE_INDEX: np.full(rows, self._state["episodes"]),
            INDEX: np.arange(first, first + rows),
            TASK_INDEX: np.array(numbers if len(numbers) == rows else np.full(rows, numbers[0]), np.int64),
        }

    @staticmethod
    def _texts(tasks: Any) -> tuple[list[str], bool]:
        is_column = isinstance(tasks, np.ndarray) and tasks.ndim
        return arrow.as_texts(list(tasks) if is_column else [_plain(tasks)])

    def _changed_task(self, written: Written) -> list[str]:
        """Where a text of the task was changed that stands nowhere else: the path of its column or feature."""
        plan = self._plan
        if not self._texts(written.tasks)[1]:
            return []
        if plan.tells_task:
            return [plan.task]
        return [metadata_path(plan.task_feature)] if plan.task_feature == LANGUAGE_INSTRUCTION else []

    def _metadata(self, episode: Episode) -> tuple[dict[str, Any], list[str]]:
        told: dict[str, Any] = {}
        changed = []
        for path in self._plan.metadata:
            value = _plain(episode.metadata[path])
            if isinstance(value, (bytes, str)):
                (value,), is_changed = arrow.as_texts([value])
                changed += [metadata_path(path)] if is_changed else []
            told[METADATA + path] = value
        return told, changed

    def _append(self, table: pa.Table, written: Written) -> None:
        """One row group for an episode, as LeRobot has it; more where its images are very large."""
        if self._writer is None:
            path = finishing.made(self._work / finishing.DATA.format(*divmod(self._state["files"], finishing.CHUNK)))
            self._file = path.open("wb")
            repeating = [
                one.name for one in table.schema if not pa.types.is_floating(one.type) and not one.type.num_fields
            ]
            self._writer = parquet.ParquetWriter(
                self._file, table.schema, compression="snappy", use_dictionary=repeating
            )
        rows = max(1, written.rows * _MOST_IMAGE_BYTES // max(table.nbytes, 1))
        self._writer.write_table(table, row_group_size=min(rows, written.rows))

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


def _plain(value: Any) -> Any:
    """A number or a text without numpy around it."""
    array = value if isinstance(value, (bytes, str)) else np.asarray(value)
    return array if isinstance(array, (bytes, str)) else array if array.dtype.kind in "biuf" else array.item()
