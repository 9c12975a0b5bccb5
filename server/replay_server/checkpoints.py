"""Writes checkpoints of a running server: on request, on a schedule, at the end; and keeps those that clients ask for."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from replay_server.errors import CheckpointError, FolderLost
from replay_server.files import listed, stands_at, written_at
from replay_server.fitting import items_by_table
from replay_server.logs import bytes_in, log_progress, logger, share
from replay_server.memory import give_back
from replay_server.store import CHECKPOINTS, SET_ASIDE, Checkpoint, CheckpointStore, numbered
from replay_server.working_folder import WorkingFolder
from rlds2reverb.errors import Rlds2ReverbError, TransportError

SHUTDOWN, CLIENT, ROTATION = "shutdown", "client", "rotation"
"""Reasons that make a difference."""

_ATTEMPTS = 10
"""How often Reverb is asked while it deletes what it writes, because clients ask for checkpoints at the same time. Only small
ones are written before their files have second names, so that asking again costs little."""

_DELETED = "NOT_FOUND"
"""Stands in Reverb's error when another call has deleted an entry."""


@dataclass(frozen=True)
class CheckpointState:
    """The state of the checkpoints; replaced as a whole when it changes.

    Attributes:
      last: the newest checkpoint, restored or written.
      reason: why that was written: "schedule", "request", "shutdown", "client"; "" for a restored one.
      writing_since: Unix time, while one is being written; inserts and samples wait then.
      failures: how many could not be written since the start.
      last_error: of the newest failure, "" when one has succeeded since.
      from_clients: how many that clients had asked Reverb for were kept since the start.
    """

    last: Checkpoint | None = None
    reason: str = ""
    writing_since: float | None = None
    failures: int = 0
    last_error: str = ""
    from_clients: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attempt: when it ended, how long it took, and the checkpoint or why there is none."""

    ended: float
    seconds: float
    reason: str
    checkpoint: Checkpoint | None = None
    error: str = ""


class CheckpointWriter:
    """Asks Reverb to write checkpoints, and keeps them in the store. One at a time, from any thread.

    A client's checkpoint that comes less than `spacing_seconds` after the one before gives way to the next one: a client
    that asks in a loop leaves its newest, and does not rotate the others away.

    Args:
      store: keeps them.
      request: has Reverb write one, returns the folder; raises `Rlds2ReverbError`.
      spacing_seconds: see above.
      items: how many all tables hold now; None when they do not answer.

    Attributes:
      turn: held while one is written or kept.
      tell: called with the outcome of each; must neither fail nor wait.
      working: Reverb's folder; used while `turn` is held.
    """

    def __init__(
        self,
        store: CheckpointStore,
        request: Callable[[], str],
        spacing_seconds: float = 600.0,
        items: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._items = items
        self._store, self._request, self._spacing_seconds = store, request, spacing_seconds
        self.turn = threading.RLock()
        self.tell: Callable[[Outcome], None] = lambda _: None
        self.working = WorkingFolder(store.reverb, store.taken)
        self._log = logger("checkpoints")
        self._lasting: Checkpoint | None = None  # the newest that does not give way
        self._is_stopping = self._has_ended = False
        self.state = CheckpointState()

    def restored(self, checkpoint: Checkpoint | None) -> None:
        """Notes which checkpoint the server has started from, and removes what is too much by the config of now."""
        self.state, self._lasting = CheckpointState(last=checkpoint), checkpoint
        if checkpoint is not None:
            self._store.highest = max(self._store.highest, checkpoint.number)
            self._prune()

    def write(self, reason: str) -> Checkpoint:
        """Writes a checkpoint and waits for it; a second caller waits for the first, then writes its own.

        Args:
          reason: for the log and the status. "shutdown" is tried however full the disk is: nothing comes after it.

        Raises:
          CheckpointError: no room for it, or Reverb could not write it, or what it wrote is not valid; or the server stops.
        """
        with self.turn:
            if self._has_ended or (self._is_stopping and reason != SHUTDOWN):
                raise CheckpointError("the server is stopping: only its last checkpoint is written now")
            self._has_ended = reason == SHUTDOWN
            began = time.time()
            self.state = replace(self.state, writing_since=began)
            try:
                return self._recorded("checkpoint written", reason, lambda: self._write(began, reason))
            finally:
                self.state = replace(self.state, writing_since=None)

    def stop(self) -> None:
        """Refuses every further checkpoint but that of reason "shutdown", also to callers that wait for their turn."""
        self._is_stopping = True

    def keep_clients(self) -> Checkpoint | None:
        """Keeps the newest checkpoint that a client had Reverb write; None when there is none.

        Raises:
          CannotKeepError: the disk is full, or does not take it for another reason; it is still there.
          CheckpointError: what Reverb wrote is not valid, and was removed.
        """
        with self.turn:
            self._make_folders()
            staged = self._newest_finished()
            if staged is None:
                return None
            began, ended = written_at(staged)
            return self._recorded(
                "checkpoint kept that a client asked for", CLIENT, lambda: self._keep(staged, began, ended)
            )

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint, as long as nobody has removed it; None also before the first."""
        last = self.state.last
        try:
            return last if last is not None and stands_at(last.folder) else None
        except CheckpointError:  # it cannot be determined
            return last

    def space(self) -> Space | None:
        """Free space on the disk and the size of the newest checkpoint; None when the disk does not answer."""
        try:
            return space_for(self._store.folder, self.state.last)
        except OSError:
            return None

    def tidy(self, wait: bool = False) -> None:
        """Removes what Reverb has left half done, as far as it can: nothing from a folder that is not this server's any more."""
        try:
            with suppress(FolderLost):
                self._store.guard()
                self._remove_left(wait)
        except OSError as error:
            self._log.warning("cannot tidy up", path=str(self._store.reverb), error=str(error))

    def failed(self, reason: str, error: Exception) -> CheckpointError:
        """Counts and logs a failure; returns the error to raise."""
        failed = error if isinstance(error, CheckpointError) else CheckpointError(f"checkpoint: {error}")
        self.state = replace(self.state, failures=self.state.failures + 1, last_error=str(failed))
        self._log.error("checkpoint failed", reason=reason, error=str(failed), failures=self.state.failures)
        if reason != ROTATION:  # there the checkpoint itself is good
            self.tell(Outcome(now := time.time(), now - (self.state.writing_since or now), reason, error=str(failed)))
        return failed

    def _remove_left(self, wait: bool) -> None:
        for name in self.working.tidy(wait):
            self._log.warning("unfinished checkpoint removed", name=name, meaning="Reverb could not finish it")

    def _recorded(self, event: str, reason: str, work: Callable[[], Checkpoint]) -> Checkpoint:
        try:
            checkpoint = work()
        except (Rlds2ReverbError, OSError) as error:
            failed = self.failed(reason, error)
            self.tidy(wait=True)
            raise failed from error.__cause__ if failed is error else error
        finally:
            give_back()
        from_clients, last = self.state.from_clients + (reason == CLIENT), self.state.last
        self.state = replace(self.state, last=checkpoint, reason=reason, last_error="", from_clients=from_clients)
        self._log.info(
            event,
            reason=reason,
            generation=checkpoint.number,
            items=sum(checkpoint.manifest.items.values()),
            bytes=checkpoint.bytes,
            seconds=round(checkpoint.manifest.seconds, 3),
        )
        self.tell(Outcome(checkpoint.manifest.created, checkpoint.manifest.seconds, reason, checkpoint))
        self._rotate(last, checkpoint, reason)
        self.tidy()
        return checkpoint

    def _write(self, began: float, reason: str) -> Checkpoint:
        self._make_folders()
        self.tidy()
        if reason != SHUTDOWN:
            self._make_room()
        return self._keep(self._have_written(), began)

    def _make_room(self) -> None:
        """Refuses a checkpoint that would not fit, even after what clients' calls have left has been kept or removed."""
        try:
            self._check_space()
        except CheckpointError:
            if not self.working.entries():
                raise
            with suppress(CheckpointError):  # logged; the check says what matters here
                self.keep_clients()
            self.tidy(wait=True)
            self._check_space()

    def _check_space(self) -> None:
        check_space(self._store.folder, self._store.keep, self.state.last, self._items)

    def _make_folders(self) -> None:
        for path in self._store.make_folders():
            self._log.warning(
                "folder made again", path=str(path), meaning="someone removed it, and what it held is gone"
            )

    def _have_written(self) -> Path:
        """Requests a checkpoint. If Reverb has deleted it already, takes any finished one begun after the request."""
        for _ in range(_ATTEMPTS):
            self._make_folders()
            with self.working.holding(self._store.guard) as before, self._log_progress(before):
                name, error = self._asked()
            self._store.guard()  # writing may have taken long
            staged = self.working.take(name, confirmed=True) if name else None
            staged = staged or self._newest_finished(before)
            if staged is not None:
                return staged
            if error is not None and _DELETED not in str(error):
                raise error
            self.tidy()
        raise CheckpointError(
            f"Reverb was asked for {_ATTEMPTS} checkpoints, and none was found in {self._store.reverb} afterwards "
            f"({error or name or 'it named none'}). It deletes one while a newer one is being written: if clients ask for "
            "checkpoints all the time, let them ask less often; otherwise see what else deletes there"
        )

    def _log_progress(self, before: Collection[str]) -> AbstractContextManager[None]:
        """Logs how many bytes Reverb has written, and the expected total if there is an older checkpoint."""
        folder = self._store.reverb
        about = 0 if self.state.last is None else self.state.last.bytes

        def written() -> int:
            return sum(bytes_in(path) for path in folder.iterdir() if path.name not in before)

        return log_progress(self._log, "writing a checkpoint", lambda: share(written(), about))

    def _asked(self) -> tuple[str, TransportError | None]:
        """Name of the entry that Reverb wrote, or "" and the reason."""
        try:
            return Path(self._request()).name, None
        except TransportError as error:
            return "", error

    def _newest_finished(self, before: Collection[str] = ()) -> Path | None:
        for name in self.working.finished():
            if name not in before and (staged := self.working.take(name)) is not None:
                return staged
        return None

    def _keep(self, staged: Path, began: float, ended: float | None = None) -> Checkpoint:
        try:
            checkpoint = self._store.adopt(staged, items_by_table(staged), began, ended)
        except CheckpointError as error:
            if error.is_broken:
                self.working.discard(staged.name)
            raise
        self.working.adopted(staged.name, checkpoint.number)
        return checkpoint

    def _rotate(self, last: Checkpoint | None, checkpoint: Checkpoint, reason: str) -> None:
        """Removes the checkpoints that a new one replaces. The new one is kept even when they cannot be removed."""
        lasting = self._lasting
        gives_way = [] if last is None or last == lasting else [last.folder]
        age = None if lasting is None else checkpoint.manifest.created - lasting.manifest.created
        if reason != CLIENT or age is None or age >= self._spacing_seconds:
            self._lasting = checkpoint
        self._prune(gives_way)

    def _prune(self, gives_way: Sequence[Path] = ()) -> None:
        try:
            for old in self._store.prune(gives_way):
                self._log.debug("generation removed", generation=old.name)
        except (CheckpointError, OSError) as error:
            self.failed(ROTATION, error)


