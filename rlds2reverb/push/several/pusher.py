"""One push of one source to several servers: it is read once, and every episode goes to one of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from rlds2reverb.episodes import Array, Episode, KnownEpisode
from rlds2reverb.errors import (
    CapacityError,
    Rlds2ReverbError,
    ServerRestarted,
    ServerUnreachable,
    TransportError,
    keep_report,
    reason_of,
)
from rlds2reverb.push.names import EpisodeNames
from rlds2reverb.push.pipeline import Judging
from rlds2reverb.push.plan import report_of_nothing
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.running import LINGER_SECONDS, RunningPush
from rlds2reverb.push.several.moving import take_out
from rlds2reverb.push.several.part import Part, Share
from rlds2reverb.push.several.placing import Placing
from rlds2reverb.push.several.plan import SeveralPlan, named
from rlds2reverb.push.several.totals import progress_of, total
from rlds2reverb.sources.base import remarks_of
from rlds2reverb.specs import flatten
from rlds2reverb.transport.base import Transport
from rlds2reverb.validation.endings import with_problems_of_ends
from rlds2reverb.validation.holdings import Holdings

LOG = logging.getLogger("rlds2reverb.push")

_NOTE_SECONDS = 0.25
"""How often ledgers are written and progress is told."""


class SeveralPusher:
    """One push of one source to the tables of several servers.

    Args:
      transports: address -> the way to a server; those that the plan has a part for and that are not here are missing.
      plan: what is pushed, and how; made just before.
      allow_missing: go on without servers that are lost meanwhile, as long as one is there.
      share: which part of a larger push it is; None for a whole one.
      judge: finds the problems that only other episodes show; see `push.pipeline.Judging`.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        plan: SeveralPlan,
        allow_missing: bool = False,
        share: Share | None = None,
        judge: Judging | None = None,
    ) -> None:
        self._plan, self._allow_missing = plan, allow_missing
        self._transports = {address: one for address, one in transports.items() if address in plan.parts}
        self._is_whole = share is None
        self._judge = judge or partial(with_problems_of_ends, conventions=plan.options.conventions)
        self._names = EpisodeNames(self._knows, plan, share)
        self._moved = 0
        self._failing: Part | None = None  # whose server's error came last
        self._parts = {
            address: Part(plan, address, self._transports.get(address), self._hearing(address), share)
            for address in plan.addresses
        }
        self._placing = Placing([*plan.names.values()])
        self._address_of = {name: address for address, name in plan.names.items()}
        self._progress: dict[str, Progress] = {}
        self._holdings = Holdings.of(flatten(plan.step_spec))
        self._began = time.monotonic()

    @property
    def holdings(self) -> Holdings:
        """What columns held, so far."""
        return self._holdings

    @property
    def names(self) -> EpisodeNames:
        """Of the episodes that came, so far."""
        return self._names

    @property
    def taken(self) -> dict[str, Array]:
        """Address -> `TakenEpisodes.rows`; {} for a push that is no part."""
        running = {address: part.push for address, part in self._parts.items()}
        return {
            address: push.taken.rows for address, push in running.items() if push is not None and push.taken is not None
        }

    @property
    def sent(self) -> dict[str, dict[str, list[Array]]]:
        """Address -> table -> keys of the items that were sent, where items are to be moved."""
        return {address: part.sent for address, part in self._parts.items() if part.sent}

    def report(self) -> PushReport:
        """The account so far."""
        whole = replace(
            report_of_nothing(self._plan),
            remarks=(*remarks_of(self._plan.source), *self._holdings.remarks, *self._names.remarks),
            seconds=self._seconds,
            items_moved=self._moved,
        )
        return total(whole, {address: part.report() for address, part in self._parts.items()})

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed.

        Whatever stops it, an interruption included, has the account up to there as its attribute `report`, server by server.

        Raises:
          Rlds2ReverbError: as `push.pipeline.Pusher.run`; an error of one server names it. The others have confirmed by then what
            they were sent.
        """
        try:
            with ExitStack() as stack:
                for part in self._parts.values():
                    stack.enter_context(part)
                self._read_and_send()
        except BaseException as error:
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    def _read_and_send(self) -> None:
        try:
            self._feed()
            for part in self._parts.values():
                self._with(part, RunningPush.flush)
            for part in self._parts.values():
                self._with(part, RunningPush.finish)
            self._note()
            if self._is_whole:
                self._move()
        except BaseException as error:
            self._wind_up(error)
            raise

    def _feed(self) -> None:
        """Reads the source to its end."""
        noted_at = time.monotonic()
        for episode, found in self._judge(self._new_episodes()):
            self._holdings = self._holdings.after(episode)
            part = self._part_for(episode.id)
            self._watched(part, lambda: part.take(episode, found))  # noqa: B023  called at once
            if time.monotonic() - noted_at > _NOTE_SECONDS:
                noted_at = time.monotonic()
                self._note()

    def _move(self) -> None:
        """Takes what is stored out of the servers where it does not belong; nothing where that is not asked for."""
        for part in self._parts.values():
            keys = {} if part.missing else part.sent
            for other in self._parts.values() if keys else ():
                if other is not part and not other.missing:
                    self._watched(other, lambda: self._take_out(other, keys))  # noqa: B023  called at once

    def _take_out(self, part: Part, keys: dict[str, list[Array]]) -> None:
        self._moved += take_out(self._transports[part.address], keys)

    def _new_episodes(self) -> Iterator[Episode]:
        """The episodes that no ledger has."""
        for one in self._names.read(self._plan.source):
            if isinstance(one, KnownEpisode):
                part = self._part_for(one.id)
                self._watched(part, lambda: part.take_known(one.id))  # noqa: B023  called at once
            else:
                yield one

    def _knows(self, episode_id: str) -> bool:
        return self._part_for(episode_id).knows(episode_id)

    def _part_for(self, episode_id: str) -> Part:
        """The part that has the episode, by a ledger; else the one that it is placed in."""
        for has in (Part.has, Part.had):
            for part in self._parts.values():
                if has(part, episode_id):
                    return part
        return self._parts[self._address_of[self._placing.of(episode_id)]]

    def _with(self, part: Part, act: Callable[[RunningPush], None]) -> None:
        """Does it to what runs in a part; nothing where its server is missing."""
        if (push := part.running) is not None:
            self._watched(part, lambda: act(push))

    def _watched(self, part: Part, act: Callable[[], None]) -> None:
        """Does what concerns one server; goes on without it where that is allowed.

        Raises:
          Rlds2ReverbError: as `act` does; an error of the server names it.
        """
        try:
            act()
        except (ServerUnreachable, ServerRestarted) as error:
            self._failing = part
            named(error, part.address)
            if not self._allow_missing or all(one.missing for one in self._parts.values() if one is not part):
                raise
            part.lose(error)
            LOG.warning("server %s is missing, and others go on: %s", part.address, error)
        except (TransportError, CapacityError) as error:
            self._failing = part
            named(error, part.address)
            raise

    def _note(self) -> None:
        """Writes down what is confirmed, and tells how far it is."""
        for part in self._parts.values():
            self._with(part, RunningPush.note)
        self._tell("", ())

    def _hearing(self, address: str) -> Callable[[Progress], None]:
        """Takes the progress of one part; tells at once where it waits."""

        def hear(progress: Progress) -> None:
            self._progress[address] = progress
            if progress.waiting:
                tables = tuple(f"{table} of {address}" for table in progress.held_by)
                named_there = address in progress.waiting
                self._tell(progress.waiting if named_there else f"{address}: {progress.waiting}", tables)

        return hear

    def _tell(self, waiting: str, held_by: tuple[str, ...]) -> None:
        parts = self._parts.values()
        left_out = sum(one.episodes_left_out for one in parts), sum(one.steps_left_out for one in parts)
        progress = progress_of(self._progress.values(), left_out, self._plan.episodes, self._seconds)
        self._plan.options.on_progress(replace(progress, waiting=waiting, held_by=held_by))

    def _wind_up(self, error: BaseException) -> None:
        """Leaves all tables and ledgers as they should be. An error of one server leaves the others' streams whole."""
        until = time.monotonic() + LINGER_SECONDS
        for part in self._parts.values():
            if (push := part.running) is not None:
                is_others = isinstance(error, TransportError) and part is not self._failing
                theirs = Rlds2ReverbError("another server ended the push") if is_others else error
                push.wind_up(theirs, max(0.0, until - time.monotonic()))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began
