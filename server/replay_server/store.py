"""The checkpoints that are kept on disk: numbered, verified, rotated, set aside. No Reverb here, only files.

```
FOLDER/generations/000012/   tables.tfrecord items.tfrecord chunks.tfrecord DONE MANIFEST.json
FOLDER/set_aside/            checkpoints that are broken, or hold items that a start has left out; then with LEFT_OUT.json, which says so
FOLDER/reverb/               what Reverb itself writes to and starts from; made anew at every start
FOLDER/taken/                what has been taken out of it and is not kept yet, see `working_folder`
```

Reverb's own folder keeps one checkpoint, is not fsynced, and is refused as a whole when its newest entry is truncated
(observed in dm-reverb 0.14). On a full disk Reverb even confirms a checkpoint of which only the last block of a file is
missing: it does not look at what closing the file says. So a checkpoint is taken out of it as soon as it is written: hashed, its compressed streams
read to the end, fsynced, and renamed into place with its manifest. A checkpoint is valid when every file still has the
size and hash of the manifest; whatever was not finished has another name.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from replay_server.errors import CannotKeepError, CheckpointError, CheckpointUnreadable
from replay_server.files import (
    DONE,
    MANIFEST,
    RECORD_FILES,
    FileEntry,
    entry_of,
    link_files,
    listed,
    read_small,
    sync_folder,
    verified_entry,
    write_synced,
)

CHECKPOINTS, SET_ASIDE = "generations", "set_aside"
"""Folders in a checkpoint folder: of the checkpoints, and of what was put away."""

LEFT_OUT_NAME = "-left-out-"
"""In the name of a checkpoint in `SET_ASIDE` between its number and the date on which a start left something out of it."""

_MANIFEST_BYTES = 1 << 24
"""Most bytes of a manifest, which has a line per table."""


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint is made of.

    Attributes:
      created: Unix time.
      seconds: how long it took, from the request to the finished checkpoint.
      files: by name.
      items: table -> items held.
      xxh3: of all this, see `digest`.
    """

    created: float
    seconds: float
    files: dict[str, FileEntry]
    items: dict[str, int] = {}
    xxh3: str = ""

    def digest(self) -> str:
        """xxh3-128 of everything but `xxh3` itself."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(msgspec.structs.replace(self, xxh3="")))


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: `number` grows by one with each."""

    number: int
    folder: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(entry.bytes for entry in self.manifest.files.values())

    def summary(self) -> dict[str, Any]:
        """Its fields over HTTP."""
        return {
            "generation": self.number,
            "items": self.manifest.items,
            "bytes": self.bytes,
            "seconds": self.manifest.seconds,
        }


