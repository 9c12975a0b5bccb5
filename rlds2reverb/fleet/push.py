"""A push by several workers: one plan, one ledger, one report, whoever pushes which task.

A worker opens the source by its name, and pushes the episodes of a task as any push does (`push.run`). The driver alone writes the ledger,
when a task has ended: its worker hands back what was confirmed. So a worker that begins the task of a lost one anew, perhaps on another
machine, never meets half of a ledger; and no file has to be reached from everywhere. What a lost worker had stored is sent again, which
item keys make harmless.
"""

from __future__ import annotations

import logging
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import Array, Episode, Notice
from rlds2reverb.errors import SourceError, keep_report, reason_of, report_of
from rlds2reverb.files import writing
from rlds2reverb.fleet.budget import Refusal
from rlds2reverb.fleet.servers import Connections, Endpoints, PushServers, by_server
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.formats.source import Tally
from rlds2reverb.identity import NO_NAMES, Copies, Names, repeated_ids
from rlds2reverb.prepare.column_stats import ColumnStats, duplicates_notice
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.endings import Ending, Endings, InOrder, ending_that_counts, with_problems_of_ends
from rlds2reverb.prepare.options import Progress, ignored
from rlds2reverb.prepare.policy import QUARANTINE, append_report
from rlds2reverb.prepare.problems import ENDS_ALIKE, Problem
from rlds2reverb.push.keys import new_key_bits
from rlds2reverb.push.ledger import MemoryLedger
from rlds2reverb.push.options import KEEP, ONCE, PushOptions, Tuning
from rlds2reverb.push.plan import PushPlan, plan_push, report_of_nothing
from rlds2reverb.push.report import PushReport, ReportSums
from rlds2reverb.push.room import BudgetExceeded
from rlds2reverb.push.shard import TaskContext
from rlds2reverb.specs import flatten
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.grpc import Endpoint, endpoint_of
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
from rlds2reverb.workers.processes import executor_of


class Ended(NamedTuple):
    """How an episode ended.

    Attributes:
      title: of the episode.
      ending: None where that cannot tell.
      was_found: whether its end was found not to be its own, by what its task knew.
    """

    title: str
    ending: Ending | None
    was_found: bool


class Terms(NamedTuple):
    """What a worker gets with a task.

    Attributes:
      budgets: see `push.shard.TaskContext`.
      endings: how episodes before the task ended, as far as that is known by now.
      missing: address -> why, of the servers that were lost by now.
      copies: see `push.shard.TaskContext`.
    """

    budgets: Mapping[str, Mapping[str, int]] | None
    endings: Endings
    missing: Mapping[str, str]
    copies: Mapping[int, int] | None = None


@dataclass(frozen=True)
class TaskProgress:
    """How far a worker is with a task.

    Attributes:
      progress: what a push tells.
      report: the account of the task so far.
    """

    progress: Progress
    report: PushReport


