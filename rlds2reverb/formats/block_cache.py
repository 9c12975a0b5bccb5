"""Blocks of objects on this machine's disk: what was read from a bucket is read from there the next time.

Off unless `RLDS2REVERB_CACHE_BYTES` is set (`--cache-bytes`). A file holds one block and its digest, and is named after the object, its
version and the block's number; so a block is never that of an object that was replaced. Files appear whole, a damaged one counts as
missing, and those that were used least recently go first. Any number of processes share a folder.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import xxhash

from rlds2reverb.errors import ConfigError
from rlds2reverb.files import cache_folder

BYTES_VARIABLE = "RLDS2REVERB_CACHE_BYTES"

CACHE_BYTES = "10GB"
"""The most bytes of a cache that `--cache DIR` names without a size."""

_DIGEST_BYTES = 8
_TOUCHED_SECONDS = 60.0  # a file's time is not renewed more often
_FILLED_TO = 0.9  # of the limit, after files were removed
_WRITTEN_SHARE = 0.02  # of the limit that a process writes before it looks at the folder again
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)b?", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """A size: "500000", "20 GB", "1.5T", of powers of 1,000.

    Raises:
      ConfigError: it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f'"{text}": expected a number of bytes, such as 500000000, 500MB or 20GB')
    return int(float(match[1]) * 1000 ** " kmgt".index(match[2].lower() or " "))


class BlockCache:
    """A folder of at most so many bytes. Its methods may be called from several threads; none of them fails."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._written = self._most  # since the last look at the folder, which is due at once
        self._lock = threading.Lock()
        self._is_writable = True

    @property
    def is_on(self) -> bool:
        return self._most > 0

    def get(self, version: str, number: int, size: int) -> memoryview | None:
        """A block; None if it is not there.

        Args:
          version: the name of an object's version, see `version_of`.
          number: of the block.
          size: bytes that it has.
        """
        path = self._path(version, number)
        try:
            data = path.read_bytes()
            age = time.time() - path.stat().st_mtime
        except OSError:
            return None
        block = memoryview(data)[:-_DIGEST_BYTES]
        if len(block) != size or xxhash.xxh3_64_digest(block) != data[-_DIGEST_BYTES:]:
            _remove(path)
            return None
        if age > _TOUCHED_SECONDS:
            with suppress(OSError):
                os.utime(path)
        return block

    def put(self, version: str, number: int, block: memoryview) -> None:
        """Keeps a block, where that is possible: a full or read-only disk ends the writing, and nothing else."""
        if not self._is_writable:
            return
        path = self._path(version, number)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                file.write(block)
                file.write(xxhash.xxh3_64_digest(block))
            unfinished.replace(path)
        except OSError:
            _remove(unfinished)
            self._is_writable = False
            return
        with self._lock:
            self._written += len(block)
            is_due = self._written > self._most * _WRITTEN_SHARE
            if is_due:
                self._written = 0
        if is_due:
            self._make_room()

    def _make_room(self) -> None:
        """Removes the files that were used least recently, if they have more bytes than they may."""
        files = []
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    status = path.stat()
                    files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        if total <= self._most:
            return
        for _, size, path in sorted(files):
            _remove(path)
            total -= size
            if total <= self._most * _FILLED_TO:
                return

    def _path(self, version: str, number: int) -> Path:
        return self._folder / version[:2] / f"{version[2:]}-{number}"


def version_of(name: str, etag: str, size: int) -> str:
    """Names a version of an object, whose ETag must not be ""."""
    return xxhash.xxh3_128_hexdigest(f"{name}\n{etag}\n{size}".encode())


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


@cache
def _made(folder: Path, most_bytes: int) -> BlockCache:
    return BlockCache(folder, most_bytes)


def block_cache() -> BlockCache:
    """The cache that the environment names.

    Raises:
      ConfigError: `RLDS2REVERB_CACHE_BYTES` is no size.
    """
    text = os.environ.get(BYTES_VARIABLE) or "0"
    try:
        return _made(cache_folder("blocks"), bytes_of(text))
    except ConfigError as error:
        raise ConfigError(f"{BYTES_VARIABLE}: {error}") from error
