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
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import xxhash

from replay_server.config import CheckpointSection
from replay_server.errors import CheckpointError
from replay_server.files import RECORD_FILES, read_records
from replay_server.folder_lock import utc
from replay_server.store import Checkpoint, CheckpointStore, find_missing, number_of, read_checkpoint
from replay_server.uploads import FETCHED, Fetching, look
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.buckets import BucketPath, path_of

_EXPECTED = "expected a checkpoint's number, or a date or time such as 2026-11-17 or 2026-11-17T08:30"
_MOST_NAMED = 12


@dataclass(frozen=True)
class OlderStart:
    """What `--start-from` asks for.

    Attributes:
      text: as it was typed.
      number: of the checkpoint; None where a time says which.
      until: the newest one that was written before this Unix time; None where the number says which.
    """

    text: str
    number: int | None = None
    until: float | None = None

    def missing(self) -> str:
        """That there is none."""
        if self.until is None:
            return f"there is no checkpoint {self.number}"
        return f"no checkpoint that was written up to {utc(self.until)} is kept"


def parse_start(text: str) -> OlderStart:
    """What a text asks for: a number or a name as in lists, or a date or time of ISO 8601. A date means all of that day, a time without a zone UTC.

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
            return OlderStart(
                text, until=(moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
            )
    except (ValueError, OverflowError) as error:
        raise ConfigError(f'--start-from "{text}": {_EXPECTED} ({error})') from error
    raise ConfigError(f'--start-from "{text}": {_EXPECTED}')


def find_older(start: OlderStart, store: CheckpointStore, section: CheckpointSection) -> Checkpoint:
    """The checkpoint that is asked for: of the folder, else of `checkpoints.upload`, where it may be kept for longer. Reads manifests only.

    Raises:
      CheckpointError: there is none; says which there are.
      CheckpointUnreadable: the folder or the bucket cannot be read.
    """
    local = [
        Checkpoint(listed.number, listed.folder, listed.manifest)
        for listed in store.listed()
        if listed.manifest is not None
    ]
    if start.number is not None and (broken := store.kept / f"{start.number:06d}").is_dir():
        return Checkpoint(start.number, broken, store.manifest_of(broken))
    uploaded = [] if section.upload is None else _uploaded(section.upload, local)
    candidates = sorted((*local, *uploaded), key=lambda checkpoint: checkpoint.manifest.created, reverse=True)
    for checkpoint in candidates:
        if checkpoint.number == start.number or (
            start.until is not None and checkpoint.manifest.created <= start.until
        ):
            return checkpoint
    raise CheckpointError(f"--start-from {start.text}: {start.missing()}{_there_are(candidates)}")


def _uploaded(place: str, local: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those of a bucket that are not in the folder; their numbers may differ from the folder's."""
    here = {checkpoint.manifest.xxh3 for checkpoint in local}
    bucket = path_of(place)
    assert isinstance(bucket, BucketPath)
    return [checkpoint for checkpoint in look(bucket).whole if checkpoint.manifest.xxh3 not in here]


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
) -> Iterator[Checkpoint]:
    """The checkpoint that is asked for, after comparing every file with its manifest.

    Args:
      stopped: whether to end early.
      copy: folder for a copy of one in a bucket, which goes with the block; by default in the store's folder.

    Raises:
      CheckpointError: as `find_older`, or it is not valid. Nothing was moved.
    """
    try:
        checkpoint = find_older(start, store, section)
        if not isinstance(checkpoint.folder, BucketPath):
            yield read_checkpoint(checkpoint.folder)
            return
        copy = copy or store.folder / FETCHED
        shutil.rmtree(copy, ignore_errors=True)
        try:
            yield Fetching(copy, stopped=stopped).checkpoint(checkpoint.folder)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    except CheckpointError as error:
        if str(error).startswith("--start-from"):
            raise
        raise type(error)(f"--start-from {start.text}: {error}; no checkpoint was moved") from error


def passed_over(chosen: Checkpoint, store: CheckpointStore) -> list[Path]:
    """The checkpoints of the folder that are newer than the chosen one of it, newest first; all, where that one came from a bucket."""
    is_local = chosen.folder.parent == store.kept
    return [
        path
        for path in store.paths()
        if not is_local or path.name > chosen.folder.name or len(path.name) > len(chosen.folder.name)
    ]


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
        read_checkpoint(newest)
        return _digest(chosen.folder / items) == _digest(newest / items)
    except CheckpointError:
        return False


def _digest(records: Path) -> int:
    """The same for the same records in any order."""
    return sum(xxhash.xxh3_64_intdigest(record) for record in read_records(records))
