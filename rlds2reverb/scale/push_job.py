"""A part of a push, in a worker: the source is opened by its name, and its episodes are pushed as by any push (`push.pipeline`)."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from rlds2reverb.conventions import Conventions
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.errors import ConfigError, ServerRestarted, SourceError, report_of
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.part import Noted, Part
from rlds2reverb.push.pipeline import Pusher
from rlds2reverb.push.plan import PushPlan, plan_push
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.tuning import Tuning
from rlds2reverb.remarks import Remark
from rlds2reverb.scale.executor import Tell
from rlds2reverb.scale.sources import Named
from rlds2reverb.scale.tasks import Outcome, Task
from rlds2reverb.sources.base import remarks_of
from rlds2reverb.sources.span import Span
from rlds2reverb.specs import flatten
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.way import Opens
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import Ending, Endings, ending_that_counts, with_problems_of_ends
from rlds2reverb.validation.holdings import Holdings
from rlds2reverb.validation.policy import QUARANTINE
from rlds2reverb.wire.messages import ServerInfo


class Ended(NamedTuple):
    """How an episode ended.

    Attributes:
      title: of the episode.
      ending: None where that cannot tell.
      was_found: whether its end was found not to be its own, by what its part knew.
    """

    title: str
    ending: Ending | None
    was_found: bool


class Terms(NamedTuple):
    """What a worker is told about a part.

    Attributes:
      places: see `push.part.Part`.
      endings: how episodes before the part ended, as far as that is known by now.
    """

    places: Mapping[str, int] | None
    endings: Endings


@dataclass(frozen=True)
class PartTold:
    """How far a worker is with a part.

    Attributes:
      progress: what a push tells.
      report: the account of the part so far.
    """

    progress: Progress
    report: PushReport


@dataclass(frozen=True)
class PartDone:
    """What came of a part of a push.

    Attributes:
      report: its account.
      rows: per output, the episodes that were confirmed, and their items over all tables; () without a ledger.
      ids: [episodes] uint64, what stands for the ids of the episodes read.
      ends: how each episode ended; () where nobody wants to know.
      holdings: what columns held; None where that is lost.
      remarks: of the source.
      quarantine: lines for the report of bad episodes.
    """

    report: PushReport
    rows: tuple[list[tuple[str, int]], ...] = ()
    ids: Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    ends: tuple[Ended, ...] = ()
    holdings: Holdings | None = None
    remarks: tuple[Remark, ...] = ()
    quarantine: str = ""


@dataclass(frozen=True)
class PushJob:
    """What every worker of a push gets.

    Attributes:
      source: opened by each.
      options: of the push; the ledger, and whom to tell, are left out: that is the business of the one who drives.
      tuning: how it sends.
      server: the way to it.
      info: its tables before the push.
      again: the bits of new keys, for all workers; None for a push without `again`.
      known: per output, the episodes that the ledger has, and their items over all tables; () without a ledger.
      wants_ends: whether the ends of episodes are to be told.
      episodes, columns: what the source is like for the one who drives.
    """

    source: Named
    options: PushOptions
    tuning: Tuning
    server: Opens
    info: ServerInfo
    again: int | None
    known: tuple[Mapping[str, int], ...]
    wants_ends: bool
    episodes: int
    columns: tuple[tuple[str, str], ...]

    @contextmanager
    def opened(self) -> Iterator[PushWork]:
        """Opens the source and a connection.

        Raises:
          SourceError: the source cannot be opened here, or is another one here.
          ConfigError: another server has that address here.
          TransportError: the server does not answer.
        """
        transport = self.server.open()
        try:
            self._check_server(transport)
            plan = plan_push(self.source.open(), self._own_options(), lambda: self.info, self.tuning)
            self._check_source(plan)
            yield PushWork(self, transport, plan)
        finally:
            transport.close()

    def _own_options(self) -> PushOptions:
        """The options with a quarantine file that any machine can write; each part has one of its own."""
        if self.options.quarantine is None:
            return self.options
        return replace(self.options, quarantine=Path(tempfile.gettempdir()) / "quarantine")

    def _check_server(self, transport: Transport) -> None:
        found = transport.server_info().state_id
        if found != self.info.state_id:
            raise ConfigError(
                f"{socket.gethostname()}: another server answers at {transport.address} than where the push was started, or it was restarted; "
                "give workers on other machines an address that means the same everywhere"
            )

    def _check_source(self, plan: PushPlan) -> None:
        if plan.episodes != self.episodes or columns_of(plan) != self.columns:
            raise SourceError(
                f"{plan.source.name}: is another dataset on {socket.gethostname()} ({plan.episodes} episodes) than where the push was started "
                f"({self.episodes}); every machine needs the same files at the same place"
            )


class PushWork:
    """A worker's connection and source, for one part after the other.

    Args:
      job: what is pushed.
      transport: to its server.
      plan: of the whole source.
    """

    def __init__(self, job: PushJob, transport: Transport, plan: PushPlan) -> None:
        self._job, self._transport, self._plan = job, transport, plan

    def run(self, task: Task, tell: Tell) -> Outcome:
        """Pushes a part; the terms of the task are `Terms`."""
        with tempfile.TemporaryDirectory(prefix="rlds2reverb-") as folder:
            bad = Path(folder) / "quarantine"
            return _PartRun(self._job, self._transport, self._plan, task, tell, bad).outcome()


class _PartRun:
    def __init__(
        self, job: PushJob, transport: Transport, plan: PushPlan, task: Task, tell: Tell, quarantine: Path
    ) -> None:
        self._job, self._tell, self._quarantine = job, tell, quarantine
        self._source = Span(plan.source, task.start, task.stop)
        self._notes = tuple(Noted(known) for known in job.known)
        self._ends: list[Ended] = []
        self._endings = task.terms.endings
        part = Part(task.terms.places, self._notes, job.again)
        info = plan.info if part.places is not None else self._asked(transport)
        options = replace(plan.options, on_progress=self._told)
        if options.on_invalid == QUARANTINE:
            options = replace(options, quarantine=quarantine)
        ready = replace(plan, source=self._source, options=options, info=info)
        self._pusher = Pusher(transport, ready, part, self._episodes())

    def outcome(self) -> Outcome:
        try:
            report, error = self._pusher.run(), None
        except BaseException as failure:
            report, error = report_of(failure) or self._pusher.report(), failure
        return Outcome(self._done(report), error)

    def _asked(self, transport: Transport) -> ServerInfo:
        """The tables now, for a part that has them to itself."""
        info = transport.server_info()
        if info.state_id != self._job.info.state_id:
            raise ServerRestarted(
                f"server {transport.address}: another server process answers than at the start of the push; run the same push again"
            )
        return info

    def _done(self, report: PushReport) -> PartDone:
        ids = np.array([xxhash.xxh3_64_intdigest(one.encode()) for one in self._pusher.ids], np.uint64)
        lines = self._quarantine.read_text("utf-8") if self._quarantine.exists() else ""
        rows = tuple(note.rows for note in self._notes)
        return PartDone(report, rows, ids, tuple(self._ends), self._pusher.holdings, remarks_of(self._source), lines)

    def _told(self, progress: Progress) -> None:
        self._tell(PartTold(progress, self._pusher.report()))

    def _episodes(self) -> Iterator[tuple[Episode, list[Problem]]]:
        """The episodes of the part, with what those before them show, as far as it is known here."""
        conventions = self._job.options.conventions
        if not self._job.wants_ends:
            yield from ((episode, []) for episode in self._source)
            return
        endings = dict[str, "Ending | None"]()

        def told(episode: Episode, conventions: Conventions) -> Ending | None:
            ending = ending_that_counts(episode, conventions)
            endings[episode.id] = None if ending is None else ending.for_others(episode)
            return endings[episode.id]

        for episode, found in with_problems_of_ends(self._source, conventions, self._endings, ending=told):
            self._ends.append(Ended(episode.title, endings.pop(episode.id), bool(found)))
            yield episode, found


def columns_of(plan: PushPlan) -> tuple[tuple[str, str], ...]:
    """What the steps of a plan's source are like, to be compared."""
    return tuple((path, str(spec)) for path, spec in flatten(plan.step_spec).items())
