"""Writes checkpoints of a running server: on request, on a schedule, at the end; and keeps those that clients ask Reverb for."""

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

from replay_server.changes import (
    Marks,
    TableTrace,
    Traces,
    all_tables,
    find_change,
    has_priorities,
    marks_of,
    traces_of,
    was_sampled_by_priority,
)
from replay_server.errors import CheckpointError, FolderLost
from replay_server.files import list_folder, stands_at, writing_times
from replay_server.fitting import items_by_table
from replay_server.logs import bytes_in, log_progress, logger, share
from replay_server.memory import give_back
from replay_server.repeating import Repeating
from replay_server.retention import Keep, keep_of
from replay_server.store import (
    CHECKPOINTS,
    NEWEST,
    SET_ASIDE,
    Checkpoint,
    CheckpointStore,
    find_missing,
    list_numbered,
)
from replay_server.working_folder import WorkingFolder
from rlds2reverb.errors import Rlds2ReverbError, TransportError
from rlds2reverb.wire.messages import ServerInfo

SCHEDULE, REQUEST, SHUTDOWN, CLIENT, ROTATION = "schedule", "request", "shutdown", "client", "rotation"
START_FROM = "start from"  # the first of a server that was told to start from an older one
_SKIPPABLE = {SCHEDULE, REQUEST, SHUTDOWN}
"""Reasons for which no checkpoint is written when nothing has changed."""

_ATTEMPTS = 10
"""Most requests while Reverb deletes what it writes, because clients request checkpoints at the same time. Only small ones are
written before their files have second names, so that another request costs little."""

_WATCH_SECONDS = 1.0
"""As often as the monitor asks Reverb: a table that is emptied and filled again looks as before unless it is seen in between."""

_DELETED = "NOT_FOUND"  # in Reverb's error when another call has deleted an entry


@dataclass(frozen=True)
class CheckpointState:
    """The state of the checkpoints; replaced as a whole when it changes.

    Attributes:
      last: the newest checkpoint, restored or written.
      reason: why it was written: "schedule", "request", "shutdown", "client"; "" for a restored one.
      writing_since: Unix time, while one is being written; inserts and samples wait then.
      failures: checkpoints that could not be written since the start.
      last_error: of the newest failure; "" when one has succeeded since.
      from_clients: checkpoints of clients that were kept since the start.
      not_needed: checkpoints that were not written since the start, because nothing had changed.
    """

    last: Checkpoint | None = None
    reason: str = ""
    writing_since: float | None = None
    failures: int = 0
    last_error: str = ""
    from_clients: int = 0
    not_needed: int = 0


@dataclass(frozen=True)
class Outcome:
    """One attempt: the Unix time of its end, its duration, and the checkpoint or why there is none; not a new one where none was needed."""

    ended: float
    seconds: float
    reason: str
    checkpoint: Checkpoint | None = None
    error: str = ""


@dataclass(frozen=True)
class _Baseline:
    """What the tables are compared with, of the newest checkpoint; `since` is the Unix time from which it is that."""

    marks: Marks
    traces: Traces
    since: float


