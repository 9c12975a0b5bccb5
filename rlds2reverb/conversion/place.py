"""Where a conversion writes, one conversion at a time.

A conversion writes to a folder beside the final place, which holds the unfinished `data`, `progress.json`, `lock`, and `replaced`; without
`progress.json` no conversion has begun there. The dataset appears at its final place by one rename. What it replaces is moved into the
folder first and deleted with it, or moved back if the rename did not happen.

Of a dataset in a bucket that folder is in this machine's cache. When the dataset is whole its files are uploaded, last the one without which
no reader takes the rest for a dataset.

One writer per place: a lock on a file (`rlds2reverb.locks`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from rlds2reverb.conversion.guarding import is_there, list_files, matches_mark
from rlds2reverb.errors import ConfigError, StorageError
from rlds2reverb.files import (
    append_whole,
    cache_folder,
    exchange_names,
    remove_whole,
    sync,
    write_error,
    write_json,
)
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.destination import Destination
from rlds2reverb.locks import lock_file
from rlds2reverb.text import shortened, visible
from rlds2reverb.versions import FormatVersion, program_version

Saved = dict[str, Any]

PREFIX = ".converting-"
"""Prefix of the folder's name, before the name of the final place."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors that come from the disk, whatever the path is."""

_ANEW = "begin again with restart=True (--restart)"

PROGRESS_VERSION = FormatVersion("the progress of a conversion", 2, 2, _ANEW)


