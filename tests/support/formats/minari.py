"""The datasets that Minari made (tests/data/make_minari.py), unpacked once per process."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from zipfile import ZipFile

import numpy as np

ARCHIVES = Path(__file__).parents[2] / "data" / "minari"

OWN = [
    ("0.3.1", "two-own-v0", "?spaces=stored"),
    ("0.4.2", "two-own-v0", ""),
    ("0.4.3", "two-own-v0", ""),
    ("0.5.2", "kinds/hdf5-v0", ""),
    ("0.5.2", "kinds/arrow-v0", ""),
    ("0.5.2", "plain/two-v3", ""),
    ("0.5.4", "kinds/hdf5-v0", ""),
    ("0.5.4", "kinds/arrow-v0", ""),
    ("0.5.4", "kinds/parquet-v0", ""),
    ("0.5.4", "plain/two-v3", ""),
    ("0.5.4", "raw/images-v0", ""),
    ("0.5.4", "blank-v0", ""),
]
"""Version, id and options of every dataset with `expected.npz`."""


@cache
def root(version: str) -> Path:
    """The folder of all datasets of a version."""
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with ZipFile(ARCHIVES / f"v{version}.zip") as archive:
        archive.extractall(folder)
    return folder


def dataset(version: str, name: str) -> Path:
    """The folder of a dataset; not to be changed."""
    return root(version) / name


def copied(version: str, name: str, to: Path) -> Path:
    """A copy of a dataset that may be changed."""
    return Path(shutil.copytree(dataset(version, name), to / "copy"))


def expected(version: str, name: str) -> list[dict[str, Any]]:
    """What Minari itself reads of each episode: path -> values."""
    found = np.load(dataset(version, name) / "expected.npz")
    episodes: dict[int, dict[str, Any]] = {}
    for key in found.files:
        number, _, path = key.partition("/")
        episodes.setdefault(int(number), {})[path] = found[key]
    return [episodes[number] for number in sorted(episodes)]
