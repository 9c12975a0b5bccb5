"""A push by workers: one plan, one ledger, one report.

A worker opens the source by its name, and pushes the episodes of a task with `push.run.Push`. Only the driver writes the ledger, when a
task has ended and its worker has returned what was confirmed. So a worker that repeats the task of a lost one, perhaps on another
machine, finds no half-written ledger, and workers need no shared file. Items that a lost worker had stored are sent again, which item
keys make harmless.

A task begins with a call to every server: between two tasks no stream is open that would break, so a restart, after which confirmed items
may be gone, would go unnoticed.
"""

from __future__ import annotations

import logging
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import NO_NAMES, Array, Copies, Episode, Names, Notice, repeated_ids
from rlds2reverb.errors import Rlds2ReverbError, SourceError, keep_report, reason_of, report_of
from rlds2reverb.files import writing
from rlds2reverb.fleet.budget import FleetBudgets, Refusal, reports_by_server
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.formats.source import Tally
from rlds2reverb.prepare.endings import Ending, Endings, InOrder, ending_of, with_problems_of_ends
from rlds2reverb.prepare.policy import QUARANTINE, append_report
from rlds2reverb.prepare.preparation import ColumnStats, duplicates_notice
from rlds2reverb.prepare.problems import ENDS_ALIKE, Problem
from rlds2reverb.prepare.progress import Pace, Progress
from rlds2reverb.push.capacity import BudgetExceeded
from rlds2reverb.push.keys import new_key_bits
from rlds2reverb.push.ledger import MemoryLedger, SqliteLedger
from rlds2reverb.push.options import KEEP, ONCE, PushOptions
from rlds2reverb.push.plan import PushPlan, Tuning, plan_push, push_servers, report_of_nothing
from rlds2reverb.push.report import PushReport, ReportSums, sum_if_known
from rlds2reverb.push.run import Push, move_items
from rlds2reverb.push.server_push import TaskContext, open_ledgers
from rlds2reverb.push.tables import check_size
from rlds2reverb.servers.group import Server
from rlds2reverb.specs import flatten
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.grpc import Endpoint, endpoint_of
from rlds2reverb.wire.messages import ServerInfo
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
from rlds2reverb.workers.processes import choose_executor


class EndedEpisode(NamedTuple):
    title: str  # of the episode
    ending: Ending | None  # None if it cannot be compared with those of other episodes
    was_found: bool  # whether its task found that another episode ends alike


@dataclass(frozen=True)
class TaskProgress:
    progress: Progress
    report: PushReport


@dataclass(frozen=True)
class TaskDone:
    """The outcome of a task.

    Attributes:
      rows: address -> per output, (episode, items over all tables) of confirmed episodes; () without a ledger.
      contents, names: see `push.keys.EpisodeNames`.
      taken: address -> `push.server_push.Account.taken_rows`.
      ends: how each episode ended; () if that is not needed.
      columns: column stats; None if the worker was lost.
      notices: of the source.
      quarantine: lines for the report of bad episodes.
      sent: address -> table -> keys of the items sent, with `move`.
      tallies: of the parts of a mix.
    """

    report: PushReport
    rows: Mapping[str, Sequence[list[tuple[str, int]]]] = field(default_factory=dict)
    contents: Names = field(default_factory=lambda: NO_NAMES)
    names: Names = field(default_factory=lambda: NO_NAMES)
    taken: Mapping[str, Array] = field(default_factory=dict)
    ends: tuple[EndedEpisode, ...] = ()
    columns: ColumnStats | None = None
    notices: tuple[Notice, ...] = ()
    quarantine: str = ""
    sent: Mapping[str, Mapping[str, list[Array]]] = field(default_factory=dict)
    tallies: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class PushJob:
    """What every worker of a push gets.

    Attributes:
      source: opened by each worker.
      options: as of `PushOptions.for_worker`.
      names, allow_missing: of the plan.
      endpoints, infos: address -> how to reach it, and its tables, of servers that could be reached when the push began.
      again: 64 bits of new keys, the same for all workers; None without `again`.
      ledgers: address -> one per output, of missing servers as well; () without a ledger.
      wants_ends: whether `TaskDone.ends` is needed.
      episodes, columns: of the source as the driver sees it, to be compared.
    """

    source: NamedSource
    options: PushOptions
    tuning: Tuning
    names: Mapping[str, str]
    allow_missing: bool
    endpoints: Mapping[str, Endpoint]
    infos: Mapping[str, ServerInfo]
    again: int | None
    ledgers: Mapping[str, Sequence[MemoryLedger]]
    wants_ends: bool
    episodes: int
    columns: tuple[tuple[str, str], ...]

    @contextmanager
    def open(self) -> Iterator[PushWork]:
        """Opens the source, and a connection to every server.

        Raises:
          SourceError: the source cannot be opened on this machine, or is another dataset here.
          ConfigError: an address means another server on this machine.
          TransportError: a server does not answer.
        """
        source, options = self.source.open(), self.options
        if options.quarantine is not None:  # a path that any machine can write: each task gets a file of its own
            options = replace(options, quarantine=Path(tempfile.gettempdir()) / "quarantine")
        plan = plan_push(source, options, lambda: self.infos, self.names, self.allow_missing, self.tuning)
        if plan.episodes != self.episodes or columns_of(plan) != self.columns:
            raise SourceError(
                f"{plan.source.name}: is another dataset on {socket.gethostname()} ({plan.episodes} episodes) than where the push was started "
                f"({self.episodes}); every machine needs the same files at the same place"
            )
        with ExitStack() as stack:
            endpoints = self.endpoints.items()
            transports = {address: stack.enter_context(closing(endpoint.open())) for address, endpoint in endpoints}
            yield PushWork(self, plan, transports)


