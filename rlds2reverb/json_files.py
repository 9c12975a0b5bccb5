"""Small JSON files that anybody may have written: bounded, and nothing but an object."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.wording import shortened

MOST_BYTES = 16 << 20
"""Most bytes of a file, unless a format says otherwise. Those of large robot datasets have some hundred kilobytes."""


def read_object(path: Path, expected: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
      path: the file.
      expected: what was expected where it is missing; the end of a sentence.
      most: bytes that it may have.

    Raises:
      SourceError: it is missing, no regular file, larger than `most`, not JSON, or no object.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path}: not a regular file")
        if found.st_size > most:
            raise SourceError(f"{path}: has {found.st_size:,} bytes; expected at most {most:,}")
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}; expected {expected}") from error
    except ValueError as error:  # a NUL in the path
        raise SourceError(f"{str(path)!r}: no path: {error}") from error
    return parsed_object(path, data)


def parsed_object(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object that the bytes of a file are.

    Raises:
      SourceError: they are not JSON, or no object.
    """
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {shortened(' '.join(str(error).split()))}") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path}: expected a JSON object, found {shortened(json.dumps(found))}")
    return found
