"""Checkpoints as generations on disk: kept, verified, set aside. No Reverb here, only files.

```
FOLDER/generations/000012/   tables.tfrecord items.tfrecord chunks.tfrecord DONE MANIFEST.json
FOLDER/set_aside/            generations that are broken, or hold a table that the config no longer has
FOLDER/reverb/               what Reverb itself writes to and starts from; made anew at every start
```

Reverb's own folder keeps one checkpoint, is not fsynced, and is refused as a whole when its newest entry is truncated
(observed in dm-reverb 0.14). So a checkpoint is moved out of it as soon as it is written: hashed, its compressed streams
read to the end, fsynced, and renamed into place with its manifest. A generation is valid when every file still has the
size and hash of the manifest; whatever was not finished has another name.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from replay_server.records import CheckpointError, blocks, inflate

RECORD_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
DONE = "DONE"
MANIFEST = "MANIFEST.json"

_PARTIAL = ".partial"


class FileEntry(msgspec.Struct, frozen=True):
    """Size and xxh3-128 of a file."""

    bytes: int
    xxh3: str


class Manifest(msgspec.Struct, frozen=True):
    """What a generation is made of.

    Attributes:
      created: Unix time.
      seconds: how long it took, from the request to the finished generation.
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
class Generation:
    """One checkpoint: `number` grows by one with each."""

    number: int
    folder: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(entry.bytes for entry in self.manifest.files.values())


class Generations:
    """The folder of one server.

    Args:
      folder: of this server alone; made when missing.
      keep: newest generations to keep.

    Raises:
      CheckpointError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self._keep = folder, keep
        self.reverb = folder / "reverb"
        self._kept, self._set_aside = folder / "generations", folder / "set_aside"
        try:
            for path in (self._kept, self._set_aside):
                path.mkdir(parents=True, exist_ok=True)
            probe = folder / f".writable{_PARTIAL}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {folder}: cannot be written to ({error.strerror}); "
                "set checkpoints.folder to one that this user may write to"
            ) from error

    def paths(self) -> list[Path]:
        """Folders of all finished generations, newest first; not verified."""
        numbered = [path for path in self._kept.iterdir() if path.name.isdecimal()]
        return sorted(numbered, key=lambda path: int(path.name), reverse=True)

    def newest_valid(self) -> tuple[Generation | None, list[tuple[Path, str]]]:
        """The newest valid generation, and the broken ones that were set aside on the way to it, with the reasons."""
        broken: list[tuple[Path, str]] = []
        for path in self.paths():
            try:
                return read_generation(path), broken
            except CheckpointError as error:
                broken.append((self.set_aside(path, "broken"), str(error)))
        return None, broken

    def set_aside(self, path: Path, why: str) -> Path:
        """Moves a generation out of the way, for people to look at; it is never deleted. Its new place."""
        target = self._set_aside / f"{path.name}-{why}"
        count = 1
        while target.exists():
            count += 1
            target = self._set_aside / f"{path.name}-{why}-{count}"
        path.rename(target)
        sync_folder(self._set_aside)
        sync_folder(self._kept)
        return target

    def keep_for_good(self, generation: Generation, why: str) -> Path:
        """A second name, in set_aside, for a generation that will be rotated away but holds what the server left out."""
        target = self._set_aside / f"{generation.folder.name}-{why}"
        if not target.exists():
            partial = target.with_name(target.name + _PARTIAL)
            shutil.rmtree(partial, ignore_errors=True)
            link_files(generation.folder, partial)
            partial.rename(target)
            sync_folder(self._set_aside)
        return target

    def clean(self) -> list[Path]:
        """Removes what was never finished, Reverb's own folder included; what was removed."""
        partial = [path for path in (*self._kept.iterdir(), *self._set_aside.iterdir()) if path.name.endswith(_PARTIAL)]
        unfinished = [*partial, *(self.reverb.iterdir() if self.reverb.is_dir() else ())]
        for path in unfinished:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.reverb.mkdir(exist_ok=True)
        return unfinished

    def adopt(self, checkpoint: Path, items: Mapping[str, int], began: float) -> Generation:
        """Verifies a checkpoint that Reverb has just written and makes it the newest generation.

        Args:
          checkpoint: the folder that Reverb returned, inside `self.reverb`.
          items: table -> items held, for the manifest.
          began: Unix time of the request.

        Raises:
          CheckpointError: it is incomplete or unreadable; what is left of it goes with the next one.
        """
        if not (checkpoint / DONE).is_file():
            raise CheckpointError(f"{checkpoint}: Reverb returned it without its {DONE} file; is the folder its own?")
        number = max((int(path.name) for path in self.paths()), default=0) + 1
        number = max(number, 1 + max((_number(path) for path in self._set_aside.iterdir()), default=0))
        try:
            partial = self._kept / f"{number:06d}{_PARTIAL}"
            shutil.rmtree(partial, ignore_errors=True)  # of one that could not be verified
            checkpoint.rename(partial)
            files = {name: _verified_entry(partial / name) for name in (*RECORD_FILES, DONE)}
            manifest = Manifest(time.time(), time.time() - began, files, dict(items))
            manifest = msgspec.structs.replace(manifest, xxh3=manifest.digest())
            _write_synced(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
            sync_folder(partial)
            final = self._kept / f"{number:06d}"
            partial.rename(final)
            sync_folder(self._kept)
        except OSError as error:
            raise CheckpointError(f"{checkpoint}: cannot be kept ({error}); is the disk full?") from error
        return Generation(number, final, manifest)

    def prune(self) -> list[Path]:
        """Removes the generations beyond the newest `keep`; what was removed."""
        old = self.paths()[self._keep :]
        for path in old:
            partial = path.with_name(path.name + _PARTIAL)  # renamed first: half a generation never looks like one
            path.rename(partial)
            shutil.rmtree(partial)
        return old


def read_generation(folder: Path) -> Generation:
    """A generation whose files are those of its manifest.

    Raises:
      CheckpointError: no manifest, or a file is missing or changed; says which.
    """
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder}: no readable {MANIFEST} ({error})") from error
    if manifest.xxh3 != manifest.digest():
        raise CheckpointError(f"{folder / MANIFEST}: changed since it was written")
    missing = {*RECORD_FILES, DONE} - manifest.files.keys()
    if missing:
        raise CheckpointError(f"{folder}: its manifest lacks {', '.join(sorted(missing))}")
    for name, wanted in manifest.files.items():
        found = _entry(folder / name)
        if found != wanted:
            raise CheckpointError(
                f"{folder / name}: {found.bytes} bytes ({found.xxh3}), expected {wanted.bytes} ({wanted.xxh3})"
            )
    return Generation(_number(folder), folder, manifest)


