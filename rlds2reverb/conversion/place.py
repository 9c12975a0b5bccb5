"""Where a conversion writes, and what it never overwrites: its source, and any other data.

A conversion writes to a folder beside the final place, which holds the unfinished `data`, `progress.json`, `lock`, and `replaced`; without
`progress.json` no conversion has begun there. The dataset appears at its final place by one rename. What it replaces is moved into the
folder first and deleted with it, or moved back if the rename did not happen.

One writer per place: a file lock, which the system releases however the process ends. The lock belongs to the process, so forked
children do not hold it. It cannot separate two conversions in one process; a set in this module does.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError, WriteError
from rlds2reverb.files import sync, write_error, write_json, writing
from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.destination import Destination
from rlds2reverb.formats.mix import SEPARATOR, MixedSource
from rlds2reverb.formats.options import parted, unescaped
from rlds2reverb.formats.registry import SOURCES
from rlds2reverb.formats.source import Source

_FOLDERS = re.compile(r"[^:;|,?=]*[/\\]")
_MOST_FILES = 100_000
"""Of a pattern."""


def places_of(source: object, opened: Source) -> list[Path]:
    """The existing folders and files that a source is read from; [] for one in memory, or at a server.

    Args:
      source: the argument of `open_source`.
      opened: its result.
    """
    if isinstance(source, str):
        names = [source]
    elif isinstance(opened, MixedSource):
        names = [tally.name for tally in opened.tallies]
    else:
        names = [opened.name]
    return [place for place in dict.fromkeys(place for name in names for place in _of_name(name)) if _exists(place)]


def label_of(source: object, opened: Source) -> str:
    """A source's name with all its options but without its folders, so that it stays the same when data is moved.

    Arguments as `places_of`.
    """
    if isinstance(source, str):
        name = source
    else:
        name = f"{opened.name} {opened.order}" if isinstance(opened, MixedSource) else opened.name
    return _FOLDERS.sub("", name)


def _of_name(name: str) -> Iterator[Path]:
    scheme, _, text = name.partition(":")
    if scheme == "mix":
        for part in text.split(SEPARATOR):
            yield from _of_name(part)
        return
    known = SOURCES.named(name)
    if known is None or any(form.choices for form in known.forms):
        return
    if known.place is not None:
        with suppress(SourceError):
            yield known.place(text)
        return
    whole = parted(text)[0]  # paths or patterns of paths, separated by ";"
    for written in map(unescaped, {whole, *whole.split(";")}):
        if not written or "\0" in written:
            continue
        try:
            path = path_of(written).absolute()
        except SourceError:  # "~nobody"
            continue
        yield path
        if has_magic(written):
            above = next(one for one in path.parents if not has_magic(str(one)))
            yield from islice(above.glob(str(path.relative_to(above))), _MOST_FILES)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, say
        return False


if sys.platform == "win32":
    import msvcrt
else:
    with suppress(ImportError):  # Windows lacks it, which tests play elsewhere
        import fcntl

_HELD: set[tuple[int, int, int]] = set()
"""(process, device, inode) of each locked file. Nothing else here may open such a file: closing it drops the lock."""

_CHANGING = threading.Lock()
_HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Locks a file, which is created if absent; yields False if it is already locked. Its contents are ignored.

    Raises:
      WriteError: the file cannot be created, or its file system does not support locks.
    """
    with _CHANGING:
        descriptor = None if path.exists() and _key(path.stat()) in _HELD else _open_locked(path)
        if descriptor is not None:
            key = _key(os.fstat(descriptor))
            _HELD.add(key)
    if descriptor is None:
        yield False
        return
    try:
        try:  # the previous holder of the lock may have removed the file
            is_still_there = os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            is_still_there = False
        yield is_still_there
    finally:
        with _CHANGING:
            os.close(descriptor)
            _HELD.discard(key)


