"""The files of a LeRobot dataset, written episode by episode.

A file of Parquet or MP4 has its table of contents at its end, so a file that a kill interrupts is lost. Without videos, every `sync` therefore
closes the files. With videos, which would become many small files, episodes go into journals first, and a file is written when all that
belongs into it is there: then files depend on the episodes only, not on the times of syncs or the number of workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.episode import Array
from rlds2reverb.files import at_end, put, remove_whole, whole, write_json
from rlds2reverb.formats.destination import Loss, State
from rlds2reverb.formats.lerobot.clips import join_clips
from rlds2reverb.formats.lerobot.encode import EncodedEpisode, arrow_numbers, merge_stats, stats_of_numbers
from rlds2reverb.formats.lerobot.features import EPISODE_INDEX, INDEX, TASK_INDEX
from rlds2reverb.formats.lerobot.plan import ROBOT, LeRobotPlan

_CHUNK = 1000  # files in a folder
_DATA = "data/chunk-{:03d}/file-{:03d}.parquet"
_EPISODES = "meta/episodes/chunk-{:03d}/file-{:03d}.parquet"
_VIDEO = "videos/{}/chunk-{:03d}/file-{:03d}.mp4"
_TASKS, _INFO = "meta/tasks.parquet", "meta/info.json"
_JOURNALS = ".journals"
_ROWS, _TABLE = "rows", "episodes"  # journals beside those of videos, whose names begin with "video."
_STATS = "stats/"
_LENGTH_BYTES = 8  # before each byte string of a journal
_MOST_IMAGE_BYTES = 1 << 30  # of a row group; Arrow's columns of bytes hold twice as much
_VIDEO_TEMPLATE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_JSON: dict[str, Any] = {"indent": 4, "ensure_ascii": False}


class LeRobotSink:
    """Episodes -> the files of a LeRobot dataset.

    While it is written, data/, videos/ and meta/episodes/ have complete files; each is closed when it is large enough, and in a dataset without
    videos at every `sync`. meta/tasks.parquet is written by `sync`, meta/stats.json and then meta/info.json by `finish`, from the contents of meta/episodes/.
    """

    def __init__(self, work: Path, plan: LeRobotPlan, state: State | None) -> None:
        self._work, self._plan = work, plan
        counts = dict.fromkeys(("episodes", "frames", "files", "tables", "tasks"), 0)
        videos = {feature.name: {"files": 0, "frames": 0, "bytes": 0} for feature in plan.videos}
        self._state: State = {
            **counts,
            "videos": videos,
            "journals": {},
            **deepcopy(state or {}),
        }
        self._tasks: dict[str, int] = {}
        self._rows: list[dict[str, Any]] = []  # of the next table of meta/episodes
        self._file: BinaryIO | None = None
        self._writer: parquet.ParquetWriter | None = None
        self._journals: _Journals | None = None
        # By a run that was stopped before it could say so: journals are gone then.
        self._is_finished = bool(plan.videos) and (work / _INFO).exists()
        if not self._is_finished:
            self._restore()

    def _restore(self) -> None:
        """Makes what is on disk that of the state."""
        work = self._work
        if self._plan.videos:
            self._journals = _Journals(work / _JOURNALS, self._state["journals"])
        counts = {"data": self._state["files"], "meta/episodes": self._state["tables"]}
        counts |= {f"videos/{name}": place["files"] for name, place in self._state["videos"].items()}
        for folder, count in counts.items():
            for path in (work / folder).glob("chunk-*/file-*"):  # written after the state
                chunk, file = (int(part.rpartition("-")[2]) for part in (path.parent.name, path.stem))
                if chunk * _CHUNK + file >= count:
                    path.unlink()
        if count := self._state["tasks"]:
            with parquet.ParquetFile(work / _TASKS) as table:
                texts = table.read(["task"])["task"].to_pylist()[:count]
            self._tasks = {text: at for at, text in enumerate(texts)}

    def write(self, encoded: EncodedEpisode) -> Sequence[Loss]:
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
        table = table.cast(_arrow_schema(table, self._plan.info_features))
        row = {
            EPISODE_INDEX: self._state["episodes"],
            "tasks": list(dict.fromkeys(encoded.tasks)),
            "length": rows,
            "data/chunk_index": self._state["files"] // _CHUNK,
            "data/file_index": self._state["files"] % _CHUNK,
            "dataset_from_index": first,
            "dataset_to_index": first + rows,
            **self._place_clips(encoded),
            **encoded.metadata,
            **{f"stats/{name}/{key}": value for name, values in stats.items() for key, value in values.items()},
        }
        self._state["episodes"] += 1
        self._state["frames"] += rows
        most = self._plan.choices.file_bytes
        if self._journals is not None:
            if self._journals.append(_ROWS, self._state["files"], _as_bytes(table)) >= most:
                self._write_rows(self._journals)
            if self._journals.append(_TABLE, self._state["tables"], _as_bytes(_table_of([row]))) >= most:
                self._write_table(self._journals)
            return encoded.losses
        self._append(table, rows)
        self._rows.append(row)
        if self._file is not None and self._file.tell() >= most:
            self._close_file()
        return encoded.losses

    def _place_clips(self, encoded: EncodedEpisode) -> dict[str, Any]:
        """Puts an episode's clips into the journals of the current files; returns where the episode is in the files."""
        columns: dict[str, Any] = {}
        for name, clip in encoded.clips.items():
            place, journals = self._state["videos"][name], self._journals
            assert journals is not None  # the plan has videos
            if place["frames"] and place["bytes"] + len(clip) >= self._plan.choices.video_bytes:
                self._write_video(journals, name)
            journals.append(f"video.{name}", place["files"], clip)
            columns |= {
                f"videos/{name}/chunk_index": place["files"] // _CHUNK,
                f"videos/{name}/file_index": place["files"] % _CHUNK,
                f"videos/{name}/from_timestamp": place["frames"] / self._plan.fps,
                f"videos/{name}/to_timestamp": (place["frames"] + encoded.rows) / self._plan.fps,
            }
            place["frames"] += encoded.rows
            place["bytes"] += len(clip)
        return columns

    def _write_video(self, journals: _Journals, name: str) -> None:
        place, encoding = self._state["videos"][name], self._plan.choices.video
        assert encoding is not None  # else there are no videos
        path = self._work / _VIDEO.format(name, *divmod(place["files"], _CHUNK))
        journal = f"video.{name}"
        join_clips(encoding, journals.read(journal, place["files"]), path, self._plan.fps, place["frames"])
        journals.close(journal, place["files"])
        place.update(files=place["files"] + 1, frames=0, bytes=0)

    def _write_rows(self, journals: _Journals) -> None:
        for data in journals.read(_ROWS, self._state["files"]):
            table = _of_bytes(data)
            self._append(table, table.num_rows)
        journals.close(_ROWS, self._state["files"])
        self._close_file()

    def _write_table(self, journals: _Journals) -> None:
        rows = pa.concat_tables(_of_bytes(data) for data in journals.read(_TABLE, self._state["tables"]))
        self._write_episodes(rows)
        journals.close(_TABLE, self._state["tables"])
        self._state["tables"] += 1

    def sync(self) -> State:
        if self._is_finished:
            return deepcopy(self._state)
        if self._journals is not None:
            self._state["journals"] = self._journals.sync()
        else:
            self._close_file()
            if self._rows:
                self._write_episodes(_table_of(self._rows))
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
        return deepcopy(self._state)

    def _write_episodes(self, table: pa.Table) -> None:
        place = divmod(self._state["tables"], _CHUNK)
        for name, number in zip(("chunk", "file"), place):
            table = table.append_column(
                f"meta/episodes/{name}_index", pa.array(np.full(table.num_rows, number, np.int64))
            )
        _replace(self._work / _EPISODES.format(*place), table)

    def finish(self) -> None:
        if not self._is_finished:
            self.sync()
            self._complete()
        remove_whole(self._work / _JOURNALS)

    def _complete(self) -> None:
        """Writes the files that are still journals, and then what is said of all of them."""
        state, choices, features = self._state, self._plan.choices, self._plan.info_features
        if self._journals is not None:
            for name, place in state["videos"].items():
                if place["frames"]:
                    self._write_video(self._journals, name)
            if self._journals.size(_ROWS, state["files"]):
                self._write_rows(self._journals)
            if self._journals.size(_TABLE, state["tables"]):
                self._write_table(self._journals)
        if state["tables"]:
            stats = dict(_merge_episodes(self._work, features))
            write_json(self._work / "meta/stats.json", stats, allow_nan=False, **_JSON)
        fps = self._plan.fps
        if choices.video is not None:
            for feature in self._plan.videos:
                features[feature.name]["info"] |= choices.video.info(feature.shape, fps)
        info = {
            **self._plan.about,
            "codebase_version": "v3.0",
            "robot_type": choices.robot or self._plan.about.get(ROBOT),
            "total_episodes": state["episodes"],
            "total_frames": state["frames"],
            "total_tasks": state["tasks"],
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": max(1, choices.file_bytes >> 20),
            "video_files_size_in_mb": max(1, choices.video_bytes >> 20),
            "fps": fps,
            "splits": {"train": f"0:{state['episodes']}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": _VIDEO_TEMPLATE if self._plan.videos else None,
            "features": features,
        }
        write_json(self._work / _INFO, info, **_JSON)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None
        if self._journals is not None:
            self._journals.release()

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
        self._file.close()
        self._file = self._writer = None
        self._state["files"] += 1


class _Journals:
    """Byte strings one behind the other, in a file for each file of the dataset that they are to become.

    A journal whose file of the dataset is written is removed at the next but one `sync`: until the state of the next one is saved, a conversion
    that is killed continues from the one before, and needs it.

    Args:
      folder: of the journals.
      sizes: by journal, the bytes that were on disk at the last `sync`; what follows them is cut off.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._files = folder, dict[str, BinaryIO]()
        self._sizes = dict(sizes)
        self._closed: list[str] = []
        self._removable: list[str] = []
        for path in folder.iterdir():
            if path.name not in sizes:
                path.unlink()
        for name, size in sizes.items():
            self._files[name] = at_end(folder / name, size)

    def append(self, name: str, number: int, data: bytes) -> int:
        """Appends to the journal of a file; returns its size."""
        key = f"{name}.{number}"
        if key not in self._files:
            self._files[key], self._sizes[key] = at_end(self._folder / key, 0), 0
        self._files[key].write(len(data).to_bytes(_LENGTH_BYTES, "little"))
        self._files[key].write(data)
        self._sizes[key] += _LENGTH_BYTES + len(data)
        return self._sizes[key]

    def size(self, name: str, number: int) -> int:
        return self._sizes.get(f"{name}.{number}", 0)

    def read(self, name: str, number: int) -> Iterator[bytes]:
        """What was appended."""
        key = f"{name}.{number}"
        if key in self._files:
            self._files[key].flush()
            with (self._folder / key).open("rb") as file:
                while length := file.read(_LENGTH_BYTES):
                    yield file.read(int.from_bytes(length, "little"))

    def close(self, name: str, number: int) -> None:
        """Says that the file is written which this journal was to become."""
        key = f"{name}.{number}"
        self._files.pop(key).close()
        del self._sizes[key]
        self._closed.append(key)

    def sync(self) -> dict[str, int]:
        for file in self._files.values():
            put(file)
        for key in self._removable:
            (self._folder / key).unlink(missing_ok=True)
        self._removable, self._closed = self._closed, []
        return dict(self._sizes)

    def release(self) -> None:
        """Closes the journals, which stay as they are."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _of_bytes(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def _table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of meta/episodes. Numbers keep their dtype; statistics become lists, nested once for each axis."""
    columns: dict[str, pa.Array] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, np.ndarray):
            columns[name] = pa.array([value.tolist() for value in values] if first.ndim else np.stack(values))
        else:
            columns[name] = pa.array(values)
    return pa.table(columns)


def _arrow_schema(table: pa.Table, entries: Mapping[str, Any]) -> pa.Schema:
    """The table's schema, with the features as the library `datasets` expects them."""
    features: dict[str, Any] = {}
    for name, entry in entries.items():
        shape, dtype = entry["shape"], entry["dtype"]
        if dtype == "video":  # no column: its frames are in the videos
            continue
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
