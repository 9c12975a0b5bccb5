"""`inspect` and `validate` by several workers: what each finds in its part of a source, put together as one pass would have it.

Counts, smallest and largest values, problems and their examples are those of one pass. A mean may differ in its last digits, for sums
are rounded. What only several episodes show (`prepare.endings`) is found here, where all are heard of in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.inspection.inspection import (
    EpisodeRecord,
    Inspection,
    InspectionBuilder,
    OnProgress,
    PartStatistics,
    Watch,
    prepared_for,
)
from rlds2reverb.prepare.endings import InOrder
from rlds2reverb.prepare.options import EpisodeOptions, Progress
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.prepare.problems import Findings
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.workers.driver import (
    MOST_EPISODES,
    Driver,
    Executor,
    InTurn,
    Job,
    Outcome,
    SendProgress,
    Task,
    split_tasks,
)

_TELL_SECONDS = 0.25

Execute = Callable[[Job], Executor]
"""Makes what runs the tasks of a job."""


@dataclass(frozen=True)
class Wanted:
    """What is read, and how it is judged.

    Attributes:
      source: opened by each worker.
      views: table -> view whose items to count; {} only to judge the episodes.
      limit: episodes to read at most; None for all.
      options: what a push would be told of the episodes.
      watch: makes what looks at the episodes, too; None for nothing.
    """

    source: NamedSource
    views: Mapping[str, View] = field(default_factory=dict)
    limit: int | None = None
    options: EpisodeOptions = EpisodeOptions()
    watch: Watch | None = None

    def prepared(self) -> Preparation:
        """Opens the source."""
        return prepared_for(self.source.open(), self.views, self.options)

    @contextmanager
    def opened(self) -> Iterator[_Reading]:
        """As the job of workers."""
        yield _Reading(self)


class _Reading:
    """A worker's source; see `workers.driver`."""

    def __init__(self, wanted: Wanted) -> None:
        self._ready = wanted.prepared()
        self._whole = InspectionBuilder(self._ready, wanted.watch)

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        ready, preparer, told_at = self._ready, self._ready.preparer(), time.monotonic()
        part = self._whole.new_part()
        try:
            for episode in ready.source.slice(task.start, task.stop):
                prepared = preparer.prepare(episode)
                if ready.outputs:
                    part.add(prepared)
                ending = ready.ending(episode)
                told = None if ending is None else ending.for_others(episode)
                part.episodes.append(EpisodeRecord.of(prepared)._replace(ending=told))
                if time.monotonic() - told_at > _TELL_SECONDS:
                    told_at = time.monotonic()
                    on_progress((len(part.episodes), part.steps))
        except BaseException as error:
            return Outcome(part, error)
        part.complete(ready, preparer)
        return Outcome(part)


class _Together:
    """The parts, in order; see `workers.driver`."""

    def __init__(self, whole: InspectionBuilder, tasks: Collection[Task], on_progress: OnProgress) -> None:
        self._whole, self._left, self._on_progress = whole, deque(tasks), on_progress
        self._episode_count = sum(task.episodes for task in tasks)
        self._began = self._told_at = time.monotonic()
        self._done = 0, 0  # episodes and steps of the parts that were read
        self._told: dict[int, tuple[int, int]] = {}
        self._shown: Progress | None = None
        self._in_turn = InTurn[PartStatistics]()
        self._order = InOrder[EpisodeRecord]()

    def next_task(self, running: Collection[Task]) -> Task | None:
        return self._left.popleft() if self._left else None

    def on_progress(self, task: Task, what: tuple[int, int]) -> None:
        self._told[task.number] = what

    def on_retry(self, task: Task, why: str) -> None:
        """A lost worker's part is read again, and nothing of it was taken in."""
        self._told.pop(task.number, None)

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        self._told.pop(task.number, None)
        if outcome.error is None:
            read: PartStatistics = outcome.value
            self._done = self._done[0] + len(read.episodes), self._done[1] + read.steps
            for part in self._in_turn.take(task, outcome.value):
                self._add(part)
        return False

    def look(self) -> None:
        """Tells how far all is, a few times per second, however often it is called."""
        if time.monotonic() - self._told_at > _TELL_SECONDS:
            self._told_at = time.monotonic()
            self._tell()

    def finish(self) -> None:
        self._tell()
        self._judge()

    def _tell(self) -> None:
        episodes, steps = (sum(counts) for counts in zip(self._done, *self._told.values()))
        seconds = time.monotonic() - self._began
        now = Progress(episodes, steps, self._episode_count, 0, 0, seconds)
        self._shown = now.no_less_than(self._shown)
        self._on_progress(self._shown)

    def _add(self, part: PartStatistics) -> None:
        self._whole.part.add_part(part)
        for one in part.episodes:
            if self._order.add(one, one.ending):
                self._judge()

    def _judge(self) -> None:
        """Takes in the episodes of which no other can show anything any more."""
        for one, found in self._order.held():
            self._whole.add(one, found)


def inspected(
    wanted: Wanted, execute: Execute, most: int = MOST_EPISODES, on_progress: OnProgress = lambda _: None
) -> Inspection:
    """Reads a dataset once and tells what is in it.

    Args:
      wanted: what to read.
      execute: makes what runs the tasks.
      most: episodes of a task.
      on_progress: told a few times per second how many episodes and steps all workers have read; nothing is sent, so it has no bytes.

    Raises:
      ConfigError: a view whose items depend on the episodes before, or a source that cannot be sent; or as `inspect_source`.
      WorkersLost: a part's worker was lost again and again.
      SourceError, ViewError: as `inspect_source`.
    """
    for view in wanted.views.values():
        if isinstance(view, StreamView):
            raise ConfigError(
                f"{view.label}: items depend on the episodes before, which workers (--workers, --ray) do not all read; leave them out"
            )
    return _read(wanted, execute, most, on_progress)


def validated(
    wanted: Wanted, execute: Execute, most: int = MOST_EPISODES, on_progress: OnProgress = lambda _: None
) -> tuple[int, Findings]:
    """Reads a dataset once and judges every episode; returns how many there were, and what is wrong with them.

    Arguments and errors as `inspected`; no view is asked.
    """
    inspection = _read(wanted, execute, most, on_progress)
    return len(inspection.lengths), inspection.findings


def _read(wanted: Wanted, execute: Execute, most: int, on_progress: OnProgress) -> Inspection:
    ready = wanted.prepared()
    count = ready.source.known_count()
    if wanted.limit is not None:
        count = min(count, wanted.limit)
    whole = InspectionBuilder(ready, wanted.watch)
    with execute(wanted) as executor:
        together = _Together(whole, split_tasks(count, executor.workers, most), on_progress)
        Driver(executor, together, together.look).run()
    together.finish()
    return whole.completed([0 for _ in ready.outputs])
