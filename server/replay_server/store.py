"""The checkpoints that are kept on disk: numbered, verified, rotated, set aside. No Reverb here, only files.

```
FOLDER/generations/000012/   tables.tfrecord items.tfrecord chunks.tfrecord DONE MANIFEST.json
FOLDER/set_aside/            broken checkpoints; and those with items that a start left out, which LEFT_OUT.json lists
FOLDER/reverb/               Reverb writes here and starts from here; made anew at every start
FOLDER/taken/                taken out of Reverb's folder and not kept yet, see `working_folder`
```

Reverb's own folder keeps one checkpoint, is not fsynced, and is refused as a whole when its newest entry is truncated
(observed in dm-reverb 0.14). On a full disk Reverb even confirms a checkpoint of which only the last block of a file is
missing, because it ignores the result of closing the file. So a checkpoint is taken out of its folder as soon as it is
written: hashed, its compressed streams read to the end, fsynced, and renamed into place with its manifest. A checkpoint is
valid when every file still has the size and hash of the manifest; whatever was not finished has another name.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from replay_server.errors import CannotKeepError, CheckpointError, CheckpointNewer, CheckpointUnreadable
from replay_server.files import (
    DONE,
    FULL_DISK,
    MANIFEST,
    RECORD_FILES,
    FileEntry,
    cannot_read,
    entry_of,
    link_files,
    list_folder,
    read_small,
    sync,
    verified_entry,
    write_synced,
)
from replay_server.retention import Keep, keep_of, kept_because
from rlds2reverb.stored.checkpoint import VERSION
from rlds2reverb.versions import program_version

# On disk a checkpoint is a generation: folders and buckets of every service so far have this name, and an older one must find them.
CHECKPOINTS, SET_ASIDE = "generations", "set_aside"
LEFT_OUT = "LEFT_OUT.json"
LEFT_OUT_NAME = "-left-out-"  # names in SET_ASIDE are NUMBER-left-out-DATE: when a start left items out

UNREAD = "cannot be read now"  # why one is kept whose time no rule can ask for
SENDING = "being sent"
PASSING = (SENDING, "newest")  # reasons that end by themselves
NEWEST = "newest"  # in `CheckpointStore.held`: the newest good checkpoint

MOST_BYTES = 1 << 24  # of a manifest and of a LEFT_OUT, which have a line per table
_PARTIAL = ".partial"
PINNED = ".keep"  # beside a checkpoint, after its name
_COPIES, _MOST_COPIES = "COPIES.json", 100


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint is made of.

    Attributes:
      created: Unix time.
      seconds: from the request to the finished checkpoint.
      items: table -> items held.
      xxh3: hash of all the rest.
      format: see `stored.checkpoint.VERSION`; 0 in one of before the mark.
      program: version of rlds2reverb that wrote it; "" for one before this was written.
    """

    created: float
    seconds: float
    files: dict[str, FileEntry]
    items: dict[str, int] = {}
    xxh3: str = ""
    format: int = 0
    program: str = ""

    def digest(self) -> str:
        document = msgspec.to_builtins(msgspec.structs.replace(self, xxh3=""))
        if not self.program:  # before the mark there was neither of the two
            del document["format"], document["program"]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(document))


class _Head(msgspec.Struct, frozen=True):
    """What the manifests of all versions have."""

    format: Any = 1
    program: Any = ""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint; `number` grows by one with each.

    Attributes:
      is_new: whether it was written when it was asked for; else nothing had changed since it was.
    """

    number: int
    folder: Path
    manifest: Manifest
    is_new: bool = field(default=True, compare=False)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.manifest.files.values())

    @property
    def item_count(self) -> int:
        return sum(self.manifest.items.values())

    def summary(self) -> dict[str, Any]:
        """The fields of a checkpoint over HTTP."""
        return {
            "generation": self.number,
            "items": self.manifest.items,
            "bytes": self.bytes,
            "seconds": self.manifest.seconds,
        }


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint on disk, whose files are not looked at; errors as of `read_checkpoint`."""
    return decode_manifest(read_small(folder / MANIFEST, MOST_BYTES), folder)


