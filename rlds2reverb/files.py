"""Looks at files that a run is going to write, before it does anything else. Makes none."""

from __future__ import annotations

import os
from pathlib import Path


def can_be_written(path: Path) -> bool:
    """Whether a file can be written, or could be made in its folder. Makes no file."""
    place = path if path.exists() else path.parent
    return not path.is_dir() and place.exists() and os.access(place, os.W_OK)


def can_be_replaced(path: Path) -> bool:
    """Whether a file can be put there, in place of a file or of nothing: no device and no pipe gives way. Makes no file."""
    return can_be_written(path) and (not path.exists() or path.is_file())