class PushWork:
    """A worker's source and connections, for one task after the other."""

    def __init__(self, job: PushJob, plan: PushPlan, transports: Mapping[str, Transport]) -> None:
        self._job, self._plan, self._transports = job, plan, transports
        self._servers = push_servers(plan, transports)

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        """Pushes a task, whose terms are a `TaskContext`.

        Raises:
          ServerRestarted: another server process answers than at the start of the push.
          ServerUnreachable: a server does not answer.
        """
        context: TaskContext = task.terms
        servers = self._servers
        servers.add_lost(context.missing)
        for server in servers.there:
            with servers.about(server):
                server.info = server.check_process(self._plan.tuning.deadlines)
        plan = self._plan
        if context.budgets is None:  # the task has the tables to itself, and begins with them as they are now
            infos = {server.address: server.info for server in servers if server.info is not None}
            plan = replace(plan, infos=infos)
        context = replace(context, missing=servers.missing, again=self._job.again)
        with writing(f"temporary folder in {tempfile.gettempdir()}", "have TMPDIR name a folder with room"):
            folder = tempfile.TemporaryDirectory(prefix="rlds2reverb-")
        with folder as name:
            task_run = _TaskRun(self._job, self._transports, plan, context, task, on_progress, Path(name))
            outcome = task_run.outcome()
        for server in servers.there:
            if (report := outcome.value.report.servers.get(server.address)) is not None:
                server.missing = report.stopped
        return outcome


class _TaskRun:
    """The push of one task, and what the driver gets of it."""

    def __init__(
        self,
        job: PushJob,
        transports: Mapping[str, Transport],
        plan: PushPlan,
        context: TaskContext,
        task: Task,
        on_progress: SendProgress,
        folder: Path,
    ) -> None:
        self._job, self._quarantine = job, folder / "quarantine"
        self._source = plan.source.slice(task.start, task.stop)
        self._ledgers = {
            address: tuple(MemoryLedger(ledger.confirmed, ledger.here) for ledger in ledgers)
            for address, ledgers in job.ledgers.items()
        }
        self._ends: list[EndedEpisode] = []
        self._context = replace(context, ledgers=self._ledgers)
        options = replace(
            plan.options, on_progress=lambda progress: on_progress(TaskProgress(progress, self._push.report()))
        )
        if options.on_invalid == QUARANTINE:
            options = replace(options, quarantine=self._quarantine)
        ready = replace(plan.ready, source=self._source, options=options)
        self._push = Push(transports, replace(plan, ready=ready, options=options), self._context, self._reading)

    def outcome(self) -> Outcome:
        try:
            report, error = self._push.run(), None
        except BaseException as failure:
            report, error = report_of(failure, PushReport) or self._push.report(), failure
        return Outcome(self._done(report), error)

    def _done(self, report: PushReport) -> TaskDone:
        accounts = {part.server.address: part.account for part in self._push.parts}
        return TaskDone(
            report,
            rows={address: [ledger.rows for ledger in ledgers] for address, ledgers in self._ledgers.items()},
            contents=self._push.names.contents,
            names=self._push.names.names,
            taken={address: account.taken_rows for address, account in accounts.items()},
            ends=tuple(self._ends),
            columns=self._push.columns,
            notices=self._source.notices,
            quarantine=self._quarantine.read_text("utf-8") if self._quarantine.exists() else "",
            sent={address: account.sent_keys for address, account in accounts.items() if account.sent_keys},
            tallies=self._job.source.tallies,
        )

    def _reading(self, episodes: Iterable[Episode]) -> Iterator[tuple[Episode, list[Problem]]]:
        """Episodes of the task, with the problems that known episodes before them show."""
        conventions = self._job.options.conventions
        if not self._job.wants_ends or self._context.copies is not None:  # copies end as the episodes that they equal
            yield from ((episode, []) for episode in episodes)
            return
        endings = dict[str, "Ending | None"]()

        def ending(episode: Episode) -> Ending | None:
            own = ending_of(episode, conventions)
            endings[episode.id] = None if own is None else own.for_others(episode)
            return endings[episode.id]

        for episode, problems in with_problems_of_ends(episodes, endings=self._context.endings, ending=ending):
            self._ends.append(EndedEpisode(episode.title, endings.pop(episode.id), bool(problems)))
            yield episode, problems


def columns_of(plan: PushPlan) -> tuple[tuple[str, str], ...]:
    """(path, spec) of the step columns, to be compared between machines."""
    return tuple((path, str(spec)) for path, spec in flatten(plan.step_spec).items())


class MergedReport:
    """The report of a distributed push, merged from its tasks.

    Attributes:
      workers: number of tasks at a time.
      moved: items deleted from servers where they do not belong any more.
      sent: address -> table -> keys of the items sent, with `move`.
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
        self._ends = InOrder[EndedEpisode]()
        self._missed: list[str] = []  # titles for the notice `ends_found_late`
        self._in_turn = InTurn[TaskDone]()
        self._columns = ColumnStats.of(flatten(plan.step_spec))
        self._notices: dict[Notice, None] = dict.fromkeys(plan.notices)

    @property
    def endings(self) -> Endings:
        """Endings of the episodes of all tasks before the first that has not ended."""
        return self._ends.endings

    def items_made(self, address: str) -> Mapping[str, int]:
        """Table -> items on one server, of the tasks that have ended."""
        return self._by_server[address].counts["items_made"]

    def on_progress(self, task: Task, progress: TaskProgress) -> None:
        self._running[task.number] = progress

    def on_retry(self, task: Task) -> None:
        """A task begins again because its worker was lost."""
        self._parts_again += 1
        self.forget(task)

    def forget(self, task: Task) -> None:
        """Drops the progress of a task that will begin again."""
        self._running.pop(task.number, None)

    def on_done(self, task: Task, outcome: Outcome, is_of_copies: bool) -> None:
        """A task has ended, completely or not. If its worker was lost at the end, its last progress counts."""
        running = self._running.pop(task.number, None)
        done: TaskDone | None = outcome.value
        if done is None and running is not None:
            done = TaskDone(running.report)
        if done is None:
            return
        self._add(done.report, self._added, self._by_server)
        for address, tables in done.sent.items():
            for table, keys in tables.items():
                self.sent.setdefault(address, {}).setdefault(table, []).extend(keys)
        if is_of_copies:  # the rest is known from the task that set the copies aside
            return
        self._contents[task.number] = task, done.contents
        self._set_copies_aside(task, done)
        if done.columns is not None:
            self._columns = self._columns.with_others(done.columns)
        self._notices.update(dict.fromkeys(done.notices))
        for due in self._in_turn.take(task, done):
            self._take_in_turn(due)

    def finish(self) -> None:
        """No task runs any more: takes in outcomes that waited for tasks that never began."""
        for done in self._in_turn.rest():
            self._take_in_turn(done)
        self._compare_ends()

    def check_names(self) -> None:
        """Counts copies after the last task."""
        every = np.concatenate([NO_NAMES, *(contents for _, contents in self._contents.values())])
        repeated = repeated_ids(every)
        if len(repeated):
            where = [
                task.start + int(place)
                for _, (task, contents) in sorted(self._contents.items())
                for place in np.flatnonzero(contents == repeated[0])
            ]
            first, second = (next(self._plan.source.episodes(place, place + 1)).title for place in where[:2])
            identity = self._plan.options.identity
            kind = "id" if identity is None else f"identity ({identity})"
            raise SourceError(
                f"{self._plan.source.name}: two episodes have one {kind}, and their items the same keys, so that only those of one are stored: "
                f"{first} (number {where[0]:,}) and {second} (number {where[1]:,}). They must differ, or be left out: then episodes are named by "
                "their content"
            )
        self._copies = len(every) - len(np.unique(every))

    def copies(self, first_number: int) -> tuple[list[Task], dict[int, dict[int, int]]]:
        """Tasks for the episodes that were set aside, and task number -> position -> number of the copy that it is stored as."""
        tasks, copies = [], {}
        for number, (pushed, places) in enumerate(sorted(self._aside.numbered().items()), first_number):
            task, _ = self._contents[pushed]
            first, last = min(places), max(places)
            tasks.append(Task(number, task.start + first, task.start + last + 1))
            copies[number] = {place - first: copy for place, copy in places.items()}
        return tasks, copies

    def _set_copies_aside(self, task: Task, done: TaskDone) -> None:
        """Subtracts episodes that another task has sent under the same names, so that they are stored once.

        They are pushed later as copies (`copies`), or count as duplicates (`duplicates="once"`).
        """
        order = np.argsort(done.names, kind="stable")
        taken: list[tuple[int, str, Array]] = []  # (place in the task, server, row of `taken_rows`)
        for address, rows in done.taken.items():
            places = order[np.searchsorted(done.names, rows[:, 0], sorter=order)]
            taken += ((int(place), address, row) for place, row in zip(places, rows))
        taken.sort(key=lambda episode: episode[0])
        is_aside = self._aside.take(task.number, ((place, int(done.contents[place])) for place, _, _ in taken))
        for (_, address, row), is_copy in zip(taken, is_aside):
            if is_copy:
                for added in (self._added, self._by_server[address]):
                    _take_out(added, row, self._plan.options)

    def report(
        self, seconds: float, new: Mapping[str, int | None], missing: Mapping[str, str] | None = None
    ) -> PushReport:
        """The report, including the progress of running tasks.

        Args:
          new: address -> items that the server's tables did not have, None if unknown; empty before the final check.
          missing: address -> reason, of lost servers.
        """
        added, servers = deepcopy((self._added, self._by_server))
        for running in self._running.values():
            self._add(running.report, added, servers)
        return replace(
            report_of_nothing(self._plan),
            **added.fields(),
            items_new=sum_if_known(new.values()) if new else None,
            notices=(*self._notices, *self._columns.notices, *self._missed_ends(), *duplicates_notice(self._copies)),
            episodes_unread=added.unread(self._plan.episodes),
            seconds=seconds,
            workers=self.workers,
            parts_again=self._parts_again,
            ends_found_late=len(self._missed),
            items_moved=self.moved,
            servers={
                address: replace(
                    report_of_nothing(self._plan),
                    **sums.fields(),
                    items_new=new.get(address),
                    notices=self._plan.source.notices,
                    episodes_unread=None,
                    seconds=seconds,
                    stopped=(missing or {}).get(address, ""),
                )
                for address, sums in (servers.items() if len(servers) > 1 else ())
            },
        )

    def progress(self, seconds: float) -> Progress:
        """Progress of all tasks, never less than before; it waits when every running task waits."""
        running = [task.progress for task in self._running.values()]
        waits = [progress for progress in running if progress.waiting]
        waiting = waits[0] if waits and len(waits) == len(running) else None
        done = self._added.sums
        now = Progress(
            done["episodes_read"] + done["episodes_resumed"] + sum(progress.episodes for progress in running),
            done["steps_read"] + sum(progress.steps for progress in running),
            self._plan.episodes,
            done["items_confirmed"] + sum(progress.items_confirmed for progress in running),
            done["bytes"] + sum(progress.bytes for progress in running),
            seconds,
            "" if waiting is None else waiting.waiting,
            () if waiting is None else waiting.held_by,
        )
        self._shown = now.no_less_than(self._shown)
        return self._shown

    def _add(self, report: PushReport, whole: ReportSums, servers: Mapping[str, ReportSums]) -> None:
        whole.add(report)
        for address, own in reports_by_server(self._plan, report).items():
            servers[address].add(own)

    def _take_in_turn(self, done: TaskDone) -> None:
        for ended in done.ends:
            if self._ends.add(ended, ended.ending):
                self._compare_ends()
        if done.quarantine:
            append_report(Path(str(self._plan.options.quarantine)), done.quarantine, "the rejected episodes of a part")

    def _compare_ends(self) -> None:
        """Finds episodes that one process, which knows all episodes before, would have rejected."""
        self._missed += (ended.title for ended, problems in self._ends.held() if problems and not ended.was_found)

    def _missed_ends(self) -> tuple[Notice, ...]:
        if not self._missed:
            return ()
        count = len(self._missed)
        return (Notice("ends_found_late", _MISSED.format(counted(count, "episode"), self._missed[0]), count),)


def _take_out(added: ReportSums, row: Array, options: PushOptions) -> None:
    """Subtracts a stored episode from the sums; `row` is one of `push.server_push.Account.taken_rows`."""
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
    "{}, the first is {}, ended as episodes of other tasks do, which their worker did not know in time: one process would have rejected "
    "them. Find them with validate, and empty the table, or repair the ends with last_observation"
)


_log = logging.getLogger(__name__)

_GRACE_SECONDS = 10.0  # for a worker to say itself that its server confirms nothing, or is lost


class DistributedPush:
    """A push of one source by workers: a `push.run.RunnablePush`, whose tasks are a `workers.driver.Undertaking`.

    Args:
      transports: address -> transport of the driver.
      endpoints: address -> how workers reach the same server.
      executor: makes the executor of a job.
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
        self._plan, self._servers = plan, push_servers(plan, transports, on_lost=_warn)
        self._ledgers: dict[str, tuple[SqliteLedger, ...]] = {}
        self._budgets: FleetBudgets | None = None  # until the executor says how many workers there are
        self._endpoints = endpoints
        self._source = plan.asked_for if isinstance(plan.asked_for, NamedSource) else NamedSource(plan.asked_for)
        self._new_executor, self._most = executor, most
        self._began = time.monotonic()
        self._merged = MergedReport(plan)
        self._is_over = False  # everything was pushed and checked
        self._left = deque[Task]()
        # Task -> the only episodes of it to push; see `MergedReport.copies`.
        self._copies: Mapping[int, Mapping[int, int]] = {}
        self._pace = Pace()
        self._driver: Driver | None = None  # of the tasks that run

    def report(self) -> PushReport:
        new: dict[str, int | None] = {}
        if self._is_over:
            new = {server.address: self._begun_budgets.new_items(server) for server in self._servers}
        return self._merged.report(time.monotonic() - self._began, new, self._servers.missing)

    def run(self) -> PushReport:
        """Has workers push all tasks, and waits until every item is confirmed.

        An error or interruption stops all workers, and has the report up to there as its attribute `report`.

        Raises:
          Rlds2ReverbError: as `push.run.Push.run`; of errors of the data, the one at the first episode.
          WorkersLost: a task's workers were lost again and again.
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
        self._ledgers = {server.address: open_ledgers(self._plan, server, stack) for server in servers}
        self._began = time.monotonic()
        with self._new_executor(self._job(count)) as executor:
            self._merged.workers = executor.workers
            self._budgets = FleetBudgets(self._plan, servers, executor.workers)
            whole = split_tasks(count, executor.workers, self._most)
            self._run_tasks(executor, whole, {})
            self._merged.finish()
            self._merged.check_names()
            if self._plan.options.duplicates == KEEP:
                # Each task has numbered its copies by itself, so two tasks may have used the same names.
                self._run_tasks(executor, *self._merged.copies(first_number=len(whole)))
        self._plan.source.check_files()  # each worker has opened them for itself
        self._begun_budgets.final_check()
        self._is_over = True
        sent_keys = {server: self._merged.sent.get(server.address, {}) for server in servers}
        self._merged.moved = move_items(servers, sent_keys)
        self._report_progress()

    def _run_tasks(self, executor: Executor, tasks: Collection[Task], copies: Mapping[int, Mapping[int, int]]) -> None:
        self._left, self._copies = deque(tasks), copies
        # A worker whose server is silent says so itself before that time: only one that hangs is replaced.
        deadlines = self._plan.tuning.deadlines
        most_silent_seconds = max(deadlines.stall, deadlines.reconnect) + _GRACE_SECONDS
        self._driver = Driver(executor, self, self._look, most_silent_seconds)
        self._driver.run()
        assert not self._left  # else episodes would be missing from the report

    def _job(self, count: int) -> PushJob:
        plan, options = self._plan, self._plan.options
        return PushJob(
            source=self._source,
            options=options.for_worker(),
            tuning=plan.tuning,
            names=plan.names,
            allow_missing=plan.allow_missing,
            endpoints=self._endpoints,
            infos=plan.infos,
            again=new_key_bits(options.again),
            ledgers={
                address: [MemoryLedger(ledger.confirmed, ledger.here) for ledger in ledgers]
                for address, ledgers in self._ledgers.items()
            },
            wants_ends=ENDS_ALIKE not in options.allow,
            episodes=count,
            columns=columns_of(plan),
        )

    # The undertaking of the driver.

    def next_task(self, running: Collection[Task]) -> Task | None:
        if not self._left:
            return None
        granted = self._begun_budgets.grant(self._left[0])
        if granted is Refusal.LATER or (granted is Refusal.ALONE and running):
            return None
        task = self._left.popleft()
        if not isinstance(granted, Refusal):
            return replace(task, terms=self._terms(task, granted))
        self._begun_budgets.begin_exclusive()
        # With the tables to itself it takes the tasks right after it as well, so that they are one push and not many.
        if not self._copies:
            while self._left and self._left[0].start == task.stop:
                task = replace(task, stop=self._left.popleft().stop)
        return replace(task, terms=self._terms(task, None))

    def on_progress(self, task: Task, progress: TaskProgress) -> None:
        self._merged.on_progress(task, progress)

    def on_retry(self, task: Task, why: str) -> None:
        self._merged.on_retry(task)
        _log.warning("%s; another worker repeats the task", why)

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        is_exceeded = isinstance(outcome.error, BudgetExceeded)
        report = None if outcome.value is None else outcome.value.report
        if task.terms.budgets is None:
            self._begun_budgets.end_exclusive(report)
        else:
            self._begun_budgets.release(task, report, is_exceeded)
        if outcome.value is not None:
            for address, outputs in outcome.value.rows.items():
                for ledger, rows in zip(self._ledgers[address], outputs):
                    ledger.record(rows)
        if is_exceeded:
            self._merged.forget(task)
            self._left.appendleft(replace(task, terms=None))
            return True
        self._merged.on_done(task, outcome, is_of_copies=bool(self._copies))
        if outcome.value is not None:
            if not self._copies:
                self._source.add(outcome.value.tallies)
            reports = outcome.value.report.servers.items()
            for server in self._servers.add_lost(
                {address: report.stopped for address, report in reports if report.stopped}
            ):
                _warn(server, server.missing)
        self._check_sizes()
        return False

    def _check_sizes(self) -> None:
        """Raises CapacityError if the push made more items for a server than a table holds."""
        if self._plan.options.allow_eviction:
            return
        for server in self._servers:
            if server.is_connected:
                made = self._merged.items_made(server.address)
                for output in self._plan.options.outputs:
                    items = max(made.get(table, 0) for table in output.tables)
                    with self._servers.about(server):
                        check_size(output, self._plan.infos[server.address], items, f"more than {items - 1}")

    def _look(self) -> None:
        if self._pace.is_due():
            self._begun_budgets.look()
            self._report_progress()

    def _report_progress(self) -> None:
        progress = self._merged.progress(time.monotonic() - self._began)
        silent = "" if self._driver is None else self._driver.silent
        self._plan.options.on_progress(replace(progress, waiting=silent) if silent else progress)

    def _terms(self, task: Task, places: Mapping[str, Mapping[str, int]] | None) -> TaskContext:
        return TaskContext(places, self._servers.missing, self._copies.get(task.number), self._merged.endings)

    @property
    def _begun_budgets(self) -> FleetBudgets:
        assert self._budgets is not None  # used only once the executor runs
        return self._budgets


def _warn(server: Server, why: Rlds2ReverbError | str) -> None:
    _log.warning("server %s is missing; the push continues without it: %s", server.address, why)


def distribute_push(transports: Mapping[str, Transport], plan: PushPlan) -> DistributedPush:
    """A push by the workers that the plan's options name."""
    endpoints = {address: endpoint_of(transports[address]) for address in plan.infos}
    return DistributedPush(transports, plan, endpoints, choose_executor(plan.options.workers, plan.options.ray))