class Place:
    """The place of one conversion; see `open_place`.

    Attributes:
      path: the final place.
      folder: beside the final place.
      work: the folder that a sink writes to.
      result: the result before it is published: a file of its final name in `work`, or `work`.
    """

    def __init__(self, path: Path, is_file: bool = False, folder: Path | None = None) -> None:
        self.path = path
        self.folder = folder or path.parent / f"{PREFIX}{path.name}"
        self.work = self.folder / "data"
        self.result = self.work / path.name if is_file else self.work
        self._progress = self.folder / "progress.json"
        self._replaced = self.folder / "replaced"

    @property
    def is_new(self) -> bool:
        """Whether no conversion into this place was begun and not ended."""
        return not self.folder.exists()

    @property
    def is_begun(self) -> bool:
        """Whether there is a conversion to continue."""
        return self._progress.exists()

    @property
    def is_published(self) -> bool:
        """Whether the result has left this folder for its final place."""
        return not self.result.exists() and is_there(self.path)

    @property
    def is_partly_published(self) -> bool:
        """Whether what is at the final place is a part of the result."""
        return False

    def saved(self) -> Saved | None:
        """The progress saved last; None at the beginning.

        Raises:
          ConfigError: it cannot be read, is damaged, or of another version.
        """
        try:
            content = json.loads(self._progress.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{self._progress}: cannot be read ({error}); {_ANEW}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{self._progress}: expected a JSON object with what was saved; {_ANEW}")
        if refusal := PROGRESS_VERSION.refusal(self._progress, content.get("format"), content.get("program")):
            raise ConfigError(refusal)
        if not isinstance(content.get("saved"), dict):
            raise ConfigError(f"{self._progress}: expected a JSON object with what was saved; {_ANEW}")
        if content.get("digest") != _digest(content["saved"]):
            raise ConfigError(f"{self._progress}: is damaged: its digest is another; {_ANEW}")
        saved: Saved = content["saved"]
        return saved

    def save(self, progress: Saved) -> None:
        """Puts the progress on disk atomically."""
        document = {"format": PROGRESS_VERSION.version, "program": program_version()}
        write_json(self._progress, {**document, "digest": _digest(progress), "saved": progress})

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
        """Puts every file of the result on disk, so that the rename never publishes what a power cut would empty."""
        for folder, _, names in os.walk(self.work):
            for name in names:
                sync(Path(folder, name))
            sync(Path(folder))

    def exchange(self) -> bool:
        """Puts the result in the place of the dataset that it grew from, at once, so that there is one at any time; the old one is put away.

        Returns False, and changes nothing, where the system cannot exchange two names; `publish` then renames twice.
        """
        if not exchange_names(self.result, self.path):
            return False
        sync(self.path.parent)
        self.put_away()
        return True

    def put_away(self) -> None:
        """Moves the old dataset, which an exchange has put in the place of the result, to what is replaced."""
        _remove(self._replaced)
        self.result.rename(self._replaced)
        sync(self.folder)

    def publish(self, on_sent: Callable[[int, int], object] = lambda *_: None) -> None:
        """Renames the result to its final name; moves what it replaces into the folder. Repeatable after a kill."""
        # A folder cannot be renamed onto one with files in it, so what is replaced moves away first. A kill between the two renames
        # leaves no dataset at the final place: the next run publishes again, or puts the old one back.
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


_UPLOADS = 8  # files at once
_OWN_LOCK, _SENT = "bucket-lock", "sent"


class PlaceInBucket(Place):
    """The place of a dataset in a bucket, whose files are uploaded when all of them are written.

    An object beside the final place keeps out conversions of other machines. Sizes and ETags of uploaded files are kept, so that a
    conversion that was stopped sends only the rest.

    Args:
      path: the final place.
      manifest: a pattern of the file without which no reader takes the rest for a dataset; "" for a dataset of one file.
      verifies: whether uploaded objects are read back.
    """

    def __init__(self, path: BucketPath, manifest: str, verifies: bool = False) -> None:
        folder = cache_folder("converting") / f"{path.name}-{xxhash.xxh3_64_hexdigest(str(path).encode())}"
        super().__init__(path, not manifest, folder)
        self._target, self._manifest, self._verifies = path, manifest, verifies
        self._lock, self._own_lock = path.parent / f"{PREFIX}{path.name}", folder / _OWN_LOCK
        self._sent = folder / _SENT

    @property
    def is_new(self) -> bool:
        return super().is_new and not self._lock.exists()

    @property
    def is_partly_published(self) -> bool:
        return self._sent.exists()

    def lock(self) -> None:
        """Keeps other machines out.

        Raises:
          ConfigError: another conversion writes there.
          StorageError: the bucket takes no objects.
        """
        if not self._own_lock.exists():
            about = {
                "host": socket.gethostname(),
                "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
                "id": secrets.token_hex(8),
            }
            write_json(self._own_lock, about)
        data = self._own_lock.read_bytes()
        if self._lock.upload_bytes(data, is_new=True):
            return
        holder = self._lock.read_bytes()
        if holder != data:
            raise ConfigError(
                f"{self.path}: another conversion is writing it: {visible(shortened(holder.decode(errors='replace')))} ({self._lock}); wait for that, or "
                "remove that object if it does not run any more"
            )

    def put_back(self) -> None:
        """Nothing: what is replaced is not moved away."""

    def begin(self) -> None:
        """Creates an empty folder to write to; removes an earlier one, and what it has uploaded."""
        for name, version in self._sent_before().items():
            with suppress(FileNotFoundError):
                if version is None or self._version(name) == version:
                    (self._target / name if name else self._target).remove()
        self._sent.unlink(missing_ok=True)
        super().begin()

    def publish(self, on_sent: Callable[[int, int], object] = lambda *_: None) -> None:
        """Uploads the result, and removes other objects of a dataset that it replaces. Repeatable after a kill.

        Args:
          on_sent: called after each file, with the number of files sent and of all.

        Raises:
          StorageError: the bucket does not take it. There is no dataset until the same conversion runs again.
        """
        self._sent.touch()  # from now on what is at the final place may be a part
        if self.result.is_file():
            self._send("")
            on_sent(1, 1)
        elif self.result.exists():
            self._publish_folder(on_sent)
        remove_whole(self.work)  # half of it would be taken for the whole result

    def discard_work(self) -> None:
        self._sent.unlink(missing_ok=True)
        super().discard_work()

    def discard(self) -> None:
        self._lock.remove()
        super().discard()

    def _publish_folder(self, on_sent: Callable[[int, int], object]) -> None:
        names = ["/".join(parts) for parts in list_files(self.result)]
        last = [name for name in names if matches_mark(name.split("/"), self._manifest)]
        first = [name for name in names if name not in last]
        sent = self._sent_before()
        there = {path.relative_to(self._target).as_posix() for path in self._target.walk()}
        whole = {name for name in there & set(sent) if sent[name] == self._version(name)}
        for name in there - whole:
            if matches_mark(name.split("/"), self._manifest):
                (self._target / name).remove()  # of what is replaced: nobody may read a mixture
        waiting = [name for name in first if name not in whole]
        with ThreadPoolExecutor(_UPLOADS) as executor:
            futures = [executor.submit(self._send, name) for name in waiting]
            try:
                for number, future in enumerate(as_completed(futures), 1):
                    future.result()
                    on_sent(len(first) - len(waiting) + number, len(names))
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
        for name in there - set(names):
            (self._target / name).remove()
        for name in last:
            self._send(name)
            on_sent(len(names), len(names))

    def _send(self, name: str) -> None:
        file, target = (self.result / name, self._target / name) if name else (self.result, self._target)
        self._note(name, None)
        target.upload(file)
        if self._verifies:
            _check_same(file, target)
        self._note(name, self._version(name))

    def _note(self, name: str, version: list[int] | None) -> None:
        line = f"{json.dumps([name, version])}\n"
        append_whole(self._sent, line, self._sent, "make room there, and convert again")

    def _version(self, name: str) -> list[int]:
        """Of an uploaded object: its size, and a time that differs when the object was replaced."""
        status = (self._target / name if name else self._target).stat()
        return [status.st_size, status.st_mtime_ns]

    def _sent_before(self) -> dict[str, list[int] | None]:
        """Name -> version of the objects that this conversion has uploaded; None of those that it has only begun to."""
        sent: dict[str, list[int] | None] = {}
        with suppress(FileNotFoundError):
            for line in self._sent.read_text().splitlines():
                with suppress(ValueError, TypeError):  # a line that a kill cut off: the file is sent again
                    name, version = json.loads(line)
                    sent[name] = version
        return sent


def _check_same(file: Path, target: BucketPath) -> None:
    with file.open("rb") as here, target.open("rb") as there:
        while True:
            sent, stored = here.read(_COMPARED_BYTES), there.read(_COMPARED_BYTES)
            if sent != stored:
                raise StorageError(f"{target}: is not what was uploaded from {file}; convert again, to upload it again")
            if not sent:
                return


_COMPARED_BYTES = 4 << 20


def place_of(destination: Destination, path: Path, verifies: bool = False) -> Place:
    """The place of a destination; `verifies` as for `PlaceInBucket`."""
    marks = destination.marks
    if isinstance(path, BucketPath):
        return PlaceInBucket(path, marks[0] if marks else "", verifies)
    return Place(path, not marks)


@contextmanager
def open_place(place: Place) -> Iterator[Place]:
    """Creates and locks a place for this process.

    Raises:
      ConfigError: another process writes there, or the folder cannot be created.
      StorageError: it is in a bucket that takes no objects.
      WriteError: the disk is full, say, or its file system has no locks.
    """
    path = place.path
    if place.folder.is_symlink():
        raise ConfigError(f"{place.folder}: is a link; expected a folder of a conversion, or nothing: remove the link")
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise write_error(place.folder, error, "make room there, or convert into another folder") from error
        raise ConfigError(f"{place.folder}: cannot be made: {error.strerror}") from error
    with lock_file(place.folder / "lock") as is_ours:
        if not is_ours:
            raise ConfigError(f"{path}: another process is writing it ({place.folder}); wait for that, or end it")
        if isinstance(place, PlaceInBucket):
            place.lock()
        yield place


def _digest(progress: Saved) -> str:
    return hashlib.sha256(json.dumps(progress).encode()).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
