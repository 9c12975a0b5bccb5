"""RLlib: lines of JSON, and Parquet with a row per step."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.format_files.base import TRANSITIONS, FormatFiles, episodes, fixed, read_numbers

_PER_FILE = 100
"""Episodes."""


def _write_lines(folder: Path, count: int) -> str:
    with (folder / "output-2024-01-01_00-00-00_worker-0_0.json").open("w") as file:
        for number, episode in enumerate(episodes(count)):
            batch = {
                "obs": episode["observations"][:-1],
                "new_obs": episode["observations"][1:],
                "actions": episode["actions"],
                "rewards": episode["rewards"],
                "terminateds": episode["ends"] & False,
                "truncateds": episode["ends"],
                "eps_id": np.full(TRANSITIONS, number),
                "t": np.arange(TRANSITIONS),
            }
            file.write(
                json.dumps({"type": "SampleBatch", **{key: value.tolist() for key, value in batch.items()}}) + "\n"
            )
    return f"rllib:{folder}"


def _read_lines(folder: Path) -> int:
    steps = 0
    for path in folder.glob("*.json"):
        with path.open() as file:
            for line in file:
                batch = json.loads(line)
                columns = [np.asarray(value) for key, value in batch.items() if key != "type"]
                steps += len(columns[0])
    return steps


def _write_tables(folder: Path, count: int) -> str:
    made = enumerate(episodes(count))
    for file_number in range(-(-count // _PER_FILE)):
        tables = [
            pa.table(
                {
                    "eps_id": pa.array([str(number)] * TRANSITIONS),
                    "t": pa.array(np.arange(TRANSITIONS)),
                    "obs": fixed(columns["observations"][:-1]),
                    "new_obs": fixed(columns["observations"][1:]),
                    "actions": fixed(columns["actions"]),
                    "rewards": pa.array(columns["rewards"]),
                    "terminateds": pa.array(columns["ends"] & False),
                    "truncateds": pa.array(columns["ends"]),
                }
            )
            for number, columns in itertools.islice(made, _PER_FILE)
        ]
        pq.write_table(pa.concat_tables(tables), folder / f"steps-{file_number:03d}.parquet")
    return f"rllib:{folder}"


def _read_tables(folder: Path) -> int:
    return sum(read_numbers(pq.read_table(path)) for path in sorted(folder.glob("*.parquet")))


FORMATS = (
    FormatFiles("rllib", _write_lines, _read_lines, share=0.1),
    FormatFiles("rllib-parquet", _write_tables, _read_tables),
)
