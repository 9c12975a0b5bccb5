"""TFDS directories."""

from __future__ import annotations

from pathlib import Path

HOLDS = {"plain", "dtypes", "text", "images", "files", "nested", "unicode", "metadata", "last_row"}
"""Kinds of `data.KINDS` of which nothing is lost."""


def name(folder: Path) -> str:
    """A destination below a folder."""
    return f"tfds:{folder / 'my_set'}"
