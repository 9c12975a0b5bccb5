"""Arrays of pixels -> PNG files, in threads; nothing of them is lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing

_PNG_LEVEL = 3
"""Of zlib: twice as fast as the usual 6, for a few percent of the size."""


def check_png_library(instead: str) -> None:
    """Refuses to begin without what makes PNG files.

    Args:
      instead: the option that writes images as numbers.

    Raises:
      ConfigError: it is not installed.
    """
    with needing(f"writing images as PNG files (or {instead}, as numbers)", "images", ConfigError):
        import imagecodecs  # noqa: F401


def png_files(pixels: Array) -> list[bytes]:
    """[n, height, width, channels] of uint8 or uint16 -> n files."""
    return list(_threads().map(_png_file, np.ascontiguousarray(pixels)))


def _png_file(pixels: Array) -> bytes:
    import imagecodecs

    plain = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return bytes(imagecodecs.png_encode(plain, level=_PNG_LEVEL))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), "png")
