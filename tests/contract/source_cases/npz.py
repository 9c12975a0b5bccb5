"""NumPy's .npz files."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from rlds2reverb.formats import open_source
from tests.contract.source_cases import data


def write(folder: Path) -> str:
    """Writes a file for each episode into a folder; the name of the source."""
    for number, column in enumerate(data.columns()):
        np.savez_compressed(folder / f"episode_{number}.npz", number=number, **column)
    return f"npz:{folder}"


def write_one(folder: Path) -> str:
    """All episodes in one file, with D4RL's names."""
    made = data.columns()
    path = folder / "all.npz"
    rows = {
        f"{key}s": np.concatenate([columns[key][:-1] for columns in made])
        for key in ("observation", "action", "reward")
    }
    np.savez(path, **rows, episode_ends=np.cumsum([len(columns["reward"]) - 1 for columns in made]), seed=3)
    return f"npz:{path}"


def in_one(options: str = "") -> Any:
    return open_source(write_one(Path(mkdtemp())) + options)


def write_rlds(folder: Path) -> str:
    """All rows in one file, with RLDS' names and flags."""
    made = data.columns()
    path = folder / "rlds.npz"
    np.savez(path, **{key: np.concatenate([columns[key] for columns in made]) for key in made[0]})
    return f"npz:{path}"


def of_rlds() -> Any:
    return open_source(write_rlds(Path(mkdtemp())))


WRITE = {"files": write, "one file": write_one, "of RLDS": write_rlds}
SOURCES = {
    "files": lambda: open_source(write(Path(mkdtemp()))),
    "one file": in_one,
    "marked": lambda: in_one("?last_step=mark"),
    "of RLDS": of_rlds,
}
PUSHED = ["files", "one file", "of RLDS"]
