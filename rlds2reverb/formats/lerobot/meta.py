"""The folder meta/ of a LeRobot dataset, read and written: info.json and its path templates, the episodes, the tasks, the statistics.

| | version 2 | version 3 |
| --- | --- | --- |
| episodes | meta/episodes.jsonl | meta/episodes/*/*.parquet |
| tasks | meta/tasks.jsonl | meta/tasks.parquet; the text is the column `task`, or an index without a name |
| rows | a file for each episode | a piece of a file, from `dataset_from_index` to `dataset_to_index` of all rows |

Templates are filled in by this module only, never by `str.format`. Version 3.0 is written.

Statistics are those that LeRobot normalizes by. Of the last axis, over rows and the other axes; of an image, of each channel as
[channels, 1, 1], of at most a hundred images and every few pixels of them, divided by 255. An episode's quantiles are exact; those of
the dataset are the episodes' averages, as in LeRobot. Source: compute_stats.py of lerobot 0.6.1.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.files import parsed_object, read_object, whole, write_json
from rlds2reverb.formats.destination import State
from rlds2reverb.formats.lerobot import values
from rlds2reverb.formats.lerobot.features import (
    DONE,
    DTYPES,
    EPISODE_INDEX,
    OURS,
    RESERVED,
    TASK_INDEX,
    TIMESTAMP,
    Feature,
    Plan,
    features_of,
    tells_of_tasks,
)
from rlds2reverb.formats.paths import check_link
from rlds2reverb.text import shortened

_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(\.\d{1,3})?", re.ASCII)
_FIELD = re.compile(r"\{(\w{1,32})(?::0?(\d{1,2})d?)?\}", re.ASCII)
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class Info:
    """The part of info.json that readers need.

    Attributes:
      root: the dataset's folder.
      version: (2, 0), (2, 1), (3, 0).
      chunks_size: episodes (version 2) or files (version 3) in a folder.
      data_path, video_path: templates; the second is "" without videos.
      features: by name, in the order of the file.
      task_is_column: whether rlds2reverb wrote the dataset from data with the task as a column.
    """

    root: Path
    version: tuple[int, int]
    chunks_size: int
    data_path: str
    video_path: str
    features: Mapping[str, Feature]
    task_is_column: bool = False

    def data_file(self, fields: Mapping[str, int]) -> Path:
        """The file of an episode or a chunk. Links are not followed.

        Raises:
          SourceError: the template leads out of the dataset, or has another field.
        """
        return below(self.root, _filled(self.root, self.data_path, fields))

    def video_file(self, key: str, fields: Mapping[str, int]) -> Path:
        """The video of a feature, as `data_file`."""
        return below(self.root, _filled(self.root, self.video_path, {"video_key": key, **fields}))


def read_info(root: Path) -> Info:
    """Reads meta/info.json.

    Raises:
      SourceError: there is none, or it is not that of a dataset of version 2 or 3.
    """
    path = inside(root, "meta/info.json")
    found = read_object(path, "a LeRobot dataset: a folder with meta/info.json")
    version = _version(path, found.get("codebase_version"))
    chunks_size = found.get("chunks_size", 1000)
    if type(chunks_size) is not int or chunks_size < 1:
        raise SourceError(f"{path}: chunks_size: expected a whole number of at least 1, found {_shown(chunks_size)}")
    data_path, video_path = (_template(path, key, found.get(key)) for key in ("data_path", "video_path"))
    features = features_of(path, found.get("features"))
    is_column = tells_of_tasks(found["features"])
    return Info(root, version, chunks_size, data_path, video_path, features, is_column)


def _template(path: Path, key: str, found: Any) -> str:
    """A path with fields; "" if info.json has none."""
    if found is not None and not (isinstance(found, str) and len(found) <= _LONGEST_PATH):
        raise SourceError(f"{path}: {key}: expected the template of a path, found {_shown(found)}")
    return found or ""


def inside(root: Path, relative: str) -> Path:
    """A path in the dataset's folder, with links followed. A snapshot in Hugging Face's cache may link into the cache's folder of the dataset.

    Raises:
      SourceError: it leads elsewhere.
    """
    path = below(root, relative)
    check_link(root, path)
    return path


def below(root: Path, relative: str) -> Path:
    """A path in the dataset's folder, judged by its text. Links are not followed.

    Raises:
      SourceError: it leads elsewhere.
    """
    parts = relative.replace("\\", "/").split("/")
    if relative.startswith("/") or ".." in parts or "\0" in relative:
        raise SourceError(f'{root}: the path "{shortened(relative)}" leads out of the dataset')
    return root / relative


def _filled(root: Path, template: str, fields: Mapping[str, Any]) -> str:
    def field(found: re.Match[str]) -> str:
        value, width = fields.get(found[1]), int(found[2] or 0)
        if value is None or (isinstance(value, str) and width):
            raise SourceError(
                f'{root}: meta/info.json: path "{template}": no field {found[0]}; there are {_names(fields)}'
            )
        return str(value).zfill(width)

    filled = _FIELD.sub(field, template)
    if "{" in _FIELD.sub("", template) or "}" in _FIELD.sub("", template) or not filled:
        raise SourceError(f'{root}: meta/info.json: path "{template}": expected fields such as {_names(fields)}')
    return filled


def _names(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{{{name}}}" for name in fields)


def _version(path: Path, found: Any) -> tuple[int, int]:
    match = _VERSION.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise SourceError(f"{path}: codebase_version: expected v2.0, v2.1 or v3.0, found {_shown(found)}")
    version = int(match[1]), int(match[2])
    if version[0] not in (2, 3):
        raise SourceError(f"{path}: version {found}; v2.0, v2.1 and v3.0 are read: convert it with lerobot's scripts")
    return version


def _shown(found: Any) -> str:
    return shortened(repr(found))


LENGTH, TASKS = "length", "tasks"
_FROM, _TO = "dataset_from_index", "dataset_to_index"
_NOT_METADATA = {EPISODE_INDEX, LENGTH, TASKS, _FROM, _TO}
_OF_FILES = ("stats/", "data/", "meta/", "videos/")
METADATA = "metadata/"
"""Before the names of features of episodes that rlds2reverb wrote."""

_MOST_BYTES = 1 << 30
_MOST_LINE_BYTES = 16 << 20
_ARROW = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of dtypes that differ from numpy's."""
_TASK_COLUMNS = ("task", "__index_level_0__")


