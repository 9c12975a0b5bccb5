"""TFDS directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb.formats import open_source
from rlds2reverb.formats.tfds import bundled_path
from tests.contract.source_cases.writing import written


def of_tfds(split: str) -> Any:
    return open_source(f"tfds:{bundled_path('cartpole')}@{split}")


def write(folder: Path) -> str:
    """Writes a small dataset into a folder; the name of the source."""
    return written(f"tfds:{folder / 'my_set'}")


SOURCES = {
    "the first": lambda: of_tfds("train[:5]"),
    "a slice": lambda: of_tfds("train[40%:60%]"),
    "slices": lambda: of_tfds("train[:2]+train[-3:]"),
}
PUSHED = ["the first"]
