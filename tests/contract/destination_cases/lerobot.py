"""LeRobot datasets."""

from __future__ import annotations

from pathlib import Path

HOLDS = {"plain", "text", "images", "files", "nested", "unicode", "last_row"}
"""Kinds of `data.KINDS` of which nothing is lost."""


def name(folder: Path) -> str:
    """A destination below a folder."""
    return f"lerobot:{folder / 'my_set'}?fps=10,last_step=keep"
