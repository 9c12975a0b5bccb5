"""`inspect` and `validate` by several workers: what each finds in its part of a source, put together as one pass would have it.

Counts, smallest and largest values, problems and their examples are those of one pass. A mean may differ in its last digits, for sums
are rounded. What only several episodes show (`validation.endings`) is found here, where all are heard of in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rlds2reverb.conventions import Conventions
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.identity import Occurrences
from rlds2reverb.push.cutting import OutputCut
from rlds2reverb.push.report import Progress
from rlds2reverb.remarks import Remark
from rlds2reverb.reports.begun import Begun, begin
from rlds2reverb.reports.ends import Ends
from rlds2reverb.reports.inspected import Inspection
from rlds2reverb.reports.inspection import add_ranges, cut, meant, return_of
from rlds2reverb.reports.parts import PartRead, Read
from rlds2reverb.reports.ranges import Range
from rlds2reverb.reports.watching import Watch
from rlds2reverb.scale.driving import Driver
from rlds2reverb.scale.executor import Executor, Job, Tell
from rlds2reverb.scale.in_order import InTurn
from rlds2reverb.scale.sources import Named
from rlds2reverb.scale.tasks import MOST_EPISODES, Outcome, Task, divided
from rlds2reverb.sources.base import Source, known_count, remarks_of, with_encoded
from rlds2reverb.sources.span import Span
from rlds2reverb.transforms.transform import Transform
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import InOrder, ending_that_counts
from rlds2reverb.validation.findings import Findings
from rlds2reverb.validation.holdings import Holdings, duplicates_remark
from rlds2reverb.views.base import StreamView, View

_TELL_SECONDS = 0.25

Execute = Callable[[Job], Executor]
"""Makes what runs the tasks of a job."""

OnProgress = Callable[[Progress], object]


@dataclass(frozen=True)
class Wanted:
    """What is read, and how it is judged.

    Attributes:
      source: opened by each worker.
      encoded: image columns to keep as the bytes of their files.
      views: table -> view whose items to count; {} only to judge the episodes.
      conventions, transform: what a push would mend, and do to the columns first.
      limit: episodes to read at most; None for all.
      watch: makes what looks at the episodes, too; None for nothing.
    """

    source: Named
    encoded: Sequence[str] = ()
    views: Mapping[str, View] = field(default_factory=dict)
    conventions: Conventions = Conventions()
    transform: Transform = Transform()
    limit: int | None = None
    watch: Watch | None = None

    def open(self) -> Source:
        """Opens the source."""
        return with_encoded(self.source.open(), self.encoded)

    def begin(self) -> Begun:
        """See `begun.begin`."""
        return begin(self.open(), self.views, self.conventions, self.transform)

    @contextmanager
    def opened(self) -> Iterator[_Reading]:
        """As the job of workers."""
        yield _Reading(self)


class _Reading:
    """A worker's source; see `scale.executor.Work`."""

    def __init__(self, wanted: Wanted) -> None:
        self._begun = wanted.begin()
        self._counts_items, self._watch = bool(wanted.views), wanted.watch

    def run(self, task: Task, tell: Tell) -> Outcome:
        """Reads a part."""
        begun, told_at = self._begun, time.monotonic()
        columns = begun.inspection.step_spec
        part = PartRead([], {path: Range() for path in columns}, Ends(), Holdings.of(columns))
        part.watcher = begun.watched_by(self._watch)
        try:
            for episode in Span(begun.source, task.start, task.stop):
                self._take(part, episode)
                if time.monotonic() - told_at > _TELL_SECONDS:
                    told_at = time.monotonic()
                    tell((len(part.episodes), part.steps))
        except BaseException as error:
            return Outcome(part, error)
        part.remarks = remarks_of(begun.source)
        return Outcome(part)

    def _take(self, part: PartRead, episode: Episode) -> None:
        standard = self._begun.standard
        filled, problems = standard.examine(episode)
        items: list[int] = []
        refused: list[Problem] = []
        if self._counts_items:
            columns = meant(episode)
            add_ranges(part.ranges, columns)
            part.ends.add(filled)
            made: list[OutputCut] = []
            if all(problem.is_advice for problem in problems):
                made, refused = cut(self._begun.cutters, standard.put(filled))
                items = [one.items_per_table for one in made]
            if part.watcher is not None:
                part.watcher.add(episode, columns, [*problems, *refused], made)
        part.holdings = part.holdings.after(episode)
        ending = ending_that_counts(episode, standard.conventions)
        told = None if ending is None else ending.for_others(episode)
        named = episode.id, episode.recorded_id, episode.title
        part.episodes.append(Read(*named, len(episode), return_of(episode), problems, told, items, refused))