@dataclass(frozen=True)
class TaskDone:
    """What came of a task of a push.

    Attributes:
      report: its account.
      rows: address -> per output, the episodes that were confirmed, and their items over all tables; () without a ledger.
      contents, names: see `push.names.EpisodeNames`.
      taken: address -> `push.shard.Shard.taken_rows`.
      ends: how each episode ended; () where nobody wants to know.
      holdings: what columns held; None where that is lost.
      notices: of the source.
      quarantine: lines for the report of bad episodes.
      sent: address -> table -> keys of the items that were sent, where items are to be moved.
      tallies: what each part of a mix gave.
    """

    report: PushReport
    rows: Mapping[str, Sequence[list[tuple[str, int]]]] = field(default_factory=dict)
    contents: Names = field(default_factory=lambda: NO_NAMES)
    names: Names = field(default_factory=lambda: NO_NAMES)
    taken: Mapping[str, Array] = field(default_factory=dict)
    ends: tuple[Ended, ...] = ()
    holdings: ColumnStats | None = None
    notices: tuple[Notice, ...] = ()
    quarantine: str = ""
    sent: Mapping[str, Mapping[str, list[Array]]] = field(default_factory=dict)
    tallies: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class PushJob:
    """What every worker of a push gets.

    Attributes:
      source: opened by each.
      options: of the push, without what is the business of the driver: the ledger, and progress.
      tuning: how it sends.
      servers: where it goes.
      again: the bits of new keys, for all workers; None for a push without `again`.
      ledgers: address -> per output, what the ledger has; () without a ledger. Of all servers, those missing too.
      wants_ends: whether it is wanted how episodes end.
      episodes, columns: what the source is like for the driver.
    """

    source: NamedSource
    options: PushOptions
    tuning: Tuning
    servers: Endpoints
    again: int | None
    ledgers: Mapping[str, Sequence[MemoryLedger]]
    wants_ends: bool
    episodes: int
    columns: tuple[tuple[str, str], ...]

    @contextmanager
    def opened(self) -> Iterator[PushWork]:
        """Opens the source, and a connection to every server.

        Raises:
          SourceError: the source cannot be opened here, or is another one here.
          ConfigError: another server has an address here.
          TransportError: a server does not answer.
        """
        servers = self.servers
        plan = plan_push(
            self.source.open(),
            self._own_options(),
            lambda: servers.infos,
            servers.names,
            servers.allow_missing,
            self.tuning,
        )
        self._check_source(plan)
        with servers.connected(plan) as connections:
            yield PushWork(self, connections, plan)

    def _own_options(self) -> PushOptions:
        """The options with a quarantine file that any machine can write; each task has one of its own."""
        if self.options.quarantine is None:
            return self.options
        return replace(self.options, quarantine=Path(tempfile.gettempdir()) / "quarantine")

    def _check_source(self, plan: PushPlan) -> None:
        if plan.episodes != self.episodes or columns_of(plan) != self.columns:
            raise SourceError(
                f"{plan.source.name}: is another dataset on {socket.gethostname()} ({plan.episodes} episodes) than where the push was started "
                f"({self.episodes}); every machine needs the same files at the same place"
            )


class PushWork:
    """A worker's connections and source, for one task after the other.

    Args:
      job: what is pushed.
      connections: to its servers.
      plan: of the whole source.
    """

    def __init__(self, job: PushJob, connections: Connections, plan: PushPlan) -> None:
        self._job, self._connections, self._plan = job, connections, plan

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        """Pushes a task; its terms are `Terms`.

        Raises:
          ServerRestarted: another server process answers than at the start of the push.
          ServerUnreachable: a server does not answer.
        """
        self._connections.look(task.terms.missing)
        with writing(f"temporary folder in {tempfile.gettempdir()}", "have TMPDIR name a folder with room"):
            folder = tempfile.TemporaryDirectory(prefix="rlds2reverb-")
        with folder as name:
            bad = Path(name) / "quarantine"
            return _TaskRun(self._job, self._connections, self._plan, task, on_progress, bad).outcome()


