"""The folder meta/ of a LeRobot dataset: info.json and its path templates, the episodes, the tasks.

| | version 2 | version 3 |
| --- | --- | --- |
| episodes | meta/episodes.jsonl | meta/episodes/*/*.parquet |
| tasks | meta/tasks.jsonl | meta/tasks.parquet; the text is the column `task`, or an index without a name |
| rows | a file for each episode | a piece of a file: `keys` |

Templates are filled in by this module only, never by `str.format`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import parsed_object, read_object
from rlds2reverb.formats.lerobot import values
from rlds2reverb.formats.lerobot.features import (
    EPISODE_INDEX,
    NUMBER,
    TASK_INDEX,
    Feature,
    read_features,
    task_is_column,
)
from rlds2reverb.formats.paths import check_link
from rlds2reverb.specs import REAL_NUMBERS
from rlds2reverb.text import shortened

_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(\.\d{1,3})?", re.ASCII)
_FIELD = re.compile(r"\{(\w{1,32})(?::0?(\d{1,2})d?)?\}", re.ASCII)
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class Info:
    """The part of info.json that readers need.

    Attributes:
      chunks_size: episodes (version 2) or files (version 3) in a folder.
      data_path, video_path: templates; the second is "" without videos.
      task_is_column: whether rlds2reverb wrote the dataset from data with the task as a column.
      half_frame: seconds; half the time between two rows.
      about: fields that say something of the dataset as a whole, and are not said anew of a copy.
      own: its version and its counts, which a copy says anew.
    """

    root: Path
    version: tuple[int, int]
    chunks_size: int
    data_path: str
    video_path: str
    features: Mapping[str, Feature]
    task_is_column: bool = False
    half_frame: float = 0.001
    about: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)

    def data_files(self) -> list[Path]:
        """All files of rows (maybe links), in the order in which LeRobot reads them; also such as meta/episodes does not name."""
        parts = [escape(part) for part in _FIELD.sub("*", self.data_path).split("/")]
        parts[-1] = f"*{Path(self.data_path).suffix}"
        pattern = "/".join(part.replace("[*]", "*") for part in parts)
        _below(self.root, pattern)
        return sorted(self.root.glob(pattern))

    def data_file(self, fields: Mapping[str, int]) -> Path:
        """The file of an episode or a chunk; raises `SourceError` if the template leads out or has another field."""
        return _fill_in(self.root, self.data_path, fields)

    def video_file(self, key: str, fields: Mapping[str, int]) -> Path:
        return _fill_in(self.root, self.video_path, {"video_key": key, **fields})


def read_info(root: Path) -> Info:
    """Reads meta/info.json; raises `SourceError` if there is none, or it is not that of a dataset of version 2 or 3."""
    path = _inside(root, "meta/info.json")
    info = read_object(path, "a LeRobot dataset: a folder with meta/info.json")
    recorded = info.get("codebase_version")
    match = _VERSION.fullmatch(recorded) if isinstance(recorded, str) else None
    if match is None:
        raise SourceError(f"{path}: codebase_version: expected v2.0, v2.1 or v3.0, found {shortened(repr(recorded))}")
    version = int(match[1]), int(match[2])
    if version[0] not in (2, 3):
        raise SourceError(
            f"{path}: version {recorded}; v2.0, v2.1 and v3.0 are read: convert it with lerobot's scripts"
        )
    chunks_size = info.get("chunks_size", 1000)
    if type(chunks_size) is not int or chunks_size < 1:
        raise SourceError(
            f"{path}: chunks_size: expected a whole number of at least 1, found {shortened(repr(chunks_size))}"
        )
    templates: list[str] = []
    for key in ("data_path", "video_path"):
        template = info.get(key) or ""
        if not isinstance(template, str) or len(template) > _LONGEST_PATH:
            raise SourceError(f"{path}: {key}: expected the template of a path, found {shortened(repr(template))}")
        templates.append(template)
    features = read_features(path, info.get("features"))
    is_column = task_is_column(info["features"])
    fps = info.get("fps")
    half_frame = 0.5 / fps if isinstance(fps, (int, float)) and 0 < fps < math.inf else Info.half_frame
    about = _collect_facts(info, features)
    own = {name: info.get(name) for name in ("codebase_version", "total_episodes", "total_frames", "total_tasks")}
    return Info(root, version, chunks_size, templates[0], templates[1], features, is_column, half_frame, about, own)


_SAID_ANEW = (
    "codebase_version", "total_episodes", "total_frames", "total_tasks", "total_videos", "total_chunks", "chunks_size",
    "data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path", "features", "splits",
)  # fmt: skip


def _collect_facts(info: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any]:
    """The fields of info.json without those that a copy has of its own. A feature's names of its numbers are the fact `names/PATH`."""
    about = {name: value for name, value in info.items() if name not in _SAID_ANEW}
    splits = info.get("splits")
    if splits != {"train": f"0:{info.get('total_episodes')}"}:
        about["splits"] = splits
    for name, feature in features.items():
        names = info["features"][name].get("names")
        if feature.kind == NUMBER and names:
            about[f"names/{feature.path}"] = {"names": names, "shape": list(feature.shape)}
    return about


