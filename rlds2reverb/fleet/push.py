"""A push by workers: one plan, one ledger, one report.

    DistributedPush   the driver: gives out tasks, and takes in what they have done
      FleetBudgets      how many items a task may store on each server (`fleet.budget`)
      MergedReport      what all tasks have done (`fleet.report`)
    PushJob           what every worker gets (`fleet.tasks`)

Only the driver writes the ledger, when a task has ended and its worker has returned what was confirmed. So a worker that repeats the task
of a lost one, perhaps on another machine, finds no half-written ledger, and workers need no shared file. Items that a lost worker had
stored are sent again, which item keys make harmless.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace

from rlds2reverb.errors import Rlds2ReverbError, keep_report, reason_of
from rlds2reverb.fleet.budget import FleetBudgets, Refusal
from rlds2reverb.fleet.report import MergedReport
from rlds2reverb.fleet.tasks import PushJob, TaskProgress, columns_of
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.prepare.problems import ENDS_ALIKE
from rlds2reverb.prepare.progress import Pace
from rlds2reverb.push.capacity import BudgetExceeded
from rlds2reverb.push.journal import PushJournal
from rlds2reverb.push.keys import new_key_bits
from rlds2reverb.push.ledger import MemoryLedger, SqliteLedger
from rlds2reverb.push.options import KEEP
from rlds2reverb.push.plan import PushPlan, push_servers
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import move_items
from rlds2reverb.push.server_push import TaskContext, open_ledgers
from rlds2reverb.push.tables import check_size
from rlds2reverb.servers.episodes import Deletions, gather_deletions
from rlds2reverb.servers.group import Server
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.grpc import Endpoint, endpoint_of
from rlds2reverb.workers.driver import MOST_EPISODES, Driver, Executor, Job, Outcome, Task, split_tasks
from rlds2reverb.workers.processes import choose_executor

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
        self._deletions = Deletions()
        self._budgets: FleetBudgets | None = None  # until the executor says how many workers there are
        self._endpoints = endpoints
        self._source = plan.asked_for if isinstance(plan.asked_for, NamedSource) else NamedSource(plan.asked_for)
        self._new_executor, self._most = executor, most
        self._began = time.monotonic()
        self._merged = MergedReport(plan)
        self._journal = PushJournal("push", plan, self._servers, self.report)
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
        report = self._merged.report(time.monotonic() - self._began, new, self._servers.missing)
        return replace(report, notices=(*report.notices, *self._journal.notices, *self._deletions.notices))

    def run(self) -> PushReport:
        """Has workers push all tasks, and waits until every item is confirmed.

        An error or interruption stops all workers, and has the report up to there as its attribute `report`.

        Raises:
          Rlds2ReverbError: as `push.run.Push.run`; of errors of the data, the one at the first episode.
          WorkersLost: a task's workers were lost again and again.
        """
        try:
            with ExitStack() as stack, self._journal.kept():
                self._push(stack)
        except BaseException as error:
            self._merged.finish()
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    def _push(self, stack: ExitStack) -> None:
        count, servers = self._plan.source.known_count(), self._servers
        self._deletions = gather_deletions(servers, self._plan.infos, self._plan.tuning.deadlines.stall)
        self._ledgers = {server.address: open_ledgers(self._plan, server, stack, self._deletions) for server in servers}
        self._began = time.monotonic()
        with self._new_executor(self._job(count)) as executor:
            self._merged.workers = executor.workers
            self._budgets = FleetBudgets(self._plan, servers, executor.workers)
            self._journal.wait_begun()
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
        for moved in move_items(servers, sent_keys):
            self._merged.moved += moved
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
            push_ids=self._journal.push_ids,
            deletions=self._deletions,
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
                items_made = self._merged.items_made(server.address)
                for output in self._plan.options.outputs:
                    for table in output.tables:
                        items = items_made.get(table, 0)
                        with self._servers.about(server):
                            info = self._plan.infos[server.address]
                            check_size(replace(output, tables=(table,)), info, items, f"more than {items - 1}")

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