class CheckpointWriter:
    """Has Reverb write checkpoints, and keeps them in the store. One at a time, from any thread.

    A client's checkpoint that comes less than `spacing_seconds` after the one before gives way to the next one: a client
    that asks in a loop leaves its newest, and does not rotate all older ones away.

    Args:
      request: has Reverb write one, returns the folder; raises `Rlds2ReverbError`.
      items: number of items in all tables now; None when they do not answer.
      look: what the tables hold now, None when they do not answer; None in place of it for a writer that always writes.

    Attributes:
      turn: held while one is written or kept.
      tell: called with the outcome of each; must neither fail nor wait.
      holds_all_at: Unix time at which the newest one was last known to hold all that the tables hold; None when that is not known.
      working: Reverb's folder; used while `turn` is held.
    """

    def __init__(
        self,
        store: CheckpointStore,
        request: Callable[[], str],
        spacing_seconds: float = 600.0,
        items: Callable[[], int | None] = lambda: None,
        look: Callable[[], ServerInfo | None] | None = None,
    ) -> None:
        self._items, self._look = items, look
        # Of the newest checkpoint, see `changes`; None where they are not known. Replaced as a whole: `watch` reads it in another thread.
        self._baseline: _Baseline | None = None
        self._seen_change: tuple[_Baseline, str] | None = None  # since a baseline; it may not be seen any more
        self._may_be_updated = False  # by somebody who had sampled by priority before the newest checkpoint
        self.holds_all_at: float | None = None
        self._is_resting = False
        self._store, self._request, self._spacing_seconds = store, request, spacing_seconds
        # Reentrant: `write` holds it while `_make_room` keeps a client's checkpoint, which takes it again.
        self.turn = threading.RLock()
        self.tell: Callable[[Outcome], None] = lambda _: None
        self.working = WorkingFolder(store.reverb, store.taken)
        self._log = logger("checkpoints")
        self._lasting: Checkpoint | None = None  # the newest that does not give way
        self._is_stopping = self._has_ended = False
        self.state = CheckpointState()

    def restored(self, checkpoint: Checkpoint | None) -> None:
        """Notes the checkpoint that the server has started from, and prunes to the `keep` of the current config."""
        self.state, self._lasting = CheckpointState(last=checkpoint), checkpoint
        if checkpoint is not None:
            self._store.highest = max(self._store.highest, checkpoint.number)
            marks = self._set_newest(checkpoint)
            info = None if self._look is None else self._look()
            # This process has inserted nothing.
            episodes = {} if info is None else {name: trace.episodes for name, trace in traces_of(info).items()}
            traces = {name: TableTrace(0.0, episodes.get(name)) for name in marks or ()}
            self._baseline = None if marks is None else _Baseline(marks, traces, time.time())
            self._prune()

    def start_over(self, checkpoint: Checkpoint | None) -> None:
        """Writes the checkpoint from which the next start continues, after a start from an older one.

        The newest of those that were passed over was pinned before: a kill may come at any moment.

        Args:
          checkpoint: that one; None where it is not in the folder.

        Raises:
          CheckpointError: it cannot be written; nothing was removed.
        """
        self.state, self._lasting = CheckpointState(last=checkpoint), checkpoint
        if checkpoint is not None:
            self._store.held[checkpoint.number] = "started from"
        self.write(START_FROM)

    def write(self, reason: str, is_anew: bool = False) -> Checkpoint:
        """Writes a checkpoint and waits for it; a second caller waits for the first, then writes its own.

        Nothing is written when nothing has changed since the newest one, see `changes`: that one is returned, not `is_new`. One with the
        reason "shutdown" is tried however full the disk is: nothing comes after it.

        Args:
          is_anew: whether it is written whatever has changed.

        Raises:
          CheckpointError: no room for it, or Reverb could not write it, or what it wrote is not valid; or the server stops.
        """
        with self.turn:
            if self._has_ended or (self._is_stopping and reason != SHUTDOWN):
                raise CheckpointError("the server is stopping: only its last checkpoint is written now")
            # Before it is written: nothing comes after the last one, not even where that fails.
            self._has_ended = reason == SHUTDOWN
            began = time.time()
            info = None if self._look is None else self._look()
            if self._look is not None and not is_anew and reason in _SKIPPABLE:
                change = self._find_change(info, reason)
                if not change and (current := self.newest()) is not None:
                    return self._not_needed(current, reason)
                self._log.debug("checkpoint needed", reason=reason, change=change)
            self.state = replace(self.state, writing_since=began)
            try:
                return self._recorded("checkpoint written", reason, lambda: self._write(began, reason), info)
            finally:
                self.state = replace(self.state, writing_since=None)

    def watch(self, info: ServerInfo, asked_at: float) -> None:
        """Notes whether the newest checkpoint still holds everything, by what Reverb has told of its tables at a Unix time."""
        asked_at, baseline = min(asked_at, time.time()), self._baseline
        if self.holds_all_at is not None and self.holds_all_at > time.time():
            self.holds_all_at = asked_at  # the clock was set back; no later time would be noted until it is there again
        if not self._find_change(info, SCHEDULE):
            self.holds_all_at = max(asked_at, self.holds_all_at or 0.0)
        elif (
            baseline is not None
            and asked_at > baseline.since
            and (change := find_change(baseline.marks, info, baseline.traces))
        ):
            self._seen_change = baseline, change

    def stop(self) -> None:
        """Refuses every further checkpoint but that of reason "shutdown", also to callers that wait for their turn."""
        self._is_stopping = True

    def keep_clients(self) -> Checkpoint | None:
        """Keeps the newest checkpoint that a client had Reverb write; None without such a checkpoint.

        When nothing has changed since the newest one, that one is returned, not `is_new`, as by `write`.

        Raises:
          CannotKeepError: the disk is full or does not take it; it is still there.
          CheckpointError: what Reverb wrote is not valid, and was removed.
        """
        with self.turn:
            self._make_folders()
            staged = self._newest_finished()
            if staged is None:
                return None
            if self._look is not None and not self._find_change(self._look(), CLIENT):
                current = self.newest()
                if current is not None:  # what it holds is in that one
                    self.working.note_adopted(staged.name, current.number)
                    self.tidy()
                    return self._not_needed(current, CLIENT)
            began, ended = writing_times(staged)
            return self._recorded(
                "checkpoint kept that a client asked for", CLIENT, lambda: self._keep(staged, began, ended)
            )

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first, and when someone has removed it."""
        last = self.state.last
        try:
            return last if last is not None and stands_at(last.folder) else None
        except CheckpointError:  # it cannot be determined
            return last

    def space(self) -> Space | None:
        """None when the disk does not answer."""
        try:
            return space_for(self._store.folder, self.state.last)
        except OSError:
            return None

    def tidy(self, wait: bool = False) -> None:
        """Removes what Reverb has left half done; nothing from a folder that is not this server's any more."""
        try:
            with suppress(FolderLost):
                self._store.guard()
                for name in self.working.tidy(wait):
                    self._log.warning("unfinished checkpoint removed", name=name, meaning="Reverb could not finish it")
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

    def _find_change(self, info: ServerInfo | None, reason: str) -> str:
        """Why a checkpoint is needed, in words; "" when the newest one is whole and nothing has changed since."""
        current, baseline = self.newest(), self._baseline
        if current is None or baseline is None:
            return "there is none yet" if self.state.last is None else "the newest one is gone, or cannot be read"
        if info is None:
            return "Reverb does not answer"
        if missing := find_missing(current):
            return f"the newest one is not whole: {missing}"
        if self._may_be_updated:
            return "who had sampled by priority may have updated priorities since"
        by_priority = (name for name, table in all_tables(info).items() if has_priorities(table) and table.current_size)
        if reason != SCHEDULE and (name := next(by_priority, "")):
            return f'table "{name}": Reverb does not tell whether priorities were updated'
        if self._seen_change is not None and self._seen_change[0] is baseline:
            return self._seen_change[1]
        return find_change(baseline.marks, info, baseline.traces)

    def _not_needed(self, current: Checkpoint, reason: str) -> Checkpoint:
        is_first = reason != SCHEDULE or self.holds_all_at is None or not self._is_resting
        self._is_resting = True
        self.holds_all_at = now = time.time()
        self.state = replace(self.state, not_needed=self.state.not_needed + 1)
        tell = self._log.info if is_first else self._log.debug  # once per rest, however short the schedule is
        tell("checkpoint not needed", reason=reason, number=current.number, meaning="nothing has changed since it")
        unchanged = replace(current, is_new=False)
        self.tell(Outcome(now, 0.0, reason, unchanged))
        return unchanged

    def _set_newest(self, checkpoint: Checkpoint) -> Marks | None:
        """Keeps a checkpoint from being pruned until a newer one is written; returns what it says of its tables."""
        older = {number: why for number, why in self._store.held.items() if why != NEWEST}
        self._store.held = {**older, checkpoint.number: older.get(checkpoint.number, NEWEST)}
        self._is_resting, self.holds_all_at = False, min(checkpoint.manifest.created, time.time())
        try:
            return marks_of(checkpoint.folder)
        except CheckpointError:  # it was removed at once: the next one is written
            return None

    def _recorded(
        self, event: str, reason: str, work: Callable[[], Checkpoint], info: ServerInfo | None = None
    ) -> Checkpoint:
        """Does the work and notes what came of it. `info` is what Reverb told just before, None where it did not."""
        try:
            checkpoint = work()
        except (Rlds2ReverbError, OSError) as error:
            failed = self.failed(reason, error)
            self.tidy(wait=True)
            # An error of our own is raised as it is, so it must not stand behind itself.
            raise failed from error.__cause__ if failed is error else error
        finally:
            give_back()
        before, marks = self._baseline, self._set_newest(checkpoint)
        self._may_be_updated = marks is None or was_sampled_by_priority({} if before is None else before.marks, marks)
        # Where Reverb did not answer, nothing that it counted before: the tables that have items are written once more.
        traces = {} if info is None else traces_of(info)
        self._baseline = None if marks is None else _Baseline(marks, traces, time.time())
        from_clients, last = self.state.from_clients + (reason == CLIENT), self.state.last
        self.state = replace(self.state, last=checkpoint, reason=reason, last_error="", from_clients=from_clients)
        self._log.info(
            event,
            reason=reason,
            number=checkpoint.number,
            items=checkpoint.item_count,
            bytes=checkpoint.bytes,
            seconds=round(checkpoint.manifest.seconds, 3),
        )
        # Told before old ones are removed: that may fail, and this checkpoint is good whatever comes of it.
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
        """Refuses a checkpoint that would not fit, even after keeping or removing what clients' calls have left."""
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
            name = ""
            error: TransportError | None = None
            with self.working.holding(self._store.guard) as before, self._log_progress(before):
                try:
                    name = Path(self._request()).name
                except TransportError as caught:
                    error = caught
            # Another server may have taken the folder meanwhile: its entries are not ours to keep.
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
        """Logs the bytes that Reverb has written, and the expected total if there is an older checkpoint."""
        folder = self._store.reverb
        about = 0 if self.state.last is None else self.state.last.bytes

        def written() -> int:
            return sum(bytes_in(path) for path in folder.iterdir() if path.name not in before)

        return log_progress(self._log, "writing a checkpoint", lambda: share(written(), about))

    def _newest_finished(self, before: Collection[str] = ()) -> Path | None:
        for name in self.working.list_finished():
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
        self.working.note_adopted(staged.name, checkpoint.number)
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
                self._log.debug("checkpoint removed", number=old.name)
        except (CheckpointError, OSError) as error:
            self.failed(ROTATION, error)


