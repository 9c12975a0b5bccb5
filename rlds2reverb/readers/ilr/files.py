"""Pickles and npz files of unknown origin, as a whole in memory, which is what their writers meant."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.readers.npz.members import most_unpacked, opened
from rlds2reverb.readers.pickles import safe_loads
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.wording import shortened

MOST_BYTES = 8 << 30
"""Most bytes of a file, unpacked."""


def start_of(path: Path) -> bytes:
    """The first bytes of a file.

    Raises:
      SourceError: it cannot be read.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file.read(8)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error


def unpickled(path: Path, inert: Collection[str] = frozenset()) -> Any:
    """What a pickle holds, compressed by gzip or not.

    Raises:
      SourceError: it cannot be read; or as `safe_loads`.
    """
    is_packed = start_of(path).startswith(b"\x1f\x8b")
    try:
        most = min(MOST_BYTES, most_unpacked(check_regular(path).st_size))
        with gzip.open(path) if is_packed else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SourceError(f"{path}: cannot be read: {shortened(str(error))}") from error
    if len(data) > most:
        raise SourceError(
            f"{path}: unpacks to more than {most:,} bytes, which are read as a whole; split it, or write it without compression"
        )
    return safe_loads(data, path.name, inert)


def npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file, by name; those of objects by `safe_loads`.

    Raises:
      SourceError: it cannot be read.
    """
    try:
        with opened(path) as held:
            return {key: member.array() for key, member in held.items()}
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken
