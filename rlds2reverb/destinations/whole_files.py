"""Files that have their names only when all of them is on disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file; it gets the name `path` afterwards, and what had that name is replaced.

    After an error, or a kill, the unfinished file stays; the next one is written over it.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    yield unfinished
    sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


@contextmanager
def whole_or_none(path: Path) -> Iterator[Path]:
    """As `whole`, where several processes may write to one name at once: of two, the later one's file stays.

    Each has an unfinished file of its own. After an error nothing is left of it, after a kill it stays. A link stays, and what it
    leads to is replaced.
    """
    unfinished, target = unfinished_file(path), Path(os.path.realpath(path))
    try:
        yield unfinished
        sync(unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(target.parent)


def unfinished_file(path: Path) -> Path:
    """Where `whole_or_none` of this process writes."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.{os.getpid()}.unfinished")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file, whole or not at all."""
    with whole(path) as unfinished:
        unfinished.write_bytes(data)


def write_json(path: Path, value: Mapping[str, Any], **style: Any) -> None:
    """Writes a JSON object, whole or not at all; `style` is of `json.dumps`."""
    write_whole(path, json.dumps(value, **style).encode())


def remove_whole(folder: Path) -> None:
    """Removes a folder: after a kill all of it is there, or nothing under its name. Call it again for what is left under another."""
    leaving = folder.with_name(f"{folder.name}-done")
    if leaving.exists():
        shutil.rmtree(leaving)
    if folder.exists():
        folder.rename(leaving)
        shutil.rmtree(leaving)


def sync(path: Path) -> None:
    """Puts a file on disk, or a folder's list of names where the system lets a program do that."""
    if path.is_dir():
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
    else:
        descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
