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
from rlds2reverb.destinations.lerobot import arrow, finishing, stats
from rlds2reverb.destinations.lerobot.encoding import Encoded
from rlds2reverb.destinations.lerobot.fields import Plan
from rlds2reverb.episodes import Array
from rlds2reverb.readers.lerobot.features import EPISODE_INDEX, INDEX, TASK_INDEX

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

    def write(self, encoded: Encoded) -> Sequence[Loss]:
        """Takes an episode."""
        self._state["fps"] = self._state["fps"] or encoded.fps
        counted = self._counted(encoded)
        told = {**encoded.stats, **{name: stats.of_numbers(values) for name, values in counted.items()}}
        columns = {**encoded.columns, **{name: arrow.numbers(values) for name, values in counted.items()}}
        table = pa.table(columns)
        self._append(table.cast(arrow.schema(table, finishing.features(self._plan))), encoded.rows)
        files = {
            "data/chunk_index": self._state["files"] // finishing.CHUNK,
            "data/file_index": self._state["files"] % finishing.CHUNK,
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
                **{f"stats/{name}/{key}": value for name, one in told.items() for key, value in one.items()},
            }
        )
        self._state["episodes"] += 1
        self._state["frames"] += encoded.rows
        self._close_large()
        return encoded.losses

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

    def _counted(self, encoded: Encoded) -> dict[str, Array]:
        """Columns that go on from the episodes before."""
        rows, first = encoded.rows, self._state["frames"]
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in encoded.tasks]
        return {
            EPISODE_INDEX: np.full(rows, self._state["episodes"]),
            INDEX: np.arange(first, first + rows),
            TASK_INDEX: np.array(numbers if len(numbers) == rows else np.full(rows, numbers[0]), np.int64),
        }

    def _append(self, table: pa.Table, count: int) -> None:
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
