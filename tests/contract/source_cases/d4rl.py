"""D4RL files."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py
import numpy as np

from rlds2reverb.formats import open_source
from tests.contract.source_cases import data


def write(folder: Path) -> str:
    """Writes a small file into a folder; the name of the source."""
    made = data.columns()
    rows = {key: np.concatenate([columns[key][:-1] for columns in made]) for key in ("observation", "action", "reward")}
    ends = np.concatenate([np.arange(len(columns["reward"]) - 1) == len(columns["reward"]) - 2 for columns in made])
    with h5py.File(folder / "data.hdf5", "w") as file:
        for key, column in rows.items():
            file[f"{key}s"] = column
        file["terminals"], file["timeouts"] = ends & False, ends
    return f"d4rl:{folder / 'data.hdf5'}"


def opened(options: str = "") -> Any:
    return open_source(write(Path(mkdtemp())) + options)


SOURCES = {"as it is": opened, "a part": lambda: opened("?episodes=1:")}
PUSHED = ["as it is"]
