"""Datasets of Minari."""

from __future__ import annotations

from pathlib import Path

HOLDS = {"plain", "text", "images", "files", "nested", "unicode", "metadata"}
"""Kinds of `data.KINDS` of which nothing is lost."""


def name(folder: Path) -> str:
    """A destination below a folder."""
    return f"minari:{folder / 'my_set-v0'}"