class _TaskRun:
    def __init__(
        self,
        job: PushJob,
        connections: Connections,
        plan: PushPlan,
        task: Task,
        on_progress: SendProgress,
        quarantine: Path,
    ) -> None:
        self._job, self._connections, self._send_progress, self._quarantine = job, connections, on_progress, quarantine
        terms: Terms = task.terms
        self._source = plan.source.slice(task.start, task.stop)
        self._ledgers = {
            address: tuple(MemoryLedger(one.confirmed, one.here) for one in known)
            for address, known in job.ledgers.items()
        }
        self._ends: list[Ended] = []
        self._endings = terms.endings
        self._is_of_copies = terms.copies is not None
        options = replace(plan.options, on_progress=self._on_progress)
        if options.on_invalid == QUARANTINE:
            options = replace(options, quarantine=quarantine)
        ready = replace(plan.ready, source=self._source, options=options)
        context = TaskContext(terms.budgets, self._ledgers, connections.missing, job.again, terms.copies)
        self._push = connections.push(replace(plan, ready=ready, options=options), context, self._reading)

    def outcome(self) -> Outcome:
        try:
            report, error = self._push.run(), None
        except BaseException as failure:
            report, error = report_of(failure) or self._push.report(), failure
        self._connections.lose(report)
        return Outcome(self._done(report), error)

    def _done(self, report: PushReport) -> TaskDone:
        shards = self._push.shards
        return TaskDone(
            report,
            rows={address: [one.rows for one in ledgers] for address, ledgers in self._ledgers.items()},
            contents=self._push.names.contents,
            names=self._push.names.names,
            taken={address: shard.taken_rows for address, shard in shards.items()},
            ends=tuple(self._ends),
            holdings=self._push.columns,
            notices=self._source.notices,
            quarantine=self._quarantine.read_text("utf-8") if self._quarantine.exists() else "",
            sent={address: shard.sent for address, shard in shards.items() if shard.sent},
            tallies=self._job.source.tallies,
        )

    def _on_progress(self, progress: Progress) -> None:
        self._send_progress(TaskProgress(progress, self._push.report()))

    def _reading(self, episodes: Iterable[Episode]) -> Iterator[tuple[Episode, list[Problem]]]:
        """Episodes of the task, with what those before them show, as far as it is known here."""
        conventions = self._job.options.conventions
        if not self._job.wants_ends or self._is_of_copies:  # of copies it is settled, like for those that they equal
            yield from ((episode, []) for episode in episodes)
            return
        endings = dict[str, "Ending | None"]()

        def ending_of(episode: Episode, conventions: Conventions) -> Ending | None:
            ending = ending_that_counts(episode, conventions)
            endings[episode.id] = None if ending is None else ending.for_others(episode)
            return endings[episode.id]

        for episode, found in with_problems_of_ends(episodes, conventions, self._endings, ending=ending_of):
            self._ends.append(Ended(episode.title, endings.pop(episode.id), bool(found)))
            yield episode, found


def columns_of(plan: PushPlan) -> tuple[tuple[str, str], ...]:
    """What the steps of a plan's source are like, to be compared."""
    return tuple((path, str(spec)) for path, spec in flatten(plan.step_spec).items())


