"""C libraries that the package may have been built with; each is optional, and numpy does the same without it."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def load_library(source: Path, functions: Mapping[str, tuple[Any, Sequence[Any]]], compiled: Path | None = None) -> Any:
    """The library that was compiled from a C source; None if it was not, or not for this machine, or from another version of the source.

    Args:
      source: NAME.c.
      functions: name -> type of the result, types of the arguments. NAME_source() returns the checksum of the source that was compiled,
        since a library of an older one may take other arguments.
      compiled: the library; by default NAME.compiled beside the source. With an ending of libraries, Python would take it for a module.
    """
    try:
        library = ctypes.CDLL(str(compiled or source.with_suffix(".compiled")))
        source_of = getattr(library, f"{source.stem}_source")
        source_of.restype, source_of.argtypes = ctypes.c_int64, []
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        checksum = zlib.crc32(source.read_bytes())
    except (OSError, AttributeError):
        return None
    return library if source_of() == checksum else None