@dataclass(frozen=True, eq=False)
class Episodes:
    """All episodes of a dataset.

    Attributes:
      info: of the dataset.
      columns: a value for each episode, by name: `episode_index`, `length`, and where the rows are.
      tasks: the tasks of each episode; None if the table has none.
      metadata: name -> a value for each episode, for columns of numbers or of texts.
      left_out: names of all other columns.
    """

    info: Info
    columns: Mapping[str, Array]
    tasks: tuple[tuple[str, ...], ...] | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    _last_file: dict[tuple[int, ...], Path] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.columns[EPISODE_INDEX])

    def index(self, number: int) -> int:
        """The dataset's own number of an episode."""
        return int(self.columns[EPISODE_INDEX][number])

    def rows(self, number: int) -> tuple[Path, int, int]:
        """The file, which may be a link, the first row in it, and how many there are."""
        length = int(self.columns[LENGTH][number])
        if self.info.version[0] == 2:
            return self.info.data_file(self._numbered(number)), 0, length
        return self._data_file(number), int(self.columns["first"][number]), length

    def _data_file(self, number: int) -> Path:
        """The file's object; consecutive episodes in the same file share one."""
        place = self._file(number, "data")
        key = tuple(place.values())
        path = self._last_file.get(key)
        if path is None:
            path = self.info.data_file(place)
            self._last_file.clear()
            self._last_file[key] = path
        return path

    def video(self, number: int, key: str) -> tuple[Path, float]:
        """The video of a feature, which may be a link, and when the episode begins in it, in seconds.

        Raises:
          SourceError: the table does not tell.
        """
        if self.info.version[0] == 2:
            return self.info.video_file(key, self._numbered(number)), 0.0
        begin = self.columns.get(f"videos/{key}/from_timestamp")
        if begin is None:
            raise SourceError(f'{self.info.root}: meta/episodes: no column "videos/{key}/from_timestamp"')
        return self.info.video_file(key, self._file(number, f"videos/{key}")), float(begin[number])

    def with_own_file(self, of: str) -> list[int]:
        """One episode of each file: all episodes in version 2, where each has its own."""
        names = [f"{of}/chunk_index", f"{of}/file_index"]
        if self.info.version[0] == 2 or not all(name in self.columns for name in names):
            return list(range(len(self)))
        files = np.stack([self.columns[name] for name in names])
        return sorted(np.unique(files, axis=1, return_index=True)[1].tolist())

    def _numbered(self, number: int) -> dict[str, int]:
        index = self.index(number)
        return {"episode_chunk": index // self.info.chunks_size, "episode_index": index}

    def _file(self, number: int, of: str) -> dict[str, int]:
        names = {name: f"{of}/{name}" for name in ("chunk_index", "file_index")}
        for column in names.values():
            if column not in self.columns:
                raise SourceError(f'{self.info.root}: meta/episodes: no column "{column}"')
        return {name: int(self.columns[column][number]) for name, column in names.items()}


def read_episodes(info: Info) -> Episodes:
    """The episodes of a dataset, in the order of their numbers.

    Raises:
      SourceError: the tables are missing, damaged or do not fit together.
    """
    return _of_lines(info) if info.version[0] == 2 else _of_tables(info)


def read_tasks(info: Info) -> dict[int, bytes]:
    """Number of a task -> its text; {} where the dataset has no tasks.

    Raises:
      SourceError: the file is damaged.
    """
    if info.version[0] == 2:
        path = inside(info.root, "meta/tasks.jsonl")
        rows = ((one.get(TASK_INDEX), one.get("task")) for one in _lines(path)) if path.exists() else ()
    else:
        path = inside(info.root, "meta/tasks.parquet")
        rows = _task_rows(path) if path.exists() else ()
    tasks: dict[int, bytes] = {}
    for number, text in rows:
        if type(number) is not int or not isinstance(text, str) or number in tasks:
            raise SourceError(
                f"{path}: expected a number and a text for each task, found {shortened(repr((number, text)))}"
            )
        tasks[number] = text.encode(errors="backslashreplace")
    return tasks


def _task_rows(path: Path) -> Iterable[tuple[Any, Any]]:
    table = values.whole(path, lambda name: name == TASK_INDEX or name in _TASK_COLUMNS)
    text = next((name for name in _TASK_COLUMNS if name in table.column_names), "")
    if not text or TASK_INDEX not in table.column_names:
        raise SourceError(f"{path}: expected the columns task_index and task, found {', '.join(table.column_names)}")
    return zip(table[TASK_INDEX].to_pylist(), table[text].to_pylist())


def _of_lines(info: Info) -> Episodes:
    path = inside(info.root, "meta/episodes.jsonl")
    found = list(_lines(path))
    for one in found:
        if not all(type(one.get(key)) is int and 0 <= one[key] < 1 << 62 for key in (EPISODE_INDEX, LENGTH)):
            raise SourceError(f"{path}: expected episode_index and length, found {shortened(repr(one))}")
    found.sort(key=lambda one: int(one[EPISODE_INDEX]))
    columns = {key: np.array([one[key] for one in found], np.int64) for key in (EPISODE_INDEX, LENGTH)}
    _check_indices(path, columns[EPISODE_INDEX])
    keys = [key for key in (found[0] if found else ()) if key not in _NOT_METADATA]
    values = {key: [one.get(key) for one in found] for key in keys}
    return Episodes(info, columns, _tasks([one.get(TASKS) for one in found]), *_metadata(values))


def _of_tables(info: Info) -> Episodes:
    folder = inside(info.root, "meta/episodes")
    paths = sorted(path for path in folder.glob("*/*.parquet"))
    if not paths:
        raise SourceError(f"{folder}: no episodes: expected chunk-000/file-000.parquet")
    tables_ = [values.whole(inside(info.root, str(path.relative_to(info.root))), _is_read) for path in paths]
    names = [name for name in tables_[0].column_names if all(name in one.column_names for one in tables_)]
    found = {name: [value for one in tables_ for value in one[name].to_pylist()] for name in names}
    columns = {name: _numbers(folder, name, values) for name, values in found.items() if _is_number(name)}
    for name in (EPISODE_INDEX, LENGTH, _FROM, _TO, "data/chunk_index", "data/file_index"):
        if name not in columns:
            raise SourceError(f'{folder}: no column "{name}"')
    order = np.argsort(columns[EPISODE_INDEX], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    _check_indices(folder, columns[EPISODE_INDEX])
    _check_rows(folder, columns)
    columns["first"] = _first_rows(columns)
    found = {name: [values[at] for at in order] for name, values in found.items()}
    tasks = _tasks(found[TASKS]) if TASKS in found else None
    rest = {
        name: values for name, values in found.items() if name not in _NOT_METADATA and not name.startswith(_OF_FILES)
    }
    dtypes = {name: _dtype(tables_[0].schema.field(name).type) for name in rest}
    return Episodes(info, columns, tasks, *_metadata(rest, dtypes))


def _dtype(kind: Any) -> Any:
    """The dtype of a column of numbers; None for other columns."""
    return DTYPES.get(_ARROW.get(str(kind), str(kind)))


def _is_read(name: str) -> bool:
    return not name.startswith(("stats/", "meta/"))


def _is_number(name: str) -> bool:
    return name in _NOT_METADATA - {TASKS} or name.startswith(("data/", "videos/"))


def _numbers(folder: Path, name: str, values: list[Any]) -> Array:
    kind, dtype = (float, np.float64) if name.endswith("timestamp") else (int, np.int64)
    if not all(type(value) in (int, kind) and abs(value) < 1 << 62 for value in values):
        raise SourceError(f'{folder}: column "{name}": expected {kind.__name__} for every episode')
    return np.array(values, dtype)


def _check_indices(path: Path, indices: Array) -> None:
    if len(indices) and (indices.min() < 0 or (np.diff(indices) == 0).any()):
        raise SourceError(f"{path}: an episode_index is below 0, or stands there twice")


def _check_rows(folder: Path, columns: Mapping[str, Array]) -> None:
    wrong = (columns[_TO] - columns[_FROM] != columns[LENGTH]) | (columns[_FROM] < 0) | (columns[LENGTH] < 0)
    for name in columns:
        if name.endswith(("chunk_index", "file_index")):
            wrong |= columns[name] < 0
    if wrong.any():
        number = int(columns[EPISODE_INDEX][wrong][0])
        raise SourceError(f"{folder}: episode {number}: its length, rows or files make no sense")


def _first_rows(columns: Mapping[str, Array]) -> Array:
    """Each episode's first row in its file: its row in the dataset minus the row at which the file begins."""
    files = np.stack([columns["data/chunk_index"], columns["data/file_index"]])
    _, of = np.unique(files, axis=1, return_inverse=True)
    of = of.reshape(-1)
    first = np.full(int(of.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, of, columns[_FROM])
    return np.asarray(columns[_FROM] - first[of])


def _tasks(found: list[Any]) -> tuple[tuple[str, ...], ...] | None:
    if not all(isinstance(one, list) and all(isinstance(task, str) for task in one) for one in found):
        return None
    return tuple(map(tuple, found))


def _metadata(
    found: Mapping[str, list[Any]], dtypes: Mapping[str, Any] = MappingProxyType({})
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The columns with values of one kind (numbers as arrays, text as a list of `bytes`), and the names of all other columns."""
    made = {name.removeprefix(METADATA): _values(values, dtypes.get(name)) for name, values in found.items()}
    kept = {name: values for name, values in made.items() if values is not None}
    return kept, tuple(name for name in made if name not in kept)


def _values(values: list[Any], dtype: Any) -> Any:
    """The values of a column, one for each episode; None if they are of several kinds, or if no dtype holds them all exactly."""
    kinds = set(map(type, values))
    if kinds == {str}:
        return [value.encode(errors="backslashreplace") for value in values]
    if kinds == {bool}:
        return np.array(values)
    if not kinds or not kinds <= {int, float}:
        return None
    known: list[Any] = [dtype] if dtype is not None else [np.float64] if float in kinds else [np.int64, np.uint64]
    return next((made for one in known if (made := _exactly(values, one)) is not None), None)


def _exactly(values: list[Any], dtype: Any) -> Array | None:
    try:
        made = np.array(values, dtype)
    except OverflowError:
        return None
    return made if all(one == value or one != one for one, value in zip(made.tolist(), values)) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise SourceError(f"{path}: expected a file of at most {_MOST_BYTES:,} bytes")
        with path.open("rb") as file:
            while line := file.readline(_MOST_LINE_BYTES):
                if line.strip():
                    yield parsed_object(path, line)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


CHUNK = 1000
"""Files in a folder."""
DATA = "data/chunk-{:03d}/file-{:03d}.parquet"
_EPISODES = "meta/episodes/chunk-{:03d}/file-{:03d}.parquet"
_TASKS = "meta/tasks.parquet"
_STATS = "stats/"
FPS = 10
"""Used if there are no timestamps."""
_VIDEO_MB = 200
_JSON: dict[str, Any] = {"indent": 4, "ensure_ascii": False}


def info_features(plan: Plan) -> dict[str, dict[str, Any]]:
    """The entry `features` of info.json, in the order of the tables' columns."""
    entries = {one.name: one.entry for one in plan.fields}
    done = {DONE: _number("bool")} if plan.done else {}
    reserved = {name: _number("float32" if name == TIMESTAMP else "int64") for name in RESERVED}
    if plan.task:
        reserved[TASK_INDEX]["info"] = {OURS: {"task": "column"}}
    return {**entries, **done, **reserved}


def _number(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [1], "names": None}


def fps_of(episode: Episode) -> int:
    """Rows per second according to an episode's timestamps."""
    steps = np.diff(episode.columns[TIMESTAMP].astype(np.float64))
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    return max(1, round(1 / step)) if step and np.isfinite(step) else FPS


def cut(work: Path, state: State) -> None:
    """Removes what was written after a state."""
    for folder, count in (("data", state["files"]), ("meta/episodes", state["tables"])):
        for path in (work / folder).glob("chunk-*/file-*.parquet"):
            chunk, file = (int(part.rpartition("-")[2]) for part in (path.parent.name, path.stem))
            if chunk * CHUNK + file >= count:
                path.unlink()


def written_tasks(work: Path, count: int) -> list[str]:
    """The first texts of meta/tasks.parquet."""
    if not count:
        return []
    with parquet.ParquetFile(work / _TASKS) as file:
        texts: list[str] = file.read(["task"])["task"].to_pylist()
    return texts[:count]


def write_tasks(work: Path, texts: Sequence[str]) -> None:
    """As pandas writes an index of texts named `task`, which lerobot expects."""
    table = pa.table({TASK_INDEX: pa.array(range(len(texts)), pa.int64()), "task": pa.array(texts, pa.string())})
    column = {
        "field_name": TASK_INDEX,
        "name": TASK_INDEX,
        "numpy_type": "int64",
        "pandas_type": "int64",
        "metadata": None,
    }
    index = {"field_name": "task", "name": "task", "numpy_type": "object", "pandas_type": "unicode", "metadata": None}
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": [column, index], "pandas_version": "2.2.0"}
    _replace(work / _TASKS, table.replace_schema_metadata({"pandas": json.dumps(pandas)}))


def write_episodes(work: Path, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of meta/episodes."""
    chunk, file = divmod(number, CHUNK)
    columns = {name: _column([one[name] for one in rows]) for name in rows[0]}
    columns["meta/episodes/chunk_index"] = pa.array([chunk] * len(rows), pa.int64())
    columns["meta/episodes/file_index"] = pa.array([file] * len(rows), pa.int64())
    _replace(work / _EPISODES.format(chunk, file), pa.table(columns))


def _column(values: Sequence[Any]) -> pa.Array:
    """Numbers keep their dtype. Statistics become lists, nested once for each axis."""
    if not isinstance(values[0], np.ndarray):
        return pa.array(values)
    if not values[0].ndim:
        return pa.array(np.stack(values))
    return pa.array([value.tolist() for value in values])


def finish(work: Path, plan: Plan, state: State) -> None:
    """Writes meta/stats.json, and meta/info.json as the last."""
    features = info_features(plan)
    if state["tables"]:
        write_json(work / "meta/stats.json", dict(_merged(work, features)), allow_nan=False, **_JSON)
    info = {
        "codebase_version": "v3.0",
        "robot_type": plan.choices.robot or None,
        "total_episodes": state["episodes"],
        "total_frames": state["frames"],
        "total_tasks": state["tasks"],
        "chunks_size": CHUNK,
        "data_files_size_in_mb": max(1, plan.choices.file_bytes >> 20),
        "video_files_size_in_mb": _VIDEO_MB,
        "fps": state["fps"] or FPS,
        "splits": {"train": f"0:{state['episodes']}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }
    write_json(work / "meta/info.json", info, **_JSON)


def _merged(work: Path, features: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Feature -> the statistics of all episodes. Features with a number that is not finite are left out: JSON has no such numbers.

    Only one table of episodes is in memory at a time.
    """
    found: dict[str, dict[str, Array]] = {}
    for path in sorted((work / "meta/episodes").glob("*/*.parquet")):
        for name, many in _of_episodes(path).items():
            found[name] = _merged_stats([*([found[name]] if name in found else []), *many])
    for name in features:
        if name in found and all(np.isfinite(one).all() for one in found[name].values()):
            yield name, {key: value.tolist() for key, value in found[name].items()}


def _of_episodes(path: Path) -> dict[str, list[dict[str, Array]]]:
    """Feature -> the statistics of each episode of a table."""
    with parquet.ParquetFile(path) as file:
        table = file.read([name for name in file.schema_arrow.names if name.startswith(_STATS)])
    found: dict[str, list[dict[str, Array]]] = {}
    for column in table.column_names:
        name, _, key = column.removeprefix(_STATS).rpartition("/")
        values = table[column].to_pylist()
        for one, value in zip(found.setdefault(name, [{} for _ in values]), values):
            one[key] = np.array(value)
    return found


def _replace(path: Path, table: pa.Table) -> None:
    """Writes a table, all of it or nothing; it is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as unfinished, unfinished.open("wb") as file:
        parquet.write_table(table, file)


QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
_MOST_IMAGES = 100
_SIDE = 150
_NAMES = tuple(f"q{round(100 * quantile):02d}" for quantile in QUANTILES)

Stats = Mapping[str, Array]
"""min, max, mean, std, count, q01, q10, q50, q90, q99."""


def stats_of_numbers(values: Array) -> dict[str, Array]:
    """Of [T, ...] numbers: [last axis]."""
    return _stats(values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1), len(values))


def sampled_images(rows: int) -> Array:
    """Which images of an episode its statistics use."""
    return np.asarray(np.unique(np.linspace(0, rows - 1, min(rows, _MOST_IMAGES)).round().astype(int)))


def stats_of_images(pixels: Array) -> dict[str, Array]:
    """Of [n, height, width, channels] uint8: [channels, 1, 1]."""
    step = max(1, math.ceil(max(pixels.shape[1:3]) / _SIDE))
    found = _stats(pixels[:, ::step, ::step].reshape(-1, pixels.shape[3]), len(pixels))
    return {name: one if name == "count" else one.reshape(-1, 1, 1) / 255 for name, one in found.items()}


def _stats(values: Array, count: int) -> dict[str, Array]:
    exact = values.astype(np.float64)
    with np.errstate(all="ignore"):
        made = {"min": exact.min(0), "max": exact.max(0), "mean": exact.mean(0), "std": exact.std(0)}
        quantiles = np.quantile(exact, QUANTILES, axis=0, method="inverted_cdf")
    return {**made, "count": np.array([count]), **dict(zip(_NAMES, quantiles))}


def _merged_stats(many: Sequence[Stats]) -> dict[str, Array]:
    stacked = {name: np.stack([np.asarray(one[name]) for one in many]) for name in many[0]}
    counts = stacked["count"].reshape(-1)
    weights = (counts / counts.sum()).reshape(-1, *[1] * (stacked["mean"].ndim - 1))
    with np.errstate(all="ignore"):
        mean = (stacked["mean"] * weights).sum(0)
        variance = ((stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2) * weights).sum(0)
        found = {"min": stacked["min"].min(0), "max": stacked["max"].max(0), "mean": mean, "std": np.sqrt(variance)}
        quantiles = {name: (stacked[name] * weights).sum(0) for name in _NAMES}
    return {**found, "count": np.array([counts.sum()]), **quantiles}
