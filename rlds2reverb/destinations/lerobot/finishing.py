"""The files of meta/, and the way on after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rlds2reverb.destinations.base import State
from rlds2reverb.destinations.lerobot import stats
from rlds2reverb.destinations.lerobot.fields import Plan
from rlds2reverb.destinations.whole_files import whole, write_json
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.readers.lerobot.features import DONE, OURS, RESERVED, TASK_INDEX, TIMESTAMP

CHUNK = 1000
"""Files in a folder."""
DATA = "data/chunk-{:03d}/file-{:03d}.parquet"
_EPISODES = "meta/episodes/chunk-{:03d}/file-{:03d}.parquet"
_TASKS = "meta/tasks.parquet"
_STATS = "stats/"
FPS = 10
"""Where nothing tells the time."""
_VIDEO_MB = 200
_JSON: dict[str, Any] = {"indent": 4, "ensure_ascii": False}


def features(plan: Plan) -> dict[str, dict[str, Any]]:
    """What info.json says of the features, in the order of the tables' columns."""
    told = {one.name: one.told for one in plan.fields}
    done = {DONE: _number("bool")} if plan.done else {}
    reserved = {name: _number("float32" if name == TIMESTAMP else "int64") for name in RESERVED}
    if plan.task:
        reserved[TASK_INDEX]["info"] = {OURS: {"task": "column"}}
    return {**told, **done, **reserved}


def _number(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [1], "names": None}


def fps_of(episode: Episode) -> int:
    """Rows per second, by an episode's timestamps."""
    steps = np.diff(episode.columns[TIMESTAMP].astype(np.float64))
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    return max(1, round(1 / step)) if step and np.isfinite(step) else FPS


def made(path: Path) -> Path:
    """The path, in a folder that exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def cut(work: Path, state: State) -> None:
    """Removes what was written behind a state."""
    for folder, count in (("data", state["files"]), ("meta/episodes", state["tables"])):
        for path in (work / folder).glob("chunk-*/file-*.parquet"):
            chunk, file = (int(part.rpartition("-")[2]) for part in (path.parent.name, path.stem))
            if chunk * CHUNK + file >= count:
                path.unlink()


def tasks(work: Path, count: int) -> list[str]:
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
    told = {"index_columns": ["task"], "column_indexes": [], "columns": [column, index], "pandas_version": "2.2.0"}
    _replace(work / _TASKS, table.replace_schema_metadata({"pandas": json.dumps(told)}))


def write_episodes(work: Path, number: int, told: Sequence[Mapping[str, Any]]) -> None:
    """A table of meta/episodes."""
    chunk, file = divmod(number, CHUNK)
    columns = {name: _column([one[name] for one in told]) for name in told[0]}
    columns["meta/episodes/chunk_index"] = pa.array([chunk] * len(told), pa.int64())
    columns["meta/episodes/file_index"] = pa.array([file] * len(told), pa.int64())
    _replace(work / _EPISODES.format(chunk, file), pa.table(columns))


def _column(values: Sequence[Any]) -> pa.Array:
    """Numbers keep their dtype; statistics are lists, within lists where they have axes."""
    if not isinstance(values[0], np.ndarray):
        return pa.array(values)
    if not values[0].ndim:
        return pa.array(np.stack(values))
    return pa.array([value.tolist() for value in values])


def finish(work: Path, plan: Plan, state: State) -> None:
    """Writes meta/stats.json, and meta/info.json as the last."""
    told = features(plan)
    if state["tables"]:
        write_json(work / "meta/stats.json", dict(_merged(work, told)), allow_nan=False, **_JSON)
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
        "features": told,
    }
    write_json(work / "meta/info.json", info, **_JSON)


def _merged(work: Path, told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Feature -> the statistics of all episodes; none where one is no finite number, as JSON has only these. Memory holds those of one table."""
    found: dict[str, dict[str, Array]] = {}
    for path in sorted((work / "meta/episodes").glob("*/*.parquet")):
        for name, many in _of_episodes(path).items():
            found[name] = stats.merged([*([found[name]] if name in found else []), *many])
    for name in told:
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
    """Writes a table; on disk when this returns, and never half."""
    with whole(made(path)) as unfinished, unfinished.open("wb") as file:
        parquet.write_table(table, file)