def find_missing(checkpoint: Checkpoint) -> str:
    """Why a checkpoint's files are not those of its manifest, by their sizes; "" where they are. What is in them is not read."""
    for name, entry in checkpoint.manifest.files.items():
        try:
            size = (checkpoint.folder / name).stat().st_size
        except OSError as error:
            return f"{name}: {error.strerror or error}"
        if size != entry.bytes:
            return f"{name}: {size} bytes, expected {entry.bytes}"
    return ""


def list_numbered(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first; not verified."""
    return numbered_of(list_folder(folder))


def numbered_of(entries: Iterable[Path]) -> list[Path]:
    """Those of a folder's entries that are checkpoints, newest first."""
    return sorted((path for path in entries if path.name.isdecimal()), key=number_of, reverse=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint, after verifying its files.

    Raises:
      CheckpointUnreadable: a file is there and cannot be read, or is a newer release's.
      CheckpointError: no manifest, or a file is missing or changed.
    """
    manifest = read_manifest(folder)
    for name, listed_file in manifest.files.items():
        entry = entry_of(folder / name)
        if entry != listed_file:
            raise CheckpointError(
                f"{folder / name}: {entry.bytes} bytes ({entry.xxh3}), expected {listed_file.bytes} ({listed_file.xxh3})"
            )
    return Checkpoint(number_of(folder), folder, manifest)


def decode_manifest(data: bytes, folder: Path) -> Manifest:
    """The manifest of a checkpoint, whose files are not looked at.

    Raises:
      CheckpointNewer: a newer release has written it.
      CheckpointError: it is none, has changed, or lacks a file.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if refusal := VERSION.refusal(folder / MANIFEST, head.format, head.program):
            raise (CheckpointNewer if VERSION.is_newer(head.format) else CheckpointError)(refusal)
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: not a manifest ({error})") from error
    if manifest.xxh3 != manifest.digest():
        raise CheckpointError(f"{folder / MANIFEST}: changed since it was written")
    missing = {*RECORD_FILES, DONE} - manifest.files.keys()
    if missing:
        raise CheckpointError(f"{folder}: its manifest lacks {', '.join(sorted(missing))}")
    return manifest


def number_of(path: Path) -> int:
    """Number of a checkpoint, kept or set aside; 0 for anything else."""
    digits = path.name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


class CopyOfOlder(msgspec.Struct, frozen=True):
    """A checkpoint that a start from an older one writes before it is ready.

    Attributes:
      number: its own.
      source: `xxh3` of the older one's manifest.
      config: hash of the tables to which that was fitted.
      is_safe_there: whether what was passed over in the bucket is pinned there; True where nothing is sent to one.
    """

    number: int
    source: str
    config: str
    is_safe_there: bool = True


class LeftOut(msgspec.Struct, frozen=True):
    """Items of a table that a start has not restored from its checkpoint, which is kept in `folder`."""

    table: str
    items: int
    reason: str
    folder: str = ""


@dataclass(frozen=True)
class ListedCheckpoint:
    """A kept checkpoint as lists have it.

    Attributes:
      kept: why it is kept: "last", "hourly", "daily", "weekly", "pinned", "cannot be read now", or in other words; () where the next one takes its place.
      manifest: None where it cannot be read.
      problem: why it cannot be loaded, by its manifest and the sizes of its files; "" where it can. Their content is compared by a start.
    """

    number: int
    folder: Path
    kept: tuple[str, ...]
    manifest: Manifest | None
    problem: str = ""

    def document(self, now: float) -> dict[str, Any]:
        """The checkpoint in JSON: times in seconds, sizes in bytes; null for what its manifest does not say."""
        manifest = self.manifest
        checkpoint = None if manifest is None else Checkpoint(self.number, self.folder, manifest)
        return {
            "generation": self.number,
            "name": self.folder.name,
            "created": None if manifest is None else manifest.created,
            "age_seconds": None if manifest is None else max(0.0, now - manifest.created),
            "items": {} if manifest is None else manifest.items,
            "bytes": None if checkpoint is None else checkpoint.bytes,
            "kept": list(self.kept),
            "valid": not self.problem,
            "problem": self.problem,
        }


class CheckpointStore:
    """The checkpoint folder of one server.

    Args:
      folder: made when missing.
      keep: which checkpoints to keep: so many newest ones, or rules.
      guard: called before each change; raises `CheckpointError` when the folder is another server's by now.
      is_only_read: nothing is made there.

    Attributes:
      highest: number of the newest checkpoint that was written or restored; the next one is higher, whatever became of it.
      held: number -> why, of checkpoints that are never pruned, whatever the rules say.

    Raises:
      CheckpointError: the folder cannot be made or written to.
    """

    def __init__(
        self, folder: Path, keep: int | Keep, guard: Callable[[], None] = lambda: None, is_only_read: bool = False
    ) -> None:
        self.folder, self.keep, self.guard = folder, keep_of(keep), guard
        self.highest = 0
        self.held: dict[int, str] = {}
        self._in_use: list[int] = []  # numbers of those that somebody copies
        self._pruning = threading.Lock()
        self._manifests: dict[tuple[str, int], Manifest] = {}  # by folder and when it was changed
        self.reverb, self.taken = folder / "reverb", folder / "taken"
        self.kept, self._set_aside = folder / CHECKPOINTS, folder / SET_ASIDE
        if is_only_read:
            return
        try:
            for path in (self.kept, self._set_aside):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {folder}: cannot be written to ({error.strerror}); "
                "set checkpoints.folder to one that this user may write to"
            ) from error

    def make_folders(self) -> list[Path]:
        """Makes folders that someone removed under the running server, and returns them.

        Raises:
          CannotKeepError: one cannot be made, or something else has its name.
        """
        self.guard()  # never makes the checkpoint folder itself: a volume that is gone is no empty one
        folders = []
        for path in (self.kept, self._set_aside, self.reverb, self.taken):
            if path.is_dir():
                continue
            try:
                path.mkdir()
            except OSError as error:
                raise CannotKeepError(
                    f"{path}: no folder, and none can be made ({error.strerror}); clear the way"
                ) from error
            folders.append(path)
        return folders

    def paths(self) -> list[Path]:
        """Folders of all finished checkpoints, newest first; not verified."""
        return list_numbered(self.kept)

    def readable(self) -> list[Path] | None:
        """The checkpoints of `paths`; None when the folder cannot be listed."""
        try:
            return self.paths()
        except CheckpointError:
            return None

    def count(self) -> int | None:
        paths = self.readable()
        return None if paths is None else len(paths)

    def set_aside(self, path: Path, why: str, name: str = "") -> Path:
        """Moves a checkpoint out of the way, for people to look at; it is never deleted. Returns its new place.

        Args:
          why: a word or two, for its name.
          name: in place of the checkpoint's; for anything that is no numbered checkpoint.
        """
        self.guard()
        name = name or path.name
        target = self._set_aside / f"{name}-{why}"
        count = 1
        while target.exists():
            count += 1
            target = self._set_aside / f"{name}-{why}-{count}"
        path.rename(target)
        sync(self._set_aside)
        sync(path.parent)
        return target

    def pin(self, path: Path) -> bool:
        """Keeps a checkpoint from being pruned until someone removes the file NUMBER.keep; whether it was not pinned before."""
        self.guard()
        is_new = not self.is_pinned(path)
        path.with_name(path.name + PINNED).touch()
        sync(path.parent)
        return is_new

    def unpin(self, path: Path) -> None:
        self.guard()
        path.with_name(path.name + PINNED).unlink(missing_ok=True)

    def note_left_out(self, checkpoint: Checkpoint, left_out: Sequence[LeftOut]) -> Path | None:
        """Notes what this start has not restored from its checkpoint, in place of what earlier starts from it noted.

        If that is anything, the checkpoint gets a second name in `set_aside`, which outlives its rotation, with `LEFT_OUT`
        in it. Returns that name.
        """
        self.guard()
        target = self._set_aside / f"{checkpoint.folder.name}{LEFT_OUT_NAME}{time.strftime('%Y%m%d', time.gmtime())}"
        if left_out:
            if not target.exists():
                partial = target.with_name(target.name + _PARTIAL)
                shutil.rmtree(partial, ignore_errors=True)
                link_files(checkpoint.folder, partial)
                partial.rename(target)
                sync(self._set_aside)
            write_synced(target / LEFT_OUT, msgspec.json.format(msgspec.json.encode(left_out)))
            sync(target)
        for path in self._with_left_out():
            if number_of(path) == checkpoint.number and not (left_out and path == target):
                (path / LEFT_OUT).unlink()
        return target if left_out else None

    def left_out(self) -> list[LeftOut]:
        """What starts left out and `set_aside` still holds, the newest checkpoint first.

        A checkpoint whose `LEFT_OUT` cannot be read has one entry without a table. Empty where the folder cannot be listed.
        """
        left_out: list[LeftOut] = []
        try:
            paths = self._with_left_out()
        except CheckpointError:
            return []
        for path in paths:
            try:
                rows = msgspec.json.decode(read_small(path / LEFT_OUT, MOST_BYTES), type=list[LeftOut])
            except (CheckpointError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                rows = [LeftOut("", 0, f"{LEFT_OUT} there cannot be read ({error})")]
            left_out += [msgspec.structs.replace(row, folder=str(path)) for row in rows]
        return left_out

    def _with_left_out(self) -> list[Path]:
        paths = (path for path in list_folder(self._set_aside) if number_of(path) and (path / LEFT_OUT).is_file())
        return sorted(paths, key=lambda path: (number_of(path), path.name), reverse=True)

    def clean(self) -> list[Path]:
        """Removes what was never finished, and empties `reverb` and `taken`; returns what was removed.

        What is finished there must have been kept or set aside before, see `clients`.
        """
        self.guard()
        paths: list[Path] = []
        for folder in (self.kept, self._set_aside):
            with suppress(CheckpointUnreadable):  # the choice of a checkpoint says so
                paths += list_folder(folder)
        partial = [path for path in paths if path.name.endswith(_PARTIAL)]
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
          items: table -> items held.
          began, ended: Unix times of the request and of the end; the latter now by default.

        Raises:
          CannotKeepError: the disk is full or does not take it; the checkpoint is still there.
          CheckpointError: it is incomplete or unreadable.
        """
        if not (checkpoint / DONE).is_file():
            raise CheckpointError(f"{checkpoint}: Reverb returned it without its {DONE} file; is the folder its own?")
        number = self.next_number()
        try:
            self.guard()
            files = {name: verified_entry(checkpoint / name) for name in (*RECORD_FILES, DONE)}
            ended = time.time() if ended is None else ended
            manifest = Manifest(ended, ended - began, files, dict(items), "", VERSION.version, program_version())
            manifest = msgspec.structs.replace(manifest, xxh3=manifest.digest())
            write_synced(checkpoint / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
            sync(checkpoint)
            final = self.kept / f"{number:06d}"
            self.guard()  # verifying may have taken long
            checkpoint.rename(final)
            sync(self.kept)
        except OSError as error:
            hint = "; make room on the disk" if error.errno in FULL_DISK else ""
            raise CannotKeepError(f"{checkpoint}: cannot be kept ({error}){hint}") from error
        self.highest = number
        return Checkpoint(number, final, manifest)

    def next_number(self) -> int:
        """Of the checkpoint that is adopted next."""
        return 1 + max(self.highest, *(number_of(path) for path in (*self.paths(), *list_folder(self._set_aside))), 0)

    def copies(self) -> list[CopyOfOlder]:
        """The checkpoints that starts from older ones have written or were about to, oldest first; none where that cannot be read."""
        try:
            return msgspec.json.decode(read_small(self.folder / _COPIES, MOST_BYTES), type=list[CopyOfOlder])
        except (CheckpointError, msgspec.DecodeError, UnicodeDecodeError):
            return []

    def note_copies(self, copies: Sequence[CopyOfOlder]) -> None:
        self.guard()
        write_synced(self.folder / _COPIES, msgspec.json.format(msgspec.json.encode(copies[-_MOST_COPIES:])))

    def forget_unwritten(self) -> None:
        """Forgets a copy that was never written: the checkpoint that gets its number now is none."""
        paths, copies = self.readable(), self.copies()
        if paths is not None:
            newest = max(map(number_of, paths), default=0)
            written = [copy for copy in copies if copy.number <= newest]
            if written != copies:
                self.note_copies(written)

    @contextmanager
    def using(self, path: Path) -> Iterator[None]:
        """Keeps a checkpoint from being pruned while the block runs."""
        number = number_of(path)
        with self._pruning:
            self._in_use.append(number)
        try:
            yield
        finally:
            with self._pruning:
                self._in_use.remove(number)

    def is_pinned(self, path: Path) -> bool:
        return path.with_name(path.name + PINNED).exists()

    def reasons_to_keep(self, paths: Sequence[Path], given_way: Sequence[Path] = ()) -> list[tuple[str, ...]]:
        """Why each of these checkpoints, newest first, is kept: rules of `keep`, "pinned", words of `held`, "being sent"; () for no reason.

        One whose manifest cannot be read now, or only by a newer release, stays where a rule asks for its time, and does not count.

        Args:
          given_way: those that no rule keeps, because a newer one takes their place.
        """
        ruled = [path for path in paths if path not in given_way and not self.is_pinned(path)]
        times: dict[Path, float | None] = {}
        unread = set[Path]()
        for path in ruled:
            try:
                times[path] = self._time_of(path) if self.keep.needs_times else None
            except CheckpointUnreadable:  # a rule may keep it, and nobody can say which until it is read again
                unread.add(path)
        rules = dict(zip(times, kept_because([*times.values()], self.keep), strict=True))
        return [self._reasons(path, (UNREAD,) if path in unread else rules.get(path, ())) for path in paths]

    def prune(self, given_way: Sequence[Path] = ()) -> list[Path]:
        """Removes the checkpoints that no rule keeps, and those that gave way to a newer one; returns which.

        Pinned ones stay, and do not count; so do those that are `held` or in use. An OSError that one cannot be removed is raised when the
        rest are; the next call tries again.
        """
        with self._pruning:
            paths = self.paths()
            reasons = self.reasons_to_keep(paths, given_way)
            old = [path for path, words in zip(paths, reasons, strict=True) if not words]
            for path in old:
                self.guard()
                path.rename(path.with_name(path.name + _PARTIAL))  # half a checkpoint never looks like one
        failed: OSError | None = None
        for partial in (path for path in list_folder(self.kept) if path.name.endswith(_PARTIAL)):
            self.guard()
            try:
                shutil.rmtree(partial)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        return old

    def _reasons(self, path: Path, rules: tuple[str, ...]) -> tuple[str, ...]:
        number = number_of(path)
        pinned = ("pinned",) if self.is_pinned(path) else ()
        # That it is the newest good one needs no words where a rule keeps it.
        held = (self.held[number],) if number in self.held and (self.held[number] != NEWEST or not rules) else ()
        return (*rules, *pinned, *held, *((SENDING,) if number in self._in_use else ()))

    def _time_of(self, path: Path) -> float | None:
        """When a checkpoint was written; None for a broken one, which does not say. Raises `CheckpointUnreadable`: it cannot be asked now."""
        try:
            return self.manifest_of(path).created
        except CheckpointUnreadable:
            raise
        except CheckpointError:
            return None

    def manifest_of(self, path: Path) -> Manifest:
        """The manifest of a checkpoint; read once, for lists are asked for every two seconds."""
        try:
            key = path.name, (path / MANIFEST).stat().st_mtime_ns
        except OSError as error:
            raise cannot_read(path / MANIFEST, error) from error
        # `listed` of another thread may drop the entry at any moment.
        manifest = self._manifests.get(key)
        if manifest is None:
            manifest = read_manifest(path)
            self._manifests = {**self._manifests, key: manifest}
        return manifest

    def listed(self) -> list[ListedCheckpoint]:
        """The kept checkpoints, newest first; what is in their files is not read.

        Raises:
          CheckpointError: the folder cannot be listed.
        """
        paths = self.paths()
        self._manifests = {key: manifest for key, manifest in self._manifests.items() if self.kept / key[0] in paths}
        return [self._list(path, kept) for path, kept in zip(paths, self.reasons_to_keep(paths), strict=True)]

    def _list(self, path: Path, kept: tuple[str, ...]) -> ListedCheckpoint:
        try:
            checkpoint = Checkpoint(number_of(path), path, self.manifest_of(path))
        except CheckpointError as error:
            return ListedCheckpoint(number_of(path), path, kept, None, str(error))
        return ListedCheckpoint(checkpoint.number, path, kept, checkpoint.manifest, find_missing(checkpoint))
