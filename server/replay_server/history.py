"""What a checkpoint folder remembers of its servers for some days: runs, checkpoints, size and memory; and the file that keeps it.

```
FOLDER/HISTORY.json           a `History`; replaced as a whole
FOLDER/HISTORY.json.partial   while that is done
```

The file has `MOST_BYTES` at most, however long or busy the days were: the older something is, the more of it shares a row.

| what | newest | older |
| --- | --- | --- |
| samples of memory and items | one per five minutes | one per half hour, then per two hours; the one with the most memory |
| checkpoints | one row each | neighbours of one outcome share a row; those with a gap between them last |
| runs of a server | one row each | the same |

An error of the file is logged and shown; neither a checkpoint nor the service fails because of it. A file that is damaged, or that a newer
release has written, is set aside.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import xxhash
from msgspec import Meta, Struct

from replay_server.errors import CheckpointError
from replay_server.files import read_small, stands_at, sync, write_synced
from replay_server.logs import logger
from replay_server.store import CheckpointStore
from rlds2reverb.versions import FormatVersion, program_version

HISTORY = "HISTORY.json"
DAYS = 7
MOST_BYTES = 12 << 10  # three pages: a folder's disk may have little space beside its checkpoints
_MOST_READ_BYTES = 1 << 20  # a newer release may write more than this one
MOST_TEXT = 160  # characters kept of an error
_HEAD = 40  # of them, from its start

NOT_NEEDED = "not needed"  # the reason of a row

VERSION = FormatVersion("a history", 1)

_MOST_ROWS = 80
_MOST_RUNS = 40
_AHEAD_SECONDS = 3600.0
"""After a clock was set back by less than this, what is ahead of it counts as of now; by more, that is forgotten."""

_FAR = 1.5  # times the usual distance
_LEAST_GAP_SECONDS = 60.0  # between checkpoints, however short the schedule is
_STEPS = ((4 * 3600.0, 300.0), (24 * 3600.0, 1800.0), (float("inf"), 7200.0))
"""Samples up to this age, one per so many seconds."""

Time = Annotated[int, Meta(ge=0, le=10**11)]  # Unix time in seconds
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ServerRun(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A server that ran from `first` to its last sign of life, `last`; or several in a row, which were started `starts` times."""

    first: Time
    last: Time
    starts: Count = 1


class CheckpointRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A checkpoint that was written, or was not; or several of one outcome.

    Attributes:
      first, last: when the first and the last of them ended.
      seconds: of the one that took longest.
      bytes, number, reason: of the newest; 0 when it failed. The number of a checkpoint that a start has done without is 0, too.
      error: of the newest; "" when they were written.

    Where the reason is `NOT_NEEDED`, nothing was written: checkpoint `number` still held everything, whenever one was due.
    """

    first: Time
    last: Time
    count: Count
    seconds: Annotated[float, Meta(ge=0, le=1e11)]
    bytes: Count
    number: Count = msgspec.field(name="generation")  # its name in /history.json
    reason: Annotated[str, Meta(max_length=MOST_TEXT)]
    error: Annotated[str, Meta(max_length=MOST_TEXT)] = ""


class MemorySample(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Memory of the server, and items in all its tables."""

    time: Time
    memory_bytes: Count
    items: Count


class History(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs, checkpoints and samples, each in the order in which they happened."""

    runs: tuple[ServerRun, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    samples: tuple[MemorySample, ...] = ()

    def running(self, began: float, now: float) -> History:
        """The history with this run of a server, which lives now."""
        run = ServerRun(int(began), max(int(began), int(now)))
        earlier_runs = self.runs[:-1] if self.runs and self.runs[-1].first == run.first else self.runs
        return msgspec.structs.replace(self, runs=(*earlier_runs, run))

    def with_checkpoint(self, written: CheckpointRow) -> History:
        """The history with one more; those that were not needed, one after the other, share a row."""
        if written.reason == NOT_NEEDED and self.checkpoints:
            last = self.checkpoints[-1]
            if (last.reason, last.number) == (NOT_NEEDED, written.number):
                row = msgspec.structs.replace(last, last=max(last.last, written.last), count=last.count + written.count)
                return msgspec.structs.replace(self, checkpoints=(*self.checkpoints[:-1], row))
        return msgspec.structs.replace(self, checkpoints=(*self.checkpoints, written))

    def newest_checkpoint(self) -> CheckpointRow | None:
        """The newest checkpoint that was written, and should be in the folder."""
        return next((written for written in reversed(self.checkpoints) if written.number), None)

    def without_checkpoints(self) -> History:
        """The history after its checkpoints were given up: the rows stay, and the folder need not hold them."""
        rows = tuple(msgspec.structs.replace(written, number=0) for written in self.checkpoints)
        return msgspec.structs.replace(self, checkpoints=rows)

    def with_sample(self, sample: MemorySample) -> History:
        return msgspec.structs.replace(self, samples=(*self.samples, sample))


_Row = TypeVar("_Row", ServerRun, CheckpointRow)


class _File(Struct, frozen=True):
    format: int
    xxh3: str
    history: History
    program: str = ""


class _Head(Struct, frozen=True):
    """What the files of all versions have."""

    format: Any
    program: Any = ""


class NewerHistory(CheckpointError):
    """A history that only a newer release reads."""


def encode(history: History) -> bytes:
    """The line of JSON that stands in the file."""
    program = program_version()
    return msgspec.json.encode(_File(VERSION.version, _digest(history, program), history, program)) + b"\n"


def decode(data: bytes) -> History:
    """The inverse of `encode`.

    Raises:
      NewerHistory: a newer release has written it.
      CheckpointError: it is anything else.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if refusal := VERSION.refusal(HISTORY, head.format, head.program):
            raise (NewerHistory if VERSION.is_newer(head.format) else CheckpointError)(refusal)
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"not a history ({error})") from error
    if file.xxh3 != _digest(file.history, file.program):
        raise CheckpointError("a history that was changed since it was written")
    return file.history


