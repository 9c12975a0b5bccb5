"""Paths of a dataset's files: where they lead, and in which order they come."""

from __future__ import annotations

import re
from pathlib import Path

from rlds2reverb.errors import SourceError

_DIGITS = re.compile(r"(\d+)", re.ASCII)


def stays_in(folder: Path, path: Path) -> bool:
    """Whether a path leads to a place in a folder; False as well for what the system cannot follow: circles of links, names with NUL."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def allowed(folder: Path) -> Path:
    """Where links in a dataset's folder may lead: to that folder; of a snapshot in Hugging Face's cache, to all that the cache has of the dataset.

    Source: file_download.py of huggingface_hub, where a snapshot's files are links to `blobs` in the folder `datasets--ORG--NAME`.

    Raises:
      OSError, RuntimeError: the system cannot follow the folder's own links.
    """
    found = folder.resolve()
    for one in (found, *found.parents):
        if one.parent.name == "snapshots" and "--" in one.parent.parent.name:
            return one.parent.parent
    return found


def check_link(folder: Path, path: Path) -> None:
    """Raises `SourceError` where a path in a dataset's folder is a link that leads elsewhere."""
    try:
        if not path.resolve().is_relative_to(allowed(folder)):
            raise SourceError(f"{path}: a link that leads out of the dataset; copy the file to where the link is")
    except (OSError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error


def by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them: `episode_10` comes after `episode_2`."""
    parts = _DIGITS.split(name)
    return [(int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