def find_checkpoint(path: Path) -> Path:
    """The folder with the record files in a checkpoint of another experiment.

    Args:
      path: a server's checkpoint folder (its newest valid generation is taken), a generation, or a checkpoint of Reverb's.

    Raises:
      CheckpointError: none of these, or not valid.
    """
    if (path / MANIFEST).is_file():
        return read_generation(path).folder
    if (path / DONE).is_file():
        for name in RECORD_FILES:
            _verified_entry(path / name)
        return path
    kept = path / "generations"
    numbered = [child for child in kept.iterdir() if child.name.isdecimal()] if kept.is_dir() else []
    for child in sorted(numbered, key=_number, reverse=True):
        with suppress(CheckpointError):
            return read_generation(child).folder
    raise CheckpointError(
        f"{path}: expected a checkpoint folder, a generation, or a checkpoint of Reverb's with its {DONE}"
    )


def link_files(source: Path, target: Path) -> None:
    """The record files of a checkpoint under a second name; copied where the file system cannot link."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copyfile(path, target / path.name)


def sync_folder(path: Path) -> None:
    """Makes renames inside the folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _number(path: Path) -> int:
    digits = path.name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _entry(path: Path) -> FileEntry:
    digest, size = xxhash.xxh3_128(), 0
    for block in blocks(path):
        digest.update(block)
        size += len(block)
    return FileEntry(size, digest.hexdigest())


def _verified_entry(path: Path) -> FileEntry:
    """Entry of a file just written: synced, and its compressed stream read to the checksum at its end."""
    if path.name == DONE:
        _sync_file(path)
        return _entry(path)
    digest, size = xxhash.xxh3_128(), 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for block in blocks(path):
            digest.update(block)
            size += len(block)
            yield block

    for _ in inflate(path, hashed()):
        pass
    _sync_file(path)
    return FileEntry(size, digest.hexdigest())


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
