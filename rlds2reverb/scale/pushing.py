"""A push by several workers: one plan, one ledger, one report, whoever pushes which part.

The ledger is written here alone, when a part has ended: its worker hands back what was confirmed. So a worker that begins the part of a
lost one anew, perhaps on another machine, never meets half of a ledger; and no file has to be reached from everywhere. What a lost
worker had stored is sent again, which item keys make harmless.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace

from rlds2reverb.errors import keep_report, reason_of
from rlds2reverb.push.names import bits_of
from rlds2reverb.push.options import KEEP, PushOptions, unheard
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.room import BudgetExceeded
from rlds2reverb.scale.choosing import executor_of
from rlds2reverb.scale.driving import Driver
from rlds2reverb.scale.executor import Executor, Job
from rlds2reverb.scale.merging import Merged
from rlds2reverb.scale.places import Refusal
from rlds2reverb.scale.push_job import PushJob, TaskProgress, Terms, columns_of
from rlds2reverb.scale.servers import Connected, PushServers
from rlds2reverb.scale.sources import Named
from rlds2reverb.scale.tasks import MOST_EPISODES, Outcome, Task, divided
from rlds2reverb.sources.base import known_count
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.way import way_of
from rlds2reverb.validation.problems import ENDS_ALIKE

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
"""How often the tables are looked at, and progress is told."""


class DistributedPush:
    """A push of one source by several workers; used as `push.run.Push`.

    Args:
      servers: that the plan was made for.
      plan: what is pushed, and how; made just before.
      executor: makes what runs the tasks of a job.
      most: episodes of a task.
    """

    def __init__(
        self,
        servers: PushServers,
        plan: PushPlan,
        executor: Callable[[Job], Executor],
        most: int = MOST_EPISODES,
    ) -> None:
        self._servers, self._plan = servers, plan
        self._source = plan.asked_for if isinstance(plan.asked_for, Named) else Named(plan.asked_for)
        self._new_executor, self._most = executor, most
        self._began = time.monotonic()
        self._merged = Merged(plan)
        self._is_over = False  # all was pushed, and looked at

    def report(self) -> PushReport:
        """The account so far."""
        new = {address: self._servers.new_items(address) for address in self._plan.names} if self._is_over else {}
        return self._merged.report(time.monotonic() - self._began, new, self._servers.missing)

    def run(self) -> PushReport:
        """Has the source pushed, part by part, and waits until every item is confirmed.

        Whatever stops it, an interruption included, stops all workers, and has the account up to there as its attribute `report`.

        Raises:
          Rlds2ReverbError: as `push.run.Push.run`; of errors of the data, the one at the first episode.
          WorkersLost: a part's worker was lost again and again.
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
        count, servers = known_count(self._plan.source), self._servers
        servers.open_ledgers(stack)
        self._began = time.monotonic()
        with self._new_executor(self._job(count)) as executor:
            self._merged.workers = executor.workers
            servers.begin(executor.workers)
            tasks = divided(count, executor.workers, self._most)
            parts = _Parts(self._plan, tasks, self._merged, servers, self._source)
            Driver(executor, parts, parts.look).run()
            assert parts.is_all_begun  # else episodes would be missing, and nobody told
            self._merged.finish()
            self._merged.check_names()
            if self._plan.options.duplicates == KEEP:
                self._push_copies(executor, parts, first_number=len(tasks))
        servers.final_check()
        self._is_over = True
        self._merged.moved = servers.move(self._merged.sent)
        parts.tell()

    def _push_copies(self, executor: Executor, parts: _Parts, first_number: int) -> None:
        """Has copies stored that were set aside: each part has counted for itself, and two have given the same names."""
        tasks, copies = [], {}
        for number, (task, places) in enumerate(self._merged.copies(), first_number):
            first, last = min(places), max(places)
            tasks.append(Task(number, task.start + first, task.start + last + 1))
            copies[number] = {place - first: copy for place, copy in places.items()}
        if tasks:
            parts.begin_copies(tasks, copies)
            Driver(executor, parts, parts.look).run()
            assert parts.is_all_begun  # else copies would be missing

    def _job(self, count: int) -> PushJob:
        plan, options = self._plan, self._plan.options
        return PushJob(
            source=self._source,
            options=worker_options(options),
            tuning=plan.tuning,
            servers=self._servers.endpoints,
            again=bits_of(options.again),
            ledgers=self._servers.known,
            wants_ends=ENDS_ALIKE not in options.allow,
            episodes=count,
            columns=columns_of(plan),
        )


def worker_options(options: PushOptions) -> PushOptions:
    """What workers are told: the same but for what the driver sees to."""
    return replace(options, ledger=None, workers=None, ray=None, on_progress=unheard)


class _Parts:
    """The parts of a push as an undertaking; see `driving.Undertaking`."""

    def __init__(
        self,
        plan: PushPlan,
        tasks: Collection[Task],
        merged: Merged,
        servers: PushServers,
        source: Named,
    ) -> None:
        self._plan, self._merged, self._servers, self._source = plan, merged, servers, source
        self._began = time.monotonic()
        self._left = deque(tasks)
        self._copies: Mapping[int, Mapping[int, int]] = {}
        self._looked_at = time.monotonic()

    def begin_copies(self, tasks: Collection[Task], copies: Mapping[int, Mapping[int, int]]) -> None:
        """Goes on to parts that were pushed, and of which these copies (task -> place -> number) are pushed once more.

        They are in no account yet.
        """
        self._left, self._copies = deque(tasks), copies

    @property
    def is_all_begun(self) -> bool:
        """Whether no part is left."""
        return not self._left

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The next part that places can be found for."""
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

    def told(self, task: Task, what: TaskProgress) -> None:
        """A worker said how far it is."""
        self._merged.told(task, what)

    def again(self, task: Task, why: str) -> None:
        """A part was begun anew."""
        self._merged.again(task)
        _log.warning("%s; another one has begun it anew", why)

    def took(self, task: Task, outcome: Outcome) -> bool:
        """A part has ended."""
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
            self._merged.took_copies(task, outcome)
        else:
            self._merged.took(task, outcome)
        if outcome.value is not None:
            if not self._copies:
                self._source.add(outcome.value.tallies)
            self._servers.lose(outcome.value.report)
        self._check_sizes()
        return False

    def look(self) -> None:
        """Looks at the tables, and tells how far all is; a few times per second, however often it is called."""
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._servers.look()
            self.tell()

    def tell(self) -> None:
        """Tells how far all is."""
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


def distributed(transports: Mapping[str, Transport], plan: PushPlan, allow_missing: bool = False) -> DistributedPush:
    """A push by several workers, to one server or to several.

    Args:
      transports: address -> the way to a server that the plan was made for.
      plan: what is pushed, and how; made just before.
      allow_missing: continue without servers that are lost meanwhile, as long as one is there.

    Raises:
      ConfigError: workers cannot be told how to reach a server, or the library Ray is missing.
    """
    connected = {address: Connected(transports[address], way_of(transports[address])) for address in plan.infos}
    servers = PushServers(plan, connected, allow_missing)
    return DistributedPush(servers, plan, executor_of(plan.options.workers, plan.options.ray))