class Schedule:
    """Writes a checkpoint every so many seconds, in a thread of its own, until `stop`.

    Args:
      writer: writes them; a failure is logged there, and the next one is tried in its turn.
      every_seconds: from the end of one to the start of the next.
    """

    def __init__(self, writer: CheckpointWriter, every_seconds: float) -> None:
        self._writer, self._every_seconds = writer, every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Begins no further checkpoint; one that is being written continues."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            try:
                self._writer.write("schedule")
            except CheckpointError:
                continue  # logged and counted by the writer


Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Runs one call at a time, from any thread; all callers that arrive while one runs share the result of the next.

    Nobody gets the result of a call that had begun before the question: what a checkpoint holds is what was confirmed before it
    was asked for. So of any number of questions at most one is answered by a call now, and all others by the one after it.

    Args:
      call: what is run; may raise.
      turn: held while it runs. Others that run the same thing for themselves hold it, too.
    """

    def __init__(self, call: Callable[[], Result], turn: AbstractContextManager[object]) -> None:
        self._call, self._turn = call, turn
        self._lock = threading.Lock()
        self._next: Future[Result] | None = None  # of a call that has not begun; a caller that finds none runs it

    def __call__(self) -> Result:
        """The result of a call that begins from now on; raises what that raises."""
        with self._lock:
            leads = self._next is None
            answer = self._next = self._next or Future()
        if leads:
            self._lead(answer)
        return answer.result()

    def _lead(self, answer: Future[Result]) -> None:
        with self._turn:
            with self._lock:
                self._next = None
            try:
                answer.set_result(self._call())
            except BaseException as error:
                answer.set_exception(error)  # for the callers that share it
                raise


# A checkpoint is assumed to need as many bytes as the newest one: Reverb writes every item and chunk anew each time,
# and the older checkpoints are removed only when the new one is finished, so a disk holds one more than
# `checkpoints.keep`. Where that does not fit, the estimate is scaled by the number of items now. A table that has
# grown needs more than the estimate; then Reverb's write fails, and the incomplete entry is removed.


@dataclass(frozen=True)
class Space:
    """Bytes that this user may still fill on a folder's file system, and bytes of the newest checkpoint (0 without one)."""

    free_bytes: int
    needed_bytes: int


