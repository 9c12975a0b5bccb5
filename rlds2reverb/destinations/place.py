"""Where a conversion writes: a folder beside the final place, which holds the data to be and how far it is.

A dataset appears at its final place by one rename. What it replaces is put into the folder first, and goes with it.
The folder holds `data`, `progress.json`, `lock`, and `replaced`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlds2reverb.destinations.locking import locked
from rlds2reverb.destinations.whole_files import sync, write_json
from rlds2reverb.errors import ConfigError

Saved = dict[str, Any]

PREFIX = ".converting-"
"""What the folder's name begins with, before that of the final place."""


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
          ConfigError: it cannot be read.
        """
        try:
            saved = json.loads(self._progress.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self._progress}: cannot be read ({error}); begin again with restart=True (--restart)"
            ) from error
        if not isinstance(saved, dict):
            raise ConfigError(f"{self._progress}: expected a JSON object; begin again with restart=True (--restart)")
        return saved

    def save(self, progress: Saved) -> None:
        """Puts it on disk, whole or not at all."""
        write_json(self._progress, progress)

    def begin(self) -> None:
        """An empty folder to write to, whatever there was."""
        self._progress.unlink(missing_ok=True)
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
        return not self._leaving(is_file).exists() and os.path.lexists(self.path)

    def publish(self, is_file: bool) -> None:
        """Gives the result its final name; what had it goes into the folder. Nothing is lost by a kill in between: call it again."""
        result = self._leaving(is_file)
        if result.exists():
            if os.path.lexists(self.path):
                replaced = self.folder / "replaced"
                _remove(replaced)
                self.path.rename(replaced)
            result.rename(self.path)
            sync(self.path.parent)
        _remove(self.work)

    def _leaving(self, is_file: bool) -> Path:
        return self.work / self.path.name if is_file else self.work

    def discard(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened(path: Path) -> Iterator[Place]:
    """The place, for this process alone; its folder is made.

    Raises:
      ConfigError: another process writes there, or the folder cannot be made.
    """
    place = Place(path)
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{place.folder}: cannot be made: {error.strerror}") from error
    with locked(place.folder / "lock") as is_ours:
        if not is_ours:
            raise ConfigError(f"{path}: another process is writing it ({place.folder}); wait for that, or end it")
        yield place


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