def _open_locked(path: Path) -> int | None:
    """The descriptor of the locked file; None if another process holds the lock."""
    with writing(path, "make room there, remove what is in its place, or convert into another folder"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _HELD_BY_ANOTHER:
            return None
        raise WriteError(
            f"{path}: cannot be locked: {error.strerror}. A lock keeps two conversions out of one folder, and this file system gives none; "
            "convert into a folder of another file system, such as a local disk, and copy the dataset from there",
            error.errno,
        ) from error
    return descriptor


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino


Saved = dict[str, Any]

PREFIX = ".converting-"
"""Prefix of the folder's name, before the name of the final place."""

FORMAT = 2
"""The version of saved progress."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Reasons that say nothing about the path."""

_ANEW = "begin again with restart=True (--restart)"


class Place:
    """The place of one conversion; see `opened`.

    Attributes:
      path: the final place.
      folder: beside the final place.
      work: the folder that a sink writes to.
      result: the result before it is published: a file of its final name in `work`, or `work`.
    """

    def __init__(self, path: Path, is_file: bool = False) -> None:
        self.path = path
        self.folder = path.parent / f"{PREFIX}{path.name}"
        self.work = self.folder / "data"
        self.result = self.work / path.name if is_file else self.work
        self._progress = self.folder / "progress.json"
        self._replaced = self.folder / "replaced"

    @property
    def is_begun(self) -> bool:
        """Whether there is a conversion to continue."""
        return self._progress.exists()

    def saved(self) -> Saved | None:
        """The progress saved last; None at the beginning.

        Raises:
          ConfigError: it cannot be read, is damaged, or of another version.
        """
        try:
            found = json.loads(self._progress.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{self._progress}: cannot be read ({error}); {_ANEW}") from error
        if not isinstance(found, dict) or not isinstance(found.get("saved"), dict):
            raise ConfigError(f"{self._progress}: expected a JSON object with what was saved; {_ANEW}")
        if found.get("format") != FORMAT:
            raise ConfigError(f"{self._progress}: was written by another version of this program; {_ANEW}")
        if found.get("digest") != _digest(found["saved"]):
            raise ConfigError(f"{self._progress}: is damaged: its digest is another; {_ANEW}")
        saved: Saved = found["saved"]
        return saved

    def save(self, progress: Saved) -> None:
        """Puts the progress on disk atomically."""
        write_json(self._progress, {"format": FORMAT, "digest": _digest(progress), "saved": progress})

    def put_back(self) -> None:
        """Moves a replaced dataset back to its name, if the name is free."""
        if os.path.lexists(self._replaced) and not os.path.lexists(self.path):
            self._replaced.rename(self.path)
            sync(self.path.parent)

    def begin(self) -> None:
        """Creates an empty folder to write to; removes an earlier one."""
        self._progress.unlink(missing_ok=True)
        self.put_back()
        _remove(self._replaced)
        _remove(self.work)
        self.work.mkdir()

    def seal(self) -> None:
        """Puts every file of the result on disk."""
        for folder, _, names in os.walk(self.work):
            for name in names:
                sync(Path(folder, name))
            sync(Path(folder))

    def publish(self) -> None:
        """Renames the result to its final name; moves what it replaces into the folder. Repeatable after a kill."""
        if self.result.exists():
            if os.path.lexists(self.path):
                _remove(self._replaced)
                self.path.rename(self._replaced)
                sync(self.folder)
            self.result.rename(self.path)
            sync(self.path.parent)
        _remove(self.work)

    def discard_work(self) -> None:
        """Removes the leftovers of a conversion whose result is published."""
        _remove(self._replaced)
        self._progress.unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes the folder. As long as `progress.json` exists, the same conversion knows that it is done."""
        self.put_back()
        with suppress(OSError):
            _remove(self._replaced)
        self._progress.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened(path: Path, is_file: bool = False) -> Iterator[Place]:
    """Creates and locks the place, of a folder or of a single file, for this process.

    Raises:
      ConfigError: another process writes there, or the folder cannot be created.
      WriteError: the disk is full, say, or its file system has no locks.
    """
    place = Place(path, is_file)
    if place.folder.is_symlink():
        raise ConfigError(f"{place.folder}: is a link; expected a folder of a conversion, or nothing: remove the link")
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise write_error(place.folder, error, "make room there, or convert into another folder") from error
        raise ConfigError(f"{place.folder}: cannot be made: {error.strerror}") from error
    with locked(place.folder / "lock") as is_ours:
        if not is_ours:
            raise ConfigError(f"{path}: another process is writing it ({place.folder}); wait for that, or end it")
        yield place


def _digest(progress: Saved) -> str:
    return hashlib.sha256(json.dumps(progress).encode()).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checked_path(path: Path) -> Path:
    """A final place, absolute.

    Raises:
      ConfigError: it does not end in a name (such as "." and "..").
    """
    if path.name in ("", ".."):
        raise ConfigError(
            f"{path}: ends in no name; expected the path of the dataset to be, such as {path / 'converted'}"
        )
    return path.absolute()


def check_apart(path: Path, places: Sequence[Path]) -> None:
    """Refuses a final place that equals, contains, or is inside a folder or file of the source.

    Args:
      path: the final place.
      places: the folders and files of the source.

    Raises:
      ConfigError: it does; the message says how.
    """
    target = path.parent.resolve() / path.name
    for place in {one.resolve() for one in places}:
        if place in (target, path.resolve()):
            raise ConfigError(f"{path}: is the source itself; write somewhere else")
        if place in target.parents:
            raise ConfigError(f"{path}: lies inside of the source, {place}; write somewhere else")
        if target in place.parents:
            raise ConfigError(f"{path}: is there already, and holds the source, {place}; write somewhere else")


def check_free(destination: Destination, path: Path, overwrite: bool) -> None:
    """Refuses a final place with something that must not be replaced.

    Raises:
      ConfigError: the place exists, and `overwrite` is not set or it is no dataset of that format.
    """
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise ConfigError(
            f"{path}: is there already; write somewhere else, or replace it with overwrite=True (--overwrite)"
        )
    if path.is_symlink():
        raise ConfigError(f"{path}: is a link to {path.resolve()}; write there, or remove the link")
    if odd := _not_ours(destination, path):
        scheme = destination.name.partition(":")[0]
        raise ConfigError(
            f"{path}: {odd}, and only a dataset as {scheme}: writes it is replaced (--overwrite); remove it first, or "
            "write somewhere else"
        )


def _not_ours(destination: Destination, path: Path) -> str:
    """Why the existing path is not a dataset of the format; "" if it is one, or an empty folder."""
    if not destination.marks:
        return "is a folder" if path.is_dir() else _unreadable(destination, path)
    if not path.is_dir():
        return "is a file"
    found = False
    for file in _files(path):
        if not any(_matches(file, mark) for mark in destination.marks):
            return f"holds {'/'.join(file)}"
        found = found or _matches(file, destination.marks[0])
    if not found:
        return f"holds no {destination.marks[0]}" if any(_files(path)) else ""
    return _unreadable(destination, path)


def _files(folder: Path) -> Iterator[tuple[str, ...]]:
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*files, *links]):
            yield (Path(place) / name).relative_to(folder).parts


def _matches(parts: Sequence[str], pattern: str) -> bool:
    first, any_folders, last = pattern.partition("/**/")
    head, tail = first.split("/"), last.split("/") if any_folders else []
    if len(parts) < len(head) + len(tail) or (not tail and len(parts) > len(head)):
        return False
    ends = [*parts[: len(head)], *(parts[-len(tail) :] if tail else ())]
    return all(fnmatchcase(part, one) for part, one in zip(ends, [*head, *tail]))


def _unreadable(destination: Destination, path: Path) -> str:
    try:
        open_source(destination.source(path)).spec()
    except Rlds2ReverbError:
        return "cannot be read as one"
    return ""
