"""The files of a LeRobot dataset, written episode by episode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.episode import Array
from rlds2reverb.files import put, whole, write_json
from rlds2reverb.formats.destination import Loss, State
from rlds2reverb.formats.lerobot.encode import EncodedEpisode, arrow_numbers, merge_stats, stats_of_numbers
from rlds2reverb.formats.lerobot.features import EPISODE_INDEX, INDEX, TASK_INDEX
from rlds2reverb.formats.lerobot.plan import ROBOT, LeRobotPlan

_CHUNK = 1000  # files in a folder
_DATA = "data/chunk-{:03d}/file-{:03d}.parquet"
_EPISODES = "meta/episodes/chunk-{:03d}/file-{:03d}.parquet"
_TASKS = "meta/tasks.parquet"
_STATS = "stats/"
_MOST_IMAGE_BYTES = 1 << 30  # of a row group; Arrow's columns of bytes hold twice as much
_JSON: dict[str, Any] = {"indent": 4, "ensure_ascii": False}


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
        stats = {**encoded.stats, **{name: stats_of_numbers(values) for name, values in counted.items()}}
        columns = {**encoded.columns, **{name: arrow_numbers(values) for name, values in counted.items()}}
        table = pa.table(columns)
        self._append(table.cast(_arrow_schema(table, self._plan.info_features)), rows)
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
        state, choices, features = self._state, self._plan.choices, self._plan.info_features
        if state["tables"]:
            stats = dict(_merge_episodes(self._work, features))
            write_json(self._work / "meta/stats.json", stats, allow_nan=False, **_JSON)
        info = {
            **self._plan.about,
            "codebase_version": "v3.0",
            "robot_type": choices.robot or self._plan.about.get(ROBOT),
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
            merged[name] = merge_stats([*([merged[name]] if name in merged else []), *many])
    for name in features:
        if name in merged and all(np.isfinite(values).all() for values in merged[name].values()):
            yield name, {key: value.tolist() for key, value in merged[name].items()}


def _replace(path: Path, table: pa.Table) -> None:
    """Writes a table, whole or not at all; it is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as unfinished, unfinished.open("wb") as file:
        parquet.write_table(table, file)
