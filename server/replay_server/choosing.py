"""Which checkpoint a start may load, and whether it may continue when some cannot be loaded. Only reads, moves nothing.

| newest first | the start |
| --- | --- |
| no checkpoint, and the folder's history knows of none | continues, with `start_from` or empty |
| no checkpoint, and the history knows one | is refused; with `start_empty` continues as with none |
| valid | loads it |
| broken, then a valid one | loads the valid one; the broken ones are set aside |
| all broken | is refused; with `start_empty` they are set aside, and it continues as with no checkpoint |
| unreadable, then a valid one | is refused; with `start_empty` loads the valid one, and the rest stay where they are |
| unreadable, none valid | is refused; with `start_empty` continues as with no checkpoint |

Nothing is moved before a refusal: a start that is tried again must not find an empty folder, and call that a new one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from replay_server.errors import CannotKeepError, CheckpointError, CheckpointUnreadable
from replay_server.files import DONE, MANIFEST, as_of, list_folder, stands_at, verify_record_files
from replay_server.folder_lock import utc
from replay_server.history import NOT_NEEDED, CheckpointRow
from replay_server.store import (
    CHECKPOINTS,
    LEFT_OUT_NAME,
    SET_ASIDE,
    Checkpoint,
    list_numbered,
    number_of,
    read_checkpoint,
)
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.options import is_url


@dataclass(frozen=True)
class Unloaded:
    """A checkpoint that exists and was not loaded, and why; a broken one is readable."""

    path: Path
    reason: str
    is_readable: bool


@dataclass(frozen=True)
class Survey:
    """The checkpoints of a folder: the newest valid one, and those newer than it, newest first (all when none is valid)."""

    folder: Path
    checkpoint: Checkpoint | None
    unloaded: tuple[Unloaded, ...]

    @property
    def as_of(self) -> float:
        """Time of the newest one that is not broken, see `files.as_of`: 0 without one, infinite when it cannot be found out."""
        paths = [passed.path for passed in self.unloaded if not passed.is_readable]
        if self.checkpoint is not None:
            paths.append(self.checkpoint.folder)
        return max((as_of(path) or math.inf for path in paths), default=0)

    def refusal(self, missing: str = "") -> str:
        """Why a start must not continue from these without `start_empty`; "" when it may.

        Args:
          missing: see the function of this name; no reason to refuse where there is an older checkpoint.
        """
        unreadable = [passed for passed in self.unloaded if not passed.is_readable]
        if self.checkpoint is not None:
            if not unreadable:
                return ""
            newest = f"checkpoint {self.checkpoint.number} is older: what came after it would be missing"
            return f"{self.folder}: what is newest is there and cannot be read: {unreadable[0].reason}; {newest}"
        if not self.unloaded:
            return missing
        first = (unreadable or self.unloaded)[0]
        count = f"none of {len(self.unloaded)} loads" if len(self.unloaded) > 1 else "it does not load"
        return f"{self.folder}: there are checkpoints, and {count}: {first.reason}"


class Reader(Protocol):
    """Where checkpoints are read: on disk, or in a bucket (`uploads`), which hands out copies on disk."""

    def numbered(self, folder: Path) -> list[Path]:
        """The checkpoints in a folder, newest first; not verified."""

    def checkpoint(self, folder: Path) -> Checkpoint:
        """A checkpoint, verified; errors as of `read_checkpoint`, and `CannotKeepError` where there is no room for it."""

    def of_reverb(self, folder: Path) -> Path:
        """The folder of a checkpoint of Reverb's own, verified; the same errors."""


class _OnDisk:
    def numbered(self, folder: Path) -> list[Path]:
        return list_numbered(folder)

    def checkpoint(self, folder: Path) -> Checkpoint:
        return read_checkpoint(folder)

    def of_reverb(self, folder: Path) -> Path:
        verify_record_files(folder)
        return folder


ON_DISK = _OnDisk()


def survey(folder: Path, reader: Reader = ON_DISK) -> Survey:
    """Reads and verifies checkpoints, from the newest to the first that is valid. A missing folder has none.

    Raises:
      CheckpointError: it is no folder; or there is no room for one from a bucket.
    """
    unloaded: list[Unloaded] = []
    try:
        for path in reader.numbered(folder):
            try:
                return Survey(folder, reader.checkpoint(path), tuple(unloaded))
            except CannotKeepError:
                raise
            except CheckpointError as error:
                unloaded.append(Unloaded(path, str(error), not isinstance(error, CheckpointUnreadable)))
    except CheckpointUnreadable as error:
        unloaded.append(Unloaded(folder, str(error), is_readable=False))
    return Survey(folder, None, tuple(unloaded))


