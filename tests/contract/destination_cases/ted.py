"""TorchRL's buffers."""

from __future__ import annotations

from pathlib import Path

HOLDS = {"plain", "images", "files", "nested", "unicode"}
"""Kinds of `data.KINDS` of which nothing is lost."""


def name(folder: Path) -> str:
    """A destination below a folder."""
    return f"ted:{folder / 'buffer'}"
