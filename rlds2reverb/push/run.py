"""One push of one source: the source is read once, and every episode goes to one server, the same one each time.

Workers (`fleet.push`) run a `Push` for each of their tasks.
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
from rlds2reverb.interrupts import noted_interrupts
from rlds2reverb.prepare.policy import Examined
from rlds2reverb.prepare.preparation import ColumnStats
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.progress import Pace, Progress
from rlds2reverb.push.keys import EpisodeNames, Placement
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import PushReport, total
from rlds2reverb.push.shard import (
    LINGER_SECONDS,
    TOGETHER_BYTES,
    TOGETHER_ROWS,
    LostServers,
    Outgoing,
    Shard,
    TaskContext,
)
from rlds2reverb.transport.base import Transport

LOG = logging.getLogger("rlds2reverb.push")

Reading = Callable[[Iterable[Episode]], Iterator[tuple[Episode, list[Problem]]]]
"""Episodes, each with the problems that only other episodes show."""

_MOST_KEYS = 1 << 16  # of one call that deletes items: 0.6 MB, and a table stands still for a few milliseconds


class RunnablePush(Protocol):
    """A planned push: `Push` in this process, or `fleet.push.DistributedPush`, whose tasks workers run."""

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed; see `Push.run`."""

    def report(self) -> PushReport:
        """The report so far."""


class Push:
    """One push of one source to the tables of one server or many.

    Args:
      transports: address -> transport; a server of the plan that is not here counts as missing.
      plan: made just before.
      context: of a task of a distributed push; None for a whole push.
      reading: finds the problems that only other episodes show; by default among the episodes of this push.
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
        self._began, self._pace = time.monotonic(), Pace()

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed.

        Any error that stops it, an interruption included, has the report up to there as its attribute `report`.

        Raises:
          InvalidEpisode: a bad episode and on_invalid="raise". The episodes before it are stored; nothing of the bad one is.
          CapacityError: the next episode may evict items, and those before it are stored; or another client filled a table, and
            items were evicted.
          SourceError, TransportError: reading or sending failed; confirmed episodes stay, and are in the ledger. With many servers, the
            error names one, and the rest have confirmed what was sent to them.
        """
        try:
            with noted_interrupts(), ExitStack() as stack:
                for shard in self.shards.values():
                    stack.enter_context(shard)
                self._read_and_send()
        except BaseException as error:
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    def _read_and_send(self) -> None:
        try:
            self._read()
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

    def _read(self) -> None:
        waiting, rows, size = list[tuple[Episode, list[Problem]]](), 0, 0
        is_at_hand = (
            self._plan.source.is_at_hand
        )  # else the next episode may be long in coming, and these would wait for it
        try:
            for episode, found in self._reading(self._new_episodes()):
                waiting.append((episode, found))
                rows, size = rows + len(episode), size + episode.nbytes
                is_due = self._pace.is_due()
                is_enough = rows + len(episode) > TOGETHER_ROWS or size >= TOGETHER_BYTES
                if is_due or not is_at_hand or is_enough:
                    together, waiting, rows, size = waiting, [], 0, 0
                    self._take(together)
                if is_due:
                    self._note()
        except Exception:  # the episodes before the error come first
            self._take(waiting)
            raise
        self._take(waiting)

    def _take(self, together: Sequence[tuple[Episode, list[Problem]]]) -> None:
        """Checks, cuts and sends episodes; of a bad one that ends the push, those before it are sent."""
        ready: dict[str, list[Outgoing]] = {}
        try:
            examined = self._examine([episode for episode, _ in together])
            for (episode, found), own in zip(together, examined):
                shard = self._shard_of(episode.id)
                with self._lost.about(shard.address):
                    if (outgoing := shard.prepare(episode, found, own)) is not None:
                        ready.setdefault(shard.address, []).append(outgoing)
        except Exception:
            self._send(ready)
            raise
        self._send(ready)

    def _examine(self, episodes: Sequence[Episode]) -> list[Examined]:
        return next(iter(self.shards.values())).preparer.examine_together(episodes) if episodes else []

    def _send(self, ready: Mapping[str, Sequence[Outgoing]]) -> None:
        for address, outgoing in ready.items():
            with self._lost.about(address):
                self.shards[address].send(outgoing)

    def _new_episodes(self) -> Iterator[Episode]:
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
        """The shard whose ledger has the episode; else the one that its name hashes to."""
        shards = self.shards.values()
        if len(shards) == 1:
            return next(iter(shards))
        for has in (Shard.has, Shard.had):
            for shard in shards:
                if has(shard, episode_id):
                    return shard
        return self.shards[self._address_of[self._placement.of(episode_id)]]

    def _there(self) -> Iterator[Shard]:
        return (shard for shard in self.shards.values() if not shard.missing)

    def _continue_without(self, address: str, error: Rlds2ReverbError) -> None:
        self.shards[address].lose(error)
        LOG.warning("server %s is missing; the push continues without it: %s", address, error)

    def _wind_up(self, error: BaseException) -> None:
        """Winds up all shards within LINGER_SECONDS; only the shard of the failed server gets its transport error."""
        until = time.monotonic() + LINGER_SECONDS
        for shard in self._there():
            is_others = isinstance(error, TransportError) and shard.address != self._lost.last_failed
            theirs = Rlds2ReverbError("another server ended the push") if is_others else error
            shard.wind_up(theirs, max(0.0, until - time.monotonic()))

    def _move(self) -> None:
        """Deletes items from servers where they do not belong any more, once all are stored where they do.

        Keys do not say on which server an item is, so each server is sent the keys of the rest, and skips those that it lacks.
        """
        for shard in self._there():
            for other in self._there():
                if other is not shard and not shard.missing:
                    with self._lost.about(other.address):
                        self._moved += take_out(self._transports[other.address], shard.sent)

    # Progress and report.

    def report(self) -> PushReport:
        whole = replace(
            report_of_nothing(self._plan),
            notices=(*self._plan.notices, *self.columns.notices, *self.names.notices),
            seconds=time.monotonic() - self._began,
            items_moved=self._moved,
        )
        return total(whole, {address: shard.report() for address, shard in self.shards.items()})

    @property
    def columns(self) -> ColumnStats:
        first, *others = (shard.preparer.columns for shard in self.shards.values())
        for other in others:
            first = first.with_others(other)
        return first

    def _note(self) -> None:
        for shard in self._there():
            with self._lost.about(shard.address):
                shard.record()
        self._waits.clear()
        self._report_progress()

    def _on_wait(self, address: str, progress: Progress) -> None:
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
    """Deletes items from a server; returns by how many its tables shrank, fewer if another client fills them meanwhile.

    After an error some may remain; the same push deletes them.

    Args:
      keys: table -> arrays of keys.
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
