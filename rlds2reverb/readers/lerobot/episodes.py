"""What meta/ tells of every episode: where its rows and its videos are, how long it is, its tasks.

| | version 2 | version 3 |
| --- | --- | --- |
| episodes | meta/episodes.jsonl | meta/episodes/*/*.parquet |
| tasks | meta/tasks.jsonl | meta/tasks.parquet; the text is the column `task`, or an index without a name |
| rows | a file for each episode | a piece of a file, from `dataset_from_index` to `dataset_to_index` of all rows |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.json_files import parsed_object
from rlds2reverb.readers.lerobot import tables
from rlds2reverb.readers.lerobot.features import DTYPES, EPISODE_INDEX, TASK_INDEX
from rlds2reverb.readers.lerobot.info import Info, inside
from rlds2reverb.wording import shortened

LENGTH, TASKS = "length", "tasks"
_FROM, _TO = "dataset_from_index", "dataset_to_index"
_NOT_METADATA = {EPISODE_INDEX, LENGTH, TASKS, _FROM, _TO}
_OF_FILES = ("stats/", "data/", "meta/", "videos/")
METADATA = "metadata/"
"""Before the names of features of episodes that rlds2reverb wrote."""

_MOST_BYTES = 1 << 30
_MOST_LINE_BYTES = 16 << 20
_ARROW = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of dtypes where they are not numpy's."""
_TASK_COLUMNS = ("task", "__index_level_0__")


@dataclass(frozen=True, eq=False)
class Episodes:
    """All episodes of a dataset.

    Attributes:
      info: of the dataset.
      columns: what the table of episodes has for each, by name: `episode_index`, `length`, and where the rows are.
      tasks: each one's tasks; None where the table does not tell.
      metadata: name -> a value for each episode, of columns that hold one number or one text for all.
      left_out: names of the other columns.
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
        """The file, made once for episodes that follow one another in it."""
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
        """An episode of each file; of version 2, where each has its own, all."""
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
    table = tables.whole(path, lambda name: name == TASK_INDEX or name in _TASK_COLUMNS)
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
    tables_ = [tables.whole(inside(info.root, str(path.relative_to(info.root))), _is_read) for path in paths]
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
    """The dtype of a column of numbers; None of any other."""
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
    """Each episode's first row in its file: its place among all rows, less that of the file's first episode."""
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
    """The columns that hold a value of one kind for every episode: numbers as arrays, text as a list of `bytes`; and the others' names."""
    made = {name.removeprefix(METADATA): _values(values, dtypes.get(name)) for name, values in found.items()}
    kept = {name: values for name, values in made.items() if values is not None}
    return kept, tuple(name for name in made if name not in kept)


def _values(values: list[Any], dtype: Any) -> Any:
    """Those of a column, one for each episode; None where they are of several kinds, or no dtype holds them all exactly."""
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
    return made if all(one == told or one != one for one, told in zip(made.tolist(), values)) else None


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