def missing(folder: Path, newest: CheckpointRow | None) -> str:
    """Says that the newest checkpoint of the history is neither kept nor set aside; "" when it is, or `survey` will say more.

    A copy of what a start has left out does not count: it was made of a checkpoint that stayed.
    """
    if newest is None:
        return ""
    try:
        paths = [*list_folder(folder / CHECKPOINTS), *list_folder(folder / SET_ASIDE)]
    except CheckpointError:
        return ""
    if any(number_of(path) >= newest.number and LEFT_OUT_NAME not in path.name for path in paths):
        return ""
    return (
        f"{folder}: checkpoint {newest.number}, {'whole' if newest.reason == NOT_NEEDED else 'written'} at {utc(newest.last)}, is not there any more: "
        "it was removed, or not copied with the folder"
    )


def how_to_go_on(refusal: str) -> str:
    """Adds what to do when a start was refused because of its own checkpoints."""
    return (
        f"{refusal}. No checkpoint was moved. Make it readable (owner, mount, disk), or put a good copy there, and start again; "
        "or start without it: --start-empty (checkpoints.start_empty: true)"
    )


def why_left_unread(folder: Path, error: Exception) -> str:
    """Says that a checkpoint in Reverb's own folder cannot be read; it may be newer than all kept ones."""
    return f"{folder}: what Reverb had finished before the server was killed cannot be read: {error}"


@dataclass(frozen=True)
class ChosenCheckpoint:
    """A checkpoint of another experiment: the folder with its record files, and newer ones, which are broken.

    Attributes:
      place: where it is, if that is not the folder: in a bucket.
      number: its number there.
    """

    folder: Path
    unloaded: tuple[Unloaded, ...] = ()
    place: Path | None = None
    number: int = 0


def find_checkpoint(path: Path, reader: Reader = ON_DISK) -> ChosenCheckpoint:
    """A checkpoint of another experiment.

    Args:
      path: a server's checkpoint folder (its newest valid checkpoint is taken), a kept checkpoint, or one of Reverb's own.

    Raises:
      CheckpointUnreadable: it is there and cannot be read, or a checkpoint newer than the valid one.
      CheckpointError: none of these, or not valid.
    """
    if stands_at(path / MANIFEST):
        return _found(reader.checkpoint(path), path)
    if stands_at(path / DONE):
        folder = reader.of_reverb(path)
        return ChosenCheckpoint(folder, place=None if folder == path else path)
    checkpoints = survey(path / CHECKPOINTS, reader)
    if refusal := checkpoints.refusal():
        unreadable = any(not passed.is_readable for passed in checkpoints.unloaded)
        raise (CheckpointUnreadable if unreadable else CheckpointError)(refusal)
    if checkpoints.checkpoint is None:
        raise CheckpointError(
            f"{path}: expected a checkpoint folder, one of its checkpoints, or a checkpoint of Reverb's with its {DONE}"
        )
    return _found(checkpoints.checkpoint, path / CHECKPOINTS / checkpoints.checkpoint.folder.name, checkpoints.unloaded)


def _found(checkpoint: Checkpoint, place: Path, unloaded: tuple[Unloaded, ...] = ()) -> ChosenCheckpoint:
    if checkpoint.folder == place:
        return ChosenCheckpoint(place, unloaded)
    return ChosenCheckpoint(checkpoint.folder, unloaded, place, checkpoint.number)


def find_start(start_from: str, reader: Reader = ON_DISK) -> ChosenCheckpoint:
    """The checkpoint that `checkpoints.start_from` names; errors as `find_checkpoint`."""
    path = path_of(start_from) if is_url(start_from) else Path(start_from)
    try:
        return find_checkpoint(path, reader)
    except CannotKeepError:
        raise
    except CheckpointUnreadable as error:
        raise CheckpointUnreadable(
            f"checkpoints.start_from: {error}; name another checkpoint there, or leave it out"
        ) from error
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoints.start_from: {error}; name another checkpoint there, or leave it out"
        ) from error
