"""Files of a dataset: where their paths lead, their order, whether one has changed since it was opened, how much of one is read at once."""

from __future__ import annotations

import io
import os
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO

from rlds2reverb.errors import SourceError

_DIGITS = re.compile(r"(\d+)", re.ASCII)


def allowed(folder: Path) -> Path:
    """Where links in a dataset's folder may lead: into that folder; for a snapshot in Hugging Face's cache, into the cache's folder of the dataset.

    Source: file_download.py of huggingface_hub, where a snapshot's files are links to `blobs` in the folder `datasets--ORG--NAME`.

    Raises:
      OSError, RuntimeError: the system cannot follow the folder's own links.
    """
    resolved = folder.resolve()
    for above in (resolved, *resolved.parents):
        if above.parent.name == "snapshots" and "--" in above.parent.parent.name:
            return above.parent.parent
    return resolved


def check_link(folder: Path, path: Path) -> None:
    """Raises `SourceError` where a path in a dataset's folder is a link that leads elsewhere."""
    if isinstance(path, DatasetPath):  # is checked when it is opened
        return
    try:
        if not path.resolve().is_relative_to(allowed(folder)):
            raise SourceError(f"{path}: a link that leads out of the dataset; copy the file to where the link is")
    except (OSError, ValueError, RuntimeError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error


class DatasetPath(ABC):
    """A path of a dataset whose files are watched: `formats.dataset_files`."""

    @abstractmethod
    def use(self) -> None:
        """To call before a library opens the file by its name.

        Raises:
          SourceError: it may not be opened.
        """


class RefusedFile(SourceError):
    """A file of a dataset may not be opened: a link out of its folder, or a git-lfs pointer. Nothing says that it is damaged."""


Stamp = tuple[int, int]  # of a file: its size in bytes, and the time of its last change in nanoseconds


class WrittenAnew(SourceError):
    """A file has changed or is gone since its dataset was opened. It ends the reading: no episode is broken by it."""


def stamp_of(file: Path | IO[bytes]) -> Stamp:
    """Changes when a file is rewritten, at its path or where it is open; raises `SourceError` where there is none."""
    try:
        status = os.fstat(file.fileno()) if isinstance(file, io.FileIO) else file.stat()  # type: ignore[union-attr]  # files in buckets have it
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SourceError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return status.st_size, status.st_mtime_ns


def check_unchanged(path: Path, stamp: Stamp | None) -> None:
    """Raises `WrittenAnew` where a file's stamp is another one than it was."""
    if stamp not in (None, stamp_of(path)):
        raise WrittenAnew(f"{path}: was written anew after it was first looked at; open the source again")


FREE_BYTES = 256 << 20  # may be read at once, whatever a file has
_MOST_EXPANSION = 100  # most bytes of values per byte of the file, beyond `FREE_BYTES`


def check_read(size: int, stored: int, most: int) -> None:
    """Refuses values that take far more memory than their file has bytes.

    Args:
      size: bytes to read at once.
      stored: bytes of the file.
      most: bytes to read at once of any file.

    Raises:
      ValueError: they are too large.
    """
    allowed = min(most, max(FREE_BYTES, _MOST_EXPANSION * stored))
    if size > allowed:
        raise ValueError(f"has {size:,} bytes to read at once, of {stored:,} in the file; at most {allowed:,} are read")


def by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them: `episode_10` comes after `episode_2`."""
    parts = _DIGITS.split(name)
    return [(int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