def numbered(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first; not verified.

    Raises:
      CheckpointUnreadable: it cannot be listed.
      CheckpointError: it is no folder.
    """
    return sorted((path for path in listed(folder) if path.name.isdecimal()), key=number_of, reverse=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint whose files are those of its manifest.

    Raises:
      CheckpointUnreadable: a file is there and cannot be read; says which.
      CheckpointError: no manifest, or a file is missing or changed; says which.
    """
    data = read_small(folder / MANIFEST, _MANIFEST_BYTES)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: not a manifest ({error})") from error
    if manifest.xxh3 != manifest.digest():
        raise CheckpointError(f"{folder / MANIFEST}: changed since it was written")
    missing = {*RECORD_FILES, DONE} - manifest.files.keys()
    if missing:
        raise CheckpointError(f"{folder}: its manifest lacks {', '.join(sorted(missing))}")
    for name, wanted in manifest.files.items():
        found = entry_of(folder / name)
        if found != wanted:
            raise CheckpointError(
                f"{folder / name}: {found.bytes} bytes ({found.xxh3}), expected {wanted.bytes} ({wanted.xxh3})"
            )
    return Checkpoint(number_of(folder), folder, manifest)


def number_of(path: Path) -> int:
    """The number of a checkpoint, or of one that was set aside; 0 for anything else."""
    digits = path.name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


LEFT_OUT = "LEFT_OUT.json"

_LEFT_OUT_BYTES = 1 << 24
"""Most bytes of it: it has a line per table."""

_PARTIAL = ".partial"
_PINNED = ".keep"
_FULL = {errno.ENOSPC, errno.EDQUOT}


class LeftOut(msgspec.Struct, frozen=True):
    """Items of a table that a start has not restored from its checkpoint.

    Attributes:
      table: its name.
      items: how many.
      reason: for people.
      folder: where the checkpoint is kept, in `set_aside`.
    """

    table: str
    items: int
    reason: str
    folder: str = ""


class CheckpointStore:
    """The folder of one server.

    Args:
      folder: of this server alone; made when missing.
      keep: newest checkpoints to keep.
      guard: called before each change; raises `CheckpointError` when the folder is another server's by now.

    Attributes:
      highest: number of the newest checkpoint that was written or restored; the next one is higher, whatever became of it.
      kept: the folder of the finished checkpoints.
      reverb, taken: see the module.

    Raises:
      CheckpointError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, keep: int, guard: Callable[[], None] = lambda: None) -> None:
        self.folder, self.keep, self.guard = folder, keep, guard
        self.highest = 0
        self.reverb, self.taken = folder / "reverb", folder / "taken"
        self.kept, self._set_aside = folder / CHECKPOINTS, folder / SET_ASIDE
        try:
            for path in (self.kept, self._set_aside):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {folder}: cannot be written to ({error.strerror}); "
                "set checkpoints.folder to one that this user may write to"
            ) from error

    def make_folders(self) -> list[Path]:
        """Makes what is missing of its folders, should someone have removed one under the running server; which.

        Raises:
          CannotKeepError: one cannot be made, or something else has its name.
        """
        self.guard()  # never makes the checkpoint folder itself: a volume that is gone is no empty one
        made = []
        for path in (self.kept, self._set_aside, self.reverb, self.taken):
            if path.is_dir():
                continue
            try:
                path.mkdir()
            except OSError as error:
                raise CannotKeepError(
                    f"{path}: no folder, and none can be made ({error.strerror}); clear the way"
                ) from error
            made.append(path)
        return made

    def paths(self) -> list[Path]:
        """Folders of all finished checkpoints, newest first; not verified.

        Raises:
          CheckpointUnreadable: they cannot be listed.
        """
        return numbered(self.kept)

    def readable(self) -> list[Path] | None:
        """The same for a folder that may not answer; None when they cannot be listed."""
        try:
            return self.paths()
        except CheckpointError:
            return None

    def count(self) -> int | None:
        """How many there are; None when they cannot be listed."""
        paths = self.readable()
        return None if paths is None else len(paths)

    def set_aside(self, path: Path, why: str, name: str = "") -> Path:
        """Moves a checkpoint out of the way, for people to look at; it is never deleted.

        Args:
          why: a word or two, for its name.
          name: in place of the checkpoint's, for something else; it does not begin with a number.

        Returns:
          Its new place.
        """
        self.guard()
        name = name or path.name
        target = self._set_aside / f"{name}-{why}"
        count = 1
        while target.exists():
            count += 1
            target = self._set_aside / f"{name}-{why}-{count}"
        path.rename(target)
        sync_folder(self._set_aside)
        sync_folder(path.parent)
        return target

    def pin(self, path: Path) -> None:
        """Makes `prune` leave a checkpoint where it is, until someone removes the file that says so (NUMBER.keep)."""
        self.guard()
        path.with_name(path.name + _PINNED).touch()

    def note_left_out(self, checkpoint: Checkpoint, left_out: Sequence[LeftOut]) -> Path | None:
        """Notes what this start has not restored from its checkpoint, in place of what earlier starts from it have noted.

        The checkpoint gets a second name in `set_aside` then, which outlives its rotation, with `LEFT_OUT` in it.

        Returns:
          The second name; None where everything was restored.
        """
        self.guard()
        target = self._set_aside / f"{checkpoint.folder.name}{LEFT_OUT_NAME}{time.strftime('%Y%m%d', time.gmtime())}"
        if left_out:
            if not target.exists():
                partial = target.with_name(target.name + _PARTIAL)
                shutil.rmtree(partial, ignore_errors=True)
                link_files(checkpoint.folder, partial)
                partial.rename(target)
                sync_folder(self._set_aside)
            write_synced(target / LEFT_OUT, msgspec.json.format(msgspec.json.encode(left_out)))
            sync_folder(target)
        for path in self._with_left_out():
            if number_of(path) == checkpoint.number and not (left_out and path == target):
                (path / LEFT_OUT).unlink()
        return target if left_out else None

    def left_out(self) -> list[LeftOut]:
        """What starts have left out, as far as it is still in `set_aside` with its `LEFT_OUT`; the newest checkpoint first.

        One whose record cannot be read is told without a table. Nothing where the folder cannot be listed.
        """
        found: list[LeftOut] = []
        try:
            paths = self._with_left_out()
        except CheckpointError:
            return []
        for path in paths:
            try:
                rows = msgspec.json.decode(read_small(path / LEFT_OUT, _LEFT_OUT_BYTES), type=list[LeftOut])
            except (CheckpointError, msgspec.DecodeError, UnicodeDecodeError) as error:
                rows = [LeftOut("", 0, f"{LEFT_OUT} there cannot be read ({error})")]
            found += [msgspec.structs.replace(row, folder=str(path)) for row in rows]
        return found

    def _with_left_out(self) -> list[Path]:
        paths = (path for path in listed(self._set_aside) if number_of(path) and (path / LEFT_OUT).is_file())
        return sorted(paths, key=lambda path: (number_of(path), path.name), reverse=True)

    def clean(self) -> list[Path]:
        """Removes what was never finished, and empties Reverb's own folder and the one for what was taken out of it.

        What is finished there must have been kept or set aside before, see `clients`.

        Returns:
          What was removed.
        """
        self.guard()
        found: list[Path] = []
        for folder in (self.kept, self._set_aside):
            with suppress(CheckpointUnreadable):  # the choice of a checkpoint says so
                found += listed(folder)
        partial = [path for path in found if path.name.endswith(_PARTIAL)]
        working = [path for folder in (self.reverb, self.taken) if folder.is_dir() for path in folder.iterdir()]
        unfinished = [*partial, *working]
        for path in unfinished:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for folder in (self.reverb, self.taken):
            folder.mkdir(exist_ok=True)
        return unfinished

    def adopt(self, checkpoint: Path, items: Mapping[str, int], began: float, ended: float | None = None) -> Checkpoint:
        """Verifies a checkpoint that Reverb has written and makes it the newest checkpoint.

        Args:
          checkpoint: its folder, which is moved to the kept ones; verified where it is, so that a kill leaves it there.
          items: table -> items held, for the manifest.
          began: Unix time of the request.
          ended: Unix time at which it was written; now by default.

        Raises:
          CannotKeepError: the disk is full, or does not take it for another reason; the checkpoint is still there.
          CheckpointError: it is incomplete or unreadable.
        """
        if not (checkpoint / DONE).is_file():
            raise CheckpointError(f"{checkpoint}: Reverb returned it without its {DONE} file; is the folder its own?")
        number = 1 + max(self.highest, *(number_of(path) for path in (*self.paths(), *listed(self._set_aside))), 0)
        try:
            self.guard()
            files = {name: verified_entry(checkpoint / name) for name in (*RECORD_FILES, DONE)}
            ended = time.time() if ended is None else ended
            manifest = Manifest(ended, ended - began, files, dict(items))
            manifest = msgspec.structs.replace(manifest, xxh3=manifest.digest())
            write_synced(checkpoint / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
            sync_folder(checkpoint)
            final = self.kept / f"{number:06d}"
            self.guard()  # verifying may have taken long
            checkpoint.rename(final)
            sync_folder(self.kept)
        except OSError as error:
            hint = "; make room on the disk" if error.errno in _FULL else ""
            raise CannotKeepError(f"{checkpoint}: cannot be kept ({error}){hint}") from error
        self.highest = number
        return Checkpoint(number, final, manifest)

    def prune(self, given_way: Sequence[Path] = ()) -> list[Path]:
        """Removes the checkpoints beyond the newest `keep`, and those that have given way to a newer one; what was removed.

        Pinned ones stay, and do not count. What could not be removed is tried again the next time.

        Raises:
          CheckpointError: they cannot be listed, or the folder is another server's by now.
          OSError: one cannot be removed; all others are.
        """
        free = [path for path in self.paths() if not path.with_name(path.name + _PINNED).exists()]
        kept = [path for path in free if path not in given_way][: self.keep]
        old = [path for path in free if path not in kept]
        for path in old:
            self.guard()
            path.rename(path.with_name(path.name + _PARTIAL))  # half a checkpoint never looks like one
        failed: OSError | None = None
        for partial in (path for path in listed(self.kept) if path.name.endswith(_PARTIAL)):
            self.guard()
            try:
                shutil.rmtree(partial)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        return old
