"""A push by several workers: one plan, one ledger, one report, whoever pushes which part.

The ledger is written here alone, when a part has ended: its worker hands back what was confirmed. So a worker that begins the part of a
lost one anew, perhaps on another machine, never meets half of a ledger; and no file has to be reached from everywhere. What a lost
worker had stored is sent again, which item keys make harmless.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import replace

from rlds2reverb.errors import TransportError, keep_report, reason_of
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.ledgers import open_ledgers
from rlds2reverb.push.names import bits_of
from rlds2reverb.push.options import PushOptions, unheard
from rlds2reverb.push.pipeline import Pusher
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.quota import Crowded
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.tables import check_size
from rlds2reverb.scale.choosing import executor_of
from rlds2reverb.scale.driving import Driver
from rlds2reverb.scale.executor import Executor, Job
from rlds2reverb.scale.merging import Merged
from rlds2reverb.scale.places import Places, Refusal
from rlds2reverb.scale.push_job import PartTold, PushJob, Terms, columns_of
from rlds2reverb.scale.sources import Named, known_count
from rlds2reverb.scale.tasks import MOST_EPISODES, Outcome, Task, divided
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.waiting import retry_until
from rlds2reverb.transport.way import Opens, way_of
from rlds2reverb.validation.problems import ENDS_ALIKE
from rlds2reverb.wire.messages import ServerInfo

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
"""How often the tables are looked at, and progress is told."""


class DividedPush:
    """A push of one source by several workers; used as `push.pipeline.Pusher`.

    Args:
      transport: the way to the server that the plan was made for.
      plan: what is pushed, and how; made just before.
      source: the plan's source, as workers open it.
      server: the way to the server, as workers open it.
      executor: makes what runs the tasks of a job.
      most: episodes of a task.
    """

    def __init__(
        self,
        transport: Transport,
        plan: PushPlan,
        source: Named,
        server: Opens,
        executor: Callable[[Job], Executor],
        most: int = MOST_EPISODES,
    ) -> None:
        self._most = most
        self._transport, self._plan, self._source, self._server = transport, plan, source, server
        self._new_executor = executor
        self._began = time.monotonic()
        self._merged = Merged(plan)

    def report(self) -> PushReport:
        """The account so far."""
        return self._merged.report(time.monotonic() - self._began)

    def run(self) -> PushReport:
        """Has the source pushed, part by part, and waits until every item is confirmed.

        Whatever stops it, an interruption included, stops all workers, and has the account up to there as its attribute `report`.

        Raises:
          Rlds2ReverbError: as `Pusher.run`; of errors of the data, the one at the first episode.
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
        count = known_count(self._plan.source)
        ledgers = open_ledgers(self._plan, stack, self._transport.address)
        self._began = time.monotonic()
        with self._new_executor(self._job(ledgers, count)) as executor:
            self._merged.workers = executor.workers
            places = Places(self._plan, executor.workers, self._ask)
            parts = _Parts(
                self._plan, divided(count, executor.workers, self._most), self._merged, places, ledgers, self._began
            )
            Driver(executor, parts, parts.look).run()
            assert parts.is_all_begun  # else episodes would be missing, and nobody told
        self._merged.finish()
        self._merged.check_ids()
        with suppress(TransportError):  # the server has gone meanwhile: what was new stays unknown
            places.look()
            self._merged.new_items = places.new_items()
        parts.tell()

    def _job(self, ledgers: tuple[Ledger, ...], count: int) -> PushJob:
        plan, options = self._plan, self._plan.options
        return PushJob(
            source=self._source,
            options=worker_options(options),
            tuning=plan.tuning,
            server=self._server,
            info=plan.info,
            again=bits_of(options.again),
            known=tuple(one.confirmed if options.resume else {} for one in ledgers),
            wants_ends=ENDS_ALIKE not in options.allow,
            episodes=count,
            columns=columns_of(plan),
        )

    def _ask(self) -> ServerInfo:
        deadlines = self._plan.tuning.deadlines
        return retry_until(deadlines.reconnect, deadlines, self._transport.server_info)


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
        places: Places,
        ledgers: tuple[Ledger, ...],
        began: float,
    ) -> None:
        self._plan, self._merged, self._places, self._ledgers, self._began = plan, merged, places, ledgers, began
        self._left = deque(tasks)
        self._looked_at = time.monotonic()

    @property
    def is_all_begun(self) -> bool:
        """Whether no part is left."""
        return not self._left

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The next part that places can be found for."""
        if not self._left:
            return None
        given = self._places.give(self._left[0])
        if given is Refusal.LATER or (given is Refusal.ALONE and running):
            return None
        task = self._left.popleft()
        if not isinstance(given, Refusal):
            return replace(task, terms=Terms(given, self._merged.endings))
        self._places.leave_alone()
        return replace(self._with_rest(task), terms=Terms(None, self._merged.endings))

    def told(self, task: Task, what: PartTold) -> None:
        """A worker said how far it is."""
        self._merged.told(task, what)

    def again(self, task: Task, why: str) -> None:
        """A part was begun anew."""
        self._merged.again(task)
        _log.warning("%s; another one has begun it anew", why)

    def took(self, task: Task, outcome: Outcome) -> bool:
        """A part has ended."""
        is_crowded = isinstance(outcome.error, Crowded)
        report = None if outcome.value is None else outcome.value.report
        if task.terms.places is None:
            self._places.come_back(report)
        else:
            self._places.take_back(task, report, is_crowded)
        if outcome.value is not None:
            for ledger, rows in zip(self._ledgers, outcome.value.rows):
                ledger.record(rows)
        if is_crowded:
            self._merged.forget(task)
            self._left.appendleft(replace(task, terms=None))
            return True
        self._merged.took(task, outcome)
        self._check_sizes()
        return False

    def look(self) -> None:
        """Looks at the tables, and tells how far all is; a few times per second, however often it is called."""
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._places.look()
            self.tell()

    def tell(self) -> None:
        """Tells how far all is."""
        self._plan.options.on_progress(self._merged.progress(time.monotonic() - self._began))

    def _with_rest(self, task: Task) -> Task:
        """The task together with those that come right after it: what has the tables to itself is one push, not many."""
        while self._left and self._left[0].start == task.stop:
            task = replace(task, stop=self._left.popleft().stop)
        return task

    def _check_sizes(self) -> None:
        """Refuses a push that turns out to be larger than a table."""
        plan = self._plan
        if plan.options.allow_eviction:
            return
        for output in plan.options.outputs:
            items = max(self._merged.items_made.get(table, 0) for table in output.tables)
            check_size(output, plan.info, items, f"more than {items - 1}")


def pusher_of(transport: Transport, plan: PushPlan, source: Named) -> Pusher | DividedPush:
    """What pushes as the plan's options say: one process, or several workers.

    Args:
      transport: the way to the server that the plan was made for.
      plan: what is pushed, and how; made just before.
      source: the plan's source, as workers open it.

    Raises:
      ConfigError: workers cannot be told how to reach the server, or the library Ray is missing.
    """
    if not plan.options.is_divided:
        return Pusher(transport, plan)
    return DividedPush(transport, plan, source, way_of(transport), executor_of(plan.options.workers, plan.options.ray))