def _inside(root: Path, relative: str) -> Path:
    """A path in the dataset's folder, with links followed; raises `SourceError` if it leads elsewhere."""
    path = _below(root, relative)
    check_link(root, path)
    return path


def _below(root: Path, relative: str) -> Path:
    """A path in the dataset's folder, judged by its text only; raises `SourceError` if it leads elsewhere."""
    parts = relative.replace("\\", "/").split("/")
    if relative.startswith("/") or ".." in parts or "\0" in relative:
        raise SourceError(f'{root}: the path "{shortened(relative)}" leads out of the dataset')
    return root / relative


def _fill_in(root: Path, template: str, fields: Mapping[str, Any]) -> Path:
    names = ", ".join(f"{{{name}}}" for name in fields)

    def value_at(place: re.Match[str]) -> str:
        value, width = fields.get(place[1]), int(place[2] or 0)
        if value is None or (isinstance(value, str) and width):
            raise SourceError(f'{root}: meta/info.json: path "{template}": no field {place[0]}; there are {names}')
        return str(value).zfill(width)

    filled = _FIELD.sub(value_at, template)
    if re.search("[{}]", _FIELD.sub("", template)) or not filled:
        raise SourceError(f'{root}: meta/info.json: path "{template}": expected fields such as {names}')
    return _below(root, filled)


LENGTH, TASKS = "length", "tasks"
_FROM, _TO = "dataset_from_index", "dataset_to_index"
_NOT_METADATA = {EPISODE_INDEX, LENGTH, TASKS, _FROM, _TO}
_OF_FILES = ("stats/", "data/", "meta/", "videos/")
METADATA = "metadata/"  # prefix of the columns in which rlds2reverb writes features of episodes

_MOST_BYTES = 1 << 30
_MOST_LINE_BYTES = 16 << 20
_ARROW = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of dtypes that differ from numpy's."""
_TASK_COLUMNS = ("task", "__index_level_0__")


@dataclass(frozen=True, eq=False)
class Episodes:
    """All episodes of a dataset: columns and metadata by name, with a value for each episode; the names of columns that are neither are left out."""

    info: Info
    columns: Mapping[str, Array]
    tasks: tuple[tuple[str, ...], ...] | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    _last_file: dict[tuple[int, ...], Path] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.columns[EPISODE_INDEX])

    def index(self, number: int) -> int:
        return int(self.columns[EPISODE_INDEX][number])

    def length(self, number: int) -> int:
        """The rows of an episode."""
        return int(self.columns[LENGTH][number])

    def data_file(self, number: int) -> Path | None:
        """The file of an episode (maybe a link); None if meta does not say it. Episodes in one file share the `Path`."""
        if self.info.version[0] == 2:
            return self.info.data_file(self._numbered(number))
        place = self._file(number, "data")
        if place is None:
            return None
        key = tuple(place.values())
        path = self._last_file.get(key)
        if path is None:
            path = self.info.data_file(place)
            self._last_file.clear()
            self._last_file[key] = path
        return path

    def first_index(self, number: int) -> int | None:
        """The `index` of an episode's first row, as meta says it; None if it does not."""
        return int(self.columns[_FROM][number]) if _FROM in self.columns and self.columns[_FROM][number] >= 0 else None

    def video(self, number: int, key: str) -> tuple[Path, float] | None:
        """The video of a feature (maybe a link), and the time in seconds at which the episode begins in it; None if meta does not say it."""
        if self.info.version[0] == 2:
            return self.info.video_file(key, self._numbered(number)), 0.0
        begin, place = self.columns.get(f"videos/{key}/from_timestamp"), self._file(number, f"videos/{key}")
        return None if begin is None or place is None else (self.info.video_file(key, place), float(begin[number]))

    def video_end(self, number: int, key: str) -> float:
        """The time in seconds at which the episode ends in that video; infinite if meta does not say it."""
        end = self.columns.get(f"videos/{key}/to_timestamp") if self.info.version[0] > 2 else None
        return math.inf if end is None or math.isnan(end[number]) else float(end[number])

    def overlapping(self, key: str) -> int:
        """The number of episodes whose part of a video reaches by more than half a frame into that of another episode."""
        names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        columns = [self.columns.get(f"videos/{key}/{name}") for name in names]
        if self.info.version[0] == 2 or any(column is None for column in columns):
            return 0
        chunk, file, begin, end = (np.asarray(column) for column in columns)
        order = np.lexsort((begin, file, chunk))
        before, behind = order[:-1], order[1:]
        shares_file = (chunk[before] == chunk[behind]) & (file[before] == file[behind])
        overlaps = shares_file & (end[before] - begin[behind] > self.info.half_frame)
        return len(np.union1d(before[overlaps], behind[overlaps]))

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

    def _file(self, number: int, of: str) -> dict[str, int] | None:
        """The numbers in a file's name; None if meta does not say one of them."""
        columns = {name: self.columns.get(f"{of}/{name}") for name in ("chunk_index", "file_index")}
        place = {name: -1 if column is None else int(column[number]) for name, column in columns.items()}
        return None if min(place.values()) < 0 else place


