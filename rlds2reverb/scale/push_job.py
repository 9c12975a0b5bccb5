"""A task of a push, in a worker: the source is opened by its name, and its episodes are pushed as by any push (`push.run`)."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rlds2reverb.conventions import Conventions
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.errors import SourceError, report_of
from rlds2reverb.files import writing
from rlds2reverb.identity import NO_NAMES, Names
from rlds2reverb.push.ledger import MemoryLedger
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan, plan_push
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.shard import TaskContext
from rlds2reverb.push.tuning import Tuning
from rlds2reverb.remarks import Remark
from rlds2reverb.scale.executor import Tell
from rlds2reverb.scale.sources import Named
from rlds2reverb.scale.tasks import Outcome, Task
from rlds2reverb.scale.ways import Connections, Endpoints
from rlds2reverb.sources.base import remarks_of
from rlds2reverb.sources.mix_parts import Tally
from rlds2reverb.sources.span import Span
from rlds2reverb.specs import flatten
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import Ending, Endings, ending_that_counts, with_problems_of_ends
from rlds2reverb.validation.holdings import Holdings
from rlds2reverb.validation.policy import QUARANTINE


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
    """What a worker is told about a task.

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
      remarks: of the source.
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
    holdings: Holdings | None = None
    remarks: tuple[Remark, ...] = ()
    quarantine: str = ""
    sent: Mapping[str, Mapping[str, list[Array]]] = field(default_factory=dict)
    tallies: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class PushJob:
    """What every worker of a push gets.

    Attributes:
      source: opened by each.
      options: of the push; the ledger, and whom to tell, are left out: that is the business of the one who drives.
      tuning: how it sends.
      servers: where it goes.
      again: the bits of new keys, for all workers; None for a push without `again`.
      ledgers: address -> per output, what the ledger has; () without a ledger. Of all servers, those missing too.
      wants_ends: whether it is wanted how episodes end.
      episodes, columns: what the source is like for the one who drives.
    """

    source: Named
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
        plan = plan_push(self.source.open(), self._own_options(), lambda: servers.infos, servers.names, self.tuning)
        self._check_source(plan)
        with servers.connected(plan) as connections:
            yield PushWork(self, connections, plan)

    def _own_options(self) -> PushOptions:
        """The options with a quarantine file that any machine can write; each part has one of its own."""
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
    """A worker's connections and source, for one part after the other.

    Args:
      job: what is pushed.
      connections: to its servers.
      plan: of the whole source.
    """

    def __init__(self, job: PushJob, connections: Connections, plan: PushPlan) -> None:
        self._job, self._connections, self._plan = job, connections, plan

    def run(self, task: Task, tell: Tell) -> Outcome:
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
            return _TaskRun(self._job, self._connections, self._plan, task, tell, bad).outcome()


class _TaskRun:
    def __init__(
        self, job: PushJob, connections: Connections, plan: PushPlan, task: Task, tell: Tell, quarantine: Path
    ) -> None:
        self._job, self._connections, self._tell, self._quarantine = job, connections, tell, quarantine
        terms: Terms = task.terms
        self._source = Span(plan.source, task.start, task.stop)
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
            remarks=remarks_of(self._source),
            quarantine=self._quarantine.read_text("utf-8") if self._quarantine.exists() else "",
            sent={address: shard.sent for address, shard in shards.items() if shard.sent},
            tallies=self._job.source.tallies,
        )

    def _on_progress(self, progress: Progress) -> None:
        self._tell(TaskProgress(progress, self._push.report()))

    def _reading(self, episodes: Iterable[Episode]) -> Iterator[tuple[Episode, list[Problem]]]:
        """Episodes of the task, with what those before them show, as far as it is known here."""
        conventions = self._job.options.conventions
        if not self._job.wants_ends or self._is_of_copies:  # of copies it is settled, like for those that they equal
            yield from ((episode, []) for episode in episodes)
            return
        endings = dict[str, "Ending | None"]()

        def told(episode: Episode, conventions: Conventions) -> Ending | None:
            ending = ending_that_counts(episode, conventions)
            endings[episode.id] = None if ending is None else ending.for_others(episode)
            return endings[episode.id]

        for episode, found in with_problems_of_ends(episodes, conventions, self._endings, ending=told):
            self._ends.append(Ended(episode.title, endings.pop(episode.id), bool(found)))
            yield episode, found


def columns_of(plan: PushPlan) -> tuple[tuple[str, str], ...]:
    """What the steps of a plan's source are like, to be compared."""
    return tuple((path, str(spec)) for path, spec in flatten(plan.step_spec).items())
