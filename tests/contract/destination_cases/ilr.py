"""Shards of il-representations."""

from __future__ import annotations

from pathlib import Path

HOLDS = {"plain", "text", "images", "files", "nested", "unicode"}
"""Kinds of `data.KINDS` of which nothing is lost."""


def name(folder: Path) -> str:
    """A destination below a folder."""
    return f"ilr:{folder / 'my_set'}?terminals=yes"