class _Together:
    """The parts, in order; see `scale.driving.Undertaking`."""

    def __init__(self, begun: Begun, watch: Watch | None, tasks: Collection[Task], on_progress: OnProgress) -> None:
        self._watcher: Any = begun.watched_by(watch)
        self.begun, self._left, self._on_progress = begun, deque(tasks), on_progress
        self._episode_count = sum(task.episodes for task in tasks)
        self._began = self._told_at = time.monotonic()
        self._done = 0, 0  # episodes and steps of the parts that were read
        self._told: dict[int, tuple[int, int]] = {}
        self._shown: Progress | None = None
        self._in_turn = InTurn[PartRead]()
        self._order = InOrder[Read]()
        self._names = Occurrences()
        self._holdings = Holdings.of(begun.inspection.step_spec)
        self._remarks = dict.fromkeys(remarks_of(begun.source))

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The next part."""
        return self._left.popleft() if self._left else None

    def told(self, task: Task, what: tuple[int, int]) -> None:
        """A worker said how many episodes and steps it has read."""
        self._told[task.number] = what

    def again(self, task: Task, why: str) -> None:
        """A lost worker's part is read again, and nothing of it was taken in."""
        self._told.pop(task.number, None)

    def took(self, task: Task, outcome: Outcome) -> bool:
        """A part was read."""
        self._told.pop(task.number, None)
        if outcome.error is None:
            read: PartRead = outcome.value
            self._done = self._done[0] + len(read.episodes), self._done[1] + read.steps
            for part in self._in_turn.take(task, outcome.value):
                self._add(part)
        return False

    def look(self) -> None:
        """Tells how far all is, a few times per second, however often it is called."""
        if time.monotonic() - self._told_at > _TELL_SECONDS:
            self._told_at = time.monotonic()
            self._tell()

    def finish(self) -> tuple[Remark, ...]:
        """All is read: what is to be said of the whole."""
        self._tell()
        self._judge()
        return (*self._remarks, *self._holdings.remarks, *duplicates_remark(self._names.copies))

    def _tell(self) -> None:
        episodes, steps = (sum(counts) for counts in zip(self._done, *self._told.values()))
        seconds = time.monotonic() - self._began
        now = Progress(episodes, steps, self._episode_count, 0, 0, seconds)
        self._shown = now.no_less_than(self._shown)
        self._on_progress(self._shown)

    def _add(self, part: PartRead) -> None:
        inspection = self.begun.inspection
        for path, span in part.ranges.items():
            inspection.ranges.setdefault(path, Range()).add_range(span)
        inspection.ends.add_ends(part.ends)
        self._holdings = self._holdings.with_others(part.holdings)
        self._remarks.update(dict.fromkeys(part.remarks))
        if part.watcher is not None:
            self._watcher.add_part(part.watcher)
        for one in part.episodes:
            self._names.count(one.id)
            if self._order.add(one, one.ending):
                self._judge()

    def _judge(self) -> None:
        """Takes in the episodes of which no other can show anything any more."""
        inspection = self.begun.inspection
        for one, found in self._order.held():
            inspection.findings.add(one, [*one.problems, *found])
            inspection.lengths.append(one.steps)
            inspection.returns += one.returns
            if all(problem.is_advice for problem in found):
                inspection.findings.add(one, one.refused)
                for tally, items in zip(self.begun.tallies, one.items):
                    tally.add_items(items)


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
    together = _read(wanted, execute, most, on_progress)
    return together.begun.completed(together.finish())


def validated(
    wanted: Wanted, execute: Execute, most: int = MOST_EPISODES, on_progress: OnProgress = lambda _: None
) -> tuple[int, Findings]:
    """Reads a dataset once and judges every episode; returns how many there were, and what is wrong with them.

    Arguments and errors as `inspected`; no view is asked.
    """
    together = _read(wanted, execute, most, on_progress)
    remarks = together.finish()
    inspection = together.begun.inspection
    inspection.findings.remarks = remarks
    return len(inspection.lengths), inspection.findings


def _read(wanted: Wanted, execute: Execute, most: int, on_progress: OnProgress) -> _Together:
    begun = wanted.begin()
    count = known_count(begun.source)
    if wanted.limit is not None:
        count = min(count, wanted.limit)
    with execute(wanted) as executor:
        together = _Together(begun, wanted.watch, divided(count, executor.workers, most), on_progress)
        Driver(executor, together, together.look).run()
    return together