class Schedule(Repeating):
    """Writes a checkpoint every so many seconds."""

    def __init__(self, writer: CheckpointWriter, every_seconds: float) -> None:
        super().__init__("checkpoints", every_seconds)
        self._writer = writer

    def repeat(self) -> None:
        with suppress(CheckpointError):  # logged and counted by the writer, and tried again in its turn
            self._writer.write(SCHEDULE)


class RestWatch(Repeating):
    """Notes every few seconds whether the newest checkpoint holds everything, also where no schedule asks.

    Args:
      snapshot: the newest answer of Reverb, and the Unix time of it; asks nothing. None without an answer.
    """

    def __init__(self, writer: CheckpointWriter, snapshot: Callable[[], tuple[ServerInfo, float] | None]) -> None:
        super().__init__("rest", _WATCH_SECONDS)
        self._writer, self._snapshot = writer, snapshot

    def repeat(self) -> None:
        if (answer := self._snapshot()) is not None:
            self._writer.watch(*answer)


Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Runs one call at a time, from any thread; all callers that arrive while one runs share the result of the next.

    No caller gets the result of a call that had begun before: a checkpoint holds what was confirmed before it was asked
    for. So of any number of callers at most one is answered by a call now, and the rest by the one after it.

    Args:
      call: what is run; may raise.
      turn: held while it runs, also by code that runs the same thing for itself.
    """

    def __init__(self, call: Callable[[], Result], turn: AbstractContextManager[object]) -> None:
        self._call, self._turn = call, turn
        self._lock = threading.Lock()
        self._next: Future[Result] | None = None  # of a call that has not begun; a caller that finds none runs it

    def __call__(self) -> Result:
        """The result of a call that begins from now on; raises what that raises."""
        with self._lock:
            # The first caller runs the call. Whoever comes until it has its turn waits for the same answer.
            leads = self._next is None
            answer = self._next = self._next or Future()
        if not leads:
            return answer.result()
        with self._turn:
            with self._lock:
                self._next = None
            try:
                result = self._call()
            except BaseException as error:
                answer.set_exception(error)  # for the callers that share it
                raise
            answer.set_result(result)
            return result


@dataclass(frozen=True)
class Space:
    """Bytes that this user may still fill on a folder's file system, and bytes of the newest checkpoint (0 without one)."""

    free_bytes: int
    needed_bytes: int