def read_episodes(info: Info) -> Episodes:
    """The episodes, in the order of their numbers; raises `SourceError` if tables are missing, damaged or contradict each other."""
    return _read_jsonl(info) if info.version[0] == 2 else _read_parquet(info)


def read_tasks(info: Info) -> dict[int, bytes]:
    """Number of a task -> its text; {} if the dataset has no tasks. Raises `SourceError` if the file is damaged."""
    rows: Iterable[tuple[Any, Any]]
    path = _inside(info.root, f"meta/tasks.{'jsonl' if info.version[0] == 2 else 'parquet'}")
    if not path.exists():
        return {}
    if info.version[0] == 2:
        rows = ((task.get(TASK_INDEX), task.get("task")) for task in _read_lines(path))
    else:
        table = values.read_table(path, lambda name: name == TASK_INDEX or name in _TASK_COLUMNS)
        names = table.column_names
        text = next((name for name in _TASK_COLUMNS if name in names), "")
        if not text or TASK_INDEX not in names:
            raise SourceError(f"{path}: expected the columns task_index and task, found {', '.join(names)}")
        rows = zip(table[TASK_INDEX].to_pylist(), table[text].to_pylist())
    tasks: dict[int, bytes] = {}
    for number, text in rows:
        if type(number) is not int or not isinstance(text, str) or number in tasks:
            raise SourceError(
                f"{path}: expected a number and a text for each task, found {shortened(repr((number, text)))}"
            )
        tasks[number] = text.encode(errors="backslashreplace")
    return tasks


def _read_jsonl(info: Info) -> Episodes:
    path = _inside(info.root, "meta/episodes.jsonl")
    lines = list(_read_lines(path))
    for line in lines:
        if not all(type(line.get(key)) is int and 0 <= line[key] < 1 << 62 for key in (EPISODE_INDEX, LENGTH)):
            raise SourceError(f"{path}: expected episode_index and length, found {shortened(repr(line))}")
    lines.sort(key=lambda line: int(line[EPISODE_INDEX]))
    columns = {key: np.array([line[key] for line in lines], np.int64) for key in (EPISODE_INDEX, LENGTH)}
    _check_indices(path, columns[EPISODE_INDEX])
    keys = [key for key in (lines[0] if lines else ()) if key not in _NOT_METADATA]
    values = {key: [line.get(key) for line in lines] for key in keys}
    return Episodes(info, columns, _read_task_lists([line.get(TASKS) for line in lines]), *_sort_metadata(values))


