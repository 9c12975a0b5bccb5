"""Further files of tables for `format_files`: RLlib's Parquet with a row per step, and LeRobot with a PNG file in every row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import imagecodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.format_files import TRANSITIONS, FormatFiles, episodes, fixed, read_numbers, write_lerobot

_PER_FILE = 100
"""Episodes."""
_IMAGE = "observation.image"


def _write_rllib(folder: Path, count: int) -> str:
    made = enumerate(episodes(count))
    for file_number in range(-(-count // _PER_FILE)):
        tables = [
            pa.table(
                {
                    "eps_id": pa.array([str(number)] * TRANSITIONS),
                    "t": pa.array(np.arange(TRANSITIONS)),
                    "obs": fixed(one["observations"][:-1]),
                    "new_obs": fixed(one["observations"][1:]),
                    "actions": fixed(one["actions"]),
                    "rewards": pa.array(one["rewards"]),
                    "terminateds": pa.array(one["ends"] & False),
                    "truncateds": pa.array(one["ends"]),
                }
            )
            for number, one in itertools.islice(made, _PER_FILE)
        ]
        pq.write_table(pa.concat_tables(tables), folder / f"steps-{file_number:03d}.parquet")
    return f"rllib:{folder}"


def _write_images(folder: Path, count: int) -> str:
    """84x84 pixels in three colours, about 250 different ones."""
    name = write_lerobot(folder, count)
    scene = [
        imagecodecs.png_encode(np.ascontiguousarray(one)) for one in data.pictures(False)[0]["observation"][..., :3]
    ]
    files = itertools.cycle({"bytes": one, "path": f"frame-{at:06d}.png"} for at, one in enumerate(scene))
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
            images = np.stack([imagecodecs.png_decode(one) for one in files[start : start + TRANSITIONS].to_pylist()])
            steps += len(images)
    return steps


def _data(folder: Path) -> Iterator[Path]:
    return iter(sorted((folder / "data").rglob("*.parquet")))


def _read_rllib(folder: Path) -> int:
    return sum(read_numbers(pq.read_table(path)) for path in sorted(folder.glob("*.parquet")))


TABLES = (
    FormatFiles("rllib-parquet", _write_rllib, _read_rllib),
    FormatFiles("lerobot-images", _write_images, _read_images, share=0.01, is_pushed=False),
)