def space_for(folder: Path, newest: Checkpoint | None) -> Space:
    """The free space of a folder's file system; an OSError where it does not answer."""
    return Space(shutil.disk_usage(folder).free, 0 if newest is None else newest.bytes)


def check_space(
    folder: Path, keep: int | Keep, newest: Checkpoint | None, items: Callable[[], int | None] = lambda: None
) -> None:
    """Refuses a checkpoint that would not fit.

    A checkpoint is assumed to need as many bytes as the newest one: Reverb writes every item and chunk anew each time, and
    the older checkpoints are removed only when the new one is finished, so a disk holds one more than `keep`. Where that
    does not fit, the estimate is scaled by the number of items now. A table that has grown needs more than the estimate;
    then Reverb's write fails, and the incomplete entry is removed.

    Args:
      items: number of items in all tables now, None when they do not answer; asked only when the newest would not fit again.

    Raises:
      CheckpointError: fewer bytes are free than it needs.
    """
    try:
        space = space_for(folder, newest)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be asked for its free space ({error})") from error
    if newest is None or space.free_bytes >= space.needed_bytes:
        return
    held, before, needed, scaled = items(), newest.item_count, newest.bytes, ""
    if held is not None and held < before:
        needed = -(-newest.bytes * held // before)
        scaled = f" for each of its items, for {held} items"
    if space.free_bytes < needed:
        raise CheckpointError(
            f"{folder}: {space.free_bytes} bytes are free, {needed} are needed, as many as checkpoint "
            f"{newest.number} takes{scaled}; nothing was written. {_ways_on(folder, keep_of(keep))}; "
            "the next checkpoint is then tried as usual"
        )


def _ways_on(folder: Path, keep: Keep) -> str:
    """Advice on how to free space; the most frequent cause comes first."""
    ways = []
    with suppress(CheckpointError):
        if len(kept := list_numbered(folder / CHECKPOINTS)) > 1:
            ways.append(
                f"{len(kept)} checkpoints are kept there: lower checkpoints.keep, which is {keep.words()}, and restart, "
                f"or first delete the oldest of {folder / CHECKPOINTS}"
            )
        if list_folder(folder / SET_ASIDE):
            ways.append(f"delete what you do not need of {folder / SET_ASIDE}")
    ways.append("make the disk larger")
    text = "; or ".join(ways)
    return text[0].upper() + text[1:]