def _read_parquet(info: Info) -> Episodes:
    folder = _inside(info.root, "meta/episodes")
    paths = [_inside(info.root, str(path.relative_to(info.root))) for path in sorted(folder.glob("*/*.parquet"))]
    if not paths:
        raise SourceError(f"{folder}: no episodes: expected chunk-000/file-000.parquet")
    tables = [values.read_table(path, lambda name: not name.startswith(("stats/", "meta/"))) for path in paths]
    names = [name for name in tables[0].column_names if all(name in table.column_names for table in tables)]
    stored = {name: [value for table in tables for value in table[name].to_pylist()] for name in names}
    columns = {
        name: _read_numbers(folder, name, values)
        for name, values in stored.items()
        if name in _NOT_METADATA - {TASKS} or name.startswith(("data/", "videos/"))
    }
    for name in (EPISODE_INDEX, LENGTH):
        if name not in columns:
            raise SourceError(f'{folder}: no column "{name}"')
    order = np.argsort(columns[EPISODE_INDEX], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    _check_indices(folder, columns[EPISODE_INDEX])
    if (columns[LENGTH] < 0).any():
        number = int(columns[EPISODE_INDEX][columns[LENGTH] < 0][0])
        raise SourceError(f"{folder}: episode {number}: its length is below 0")
    stored = {name: [values[at] for at in order] for name, values in stored.items()}
    tasks = _read_task_lists(stored[TASKS]) if TASKS in stored else None
    metadata = {
        name: values for name, values in stored.items() if name not in _NOT_METADATA and not name.startswith(_OF_FILES)
    }
    kinds = {name: str(tables[0].schema.field(name).type) for name in metadata}
    # None for other than numbers.
    dtypes = {name: REAL_NUMBERS.get(_ARROW.get(kind, kind)) for name, kind in kinds.items()}
    return Episodes(info, columns, tasks, *_sort_metadata(metadata, dtypes))


def _read_numbers(folder: Path, name: str, values: list[Any]) -> Array:
    """The numbers of a column. Of those that say where an episode stands, a missing one is -1 or NaN: the rows have keys of their own."""
    is_time = name.endswith("timestamp")
    if name not in (EPISODE_INDEX, LENGTH):
        unknown = math.nan if is_time else -1
        values = [unknown if value is None or value != value else value for value in values]
    are_numbers = all(
        (type(value) in (int, float) and abs(value) < 1 << 62) or (is_time and value != value) for value in values
    )
    if not are_numbers or not (is_time or all(value == int(value) for value in values)):
        kind = "number" if is_time else "whole number"
        raise SourceError(f'{folder}: column "{name}": expected a {kind} for every episode')
    return np.array(values, np.float64 if is_time else np.int64)


def _check_indices(path: Path, indices: Array) -> None:
    if len(indices) and (indices.min() < 0 or (np.diff(indices) == 0).any()):
        raise SourceError(f"{path}: an episode_index is below 0, or stands there twice")


def _read_task_lists(values: list[Any]) -> tuple[tuple[str, ...], ...] | None:
    """The tasks of each episode; None if one has no list of texts."""
    if not all(isinstance(tasks, list) and all(isinstance(task, str) for task in tasks) for tasks in values):
        return None
    return tuple(map(tuple, values))


def _sort_metadata(
    stored: Mapping[str, list[Any]], dtypes: Mapping[str, Any] = {}
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The columns with values of one kind (numbers as arrays, text as a list of `bytes`), and the names of all other columns."""
    columns = {name.removeprefix(METADATA): _as_column(values, dtypes.get(name)) for name, values in stored.items()}
    metadata = {name: values for name, values in columns.items() if values is not None}
    return metadata, tuple(name for name in columns if name not in metadata)


def _as_column(values: list[Any], dtype: Any) -> Any:
    """The values of a column, one for each episode; None if they are of several kinds, or if no dtype holds them all exactly."""
    kinds = set(map(type, values))
    if kinds == {str}:
        return [value.encode(errors="backslashreplace") for value in values]
    if kinds == {bool}:
        return np.array(values)
    if not kinds or not kinds <= {int, float}:
        return None
    dtypes: list[Any] = [dtype] if dtype is not None else [np.float64] if float in kinds else [np.int64, np.uint64]
    for candidate in dtypes:
        with suppress(OverflowError):
            column = np.array(values, candidate)
            if all(held == value or held != held for held, value in zip(column.tolist(), values)):
                return column
    return None


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        if not path.exists():
            raise SourceError(
                f"{path}: no such file, which every dataset of version 2 has; download or copy the folder meta/ as a whole"
            )
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise SourceError(f"{path}: expected a file of at most {_MOST_BYTES:,} bytes")
        with path.open("rb") as file:
            while line := file.readline(_MOST_LINE_BYTES):
                if line.strip():
                    yield parsed_object(path, line)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
