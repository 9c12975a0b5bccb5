"""Where a conversion writes: a folder beside the final place, which holds the data to be and how far it is.

A dataset appears at its final place by one rename. What it replaces is put into the folder first, and goes with it; it goes back where
no dataset came.
The folder holds `data`, `progress.json`, `lock`, and `replaced`. Without `progress.json` no conversion has begun there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlds2reverb.destinations.locking import locked
from rlds2reverb.destinations.whole_files import sync, write_json
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import write_error

Saved = dict[str, Any]

PREFIX = ".converting-"
"""What the folder's name begins with, before that of the final place."""

FORMAT = 2
"""Of saved progress."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Reasons that say nothing about the path."""

_ANEW = "begin again with restart=True (--restart)"


class Place:
    """The place of one conversion; see `opened`.

    Attributes:
      path: the final one.
      folder: the one beside it.
      work: where a sink writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent / f"{PREFIX}{path.name}"
        self.work = self.folder / "data"
        self._progress = self.folder / "progress.json"
        self._replaced = self.folder / "replaced"

    @property
    def result(self) -> Path:
        """What becomes the final place: a file of its name in `work`, or `work`."""
        file = self.work / self.path.name
        return file if file.is_file() else self.work

    @property
    def is_begun(self) -> bool:
        """Whether a conversion can go on from here."""
        return self._progress.exists()

    def saved(self) -> Saved | None:
        """What was saved last; None at the beginning.

        Raises:
          ConfigError: it cannot be read, is damaged, or of another version.
        """
        try:
            told = json.loads(self._progress.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{self._progress}: cannot be read ({error}); {_ANEW}") from error
        if not isinstance(told, dict) or not isinstance(told.get("saved"), dict):
            raise ConfigError(f"{self._progress}: expected a JSON object with what was saved; {_ANEW}")
        if told.get("format") != FORMAT:
            raise ConfigError(f"{self._progress}: was written by another version of this program; {_ANEW}")
        if told.get("digest") != _digest(told["saved"]):
            raise ConfigError(f"{self._progress}: is damaged: its digest is another; {_ANEW}")
        saved: Saved = told["saved"]
        return saved

    def save(self, progress: Saved) -> None:
        """Puts it on disk, whole or not at all."""
        write_json(self._progress, {"format": FORMAT, "digest": _digest(progress), "saved": progress})

    def put_back(self) -> None:
        """What was put aside gets its name again, where nothing has it."""
        if os.path.lexists(self._replaced) and not os.path.lexists(self.path):
            self._replaced.rename(self.path)
            sync(self.path.parent)

    def begin(self) -> None:
        """An empty folder to write to, whatever there was."""
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

    @property
    def is_file(self) -> bool:
        """Whether the result is a file; known once it is whole."""
        return self.result != self.work

    def is_published(self, is_file: bool) -> bool:
        """Whether the result has left for its final place."""
        return not self.holds(is_file) and os.path.lexists(self.path)

    def holds(self, is_file: bool) -> bool:
        """Whether the result is there, and waits for its final name."""
        return self._leaving(is_file).exists()

    def publish(self, is_file: bool) -> None:
        """Gives the result its final name; what had it goes into the folder. Nothing is lost by a kill in between: call it again."""
        result = self._leaving(is_file)
        if self.holds(is_file):
            if os.path.lexists(self.path):
                _remove(self._replaced)
                self.path.rename(self._replaced)
                sync(self.folder)
            result.rename(self.path)
            sync(self.path.parent)
        _remove(self.work)

    def _leaving(self, is_file: bool) -> Path:
        return self.work / self.path.name if is_file else self.work

    def discard_work(self) -> None:
        """Forgets a conversion whose result is at its place."""
        _remove(self._replaced)
        self._progress.unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes the folder. While `progress.json` is there, the same conversion still knows that it has been done."""
        self.put_back()
        with suppress(OSError):
            _remove(self._replaced)
        self._progress.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened(path: Path) -> Iterator[Place]:
    """The place, for this process alone; its folder is made.

    Raises:
      ConfigError: another process writes there, or there can be no such folder.
      WriteError: the disk is full, say, or its file system has no locks.
    """
    place = Place(path)
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
    """Of what it says, however it is written."""
    return hashlib.sha256(json.dumps(progress).encode()).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
