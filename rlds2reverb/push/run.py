"""One push of one source: it is read once, and every episode goes to one server, the same one each time.

One server is a fleet of one. A push by several workers is a push whose tasks other processes run (`fleet.push`): each is a `Push` as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from rlds2reverb.episode import Array, Episode, KnownEpisode
from rlds2reverb.errors import Rlds2ReverbError, TransportError, keep_report, reason_of
from rlds2reverb.prepare.column_stats import ColumnStats
from rlds2reverb.prepare.options import Progress
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.push.keys import EpisodeNames, Placement
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import PushReport, total
from rlds2reverb.push.shard import LINGER_SECONDS, LostServers, Shard, TaskContext
from rlds2reverb.transport.base import Transport

LOG = logging.getLogger("rlds2reverb.push")

Reading = Callable[[Iterable[Episode]], Iterator[tuple[Episode, list[Problem]]]]
"""Episodes, each with the problems that only other episodes show."""

_NOTE_SECONDS = 0.25
"""How often ledgers are written and progress is reported."""

_MOST_KEYS = 1 << 16
"""Of one call that takes items out: 0.6 MB, and a table stands still for a few milliseconds."""


class RunnablePush(Protocol):
    """A push that was planned: `Push` in this process, or one whose tasks workers run (`fleet.push`)."""

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed; see `Push.run`."""

    def report(self) -> PushReport:
        """The account so far."""


