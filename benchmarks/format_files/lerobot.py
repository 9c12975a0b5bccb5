"""LeRobot 3.0: numbers in Parquet files, and the same with a PNG file in every row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.format_files.base import TRANSITIONS, Columns, FormatFiles, episodes, fixed, read_numbers

_PER_FILE = 100
"""Episodes."""
_FPS = 50
_IMAGE = "observation.image"


def _write(folder: Path, count: int) -> str:
    (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    made, rows = enumerate(episodes(count)), []
    for file_number in range(-(-count // _PER_FILE)):
        tables = []
        for number, columns in itertools.islice(made, _PER_FILE):
            tables.append(pa.table(_columns(number, columns)))
            rows.append(_row(number, file_number))
        pq.write_table(pa.concat_tables(tables), folder / "data" / "chunk-000" / f"file-{file_number:03d}.parquet")
    pq.write_table(pa.Table.from_pylist(rows), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    tasks = pa.table({"task_index": pa.array([0]), "task": pa.array(["run"])})
    pq.write_table(tasks, folder / "meta" / "tasks.parquet")
    (folder / "meta" / "info.json").write_text(json.dumps(_info(count)))
    return f"lerobot:{folder}"


def _columns(number: int, one: Columns) -> dict[str, pa.Array]:
    at = np.arange(TRANSITIONS)
    return {
        "observation.state": fixed(one["observations"][:-1]),
        "action": fixed(one["actions"]),
        "next.reward": pa.array(one["rewards"]),
        "next.done": pa.array(one["ends"]),
        "timestamp": pa.array((at / _FPS).astype(np.float32)),
        "frame_index": pa.array(at),
        "episode_index": pa.array(np.full(TRANSITIONS, number)),
        "index": pa.array(number * TRANSITIONS + at),
        "task_index": pa.array(np.zeros(TRANSITIONS, np.int64)),
    }


def _row(number: int, file_number: int) -> dict[str, Any]:
    """Of the table of episodes."""
    start = number * TRANSITIONS
    where = {"data/chunk_index": 0, "data/file_index": file_number}
    whole = {"dataset_from_index": start, "dataset_to_index": start + TRANSITIONS}
    return {"episode_index": number, "tasks": ["run"], "length": TRANSITIONS, **where, **whole}


def _info(count: int) -> dict[str, Any]:
    one_number = {"shape": [1], "names": None}
    features = {
        "observation.state": {"dtype": "float32", "shape": [17], "names": None},
        "action": {"dtype": "float32", "shape": [6], "names": None},
        "next.reward": {"dtype": "float32", **one_number},
        "next.done": {"dtype": "bool", **one_number},
        "timestamp": {"dtype": "float32", **one_number},
        **{key: {"dtype": "int64", **one_number} for key in ("frame_index", "episode_index", "index", "task_index")},
    }
    return {
        "codebase_version": "v3.0",
        "robot_type": None,
        "fps": _FPS,
        "features": features,
        "splits": {"train": f"0:{count}"},
        "total_episodes": count,
        "total_frames": count * TRANSITIONS,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
    }


def _read(folder: Path) -> int:
    return sum(read_numbers(pq.read_table(path)) for path in _data(folder))


def _write_images(folder: Path, count: int) -> str:
    """84x84 pixels in three colours, about 250 different ones."""
    name = _write(folder, count)
    scene = [
        imagecodecs.png_encode(np.ascontiguousarray(picture))
        for picture in data.pictures(False)[0]["observation"][..., :3]
    ]
    files = itertools.cycle({"bytes": image, "path": f"frame-{at:06d}.png"} for at, image in enumerate(scene))
    for path in _data(folder):
        table = pq.read_table(path)
        column = pa.array(list(itertools.islice(files, table.num_rows)))
        pq.write_table(table.append_column(_IMAGE, column), path)
    about = json.loads((folder / "meta" / "info.json").read_text())
    about["features"][_IMAGE] = {"dtype": "image", "shape": [84, 84, 3], "names": ["height", "width", "channels"]}
    (folder / "meta" / "info.json").write_text(json.dumps(about))
    return name


def _read_images(folder: Path) -> int:
    """An episode's images at a time."""
    steps = 0
    for path in _data(folder):
        table = pq.read_table(path)
        read_numbers(table.drop_columns([_IMAGE]))
        files = table[_IMAGE].combine_chunks().field("bytes")
        for start in range(0, len(files), TRANSITIONS):
            images = np.stack(
                [imagecodecs.png_decode(image) for image in files[start : start + TRANSITIONS].to_pylist()]
            )
            steps += len(images)
    return steps


def _data(folder: Path) -> Iterator[Path]:
    return iter(sorted((folder / "data").rglob("*.parquet")))


FORMATS = (
    FormatFiles("lerobot", _write, _read),
    FormatFiles("lerobot-images", _write_images, _read_images, share=0.01, is_pushed=False),
)
