"""The pusher: joins source, validation, view and writer. See docs/architecture.md, the road A to G."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from rlds2reverb.episodes import Array, Episode, KnownEpisode
from rlds2reverb.errors import keep_report, reason_of
from rlds2reverb.push.names import EpisodeNames
from rlds2reverb.push.part import Part
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.running import RunningPush
from rlds2reverb.transport.base import Transport
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import with_problems_of_ends
from rlds2reverb.validation.holdings import Holdings

Judging = Callable[[Iterable[Episode]], Iterator[tuple[Episode, list[Problem]]]]
"""Episodes, and what only other episodes show of each; see `validation.endings`."""

_RECORD_SECONDS = 0.25
"""How often the ledger is written and progress is told."""


class Pusher:
    """One push of one source to the tables of one server.

    Args:
      transport: the way to the server that the plan was made for.
      plan: what is pushed, and how; made just before.
      part: which part of a larger push it is; None for a whole one.
      judge: finds the problems that only other episodes show; see `Judging`.
    """

    def __init__(
        self,
        transport: Transport,
        plan: PushPlan,
        part: Part | None = None,
        judge: Judging | None = None,
    ) -> None:
        self._push, self._source, self._address = (
            RunningPush(transport, plan, part=part),
            plan.source,
            transport.address,
        )
        self._judge = judge or partial(with_problems_of_ends, conventions=plan.options.conventions)
        self._names = EpisodeNames(self._push.knows, plan, part)

    @property
    def holdings(self) -> Holdings:
        """What columns held, so far."""
        return self._push.holdings

    @property
    def names(self) -> EpisodeNames:
        """Of the episodes that came, so far."""
        return self._names

    @property
    def taken(self) -> dict[str, Array]:
        """Address -> `TakenEpisodes.rows`; {} for a push that is no part."""
        return {} if self._push.taken is None else {self._address: self._push.taken.rows}

    @property
    def sent(self) -> Mapping[str, Mapping[str, list[Array]]]:
        """Nothing: with one server there is nowhere to move items."""
        return {}

    def report(self) -> PushReport:
        """The account so far."""
        report = self._push.report()
        return replace(report, remarks=(*report.remarks, *self._names.remarks))

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed.

        Whatever stops it, an interruption included, has the account up to there as its attribute `report`.

        Raises:
          InvalidEpisode: a bad episode and on_invalid="raise". The episodes before it are stored; nothing of the bad one is.
          CapacityError: the next episode would evict items, which is not allowed; those before it are stored. Or somebody else
            fills a table as well, and items were evicted.
          SourceError, TransportError: reading or sending failed; what was confirmed stays, and is in the ledger.
        """
        try:
            with self._push:
                self._read_and_send()
        except BaseException as error:
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    def _read_and_send(self) -> None:
        try:
            self._feed()
            self._push.finish()
        except BaseException as error:
            self._push.wind_up(error)
            raise
        self._push.note()

    def _feed(self) -> None:
        """Reads the source to its end."""
        push, noted_at = self._push, time.monotonic()
        for episode, found in self._judge(self._new_episodes()):
            push.holdings = push.holdings.after(episode)
            push.take(episode, found)
            if time.monotonic() - noted_at > _RECORD_SECONDS:
                noted_at = time.monotonic()
                push.note()

    def _new_episodes(self) -> Iterator[Episode]:
        """The episodes that no ledger has."""
        for one in self._names.read(self._source):
            if isinstance(one, KnownEpisode):
                self._push.take_known(one.id)
            else:
                yield one
