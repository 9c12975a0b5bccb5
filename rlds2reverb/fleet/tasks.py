"""A task of a distributed push, in a worker: the source is opened once, and each task pushes some of its episodes.

A worker opens the source by its name, and pushes the episodes of a task with `push.run.Push`. What its driver must know comes back as
`TaskDone`, plain values that can be pickled.

A task begins with a call to every server: between two tasks no stream is open that would break, so a restart, after which confirmed items
may be gone, would go unnoticed.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rlds2reverb.episode import NO_NAMES, Array, Episode, Names, Notice
from rlds2reverb.errors import SourceError, report_of
from rlds2reverb.files import writing
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.formats.source import Tally
from rlds2reverb.prepare.endings import Ending, ending_of, with_problems_of_ends
from rlds2reverb.prepare.policy import QUARANTINE
from rlds2reverb.prepare.preparation import ColumnStats
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.ledger import MemoryLedger
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan, Tuning, plan_push, push_servers
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push
from rlds2reverb.push.server_push import TaskContext
from rlds2reverb.servers.episodes import Deletions
from rlds2reverb.specs import flatten
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.grpc import Endpoint
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.workers.driver import Outcome, SendProgress, Task


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
      notices: of the source, and that servers do not list all episodes.
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
      push_ids: address -> id of the journal's entry, of servers that list the episodes.
      deletions: what stays out of the tables, as the driver has read it.
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
    push_ids: Mapping[str, str]
    deletions: Deletions
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
            named = Path(tempfile.gettempdir()) / "quarantine"
            options = replace(options, quarantine=named).with_rules_of(options)
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
        context = replace(
            context,
            missing=servers.missing,
            again=self._job.again,
            push_ids=self._job.push_ids,
            deletions=self._job.deletions,
        )
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
            notices=(*self._source.notices, *self._push.list_notices),
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
            endings[episode.id] = None if own is None else own.for_others()
            return endings[episode.id]

        for episode, problems in with_problems_of_ends(episodes, endings=self._context.endings, ending=ending):
            self._ends.append(EndedEpisode(episode.title, endings.pop(episode.id), bool(problems)))
            yield episode, problems


def columns_of(plan: PushPlan) -> tuple[tuple[str, str], ...]:
    """(path, spec) of the step columns, to be compared between machines."""
    return tuple((path, str(spec)) for path, spec in flatten(plan.step_spec).items())
