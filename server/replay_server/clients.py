"""Checkpoints that clients request from Reverb directly (`reverb.Client.checkpoint()`) are kept as the service's own are.

Reverb confirms such a checkpoint to the client, and deletes it with the next one. So its folder is looked at, and what is
finished there is kept: the first at once, then the newest now and then, see `CLIENT_SECONDS` and `BUSY_SHARE`. One that waits
is safe where it is: only a newer one replaces it, and after a kill the next start takes it from there (`keep_left`).

When clients' checkpoints overlap all the time, Reverb deletes each as soon as it has confirmed it. Then none is ever found,
and after `CLIENT_SECONDS` the service writes one of its own instead, as often.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from replay_server.checkpoints import CLIENT, CheckpointWriter
from replay_server.choosing import how_to_go_on, survey, why_left_unread
from replay_server.errors import CheckpointError, CheckpointUnreadable
from replay_server.files import RECORD_FILES, writing_times
from replay_server.fitting import items_by_table
from replay_server.logs import Logger, logger
from replay_server.repeating import Repeating
from replay_server.store import Checkpoint, CheckpointStore
from replay_server.working_folder import WorkingFolder

LOOK_SECONDS = 0.5
CLIENT_SECONDS, BUSY_SHARE = 1.0, 0.1
"""Keeping one reads it to the end, and writing one makes clients wait: where clients ask in a loop, the service does so at
most once in so many seconds, and for at most this part of the time."""
_RETRY_SECONDS = 60.0


class ClientCheckpoints(Repeating):
    """Keeps clients' checkpoints in a thread of its own, until `stop`.

    Args:
      writer: keeps them, and writes one where Reverb has deleted what it confirmed; failures are logged there.
    """

    def __init__(self, writer: CheckpointWriter, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("client checkpoints", LOOK_SECONDS)
        self._writer, self._clock = writer, clock
        self._being_written: set[str] = set()
        self._owed, self._owed_since = "", 0.0
        self._next = self._paused_until = 0.0

    def look(self) -> None:
        """Looks once; after an error of the file system not again before `_RETRY_SECONDS` have passed."""
        with self._writer.turn:
            if self._stopped.is_set() or self._clock() < self._paused_until:
                return
            try:
                self._look()
            except OSError as error:
                self._paused_until = self._clock() + _RETRY_SECONDS
                self._writer.failed(CLIENT, error)

    def _look(self) -> None:
        entries = self._writer.working.entries()
        # Reverb names entries by the time, so the largest name is the newest entry.
        self._owe(max(self._being_written - entries.keys(), default=""))
        self._being_written = {name for name, finished in entries.items() if not finished}
        self._writer.tidy()
        self._being_written &= self._writer.working.entries().keys()  # what was just removed was never confirmed
        if self._clock() >= self._next:
            self._act()

    def _owe(self, name: str) -> None:
        """Notes that an entry is gone that Reverb may have confirmed; the time of the oldest such entry is kept."""
        if not self._is_owed():
            self._owed_since = self._clock()
        self._owed = max(self._owed, name)

    def _is_owed(self) -> bool:
        """Whether no kept checkpoint is as new as an entry that is gone."""
        return self._owed > self._writer.working.last_adopted

    def _act(self) -> None:
        began, working = self._clock(), self._writer.working
        try:
            if finished := working.list_finished():
                try:
                    self._writer.keep_clients()
                except CheckpointError as error:
                    if error.is_broken:
                        self._owe(finished[0])
                    raise
            elif self._is_owed() and began - self._owed_since >= CLIENT_SECONDS:
                self._writer.write(CLIENT)
            else:
                return
        except CheckpointError:
            self._next = began + _RETRY_SECONDS  # logged: by the writer, or by the lock of a folder that is lost
        else:
            # However large checkpoints are: a pause of ten times the work keeps the share of time.
            self._next = began + max(CLIENT_SECONDS, (self._clock() - began) / BUSY_SHARE)

    def repeat(self) -> None:
        try:
            self.look()
        except Exception:  # an error of ours must not end the keeping
            logger("checkpoints").exception("looking for clients' checkpoints failed")


def keep_left(store: CheckpointStore, log: Logger, start_empty: bool = False) -> Checkpoint | None:
    """At a start: makes what Reverb had finished before a kill the newest checkpoint, if it is newer than that one.

    What is not valid is set aside; with `start_empty` Reverb's folder as a whole when it cannot be read.

    Raises:
      CannotKeepError: the disk is full or does not take it; starting would lose it.
      CheckpointUnreadable: it is there and cannot be read; likewise.
    """
    store.guard()
    store.taken.mkdir(exist_ok=True)
    try:
        return _keep_newest(store, log)
    except (CheckpointUnreadable, OSError) as error:
        if isinstance(error, NotADirectoryError):
            raise
        reason = why_left_unread(store.folder, error)
        if not start_empty:
            raise CheckpointUnreadable(how_to_go_on(reason)) from error
    for folder in (store.reverb, store.taken):
        if folder.exists():
            log.warning("unreadable folder set aside", path=str(store.set_aside(folder, "unreadable")), reason=reason)
    return None


def set_aside_left(store: CheckpointStore, log: Logger) -> None:
    """At a start: sets aside what Reverb had finished and `keep_left` did not keep.

    By its time it is older than the newest checkpoint. But clocks are set back, so it is not deleted.
    """
    working = WorkingFolder(store.reverb, store.taken)
    for name in working.list_finished():
        place = working.place(name)
        if any(_is_same(place, path) for path in store.readable() or ()):
            continue  # the server was killed just after it had become that checkpoint
        aside = store.set_aside(place, "older", f"of-reverb-{name}")
        log.warning("checkpoint set aside that is older than the newest checkpoint", path=str(aside))


def _keep_newest(store: CheckpointStore, log: Logger) -> Checkpoint | None:
    working = WorkingFolder(store.reverb, store.taken)
    if not working.list_finished():
        return None
    for name in working.make_room():
        log.warning("unfinished checkpoint removed", name=name, meaning="the server was killed while writing it")
    names = working.list_finished_after(survey(store.kept).as_of)
    for place, name in enumerate(names):
        staged = working.take(name)
        if staged is not None and (checkpoint := _keep_or_set_aside(store, staged, log)) is not None:
            working.note_adopted(name, checkpoint.number)
            for older in names[place + 1 :]:  # Reverb was about to delete them
                working.discard(older)
            log.warning(
                "checkpoint kept that Reverb had finished before the server was killed",
                number=checkpoint.number,
                items=checkpoint.item_count,
            )
            return checkpoint
    return None


def _keep_or_set_aside(store: CheckpointStore, staged: Path, log: Logger) -> Checkpoint | None:
    try:
        return store.adopt(staged, items_by_table(staged), *writing_times(staged))
    except CheckpointError as error:
        if not error.is_broken:
            raise
        reason = str(error)
    aside = store.set_aside(staged, "broken", f"of-reverb-{staged.name}")
    log.error("broken checkpoint set aside", path=str(aside), reason=reason)
    return None


def _is_same(path: Path, other: Path) -> bool:
    """Whether two checkpoints are two names of the same files."""
    try:
        return (path / RECORD_FILES[0]).samefile(other / RECORD_FILES[0])
    except OSError:
        return False