def _digest(history: History, program: str) -> str:
    """Of a file without a program, as the first ones were, that of its history alone."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(history) + program.encode())


def as_of(history: History, now: float) -> History:
    """What can have happened by now: a clock that was set back leaves nothing in the future."""
    late, replaced = int(now), msgspec.structs.replace

    def past(rows: Sequence[_Row]) -> tuple[_Row, ...]:
        return tuple(
            replaced(row, first=min(row.first, late), last=min(row.last, late))
            for row in rows
            if row.first - now < _AHEAD_SECONDS
        )

    samples = (sample for sample in history.samples if sample.time - now < _AHEAD_SECONDS)
    return History(
        past(history.runs),
        past(history.checkpoints),
        tuple(replaced(sample, time=min(sample.time, late)) for sample in samples),
    )


def fit_history(history: History, now: float) -> History:
    """What is kept: the last `DAYS`, in `MOST_BYTES`."""
    oldest = now - DAYS * 86400
    runs = _merge_rows([run for run in history.runs if run.last >= oldest], _MOST_RUNS, _one_run)
    samples = tuple(_thin([sample for sample in history.samples if sample.time >= oldest], now))
    recent = [written for written in history.checkpoints if written.last >= oldest]
    # How long a row is depends on its error's text, so the number of rows that fit is found by trying.
    for most in range(_MOST_ROWS, 0, -1):
        kept = History(runs, _merge_rows(recent, most, _one_row), samples)
        if len(encode(kept)) <= MOST_BYTES:
            return kept
    return History(runs, (), samples)


def _thin(samples: Sequence[MemorySample], now: float) -> list[MemorySample]:
    kept: list[tuple[tuple[float, int], MemorySample]] = []
    for sample in samples:
        step = next(step for age, step in _STEPS if now - sample.time <= age)
        bucket = (step, int(sample.time // step))
        if not kept or kept[-1][0] != bucket:
            kept.append((bucket, sample))
        # The peak of a step stays: it is what a memory limit is compared with.
        elif sample.memory_bytes >= kept[-1][1].memory_bytes:
            kept[-1] = bucket, sample
    return [sample for _, sample in kept][-2 * _MOST_ROWS :]


def _merge_rows(rows: Sequence[_Row], most: int, join: Callable[[_Row, _Row], _Row | None]) -> tuple[_Row, ...]:
    """At most so many rows: of the older half, those are joined that span the least together; where none can, the oldest goes.

    Rows that are further apart than usual are joined last, so that a gap stays one.
    """
    left = list(rows)
    while len(left) > most:
        older = range(1, max(2, len(left) // 2 + 1))
        apart = {n: left[n].first - left[n - 1].last for n in older}  # seconds between a row and the one before
        far = _FAR * statistics.median(apart.values())
        for n in sorted(older, key=lambda n: (apart[n] > far, left[n].last - left[n - 1].first)):
            joined = join(left[n - 1], left[n])
            if joined is not None:
                left[n - 1 : n + 1] = [joined]
                break
        else:
            del left[0]
    return tuple(left)


def shorten_error(text: str) -> str:
    """What is kept of an error: it begins with a place, mostly a long path, and ends with the cause, so the middle is left out."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    if len(line) <= MOST_TEXT:
        return line
    return f"{line[:_HEAD]}…{line[_HEAD + 1 - MOST_TEXT :]}"


def _one_run(run: ServerRun, other: ServerRun) -> ServerRun:
    return ServerRun(min(run.first, other.first), max(run.last, other.last), run.starts + other.starts)


