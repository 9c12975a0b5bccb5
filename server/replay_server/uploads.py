"""Checkpoints in a bucket: the newest kept one is sent there in the background, and a start on another machine takes it from there.

```
PLACE/generations/000012/   tables.tfrecord items.tfrecord chunks.tfrecord DONE, and last of all MANIFEST.json
PLACE/generations/000012.keep   beside a checkpoint that no rule removes, until somebody removes this object
PLACE/OWNER.json            the server that sends there
```

A place looks as a checkpoint folder does, so a copy of it is one. The manifest has size and hash of every file and is written last: without it
a checkpoint does not exist. It goes first when a checkpoint is removed. So no kill and no cut leaves half a checkpoint that looks like one.

Nothing here waits for a checkpoint. One that is being sent is not rotated away; one that somebody else removes meanwhile is given up, and the
newest one sent.

One server per place. A bucket has no locks, so `OWNER.json` decides. It has the id of a checkpoint folder, which is in the folder, too
(`UPLOAD_ID`), and a token of one start. A server whose folder has another id is refused. One with the same id takes the place: it is the
next start. The one before finds another token there, and sends nothing more. A start that restores from the very place that it sends to takes
over the id with the checkpoint: its folder was lost, and it continues for it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from replay_server.choosing import ChosenCheckpoint, find_start
from replay_server.config import CheckpointSection
from replay_server.errors import (
    CannotKeepError,
    CheckpointError,
    CheckpointNewer,
    CheckpointUnreadable,
    StartStopped,
)
from replay_server.files import (
    DONE,
    FULL_DISK,
    MANIFEST,
    RECORD_FILES,
    FileEntry,
    list_folder,
    read_small,
    stands_at,
    verify_record_files,
    write_synced,
)
from replay_server.folder_lock import utc
from replay_server.logs import logger
from replay_server.retention import Keep, keep_of, kept_because, plain_keep
from replay_server.store import (
    CHECKPOINTS,
    MOST_BYTES,
    PINNED,
    Checkpoint,
    CheckpointStore,
    Manifest,
    decode_manifest,
    list_numbered,
    number_of,
    numbered_of,
    read_checkpoint,
)
from rlds2reverb.errors import Rlds2ReverbError, StorageError
from rlds2reverb.formats.buckets import BucketPath, path_of
from rlds2reverb.formats.options import is_url
from rlds2reverb.versions import FormatVersion, program_version

OWNER, UPLOAD_ID = "OWNER.json", "UPLOAD_ID"
OWNER_VERSION = FormatVersion("the record of who sends to a bucket", 1, way_out="name another place")
FETCHED = "fetched"  # in the checkpoint folder, while a start takes a checkpoint from a bucket

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
"""After a failure; each pause is twice as long as the one before."""

LOOK_SECONDS = 3600.0
"""Longest time between two looks at what is there: rules of a bucket and people remove objects while nothing new is kept."""

_ALL = (*RECORD_FILES, DONE)
_BLOCK_BYTES = 4 << 20
_MOST_OWNER_BYTES = 1 << 16
_MOST_WAITING = 1000  # that are noted while the bucket does not take any, and the newest


# What is there.


class PlaceOwner(msgspec.Struct, frozen=True):
    """The server that sends to a place.

    Attributes:
      folder: id of its checkpoint folder.
      token: of this start alone.
      words: who it is, for people.
      newest: number of the newest checkpoint that was sent; 0 before the first.
      format: see `OWNER_VERSION`.
      program: version of rlds2reverb that wrote it; "" for one before this was written.
    """

    folder: str
    token: str
    words: str
    newest: int = 0
    format: int = OWNER_VERSION.version
    program: str = ""


class _OwnerHead(msgspec.Struct, frozen=True):
    """What the records of all versions have."""

    format: Any = 1
    program: Any = ""


@dataclass(frozen=True)
class BucketContents:
    """What is in a place.

    Attributes:
      whole: checkpoints with a manifest and all its files in their sizes, newest first; their `folder` is in the bucket. What is
        in the files is looked at only by a start.
      broken: those that have a manifest and are not whole, newest first, and why.
      unfinished: those without a manifest.
      newer: those that only a newer release reads, newest first, and what that is. They stay as they are.
      pinned: numbers that have an object NUMBER.keep: no rule removes these, and they do not count.
    """

    whole: tuple[Checkpoint, ...] = ()
    broken: tuple[tuple[BucketPath, str], ...] = ()
    unfinished: tuple[BucketPath, ...] = ()
    newer: tuple[tuple[BucketPath, str], ...] = ()
    pinned: frozenset[int] = frozenset()

    @property
    def newest_number(self) -> int:
        """Of all checkpoints that have a manifest; 0 without any."""
        return max(map(number_of, (*self.complete, *(path for path, _ in self.newer))), default=0)

    @property
    def complete(self) -> list[BucketPath]:
        """The checkpoints that have a manifest that this release reads."""
        return [*(_in_bucket(checkpoint.folder) for checkpoint in self.whole), *(path for path, _ in self.broken)]


def look(place: BucketPath) -> BucketContents:
    """Looks at what is in a place.

    Raises:
      CheckpointUnreadable: the bucket does not answer, or refuses.
    """
    whole: list[Checkpoint] = []
    broken: list[tuple[BucketPath, str]] = []
    unfinished: list[BucketPath] = []
    newer: list[tuple[BucketPath, str]] = []
    entries = list_folder(place / CHECKPOINTS)
    pinned = frozenset(int(path.stem) for path in entries if path.suffix == PINNED and path.stem.isdecimal())
    for path in map(_in_bucket, numbered_of(entries)):
        if not _has_manifest(path):
            unfinished.append(path)
            continue
        try:
            whole.append(_describe(path))
        except CheckpointNewer as error:
            newer.append((path, str(error)))
        except CheckpointUnreadable:
            raise
        except CheckpointError as error:
            broken.append((path, str(error)))
    return BucketContents(tuple(whole), tuple(broken), tuple(unfinished), tuple(newer), pinned)


def owner(place: BucketPath) -> PlaceOwner | None:
    """The server that sends to a place; None if nobody does, or its record is damaged.

    Raises:
      CheckpointNewer: a newer release has written the record.
      CheckpointUnreadable: the bucket does not answer, or refuses.
    """
    try:
        return decode_owner(_read(place / OWNER, _MOST_OWNER_BYTES), place / OWNER)
    except CheckpointUnreadable:
        raise
    except CheckpointError:
        return None


def decode_owner(record: bytes, path: Path) -> PlaceOwner | None:
    """The server in a record; None for a damaged one. Raises `CheckpointNewer` for one that a newer release has written."""
    try:
        head = msgspec.json.decode(record, type=_OwnerHead)
        if OWNER_VERSION.is_newer(head.format):
            raise CheckpointNewer(OWNER_VERSION.refusal(path, head.format, head.program))
        return msgspec.json.decode(record, type=PlaceOwner)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _has_manifest(path: Path) -> bool:
    """Whether the manifest exists. Lists, because callers need the sizes of the other files, too."""
    return any(entry.name == MANIFEST for entry in list_folder(path))


def _describe(path: BucketPath) -> Checkpoint:
    """A checkpoint in a bucket, by its manifest and the sizes of its files.

    Raises:
      CheckpointUnreadable: the bucket does not answer, or refuses.
      CheckpointError: no manifest, or a file is missing or has another size.
    """
    manifest = decode_manifest(_read(path / MANIFEST, MOST_BYTES), path)
    for name, listed_file in manifest.files.items():
        # A name with a slash, such as ../x, would be written outside of the folder.
        if name not in _ALL:
            raise CheckpointError(f"{path / MANIFEST}: names {name!r}, which no checkpoint has")
        with _reading(path / name):
            size = (path / name).stat().st_size
        if size != listed_file.bytes:
            raise CheckpointError(f"{path / name}: {size} bytes, expected {listed_file.bytes}")
    return Checkpoint(number_of(path), path, manifest)


def _read(path: BucketPath, most_bytes: int) -> bytes:
    with _reading(path):
        if (size := path.stat().st_size) > most_bytes:
            raise CheckpointError(f"{path}: {size} bytes, which is not what was written")
        return path.read_bytes()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns the errors of a bucket into those of `files`."""
    try:
        yield
    except StorageError as error:
        raise CheckpointUnreadable(str(error)) from error
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such object") from error


