"""`inspect` and `validate` by workers: each reads a part of the source, and the results are those of one pass.

Only a mean may differ in its last digits, because sums are rounded. What several episodes show together (`prepare.endings`) is found
here, where the records of all arrive in order.
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
)
from rlds2reverb.inspection.values import StatisticsChoice, prepare_collecting
from rlds2reverb.prepare.endings import InOrder
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.prepare.progress import Pace, Progress
from rlds2reverb.views.base import StreamView, View, spell_view
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

Execute = Callable[[Job], Executor]  # makes what runs the tasks of a job


@dataclass(frozen=True)
class InspectJob:
    """The job of the workers: what is read, and how it is judged."""

    source: NamedSource  # opened by each worker
    views: Mapping[str, View] = field(default_factory=dict)  # {} only to judge the episodes
    limit: int | None = None
    options: EpisodeOptions = EpisodeOptions()
    watch: Watch | None = None
    statistics: StatisticsChoice | None = None

    def prepare(self) -> Preparation:
        return prepare_collecting(self.source.open(), self.views, self.options, self.limit)

    @contextmanager
    def open(self) -> Iterator[_Reading]:
        yield _Reading(self)


class _Reading:
    """A worker's source; see `workers.driver`."""

    def __init__(self, job: InspectJob) -> None:
        self._ready = job.prepare()
        self._whole = InspectionBuilder(self._ready, job.watch, job.statistics)

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        ready, preparer, pace = self._ready, self._ready.preparer(), Pace()
        part = self._whole.new_part()
        try:
            for episode in ready.source.slice(task.start, task.stop):
                prepared = preparer.prepare(episode)
                if ready.outputs:
                    part.add(prepared)
                ending = ready.ending(episode)
                shown = None if ending is None else ending.for_others()
                part.episodes.append(EpisodeRecord.of(prepared)._replace(ending=shown))
                if pace.is_due():
                    on_progress((len(part.episodes), part.steps))
        except BaseException as error:
            return Outcome(part, error)
        part.complete(ready, preparer)
        return Outcome(part)


class _InspectParts:
    """The parts, in order; see `workers.driver`."""

    def __init__(self, whole: InspectionBuilder, tasks: Collection[Task], on_progress: OnProgress) -> None:
        self._whole, self._left, self._on_progress = whole, deque(tasks), on_progress
        self._episode_count = sum(task.episodes for task in tasks)
        self._began, self._pace = time.monotonic(), Pace()
        self._done = 0, 0  # episodes and steps of the parts that were read
        self._running: dict[int, tuple[int, int]] = {}
        self._shown: Progress | None = None
        self._in_turn = InTurn[PartStatistics]()
        self._order = InOrder[EpisodeRecord]()

    def next_task(self, running: Collection[Task]) -> Task | None:
        return self._left.popleft() if self._left else None

    def on_progress(self, task: Task, what: tuple[int, int]) -> None:
        self._running[task.number] = what

    def on_retry(self, task: Task, why: str) -> None:
        self._running.pop(task.number, None)

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        self._running.pop(task.number, None)
        if outcome.error is None:
            read: PartStatistics = outcome.value
            self._done = self._done[0] + len(read.episodes), self._done[1] + read.steps
            for part in self._in_turn.take(task, outcome.value):
                self._whole.part.add_part(part)
                for record in part.episodes:
                    if self._order.add(record, record.ending):
                        self._judge()
        return False

    def look(self) -> None:
        if self._pace.is_due():
            self._tell()

    def finish(self) -> None:
        self._tell()
        self._judge()

    def _tell(self) -> None:
        episodes, steps = (sum(counts) for counts in zip(self._done, *self._running.values()))
        seconds = time.monotonic() - self._began
        now = Progress(episodes, steps, self._episode_count, 0, 0, seconds)
        self._shown = now.no_less_than(self._shown)
        self._on_progress(self._shown)

    def _judge(self) -> None:
        """Adds the episodes that no later one can show anything about."""
        for record, problems in self._order.held():
            self._whole.add(record, problems)


def inspect_by_workers(
    job: InspectJob, execute: Execute, most: int = MOST_EPISODES, on_progress: OnProgress = lambda _: None
) -> Inspection:
    """Reads a dataset once and returns what is in it; `most` is the number of episodes of a task.

    Raises:
      ConfigError: a view whose items depend on the episodes before, or a source that cannot be sent; or as `inspect_source`.
      WorkersLost: a part's worker was lost again and again.
      SourceError, ViewError: as `inspect_source`.
    """
    for view in job.views.values():
        if isinstance(view, StreamView):
            raise ConfigError(
                f"{spell_view(view)}: items depend on the episodes before, which workers (--workers, --ray) do not all read; leave them out"
            )
    ready = job.prepare()
    count = ready.source.known_count()
    if job.limit is not None and not job.options.rules:
        count = min(count, job.limit)
    whole = InspectionBuilder(ready, job.watch, job.statistics)
    with execute(job) as executor:
        parts = _InspectParts(whole, split_tasks(count, executor.workers, most), on_progress)
        Driver(executor, parts, parts.look).run()
    ready.source.check_files()
    parts.finish()
    return whole.complete([0 for _ in ready.outputs])
