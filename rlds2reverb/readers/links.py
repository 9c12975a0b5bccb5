"""Where paths of a dataset lead, links followed."""

from __future__ import annotations

from pathlib import Path


def stays_in(folder: Path, path: Path) -> bool:
    """Whether a path leads to a place in a folder; False as well for what the system cannot follow: circles of links, names with NUL."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        return False