def _one_row(row: CheckpointRow, other: CheckpointRow) -> CheckpointRow | None:
    if bool(row.error) != bool(other.error) or (row.reason == NOT_NEEDED) != (other.reason == NOT_NEEDED):
        return None
    return msgspec.structs.replace(
        other,
        first=min(row.first, other.first),
        last=max(row.last, other.last),
        count=row.count + other.count,
        seconds=max(row.seconds, other.seconds),
    )


@dataclass(frozen=True)
class Gap:
    """A time in which something was missing: `what` is "server", or "checkpoint" that succeeded."""

    what: str
    first: int
    last: int


def gaps(history: History, now: float, shortest_seconds: float, every_seconds: float | None) -> list[Gap]:
    """Times without a server, and without a checkpoint that succeeded, by their beginnings.

    Args:
      shortest_seconds: how exactly a run's end is known.
      every_seconds: of the schedule. Checkpoints are missing after twice that and the duration of one; without a
        schedule where one has failed.
    """
    gaps = [
        Gap("server", before.last, after.first)
        for before, after in itertools.pairwise(history.runs)
        if after.first - before.last > shortest_seconds
    ]
    return sorted(gaps + _without_checkpoint(history, int(now), every_seconds), key=lambda gap: gap.first)


def _without_checkpoint(history: History, now: int, every_seconds: float | None) -> list[Gap]:
    good = [written for written in history.checkpoints if not written.error]
    failed = [written for written in history.checkpoints if written.error]
    began = min([now, *(run.first for run in history.runs), *(written.first for written in history.checkpoints)])
    longest = max((written.seconds for written in good), default=0.0)
    allowed = None if every_seconds is None else max(_LEAST_GAP_SECONDS, 2 * (every_seconds + longest))
    spans = itertools.pairwise([began, *(time for written in good for time in (written.first, written.last)), now])
    gaps = []
    for first, last in itertools.islice(spans, 0, None, 2):  # every other one lies within a row
        has_failed = any(first <= failure.last and failure.first <= last for failure in failed)
        is_missing = has_failed if allowed is None else last - first > allowed
        if last > first and is_missing:
            gaps.append(Gap("checkpoint", first, last))
    return gaps


def newest_checkpoint(folder: Path) -> CheckpointRow | None:
    """The newest checkpoint that a folder should have, by its history; None where that is not known."""
    try:
        return decode(read_small(folder / HISTORY, _MOST_READ_BYTES)).newest_checkpoint()
    except CheckpointError:
        return None


class HistoryFile:
    """The history's file in one server's folder; `problem` says why it is not written, "" when it is."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store, self.path = store, store.folder / HISTORY
        self.problem = ""
        self._is_in_the_way = self._has_started = False
        self._newer = ""  # why a history of a newer release, which stands there, is not read
        self._log = logger("history")

    def read(self) -> History:
        """The history that earlier servers have left. A file that is damaged or cannot be read is set aside; one of a newer release later, see `note_started`."""
        try:
            if not stands_at(self.path):
                return History()
            return decode(read_small(self.path, _MOST_READ_BYTES))
        except NewerHistory as error:
            self._newer = str(error)
            self._log.warning(
                "history of a newer release", reason=self._newer, meaning="it is not shown, and set aside later"
            )
            return History()
        except CheckpointError as error:
            self._set_aside(str(error), "damaged")
            return History()

    def note_started(self) -> None:
        """Notes that the server has started, and continues without a history of a newer release: the next write sets that aside."""
        self._has_started = True

    def write(self, history: History) -> None:
        if self._newer and self._has_started:
            self._set_aside(self._newer, "newer")
            self._newer = ""
        if self._is_in_the_way or self._newer:  # a start that is refused leaves it for the release that it is of
            return
        partial = self.path.with_name(f"{HISTORY}.partial")
        try:
            self._store.guard()
            try:
                write_synced(partial, encode(history))
                self._store.guard()
                # The guard is asked twice: syncing may take long, and the folder may be another server's by now.
                partial.replace(self.path)
            except OSError:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)  # a full disk needs the space
                raise
            sync(self.path.parent)
        except (CheckpointError, OSError) as error:
            self._tell(f"{self.path}: cannot be written ({error})")
        else:
            self._tell("")

    def give_up(self, problem: str) -> None:
        """Writes no more."""
        self._is_in_the_way = True
        self._tell(problem)

    def _set_aside(self, reason: str, why: str) -> None:
        try:
            place = self._store.set_aside(self.path, why)
        except (CheckpointError, OSError) as error:
            self.give_up(f"{self.path}: cannot be read ({reason}), and not be moved away ({error})")
            return
        self._log.warning("history set aside", path=str(place), reason=reason, meaning="that of before is not shown")

    def _tell(self, problem: str) -> None:
        if problem and not self.problem:
            self._log.warning("the history is not kept", problem=problem)
        self.problem = problem