class Merged:
    """The account of a push by several workers.

    Args:
      plan: of the whole push.

    Attributes:
      workers: how many push at a time.
      moved: items taken out of servers where they do not belong any more.
      sent: address -> table -> keys of the items that were sent, where items are to be moved.
    """

    def __init__(self, plan: PushPlan) -> None:
        self._plan = plan
        self.workers = self.moved = 0
        self.sent: dict[str, dict[str, list[Array]]] = {}
        self._added = ReportSums()
        self._by_server = {address: ReportSums() for address in plan.names}
        self._running: dict[int, TaskProgress] = {}
        self._shown: Progress | None = None
        self._parts_again = 0
        self._contents: dict[int, tuple[Task, Names]] = {}
        self._aside = Copies()
        self._copies = 0
        self._ends = InOrder[Ended]()
        self._missed: list[str] = []  # titles of episodes whose ends are not their own, which their task could not know
        self._in_turn = InTurn[TaskDone]()
        self._holdings = ColumnStats.of(flatten(plan.step_spec))
        self._remarks: dict[Notice, None] = dict.fromkeys(plan.source.notices)

    @property
    def endings(self) -> Endings:
        """How the episodes ended of all tasks from the first to one that has not ended."""
        return self._ends.endings

    def items_made(self, address: str) -> Mapping[str, int]:
        """Table -> items of the tasks that have ended, on one server."""
        return self._by_server[address].counts["items_made"]

    def on_progress(self, task: Task, progress: TaskProgress) -> None:
        """A worker says how far it is with a task."""
        self._running[task.number] = progress

    def on_retry(self, task: Task) -> None:
        """A task was begun anew because its worker was lost."""
        self._parts_again += 1
        self.forget(task)

    def forget(self, task: Task) -> None:
        """A task will be begun anew: its progress counts no more."""
        self._running.pop(task.number, None)

    def on_done(self, task: Task, outcome: Outcome) -> None:
        """A task has ended, whole or not. Of one whose worker was lost at the end, the last progress counts."""
        running = self._running.pop(task.number, None)
        done: TaskDone | None = outcome.value
        if done is None and running is not None:
            done = TaskDone(running.report)
        if done is None:
            return
        self._add(done.report, self._added, self._by_server)
        self._take_sent(done)
        self._contents[task.number] = task, done.contents
        self._set_copies_aside(task, done)
        if done.holdings is not None:
            self._holdings = self._holdings.with_others(done.holdings)
        self._remarks.update(dict.fromkeys(done.notices))
        for one in self._in_turn.take(task, done):
            self._take_in_turn(one)

    def on_copies_done(self, task: Task, outcome: Outcome) -> None:
        """A task with copies that were set aside has ended; what has been said of their episodes by then holds."""
        running = self._running.pop(task.number, None)
        done: TaskDone | None = outcome.value
        if done is None and running is not None:
            done = TaskDone(running.report)
        if done is not None:
            self._add(done.report, self._added, self._by_server)
            self._take_sent(done)

    def _take_sent(self, done: TaskDone) -> None:
        for address, tables in done.sent.items():
            for table, keys in tables.items():
                self.sent.setdefault(address, {}).setdefault(table, []).extend(keys)

    def finish(self) -> None:
        """No task runs any more: what waited for tasks that were never begun waits no longer."""
        for done in self._in_turn.rest():
            self._take_in_turn(done)
        self._compare_ends()

    def check_names(self) -> None:
        """Counts the copies, once all tasks have ended.

        Raises:
          SourceError: two episodes of different tasks have one id that is no content's, so that their items have the same keys.
        """
        every = np.concatenate([NO_NAMES, *(contents for _, contents in self._contents.values())])
        repeated = repeated_ids(every)
        if len(repeated):
            where = [str(task) for _, (task, found) in sorted(self._contents.items()) if np.isin(found, repeated).any()]
            raise SourceError(
                f"{self._plan.source.name}: two episodes have one id, and their items the same keys, so that only those of one are stored: "
                f"one is among {' and one among '.join(where[:2])}. Ids must differ, or be left out: then episodes are named by their content"
            )
        self._copies = len(every) - len(np.unique(every))

    def copies(self, first_number: int) -> tuple[list[Task], dict[int, dict[int, int]]]:
        """Tasks with the episodes that were set aside, numbered from here, and task -> place -> the number of the copy that it is stored as."""
        tasks, copies = [], {}
        for number, (pushed, places) in enumerate(sorted(self._aside.numbered().items()), first_number):
            task, _ = self._contents[pushed]
            first, last = min(places), max(places)
            tasks.append(Task(number, task.start + first, task.start + last + 1))
            copies[number] = {place - first: copy for place, copy in places.items()}
        return tasks, copies

    def _set_copies_aside(self, task: Task, done: TaskDone) -> None:
        """Takes out of the account what another task has as well: it was sent under the same names, and is stored once.

        Later it comes as copies (`took_copies`), or counts as left out (`duplicates="once"`).
        """
        order = np.argsort(done.names, kind="stable")
        found: list[tuple[int, str, Array]] = []
        for address, rows in done.taken.items():
            places = order[np.searchsorted(done.names, rows[:, 0], sorter=order)]
            found += ((int(place), address, row) for place, row in zip(places, rows))
        found.sort(key=lambda one: one[0])
        is_aside = self._aside.take(task.number, ((place, int(done.contents[place])) for place, _, _ in found))
        for (_, address, row), is_copy in zip(found, is_aside):
            if is_copy:
                for added in (self._added, self._by_server[address]):
                    _take_out(added, row, self._plan.options)

    def report(
        self, seconds: float, new: Mapping[str, int | None], missing: Mapping[str, str] | None = None
    ) -> PushReport:
        """The account, including the progress of tasks that still run.

        Args:
          seconds: since the push began.
          new: address -> items that the server's tables did not have, None where that is not known; empty while nobody looked.
          missing: address -> why, of several servers.
        """
        added, servers = self._added.copy(), {address: one.copy() for address, one in self._by_server.items()}
        for one in self._running.values():
            self._add(one.report, added, servers)
        known = [count for count in new.values() if count is not None]
        return replace(
            report_of_nothing(self._plan),
            **added.fields(),
            items_new=sum(known) if new and len(known) == len(new) else None,
            notices=(*self._remarks, *self._holdings.notices, *self._missed_ends(), *duplicates_notice(self._copies)),
            episodes_unread=added.unread(self._plan.episodes),
            seconds=seconds,
            workers=self.workers,
            parts_again=self._parts_again,
            ends_found_late=len(self._missed),
            items_moved=self.moved,
            servers={
                address: replace(
                    report_of_nothing(self._plan),
                    **one.fields(),
                    items_new=new.get(address),
                    notices=self._plan.source.notices,
                    episodes_unread=None,
                    seconds=seconds,
                    stopped=(missing or {}).get(address, ""),
                )
                for address, one in (servers.items() if len(servers) > 1 else ())
            },
        )

    def progress(self, seconds: float) -> Progress:
        """How far all tasks are together, never less than before; it waits when every one waits."""
        running = [one.progress for one in self._running.values()]
        waits = [one for one in running if one.waiting]
        waiting = waits[0] if waits and len(waits) == len(running) else None
        done = self._added.sums
        now = Progress(
            done["episodes_read"] + done["episodes_resumed"] + sum(one.episodes for one in running),
            done["steps_read"] + sum(one.steps for one in running),
            self._plan.episodes,
            done["items_confirmed"] + sum(one.items_confirmed for one in running),
            done["bytes"] + sum(one.bytes for one in running),
            seconds,
            "" if waiting is None else waiting.waiting,
            () if waiting is None else waiting.held_by,
        )
        self._shown = now.no_less_than(self._shown)
        return self._shown

    def _add(self, report: PushReport, whole: ReportSums, servers: Mapping[str, ReportSums]) -> None:
        """Adds a task's account to the sums, and to those of its servers."""
        whole.add(report)
        for address, one in by_server(self._plan, report).items():
            servers[address].add(one)

    def _take_in_turn(self, done: TaskDone) -> None:
        for one in done.ends:
            if self._ends.add(one, one.ending):
                self._compare_ends()
        if done.quarantine:
            append_report(Path(str(self._plan.options.quarantine)), done.quarantine, "the rejected episodes of a part")

    def _compare_ends(self) -> None:
        """Compares what a task found with what one process would have found, which knows of every episode."""
        self._missed += (one.title for one, problems in self._ends.held() if problems and not one.was_found)

    def _missed_ends(self) -> tuple[Notice, ...]:
        if not self._missed:
            return ()
        count = len(self._missed)
        return (Notice("ends_found_late", _MISSED.format(counted(count, "episode"), self._missed[0]), count),)


