"""`serve --start-from`: which older checkpoint a start takes, and what becomes of the newer ones.

A start from an older checkpoint touches none of the newer ones. Before it is ready it writes a checkpoint of its own, which is the newest
from then on: so the next start continues from there. The newest of those that were passed over is pinned before Reverb runs, since the
rules of `keep` would remove it some day, after a kill as well: `--start-from` with its number goes back to it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import xxhash

from replay_server.config import CheckpointSection
from replay_server.errors import CheckpointError
from replay_server.files import RECORD_FILES, read_records
from replay_server.folder_lock import utc
from replay_server.store import Checkpoint, CheckpointStore, CopyOfOlder, find_missing, number_of, read_checkpoint
from replay_server.tables import TableConfig
from replay_server.uploads import FETCHED, BucketContents, Fetching, look
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.buckets import BucketPath, path_of

_EXPECTED = "expected a checkpoint's number, or a date or time such as 2026-11-17 or 2026-11-17T08:30"
_MOST_NAMED = 12
_CLOCK = re.compile(r"[T ](\d\d)(?::?(\d\d)(?::?(\d\d)([.,]\d+)?)?)?")


@dataclass(frozen=True)
class OlderStart:
    """What `--start-from` asks for.

    Attributes:
      text: as it was typed.
      number: of the checkpoint; None where a time says which.
      until: the newest one that was written before this Unix time, where that of all it names ends; None where the number says which.
    """

    text: str
    number: int | None = None
    until: float | None = None

    def missing(self) -> str:
        """That there is none."""
        if self.until is None:
            return f"there is no checkpoint {self.number}"
        return f"no checkpoint that was written before {utc(self.until)} is kept"


@dataclass(frozen=True)
class OlderCheckpoint:
    """The checkpoint that `--start-from` means.

    Attributes:
      unread: why each newer one was passed over that does not say when it was written, where a time is asked for.
    """

    checkpoint: Checkpoint
    unread: tuple[str, ...] = ()


def parse_start(text: str) -> OlderStart:
    """What a text asks for: a number or a name as in lists, or a date or time of ISO 8601.

    A date means all of that day, a time all of the hour, minute or second that it names, since lists show whole seconds; without a zone it is UTC.

    Raises:
      ConfigError: neither.
    """
    written = text.strip()
    if re.fullmatch("[0-9]{1,18}", written):
        return OlderStart(text, number=int(written))
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d|\d{4}-W\d\d-\d", written):
            midnight = datetime.combine(date.fromisoformat(written), datetime.min.time(), timezone.utc)
            return OlderStart(text, until=(midnight + timedelta(days=1)).timestamp())
        if re.match(r"\d{4}-(\d\d|W\d\d)-\d", written):
            # Python 3.10 knows no Z.
            moment = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", written))
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return OlderStart(text, until=(moment + _named_by(written)).timestamp())
    except (ValueError, OverflowError) as error:
        raise ConfigError(f'--start-from "{text}": {_EXPECTED} ({error})') from error
    raise ConfigError(f'--start-from "{text}": {_EXPECTED}')


def _named_by(written: str) -> timedelta:
    """How much of time a text names: the unit of its last part."""
    parts = _CLOCK.search(written)
    hours, minutes, seconds, fraction = (None,) * 4 if parts is None else parts.groups()
    if fraction:
        return timedelta(microseconds=1)
    return timedelta(seconds=1) if seconds else timedelta(minutes=1) if minutes else timedelta(hours=1 if hours else 24)


def find_older(start: OlderStart, store: CheckpointStore, section: CheckpointSection) -> OlderCheckpoint:
    """The checkpoint that is asked for: of the folder, else of `checkpoints.upload`, where it may be kept for longer. Reads manifests only.

    Raises:
      CheckpointError: there is none; says which there are.
      CheckpointUnreadable: the folder or the bucket cannot be read.
    """
    listed = store.listed()
    local = [Checkpoint(row.number, row.folder, row.manifest) for row in listed if row.manifest is not None]
    if start.number is not None and (broken := store.kept / f"{start.number:06d}").is_dir():
        return OlderCheckpoint(Checkpoint(start.number, broken, store.manifest_of(broken)))
    there = BucketContents() if section.upload is None else look(_bucket(section.upload))
    # Of those in the bucket, the ones that are not in the folder; their numbers may differ from the folder's.
    here = {checkpoint.manifest.xxh3 for checkpoint in local}
    uploaded = [checkpoint for checkpoint in there.whole if checkpoint.manifest.xxh3 not in here]
    unread: list[tuple[Path, str]] = [(row.folder, row.problem) for row in listed if row.manifest is None]
    unread += [*there.broken, *there.newer]
    candidates = sorted((*local, *uploaded), key=lambda checkpoint: checkpoint.manifest.created, reverse=True)
    for checkpoint in candidates:
        if checkpoint.number == start.number:
            return OlderCheckpoint(checkpoint)
        if start.until is not None and checkpoint.manifest.created < start.until:
            return OlderCheckpoint(checkpoint, _unread_after(checkpoint, unread))
    reasons = (f"; {reason}" for path, reason in unread if start.number in (None, number_of(path)))
    raise CheckpointError(f"--start-from {start.text}: {start.missing()}{_there_are(candidates)}{''.join(reasons)}")


def _unread_after(chosen: Checkpoint, unread: Sequence[tuple[Path, str]]) -> tuple[str, ...]:
    """Why those were passed over that may have been written after the chosen one: numbers say so within a folder or a bucket only."""
    is_there = isinstance(chosen.folder, BucketPath)
    return tuple(
        f"{reason}; it does not say when it was written, and is passed over"
        for path, reason in unread
        if number_of(path) > chosen.number or isinstance(path, BucketPath) != is_there
    )


def _bucket(place: str) -> BucketPath:
    bucket = path_of(place)
    assert isinstance(bucket, BucketPath)
    return bucket


def _there_are(candidates: Sequence[Checkpoint]) -> str:
    names = [f"{checkpoint.number} ({utc(checkpoint.manifest.created)})" for checkpoint in candidates[:_MOST_NAMED]]
    more = len(candidates) - len(names)
    return f"; there are {', '.join(names)}{f' and {more} more' if more else ''}" if names else "; there is none at all"


@contextmanager
def verified_older(
    start: OlderStart,
    store: CheckpointStore,
    section: CheckpointSection,
    stopped: Callable[[], bool] = lambda: False,
    copy: Path | None = None,
) -> Iterator[OlderCheckpoint]:
    """The checkpoint that is asked for, after comparing every file with its manifest.

    Args:
      stopped: whether to end early.
      copy: folder for a copy of one in a bucket, which goes with the block; by default in the store's folder.

    Raises:
      CheckpointError: as `find_older`, or it is not valid. Nothing was moved.
    """
    try:
        older = find_older(start, store, section)
        folder = older.checkpoint.folder
        if not isinstance(folder, BucketPath):
            yield replace(older, checkpoint=read_checkpoint(folder))
            return
        copy = copy or store.folder / FETCHED
        shutil.rmtree(copy, ignore_errors=True)
        try:
            yield replace(older, checkpoint=Fetching(copy, stopped=stopped).checkpoint(folder))
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    except CheckpointError as error:
        if str(error).startswith("--start-from"):
            raise
        raise type(error)(f"--start-from {start.text}: {error}; no checkpoint was moved") from error


def passed_over(chosen: Checkpoint, store: CheckpointStore) -> list[Path]:
    """The checkpoints of the folder that are newer than the chosen one of it, newest first; all, where that one came from a bucket."""
    is_local = chosen.folder.parent == store.kept
    return [path for path in store.paths() if not is_local or number_of(path) > chosen.number]


@dataclass(frozen=True)
class OlderPlan:
    """What a start from an older checkpoint does with those of the folder.

    Attributes:
      newer: those that are passed over, newest first.
      pins: of these, what is pinned.
      continues: whether the newest is what an earlier start from the same one has written, and nothing came since: the start takes that.
    """

    newer: tuple[Path, ...]
    pins: tuple[Path, ...]
    continues: bool


def plan_older(chosen: Checkpoint, store: CheckpointStore, config: str, left: Path | None = None) -> OlderPlan:
    """Plans a start; nothing is moved.

    What a supervisor starts again and again with --start-from must not push out all others with copies of one, nor pin the copies.

    Args:
      config: see `hash_config`.
      left: what Reverb had finished before a kill, where it is not adopted yet: it will be the newest.
    """
    newer = (*(() if left is None else (left,)), *passed_over(chosen, store))
    if not newer:
        return OlderPlan((), (), continues=False)
    copies = [copy for copy in store.copies() if copy.source == chosen.manifest.xxh3]
    number = number_of(newer[0]) if left is None else store.next_number()
    if any((copy.number, copy.config) == (number, config) for copy in copies) and (left or _is_whole(newer[0])):
        return OlderPlan(newer, (), continues=True)
    if is_same_state(chosen, newer[0]):
        # An earlier release notes no copies, and may have been killed before it had pinned.
        return OlderPlan(newer, tuple(list_to_pin(newer[1:], store)), continues=True)
    numbers = {copy.number for copy in copies}
    pins = [left] if left else list_to_pin([path for path in newer if number_of(path) not in numbers], store)
    return OlderPlan(newer, tuple(pins), continues=False)


def hash_config(tables: Sequence[TableConfig], section: CheckpointSection) -> str:
    """Of all that decides how a checkpoint is fitted: with other tables a start from an older one takes it anew."""
    return xxhash.xxh3_64_hexdigest(repr((section.unfit_tables, [*tables])).encode())


def note_copy(chosen: Checkpoint, store: CheckpointStore, config: str, is_sent: bool) -> None:
    """Notes which checkpoint is going to be a copy of the chosen one; before it is written, so no kill lets the note be missing.

    Args:
      is_sent: whether checkpoints are sent to a bucket.
    """
    copy = CopyOfOlder(store.next_number(), chosen.manifest.xxh3, config, is_safe_there=not is_sent)
    store.note_copies([*(before for before in store.copies() if before.number < copy.number), copy])


def list_to_pin(newer: Sequence[Path], store: CheckpointStore) -> list[Path]:
    """Of those that are passed over, newest first, what must outlive the rules: the newest that is whole by its manifest and sizes, and what is newer."""
    for place, path in enumerate(newer, 1):
        with suppress(CheckpointError):
            if not find_missing(Checkpoint(number_of(path), path, store.manifest_of(path))):
                return list(newer[:place])
    return list(newer)


def is_same_state(chosen: Checkpoint, newest: Path) -> bool:
    """Whether the newest checkpoint holds the same as the chosen one: what an earlier start from it has written, and nothing came since."""
    tables, items = RECORD_FILES[:2]
    try:
        # Reverb writes the tables, and so their items, in another order each time.
        if sorted(read_records(chosen.folder / tables)) != sorted(read_records(newest / tables)):
            return False
        return (not newest.name.isdecimal() or _is_whole(newest)) and _digest(chosen.folder / items) == _digest(
            newest / items
        )
    except CheckpointError:
        return False


def _is_whole(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _digest(records: Path) -> int:
    """The same for the same records in any order."""
    return sum(xxhash.xxh3_64_intdigest(record) for record in read_records(records))
