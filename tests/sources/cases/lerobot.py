"""Datasets that LeRobot made: tests/data/make_lerobot.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rlds2reverb.sources import open_source

DATA = Path(__file__).parents[2] / "data" / "lerobot"


def write(folder: Path) -> str:
    """Copies a small dataset into a folder; the name of the source."""
    shutil.copytree(DATA / "v21", folder / "v21")
    return f"lerobot:{folder / 'v21'}"


def v20() -> Path:
    """The dataset of v2.1 with the version and the statistics of v2.0."""
    folder = Path(mkdtemp()) / "v20"
    shutil.copytree(DATA / "v21", folder)
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps({**info, "codebase_version": "v2.0"}))
    first = (folder / "meta/episodes_stats.jsonl").read_text().splitlines()[0]
    (folder / "meta/stats.json").write_text(json.dumps(json.loads(first)["stats"]))
    (folder / "meta/episodes_stats.jsonl").unlink()
    return folder


def opened(name: str, options: str = "") -> Any:
    return open_source(f"lerobot:{DATA / name}{options}")


SOURCES = {
    "v2.0": lambda: open_source(f"lerobot:{v20()}"),
    "v2.1": lambda: opened("v21"),
    "v3.0": lambda: opened("v30"),
    "v3.0, last row": lambda: opened(
        "v30", "?last_step=mark,videos=skip,task=skip,reserved=columns,done_means=nothing"
    ),
    "v3.0, files": lambda: opened("v30_old"),
    "depth": lambda: opened("v30_depth"),
    "a part": lambda: opened("v30", "?episodes=1:"),
}
PUSHED = ["v2.1"]