def _take_out(added: ReportSums, row: Array, options: PushOptions) -> None:
    """Takes an episode out of the sums of what is stored; the row is one of `push.shard.Shard.taken_rows`."""
    is_resumed, steps, items = bool(row[1]), int(row[2]), list(map(int, row[3:]))
    is_left_out = options.duplicates == ONCE
    if is_resumed:
        added.sums["episodes_resumed"] -= not is_left_out
    else:
        added.sums["episodes_read"] -= not is_left_out
        added.sums["steps_read"] -= 0 if is_left_out else steps
        added.sums["episodes_duplicate"] += is_left_out
        added.sums["episodes_pushed"] -= 1
        added.sums["steps_pushed"] -= steps
        added.sums["items_confirmed"] -= sum(items)
    for table, count in zip(options.tables, items):
        added.counts["items_made"][table] -= count


_MISSED = (
    "{}, the first is {}, ended as episodes of other parts do, which was known too late: one process would not have stored them. Find "
    "them by validate, and take them out with the table, or mend the ends with last_observation"
)


_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
"""How often the tables are looked at, and progress is reported."""


class DistributedPush:
    """A push of one source by several workers; used as `push.run.Push`.

    Args:
      transports: address -> the way to a server that the plan was made for.
      plan: what is pushed, and how; made just before.
      endpoints: address -> the way to the same server as workers open it.
      executor: makes what runs the tasks of a job.
      most: episodes of a task.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        plan: PushPlan,
        endpoints: Mapping[str, Endpoint],
        executor: Callable[[Job], Executor],
        most: int = MOST_EPISODES,
    ) -> None:
        self._plan, self._servers = plan, PushServers(plan, transports)
        self._endpoints = Endpoints(plan.names, plan.allow_missing, endpoints, plan.infos)
        self._source = plan.asked_for if isinstance(plan.asked_for, NamedSource) else NamedSource(plan.asked_for)
        self._new_executor, self._most = executor, most
        self._began = time.monotonic()
        self._merged = Merged(plan)
        self._is_over = False  # all was pushed, and looked at

    def report(self) -> PushReport:
        """The account so far."""
        new = {address: self._servers.new_items(address) for address in self._plan.names} if self._is_over else {}
        return self._merged.report(time.monotonic() - self._began, new, self._servers.missing)

    def run(self) -> PushReport:
        """Has the source pushed, task by task, and waits until every item is confirmed.

        Whatever stops it, an interruption included, stops all workers, and has the account up to there as its attribute `report`.

        Raises:
          Rlds2ReverbError: as `push.run.Push.run`; of errors of the data, the one at the first episode.
          WorkersLost: a task's worker was lost again and again.
        """
        try:
            with ExitStack() as stack:
                self._push(stack)
        except BaseException as error:
            self._merged.finish()
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    def _push(self, stack: ExitStack) -> None:
        count, servers = self._plan.source.known_count(), self._servers
        servers.open_ledgers(stack)
        self._began = time.monotonic()
        with self._new_executor(self._job(count)) as executor:
            self._merged.workers = executor.workers
            servers.begin(executor.workers)
            tasks = _Tasks(self._plan, self._merged, servers, self._source)
            whole = split_tasks(count, executor.workers, self._most)
            tasks.run(executor, whole)
            self._merged.finish()
            self._merged.check_names()
            if (
                self._plan.options.duplicates == KEEP
            ):  # each task has counted its copies for itself, and two have given the same names
                tasks.run(executor, *self._merged.copies(first_number=len(whole)))
        servers.final_check()
        self._is_over = True
        self._merged.moved = servers.move(self._merged.sent)
        tasks.report_progress()

    def _job(self, count: int) -> PushJob:
        plan, options = self._plan, self._plan.options
        return PushJob(
            source=self._source,
            options=worker_options(options),
            tuning=plan.tuning,
            servers=self._endpoints,
            again=new_key_bits(options.again),
            ledgers=self._servers.known,
            wants_ends=ENDS_ALIKE not in options.allow,
            episodes=count,
            columns=columns_of(plan),
        )


def worker_options(options: PushOptions) -> PushOptions:
    """The options of workers: the same but for what is the business of the driver."""
    return replace(options, ledger=None, workers=None, ray=None, on_progress=ignored)


class _Tasks:
    """The tasks of a push as an undertaking; see `driver.Undertaking`."""

    def __init__(
        self,
        plan: PushPlan,
        merged: Merged,
        servers: PushServers,
        source: NamedSource,
    ) -> None:
        self._plan, self._merged, self._servers, self._source = plan, merged, servers, source
        self._began = time.monotonic()
        self._left = deque[Task]()
        self._copies: Mapping[int, Mapping[int, int]] = {}
        self._looked_at = time.monotonic()

    def run(
        self,
        executor: Executor,
        tasks: Collection[Task],
        copies: Mapping[int, Mapping[int, int]] = MappingProxyType({}),
    ) -> None:
        """Has tasks run; raises as `Driver.run`.

        Args:
          executor: runs them.
          tasks: all of the push, in order.
          copies: number of a task -> place -> number of a copy: of tasks that were pushed, and of which only these are pushed once more.
        """
        self._left, self._copies = deque(tasks), copies
        Driver(executor, self, self.look).run()
        assert not self._left  # else episodes would be missing from the account

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The next task that a budget can be found for."""
        if not self._left:
            return None
        given = self._servers.give(self._left[0])
        if given is Refusal.LATER or (given is Refusal.ALONE and running):
            return None
        task = self._left.popleft()
        if not isinstance(given, Refusal):
            return replace(task, terms=self._terms(task, given))
        self._servers.leave_alone()
        task = task if self._copies else self._with_rest(task)
        return replace(task, terms=self._terms(task, None))

    def on_progress(self, task: Task, progress: TaskProgress) -> None:
        self._merged.on_progress(task, progress)

    def on_retry(self, task: Task, why: str) -> None:
        self._merged.on_retry(task)
        _log.warning("%s; another one has begun it anew", why)

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        is_exceeded = isinstance(outcome.error, BudgetExceeded)
        report = None if outcome.value is None else outcome.value.report
        if task.terms.budgets is None:
            self._servers.come_back(report)
        else:
            self._servers.take_back(task, report, is_exceeded)
        if outcome.value is not None:
            self._servers.record(outcome.value.rows)
        if is_exceeded:
            self._merged.forget(task)
            self._left.appendleft(replace(task, terms=None))
            return True
        if self._copies:
            self._merged.on_copies_done(task, outcome)
        else:
            self._merged.on_done(task, outcome)
        if outcome.value is not None:
            if not self._copies:
                self._source.add(outcome.value.tallies)
            self._servers.lose(outcome.value.report)
        self._check_sizes()
        return False

    def look(self) -> None:
        """Looks at the tables, and reports progress; a few times per second, however often it is called."""
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._servers.look()
            self.report_progress()

    def report_progress(self) -> None:
        self._plan.options.on_progress(self._merged.progress(time.monotonic() - self._began))

    def _terms(self, task: Task, places: Mapping[str, Mapping[str, int]] | None) -> Terms:
        return Terms(places, self._merged.endings, dict(self._servers.missing), self._copies.get(task.number))

    def _with_rest(self, task: Task) -> Task:
        """The task together with those that come right after it: what has the tables to itself is one push, not many."""
        while self._left and self._left[0].start == task.stop:
            task = replace(task, stop=self._left.popleft().stop)
        return task

    def _check_sizes(self) -> None:
        """Refuses a push that turns out to be larger than a table."""
        if self._plan.options.allow_eviction:
            return
        for address in self._plan.infos:
            self._servers.check_sizes(address, self._merged.items_made(address))


def distributed(transports: Mapping[str, Transport], plan: PushPlan) -> DistributedPush:
    """A push by the workers that the plan's options name.

    Args:
      transports: address -> the way to a server that the plan was made for.
      plan: what is pushed, and how; made just before.

    Raises:
      ConfigError: workers cannot be told how to reach a server, or the library Ray is missing.
    """
    endpoints = {address: endpoint_of(transports[address]) for address in plan.infos}
    return DistributedPush(transports, plan, endpoints, executor_of(plan.options.workers, plan.options.ray))
