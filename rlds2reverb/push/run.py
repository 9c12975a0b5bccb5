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

from rlds2reverb.episode import Array, Episode, KnownEpisode, Notice
from rlds2reverb.errors import Rlds2ReverbError, TransportError, keep_report, reason_of
from rlds2reverb.interrupts import noted_interrupts
from rlds2reverb.prepare.preparation import ColumnStats
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.progress import Pace, Progress
from rlds2reverb.push.journal import PushJournal
from rlds2reverb.push.keys import EpisodeNames, Placement
from rlds2reverb.push.ledger import OutputLedgers
from rlds2reverb.push.plan import PushPlan, push_servers, report_of_nothing
from rlds2reverb.push.report import PushReport, total
from rlds2reverb.push.server_push import (
    LINGER_SECONDS,
    TOGETHER_BYTES,
    TOGETHER_ROWS,
    Outgoing,
    ServerPush,
    TaskContext,
)
from rlds2reverb.servers.episodes import MOST_KEYS, gather_deletions
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream import Reason

LOG = logging.getLogger("rlds2reverb.push")

Reading = Callable[[Iterable[Episode]], Iterator[tuple[Episode, list[Problem]]]]
"""Episodes, each with the problems that only other episodes show."""


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

    Attributes:
      parts: what goes to each server, in the order of the servers.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        plan: PushPlan,
        context: TaskContext | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._plan, self._context = plan, context
        self._reading: Reading = reading or plan.ready.read
        copies = None if context is None else context.copies
        is_task = context is not None
        self.names = EpisodeNames(lambda name: self._part_of(name).knows(name), plan, copies, is_task)
        lost = {} if context is None else context.missing
        self.servers = push_servers(plan, transports, lost, self._continue_without)
        self._preparer = plan.ready.preparer()
        self._parts = {
            server: ServerPush(plan, server, self._preparer.part(), partial(self._on_wait, server), context)
            for server in self.servers
        }
        self.parts = list(self._parts.values())
        self._placement = Placement([server.name for server in self.servers])
        self._server_of = {server.name: server for server in self.servers}
        self._waits: dict[Server, Reason] = {}
        self._journal = PushJournal("push", plan, self.servers, self.report)
        self._moved, self._deletion_notices = 0, tuple[Notice, ...]()
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
                if self._context is None:  # a whole push; of a distributed one the driver does this for all tasks
                    stack.enter_context(self._journal.kept())
                    # Before anything is sent, so that what was deleted does not come back.
                    deletions = gather_deletions(self.servers, self._plan.infos, self._plan.tuning.deadlines.stall)
                    self._deletion_notices = deletions.notices
                    for part in self.parts:
                        part.deletions = deletions
                        part.push_id = self._journal.push_ids.get(part.server.address, "")
                for part in self.parts:
                    stack.enter_context(part)
                self._read_and_send()
        except BaseException as error:
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    def _read_and_send(self) -> None:
        try:
            self._read()
            # All flush before one is waited for, so that the servers confirm at the same time.
            self._on_each(ServerPush.flush)
            self._on_each(ServerPush.finish)
            self._note()
            if self._plan.options.move and self._context is None:
                sent_keys = {part.server: part.account.sent_keys for part in self.parts}
                for moved in move_items(self.servers, sent_keys):
                    self._moved += moved
        except BaseException as error:
            # All servers wind up within LINGER_SECONDS; only the failed one gets its transport error, for it cannot confirm any more.
            until = time.monotonic() + LINGER_SECONDS
            for server in self.servers.there:
                is_of_another = isinstance(error, TransportError) and server is not self.servers.last_failed
                own = Rlds2ReverbError("another server ended the push") if is_of_another else error
                self._parts[server].wind_up(own, max(0.0, until - time.monotonic()))
            raise

    def _read(self) -> None:
        waiting, rows, size = list[tuple[Episode, list[Problem]]](), 0, 0
        # If it is not, the next episode may be long in coming, and those that wait would wait for it.
        is_at_hand = self._plan.source.is_at_hand
        try:
            for episode, problems in self._reading(self._new_episodes()):
                waiting.append((episode, problems))
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
        ready: dict[Server, list[Outgoing]] = {}
        try:
            examined = self._preparer.examine_together([episode for episode, _ in together])
            for (episode, problems), own in zip(together, examined):
                part = self._part_of(episode.id)
                with self.servers.about(part.server):
                    if (outgoing := part.prepare(episode, problems, own)) is not None:
                        ready.setdefault(part.server, []).append(outgoing)
        except Exception:
            self._send(ready)
            raise
        self._send(ready)

    def _send(self, ready: Mapping[Server, Sequence[Outgoing]]) -> None:
        self._journal.wait_begun()
        for server, outgoing in ready.items():
            with self.servers.about(server):
                self._parts[server].send(outgoing)

    def _new_episodes(self) -> Iterator[Episode]:
        for episode in self.names.read(self._plan.source):
            if isinstance(episode, KnownEpisode):
                part = self._part_of(episode.id)
                with self.servers.about(part.server):
                    part.take_known(episode.id)
            else:
                yield episode

    def _part_of(self, episode_id: str) -> ServerPush:
        """The part of the server whose ledger has the episode; else of the one that its name hashes to."""
        if len(self._parts) == 1:  # saves a hash (4 microseconds) and look-ups in ledgers for each episode
            return self.parts[0]
        for has in (OutputLedgers.have, OutputLedgers.had):
            for part in self.parts:
                if has(part.ledgers, episode_id):
                    return part
        return self._parts[self._server_of[self._placement.of(episode_id)]]

    def _on_each(self, do: Callable[[ServerPush], object]) -> None:
        for server in self.servers.there:
            with self.servers.about(server):
                do(self._parts[server])

    def _continue_without(self, server: Server, error: Rlds2ReverbError) -> None:
        """Confirmed episodes of the lost server go into its ledgers; later ones are left out."""
        part = self._parts[server]
        part.wind_up(error)
        part.close()
        LOG.warning("server %s is missing; the push continues without it: %s", server.address, error)

    # Progress and report.

    def report(self) -> PushReport:
        whole = replace(
            report_of_nothing(self._plan),
            notices=(
                *self._plan.notices,
                *self.columns.notices,
                *self.names.notices,
                *self._journal.notices,
                *self.list_notices,
                *self._deletion_notices,
            ),
            seconds=time.monotonic() - self._began,
            items_moved=self._moved,
        )
        return total(whole, {part.server.address: part.report() for part in self.parts})

    @property
    def list_notices(self) -> tuple[Notice, ...]:
        """That servers do not list all episodes."""
        return tuple(notice for part in self.parts for notice in part.notices)

    @property
    def columns(self) -> ColumnStats:
        return self._preparer.columns

    def _note(self) -> None:
        self._on_each(ServerPush.record)
        self._waits.clear()
        self._report_progress()

    def _on_wait(self, server: Server, reason: Reason) -> None:
        self._waits.pop(server, None)
        if reason.text:
            self._waits[server] = reason
        self._report_progress()

    def _report_progress(self) -> None:
        parts = [part.progress() for part in self.parts]
        waiting, held_by = "", tuple[str, ...]()
        for server, reason in self._waits.items():
            waiting, held_by = reason.text, reason.held_by
            if len(self.servers) > 1:
                waiting = waiting if server.address in waiting else f"{server.address}: {waiting}"
                held_by = tuple(f"{table} of {server.address}" for table in held_by)
            break
        self._plan.options.on_progress(
            Progress(
                sum(part.episodes for part in parts),
                sum(part.steps for part in parts),
                self._plan.episodes,
                sum(part.items_confirmed for part in parts),
                sum(part.bytes for part in parts),
                time.monotonic() - self._began,
                waiting,
                held_by,
            )
        )


def move_items(servers: Servers, sent_keys: Mapping[Server, Mapping[str, Sequence[Array]]]) -> Iterator[int]:
    """Deletes items from servers where they do not belong any more, once all are stored where they do; yields their number for each server.

    Keys do not say on which server an item is, so each server is sent the keys of the rest, and skips those that it lacks. After an error
    some may remain; the same push deletes them.

    Args:
      sent_keys: server -> table -> keys of the items that are stored where they belong.
    """
    for server, keys in sent_keys.items():
        for other in servers.there:
            if other is not server and not server.missing:
                with servers.about(other):
                    yield _take_out(other.transport, keys)


def _take_out(transport: Transport, keys: Mapping[str, Sequence[Array]]) -> int:
    """Deletes items (table -> arrays of keys); returns by how many the tables shrank, fewer if another client fills them meanwhile."""

    def size() -> int:
        info = transport.server_info()
        return sum(info.tables[name].current_size for name in keys)

    before = size() if keys else 0
    for table, parts in keys.items():
        all_keys = np.concatenate(parts)
        for start in range(0, len(all_keys), MOST_KEYS):
            transport.delete_items(table, all_keys[start : start + MOST_KEYS])
    return max(0, before - size()) if keys else 0
