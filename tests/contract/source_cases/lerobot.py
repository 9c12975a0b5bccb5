"""Datasets that LeRobot made: tests/data/make_lerobot.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pyarrow import parquet

from rlds2reverb.formats import open_source
from tests.support.project import ROOT

DATA = ROOT / "tests" / "data" / "lerobot"


def copies(dataset: str) -> Callable[[Path], str]:
    """What copies a small dataset into a folder; it gives the name of the source."""
    return lambda folder: f"lerobot:{shutil.copytree(DATA / dataset, folder / dataset)}"


def write_v20(into: Path) -> str:
    """The dataset of v2.1 with the version and the statistics of v2.0."""
    folder = into / "v20"
    shutil.copytree(DATA / "v21", folder)
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps({**info, "codebase_version": "v2.0"}))
    first = (folder / "meta/episodes_stats.jsonl").read_text().splitlines()[0]
    (folder / "meta/stats.json").write_text(json.dumps(json.loads(first)["stats"]))
    (folder / "meta/episodes_stats.jsonl").unlink()
    return f"lerobot:{folder}"


def write_stale(into: Path) -> str:
    """The dataset of several files, with every number of a file in meta/episodes off by one."""
    folder = into / "stale"
    shutil.copytree(DATA / "v30_old", folder)
    for path in (folder / "meta/episodes").rglob("*.parquet"):
        table = parquet.read_table(path)
        for name in ("data/file_index", "data/chunk_index", "dataset_from_index"):
            moved = [value + 1 for value in table[name].to_pylist()]
            table = table.set_column(table.column_names.index(name), name, [moved])
        parquet.write_table(table, path)
    return f"lerobot:{folder}"


def opened(name: str, options: str = "") -> Any:
    return open_source(f"lerobot:{DATA / name}{options}")


WRITE = {
    "v2.0": write_v20,
    "v2.1": copies("v21"),
    "v3.0": copies("v30"),
    "v3.0, files": copies("v30_old"),
    "v3.0, stale": write_stale,
    "depth": copies("v30_depth"),
}
SOURCES = {
    "v2.0": lambda: open_source(write_v20(Path(mkdtemp()))),
    "v2.1": lambda: opened("v21"),
    "v3.0": lambda: opened("v30"),
    "v3.0, last row": lambda: opened(
        "v30", "?last_step=mark,videos=skip,task=skip,reserved=columns,done_means=nothing"
    ),
    "v3.0, files": lambda: opened("v30_old"),
    "v3.0, stale": lambda: open_source(write_stale(Path(mkdtemp()))),
    "depth": lambda: opened("v30_depth"),
    "a part": lambda: opened("v30", "?episodes=1:"),
}
PUSHED = ["v2.1"]