# Taking one from there.


class Fetching:
    """Reads checkpoints of a bucket for `choosing`: copies them to a folder of this machine, and verifies sizes and hashes.

    Args:
      folder: for the copies; made when needed.
      names: the files that are copied; of all others only the sizes are compared.
      stopped: whether to end early, with `StartStopped`.
    """

    def __init__(
        self, folder: Path, names: tuple[str, ...] = _ALL, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._folder, self._names, self._stopped = folder, names, stopped

    def numbered(self, folder: Path) -> list[Path]:
        """One without its manifest does not exist."""
        return [path for path in list_numbered(folder) if _has_manifest(path)]

    def checkpoint(self, folder: Path) -> Checkpoint:
        there = _describe(_in_bucket(folder))
        copy = self._made(folder)
        needed = sum(entry.bytes for name, entry in there.manifest.files.items() if name in self._names)
        with self._writing(self._folder):
            free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise CannotKeepError(f"{self._folder}: {free} bytes are free, {needed} are needed; make room on the disk")
        for name, listed_file in there.manifest.files.items():
            if name not in self._names:
                continue
            copied = self._copied(folder / name, copy / name)
            if copied != listed_file:
                raise CheckpointError(
                    f"{folder / name}: {copied.bytes} bytes ({copied.xxh3}), expected {listed_file.bytes} ({listed_file.xxh3})"
                )
        return Checkpoint(there.number, copy, there.manifest)

    def of_reverb(self, folder: Path) -> Path:
        copy = self._made(folder)
        for name in self._names:
            self._copied(folder / name, copy / name)
        if set(RECORD_FILES) <= set(self._names):
            verify_record_files(copy)
        return copy

    def _made(self, folder: Path) -> Path:
        # One copy at a time: the disk may have room for one checkpoint beside those that are kept.
        shutil.rmtree(self._folder, ignore_errors=True)  # of one that was broken
        copy = self._folder / folder.name
        with self._writing(copy):
            copy.mkdir(parents=True)
        return copy

    def _copied(self, source: Path, target: Path) -> FileEntry:
        digest, size = xxhash.xxh3_128(), 0
        with _reading(source), source.open("rb", 0) as file, self._writing(target), target.open("xb") as out:
            while block := file.read(_BLOCK_BYTES):
                if self._stopped():
                    raise StartStopped(f"{source}: stopped after {size} bytes of it were fetched")
                digest.update(block)
                size += len(block)
                out.write(block)
        return FileEntry(size, digest.hexdigest())

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise  # of the object that is read
        except OSError as error:
            hint = "; make room on the disk" if error.errno in FULL_DISK else ""
            raise CannotKeepError(f"{path}: cannot be written ({error.strerror or error}){hint}") from error


@contextmanager
def start_from(
    section: CheckpointSection, folder: Path, stopped: Callable[[], bool] = lambda: False, only: tuple[str, ...] = _ALL
) -> Iterator[ChosenCheckpoint | None]:
    """The checkpoint that `checkpoints.start_from` names, on this machine's disk while the block runs.

    Args:
      folder: for a copy of one in a bucket; it goes with the block.
      stopped: whether to end early.
      only: files that are needed; all by default.

    Yields:
      None where it names the place that this server sends to, and none was ever sent there to its end: its first start.

    Raises:
      CheckpointError: as `choosing.find_start`.
      StartStopped: the server is to end.
    """
    named = str(section.start_from)
    if not is_url(named):
        yield find_start(named)
        return
    fetching = Fetching(folder, only, stopped)
    if continues_place(section) and _is_new(_in_bucket(path_of(named)), fetching):
        yield None
        return
    shutil.rmtree(folder, ignore_errors=True)  # by a server that was killed
    try:
        start = find_start(named, fetching)
        try:
            yield start
        except CheckpointError as error:
            said = str(error).replace(str(start.folder), str(start.place))
            raise type(error)(said) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def continues_place(section: CheckpointSection) -> bool:
    """Whether a server starts from the very place that it sends to."""
    if section.upload is None or section.start_from is None or not is_url(section.start_from):
        return False
    return path_of(section.upload) == path_of(section.start_from)


def may_take_over(section: CheckpointSection, store: CheckpointStore) -> bool:
    """Whether a start from a checkpoint of the place that it sends to continues for the server that sent it: a folder that has sent to another place does not."""
    return continues_place(section) or not stands_at(store.folder / UPLOAD_ID)


def _is_new(place: BucketPath, fetching: Fetching) -> bool:
    """Whether no checkpoint was ever sent to a place.

    Raises:
      CheckpointError: one was, and none is there any more; or that cannot be found out.
    """
    if fetching.numbered(place / CHECKPOINTS):
        return False
    before = owner(place)
    if before is not None and before.newest:
        raise CheckpointError(
            f"checkpoints.start_from: {place}: checkpoint {before.newest} was sent there, and none is there any more; put one back, or "
            f"remove {place / OWNER} to start with empty tables"
        )
    return True


def take_over(section: CheckpointSection, store: CheckpointStore, start: ChosenCheckpoint | None) -> None:
    """Continues for the server that sent to the place that this one sends to: with its id, and the number of what was found there."""
    store.highest = max(store.highest, 0 if start is None else start.number)
    before = owner(_in_bucket(path_of(str(section.upload))))
    if before is not None:
        store.guard()
        write_synced(store.folder / UPLOAD_ID, before.folder.encode())


def _in_bucket(path: Path) -> BucketPath:
    assert isinstance(path, BucketPath)
    return path


# Sending.


@dataclass(frozen=True)
class UploadState:
    """The state of the sending; replaced as a whole when it changes.

    Attributes:
      last: the newest checkpoint that is there, whole; its `folder` is in the bucket.
      count: whole ones that are there; None before the place was looked at.
      sending: number of the one that is being sent now.
      waiting: number and Unix time of those that were kept after the last one that was sent, oldest first.
      failures: attempts that failed since the start.
      last_error: of the newest failure; "" when one has succeeded since.
    """

    last: Checkpoint | None = None
    count: int | None = None
    sending: int | None = None
    waiting: tuple[tuple[int, float], ...] = ()
    failures: int = 0
    last_error: str = ""

    @property
    def behind_seconds(self) -> float:
        """Age of the oldest checkpoint that came after what is there; 0 when the newest one is there."""
        return max(0.0, time.time() - self.waiting[0][1]) if self.waiting else 0.0


class _GivenUp(CheckpointError):
    """A checkpoint is not sent to its end, because it is gone or a newer one is wanted."""


@dataclass
class Uploads:
    """Sends the newest checkpoint to a place in a bucket whenever it is not there yet, in a thread of its own.

    Args:
      store: of the checkpoints; only read, but for its `UPLOAD_ID`.
      place: of this server alone.
      keep: which checkpoints stay there.
    """

    store: CheckpointStore
    place: BucketPath
    keep: Keep
    state: UploadState = field(default_factory=UploadState, init=False)

    def __post_init__(self) -> None:
        self._log = logger("uploads")
        self._token, self._has_claimed = secrets.token_hex(16), False
        self._words = f"process {os.getpid()} on host {socket.gethostname()}, started {utc(time.time())}"
        self._verified = ""  # xxh3 of the manifest whose files were
        self._sent = ""  # that of the newest checkpoint that was seen there
        self._lock = threading.Lock()
        self._wanted, self._hurry, self._over = threading.Event(), threading.Event(), threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)

    def start(self, newest: Checkpoint | None) -> None:
        """Begins, with the checkpoint that the server has started from."""
        self.note(newest)
        self._wanted.set()  # to see what is there
        self._thread.start()

    def note(self, checkpoint: Checkpoint | None) -> None:
        """Notes a new checkpoint. Neither fails nor waits."""
        if checkpoint is None:
            return
        with self._lock:
            waiting = (*self.state.waiting[:_MOST_WAITING], (checkpoint.number, checkpoint.manifest.created))
            self.state = replace(self.state, waiting=waiting)
            self._over.clear()
            self._wanted.set()

    def finish(self, seconds: float) -> None:
        """Waits until the newest checkpoint is there, but no longer than this."""
        if not self.state.waiting:
            self._is_stopping = True
            self._wanted.set()
            return
        number = self.state.waiting[-1][0]
        self._log.info("sending the last checkpoint", number=number, most_seconds=seconds)
        self._is_stopping = True
        self._hurry.set()
        self._over.wait(seconds)
        if self.state.waiting:
            reason = self.state.last_error or f"it was not sent within {seconds:g} s"
            self._log.error("the last checkpoint is not in the bucket", number=number, error=reason)

    def status(self) -> dict[str, Any]:
        """The state as in /status.json."""
        state = self.state
        last = state.last
        return {
            "place": str(self.place),
            "keep": plain_keep(self.keep),
            "generations": state.count,
            "last": None if last is None else {**last.summary(), "created": last.manifest.created},
            "sending": state.sending,
            "waiting": len(state.waiting),
            "behind_seconds": state.behind_seconds,
            "failures": state.failures,
            "last_error": state.last_error,
        }

    def _run(self) -> None:
        while not (self._is_stopping and self._over.is_set()):
            self._wanted.wait(LOOK_SECONDS)
            pause = FIRST_PAUSE_SECONDS
            while not (self._is_stopping and self._over.is_set()):
                try:
                    self._send_newest()
                    break
                except _GivenUp as error:
                    self._note_failure(error)
                    pause = FIRST_PAUSE_SECONDS
                    if self._is_stopping:
                        continue
                except (Rlds2ReverbError, OSError) as error:
                    self._note_failure(error)
                    # Another try would find the same.
                    may_pass = isinstance(error, CheckpointUnreadable) and not isinstance(error, CheckpointNewer)
                    is_lasting = isinstance(error, CheckpointError) and not may_pass
                    if self._is_stopping and is_lasting:
                        self._over.set()
                except Exception as error:
                    self._log.exception("checkpoint not sent: this is a bug")
                    self._note_failure(error)
                if self._hurry.wait(pause):
                    self._hurry.clear()
                    pause = FIRST_PAUSE_SECONDS
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _note_failure(self, error: Exception) -> None:
        with self._lock:
            failures = self.state.failures + 1
            self.state = replace(self.state, failures=failures, last_error=str(error), sending=None)
        self._log.error("checkpoint not sent", place=str(self.place), error=str(error), failures=failures)

    def _send_newest(self) -> None:
        self.store.guard()
        with self._lock:  # what is noted from here on has a look of its own, and what was noted before has this one
            noted = self.state.waiting
            self._wanted.clear()
        self._claim()
        there = look(self.place)
        for path in there.unfinished:
            self._remove(path)
            self._log.warning("unfinished checkpoint removed", path=str(path), meaning="it was not sent to its end")
        newest = next(iter(self.store.paths()), None)
        if newest is not None:
            self._pin_passed_over(there)
            manifest = self._manifest(newest)
            sent = next((checkpoint for checkpoint in there.whole if checkpoint.manifest.xxh3 == manifest.xxh3), None)
            if sent is None:
                noted = noted or self._note_gone(newest, manifest)
                with self.store.using(newest):
                    self._send(newest, 1 + there.newest_number)
                there = look(self.place)
                if all(checkpoint.manifest.xxh3 != manifest.xxh3 for checkpoint in there.whole):
                    raise CheckpointError(
                        f"{newest}: was sent, and is not whole in {self.place}; who else writes there?"
                    )
            self._sent = manifest.xxh3
        with self._lock:
            waiting = tuple(checkpoint for checkpoint in self.state.waiting if checkpoint not in noted)
            last = next(iter(there.whole), None)
            self.state = replace(
                self.state, last=last, count=len(there.whole), sending=None, waiting=waiting, last_error=""
            )
            if not waiting:
                self._over.set()
        self._rotate(there)

    def _pin_passed_over(self, there: BucketContents) -> None:
        """Before what a start from an older checkpoint has written is sent: pins the newest that is here, which rules would remove some day."""
        copies = self.store.copies()
        sources = {copy.source for copy in copies if not copy.is_safe_there}
        if not sources:
            return
        newest = next(iter(there.whole), None)
        if newest is not None and newest.manifest.xxh3 not in sources:
            path = self.place / CHECKPOINTS / f"{newest.folder.name}{PINNED}"
            path.upload_bytes(b"")
            self._log.warning("checkpoint pinned that a start passed over", number=newest.number, path=str(path))
        self.store.note_copies([msgspec.structs.replace(copy, is_safe_there=True) for copy in copies])

    def _note_gone(self, path: Path, manifest: Manifest) -> tuple[tuple[int, float], ...]:
        """Has a checkpoint wait again that was sent and is gone; returns it, if so."""
        with self._lock:
            if self._sent != manifest.xxh3 or self.state.waiting:
                return ()
            self._log.warning(
                "checkpoint gone from the bucket",
                number=number_of(path),
                place=str(self.place),
                meaning="somebody or a rule of the bucket removed it; it is sent again",
            )
            waiting = ((number_of(path), time.time()),)
            self.state = replace(self.state, waiting=waiting)
            self._over.clear()
            return waiting

    def _manifest(self, path: Path) -> Any:
        try:
            return decode_manifest(read_small(path / MANIFEST, MOST_BYTES), path)
        except CheckpointError as error:
            raise self._given_up(path, error) from error

    def _send(self, path: Path, least_number: int) -> None:
        """Sends a checkpoint after verifying it: a damaged one must not push good ones out."""
        began = time.monotonic()
        with self._lock:
            self.state = replace(self.state, sending=number_of(path))
        target = self.place / CHECKPOINTS / f"{max(number_of(path), least_number):06d}"
        try:
            data = read_small(path / MANIFEST, MOST_BYTES)
            checkpoint = Checkpoint(number_of(path), path, decode_manifest(data, path))
            if checkpoint.manifest.xxh3 != self._verified:
                self._verified = read_checkpoint(path).manifest.xxh3
            for name in checkpoint.manifest.files:
                if self._is_stopping and self.state.waiting and self.state.waiting[-1][0] > checkpoint.number:
                    raise _GivenUp(f"{path}: given up while it was sent: the server stops, and sends its last one")
                self._claim()  # sending a file may take long
                (target / name).upload(path / name)
        except (CheckpointError, FileNotFoundError) as error:
            self._claim()
            self._remove(target)
            raise self._given_up(path, error) from error
        self._claim()
        (target / MANIFEST).upload_bytes(data)
        self._claim(number_of(target))
        self._log.info(
            "checkpoint sent",
            number=checkpoint.number,
            path=str(target),
            bytes=checkpoint.bytes,
            seconds=round(time.monotonic() - began, 3),
        )

    def _given_up(self, path: Path, error: Exception) -> Exception:
        """The error to raise for a failure: of a checkpoint that was rotated away meanwhile, it says just that."""
        if stands_at(path):
            return error
        return _GivenUp(f"{path}: removed while it was sent; the newest one is sent now")

    def _rotate(self, there: BucketContents) -> None:
        """Removes those that no rule keeps, once a newer one is there; broken ones when they are older than all that are kept."""
        ruled = [checkpoint for checkpoint in there.whole if checkpoint.number not in there.pinned]
        reasons = kept_because([checkpoint.manifest.created for checkpoint in ruled], self.keep)
        kept = [checkpoint for checkpoint, rules in zip(ruled, reasons, strict=True) if rules]
        surplus = {checkpoint.number for checkpoint, rules in zip(ruled, reasons, strict=True) if not rules}
        if not surplus and len(kept) < self.keep.most:
            return
        oldest = kept[-1].number
        broken = {number_of(path) for path, _ in there.broken} - there.pinned
        for path in there.complete:
            if number_of(path) in surplus or (number_of(path) in broken and number_of(path) < oldest):
                self._claim()
                self._remove(path)
                self._log.debug("checkpoint removed", path=str(path))
        with self._lock:
            self.state = replace(self.state, count=len(there.whole) - len(surplus))

    def _remove(self, path: BucketPath) -> None:
        """Removes what is there of a checkpoint, its manifest first."""
        entries = sorted(list_folder(path), key=lambda entry: entry.name != MANIFEST)
        for entry in entries:
            _in_bucket(entry).remove()

    def _claim(self, newest: int = 0) -> None:
        """Makes sure that the place is this server's.

        Args:
          newest: number of a checkpoint that was just sent.

        Raises:
          CheckpointError: it is another one's.
          StorageError: the bucket does not answer, or refuses.
        """
        mine = PlaceOwner(folder_id(self.store), self._token, self._words, newest, program=program_version())
        path, before = self.place / OWNER, owner(self.place)
        if before is None:
            before = mine if path.upload_bytes(_encode_owner(mine), is_new=True) else owner(self.place)
        is_mine = before is not None and before.token == mine.token
        if before is not None and not is_mine and (before.folder != mine.folder or self._has_claimed):
            raise CheckpointError(_taken_words(self.place, before))
        sent_before = 0 if before is None else before.newest
        if not is_mine or newest > sent_before:
            path.upload_bytes(_encode_owner(msgspec.structs.replace(mine, newest=max(newest, sent_before))))
        self._has_claimed = True