class Push:
    """One push of one source to the tables of one server or of several.

    Args:
      transports: address -> the way to a server; those that the plan has tables of and that are not here are missing.
      plan: what is pushed, and how; made just before.
      context: of a task of a larger push; None for a whole one.
      reading: finds the problems that only other episodes show; None for what this push finds by itself.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        plan: PushPlan,
        context: TaskContext | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._plan, self._context = plan, context
        self._transports = {address: one for address, one in transports.items() if address in plan.infos}
        self._reading: Reading = reading or plan.ready.read
        copies = None if context is None else context.copies
        self.names = EpisodeNames(self._knows, plan, copies, is_task=context is not None)
        self.shards = {
            address: Shard(plan, address, self._transports.get(address), partial(self._on_wait, address), context)
            for address in plan.names
        }
        self._placement = Placement([*plan.names.values()])
        self._address_of = {name: address for address, name in plan.names.items()}
        lost = {address: shard.missing for address, shard in self.shards.items() if shard.missing}
        self._lost = LostServers(plan, lost, self._continue_without)
        self._waits: dict[str, Progress] = {}
        self._moved = 0
        self._began = self._noted_at = time.monotonic()

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed.

        Whatever stops it, an interruption included, has the account up to there as its attribute `report`, server by server.

        Raises:
          InvalidEpisode: a bad episode and on_invalid="raise". The episodes before it are stored; nothing of the bad one is.
          CapacityError: the next episode may evict items, which is not allowed; those before it are stored. Or somebody else
            fills a table as well, and items were evicted.
          SourceError, TransportError: reading or sending failed; what was confirmed stays, and is in the ledger. Of several servers,
            the error names the one, and the others have confirmed by then what they were sent.
        """
        try:
            with ExitStack() as stack:
                for shard in self.shards.values():
                    stack.enter_context(shard)
                self._read_and_send()
        except BaseException as error:
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    def _read_and_send(self) -> None:
        try:
            for episode, found in self._reading(self._new_episodes()):
                shard = self._shard_of(episode.id)
                with self._lost.about(shard.address):
                    shard.take(episode, found)
                self._note_now_and_then()
            for shard in self._there():
                with self._lost.about(shard.address):
                    shard.flush()
            for shard in self._there():
                with self._lost.about(shard.address):
                    shard.finish()
            self._note()
            if self._plan.options.move and self._context is None:
                self._move()
        except BaseException as error:
            self._wind_up(error)
            raise

    def _new_episodes(self) -> Iterator[Episode]:
        """The episodes that no ledger has."""
        for one in self.names.read(self._plan.source):
            if isinstance(one, KnownEpisode):
                shard = self._shard_of(one.id)
                with self._lost.about(shard.address):
                    shard.take_known(one.id)
            else:
                yield one

    def _knows(self, episode_id: str) -> bool:
        return self._shard_of(episode_id).knows(episode_id)

    def _shard_of(self, episode_id: str) -> Shard:
        """The shard that has the episode, by a ledger; else the one that it is placed in."""
        shards = self.shards.values()
        if len(shards) > 1:
            for has in (Shard.has, Shard.had):
                for shard in shards:
                    if has(shard, episode_id):
                        return shard
        return self.shards[self._address_of[self._placement.of(episode_id)]]

    def _there(self) -> Iterator[Shard]:
        """The shards whose servers are not missing."""
        return (shard for shard in self.shards.values() if not shard.missing)

    def _continue_without(self, address: str, error: Rlds2ReverbError) -> None:
        self.shards[address].lose(error)
        LOG.warning("server %s is missing, and others go on: %s", address, error)

    def _wind_up(self, error: BaseException) -> None:
        """Winds up all shards within LINGER_SECONDS; only the failed server's shard gets its transport error."""
        until = time.monotonic() + LINGER_SECONDS
        for shard in self._there():
            is_others = isinstance(error, TransportError) and shard.address != self._lost.last_failed
            theirs = Rlds2ReverbError("another server ended the push") if is_others else error
            shard.wind_up(theirs, max(0.0, until - time.monotonic()))

    def _move(self) -> None:
        """Takes items out of the servers where they do not belong any more: all is stored where it does.

        Keys do not say on which server an item is, so every server gets the keys of all others; those that it does not have are passed over.
        """
        for shard in self._there():
            for other in self._there():
                if other is not shard and not shard.missing:
                    with self._lost.about(other.address):
                        self._moved += take_out(self._transports[other.address], shard.sent)

    # The account.

    def report(self) -> PushReport:
        """The account so far."""
        whole = replace(
            report_of_nothing(self._plan),
            notices=(*self._plan.notices, *self.columns.notices, *self.names.notices),
            seconds=time.monotonic() - self._began,
            items_moved=self._moved,
        )
        return total(whole, {address: shard.report() for address, shard in self.shards.items()})

    @property
    def columns(self) -> ColumnStats:
        """What columns held, so far."""
        first, *others = (shard.preparer.columns for shard in self.shards.values())
        for other in others:
            first = first.with_others(other)
        return first

    def _note_now_and_then(self) -> None:
        if time.monotonic() - self._noted_at > _NOTE_SECONDS:
            self._noted_at = time.monotonic()
            self._note()

    def _note(self) -> None:
        """Writes into the ledgers what is confirmed, and reports progress."""
        for shard in self._there():
            with self._lost.about(shard.address):
                shard.record()
        self._waits.clear()
        self._report_progress()

    def _on_wait(self, address: str, progress: Progress) -> None:
        """A server holds the push up, or does so no more."""
        self._waits.pop(address, None)
        if progress.waiting:
            self._waits[address] = progress
        self._report_progress()

    def _report_progress(self) -> None:
        parts = [shard.progress() for shard in self.shards.values()]
        address, wait = next(iter(self._waits.items()), ("", None))
        waiting, held_by = ("", ()) if wait is None else (wait.waiting, wait.held_by)
        if waiting and len(self.shards) > 1:
            waiting = waiting if address in waiting else f"{address}: {waiting}"
            held_by = tuple(f"{table} of {address}" for table in held_by)
        self._plan.options.on_progress(
            Progress(
                sum(one.episodes for one in parts),
                sum(one.steps for one in parts),
                self._plan.episodes,
                sum(one.items_confirmed for one in parts),
                sum(one.bytes for one in parts),
                time.monotonic() - self._began,
                waiting,
                held_by,
            )
        )


def take_out(transport: Transport, keys: Mapping[str, Sequence[Array]]) -> int:
    """Takes items out of a server; how many fewer its tables have then. Somebody else who fills them makes it fewer.

    Args:
      transport: the way to it.
      keys: table -> arrays of keys.

    Raises:
      TransportError: the server does not answer; some items may be there still, and the same push moves them.
    """

    def size() -> int:
        info = transport.server_info()
        return sum(info.tables[name].current_size for name in keys)

    before = size() if keys else 0
    for table, parts in keys.items():
        all_keys = np.concatenate(parts)
        for start in range(0, len(all_keys), _MOST_KEYS):
            transport.delete_items(table, all_keys[start : start + _MOST_KEYS])
    return max(0, before - size()) if keys else 0