def space_for(folder: Path, newest: Checkpoint | None) -> Space:
    """The free space of a folder's file system.

    Raises:
      OSError: the folder is gone, or its disk does not answer.
    """
    return Space(shutil.disk_usage(folder).free, 0 if newest is None else newest.bytes)


def check_space(
    folder: Path, keep: int, newest: Checkpoint | None, items: Callable[[], int | None] = lambda: None
) -> None:
    """Refuses a checkpoint that would not fit.

    Args:
      folder: of the checkpoints.
      keep: checkpoints that are kept there.
      newest: of them.
      items: how many all tables hold now, None when they do not answer; asked only when the newest would not fit again.

    Raises:
      CheckpointError: fewer bytes are free than it needs; says how many, and what to do.
    """
    try:
        space = space_for(folder, newest)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be asked for its free space ({error})") from error
    if newest is None or space.free_bytes >= space.needed_bytes:
        return
    held = items()
    needed = _needed_bytes(newest, held)
    if space.free_bytes < needed:
        scaled = "" if needed == newest.bytes else f" for each of its items, for {held} items"
        raise CheckpointError(
            f"{folder}: {space.free_bytes} bytes are free, {needed} are needed, as many as checkpoint "
            f"{newest.number} takes{scaled}; nothing was written. {_ways_on(folder, keep)}; "
            "the next checkpoint is then tried as usual"
        )


def _ways_on(folder: Path, keep: int) -> str:
    """Advice on how to free space; the most frequent cause comes first."""
    ways = []
    with suppress(CheckpointError):
        if len(kept := numbered(folder / CHECKPOINTS)) > 1:
            ways.append(
                f"{len(kept)} checkpoints are kept there: lower checkpoints.keep, which is {keep}, and restart, "
                f"or first delete the oldest of {folder / CHECKPOINTS}"
            )
        if listed(folder / SET_ASIDE):
            ways.append(f"delete what you do not need of {folder / SET_ASIDE}")
    ways.append("make the disk larger")
    text = "; or ".join(ways)
    return text[0].upper() + text[1:]


def _needed_bytes(newest: Checkpoint, items: int | None) -> int:
    before = sum(newest.manifest.items.values())
    if items is None or items >= before:
        return newest.bytes
    return -(-newest.bytes * items // before)