def _encode_owner(record: PlaceOwner) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record))


def _taken_words(place: BucketPath, other: PlaceOwner) -> str:
    return (
        f"checkpoints.upload: {place}: another server sends its checkpoints there: {other.words}. Set checkpoints.upload to a place of this "
        f"server's own; or, if that one is gone for good, remove {place / OWNER}"
    )


def folder_id(store: CheckpointStore) -> str:
    """The id of a checkpoint folder, by which its place in a bucket knows it; made when there is none.

    Raises:
      CheckpointError, OSError: it cannot be read or written.
    """
    path = store.folder / UPLOAD_ID
    if not stands_at(path):
        store.guard()
        write_synced(path, secrets.token_hex(16).encode())
    return read_small(path, _MOST_OWNER_BYTES).decode("ascii", "replace").strip()


def uploads_of(section: CheckpointSection, store: CheckpointStore) -> Uploads | None:
    """What sends the checkpoints of a server; None where the config names no place."""
    if section.upload is None:
        return None
    return Uploads(store, _in_bucket(path_of(section.upload)), keep_of(section.upload_keep or section.keep))


def check_place(section: CheckpointSection, takes_place: bool = False) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What `--check` says of `checkpoints.upload`: what is there, and what is wrong. Writes an object, and removes it.

    Args:
      takes_place: whether the start takes over the place, with a checkpoint of it.
    """
    place = _in_bucket(path_of(str(section.upload)))
    document: dict[str, Any] = {
        "upload": str(place),
        "upload_keep": plain_keep(keep_of(section.upload_keep or section.keep)),
    }
    notes: list[str] = []
    try:
        there, before = look(place), owner(place)
    except CheckpointError as error:
        return document, (f"checkpoints.upload: {error}; nothing would be sent there",)
    document["uploaded"] = [
        {
            "generation": checkpoint.number,
            "items": checkpoint.item_count,
            "bytes": checkpoint.bytes,
            "written": utc(checkpoint.manifest.created),
            **({"kept": "pinned"} if checkpoint.number in there.pinned else {}),
        }
        for checkpoint in there.whole
    ]
    notes += [f"checkpoints.upload: {reason}; no start takes it" for _, reason in (*there.newer, *there.broken)]
    notes += [f"checkpoints.upload: {path}: not sent to its end; no start takes it" for path in there.unfinished]
    if before is not None:
        document["uploaded_by"] = before.words
        own = Path(section.folder).absolute() / UPLOAD_ID
        mine = ""
        with suppress(CheckpointError):
            mine = read_small(own, _MOST_OWNER_BYTES).decode("ascii", "replace").strip()
        if mine != before.folder and not takes_place and not continues_place(section):
            notes.append(_taken_words(place, before))
    probe = place / f"check-{secrets.token_hex(8)}"
    try:
        probe.upload_bytes(b"")
        probe.remove()
    except StorageError as error:
        notes.append(f"checkpoints.upload: {error}; it cannot be written to, so nothing would be sent there")
    return document, tuple(notes)
