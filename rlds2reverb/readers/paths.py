"""Paths of a dataset's files: where they lead, and in which order they come."""

from __future__ import annotations

import re
from pathlib import Path

_DIGITS = re.compile(r"(\d+)", re.ASCII)


def stays_in(folder: Path, path: Path) -> bool:
    """Whether a path leads to a place in a folder; False as well for what the system cannot follow: circles of links, names with NUL."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them: `episode_10` comes after `episode_2`."""
    parts = _DIGITS.split(name)
    return [(int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
