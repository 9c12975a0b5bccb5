"""The one place where an episode goes out to a server, whoever brings it: a source, a worker, or an environment loop.

`prepare` and `send` may be called by two threads, one each; everything else belongs to the thread that sends.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut, can_be_joined, groups, share
from rlds2reverb.episode import Array, Episode, is_copy, number_of
from rlds2reverb.errors import (
    CapacityError,
    Rlds2ReverbError,
    ServerRestarted,
    ServerUnreachable,
    TransportError,
    reason_of,
)
from rlds2reverb.prepare.policy import Examined
from rlds2reverb.prepare.preparation import ItemCounts, OutputCut
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.keys import ItemNames, dataset_of, names_in_ledger, new_key_bits
from rlds2reverb.push.ledger import Ledger, MemoryLedger, SqliteLedger
from rlds2reverb.push.options import ONCE
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.room import Budget
from rlds2reverb.push.sender import Sender, Writer, can_send_after
from rlds2reverb.push.tables import check_size
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream import Reason
from rlds2reverb.wire.insert import Part

TOGETHER_ROWS, TOGETHER_BYTES = 1024, 1 << 19
"""Episodes are taken together while one more like the last keeps them within so many rows, which fill a request
(`wire.insert.RequestLimits`), and until they have so many bytes: most of what a short one costs does not depend on its length."""

LINGER_SECONDS = 2.0  # how long an interrupted push waits for confirmations of what it has sent
AWAY = "ServerUnreachable: it was missing when the push began"


class LostServers:
    """The lost servers of a push: `missing` maps an address to the reason. `on_lost` is called for each new one."""

    def __init__(
        self,
        plan: PushPlan,
        missing: Mapping[str, str] = MappingProxyType({}),
        on_lost: Callable[[str, Rlds2ReverbError], object] = lambda *_: None,
    ) -> None:
        self._plan, self._on_lost = plan, on_lost
        self.missing: dict[str, str] = {**dict.fromkeys(plan.missing, AWAY), **missing}
        self.last_failed = ""  # address of the server whose error came last

    @contextmanager
    def about(self, address: str) -> Iterator[None]:
        """Around calls to one server. If the server is lost and the push may continue without it, the block just ends; else its error names the server."""
        try:
            yield
        except (TransportError, CapacityError) as error:
            self.last_failed = address
            self._plan.named(error, address)
            is_last = all(one in self.missing for one in self._plan.names if one != address)
            if not isinstance(error, (ServerUnreachable, ServerRestarted)) or not self._plan.allow_missing or is_last:
                raise
            self.missing[address] = reason_of(error)
            self._on_lost(address, error)

    def add(self, missing: Mapping[str, str]) -> list[str]:
        """Adds servers that another process lost; returns the new ones."""
        new = [address for address in missing if address not in self.missing]
        self.missing.update({address: missing[address] for address in new})
        if len(self.missing) == len(self._plan.names):
            raise ServerUnreachable(
                f"no server is left of {', '.join(self._plan.names)}; {'; '.join(f'{one}: {self.missing[one]}' for one in new)}"
            )
        return new


@dataclass(frozen=True)
class TaskContext:
    """What one task of a distributed push shares with the tasks in other processes.

    Attributes:
      budgets: address -> table -> most items that the task may store there; a table without a budget takes any number. None for a task
        that has the tables to itself, and watches them.
      ledgers: address -> one per output; () without a ledger.
      missing: address -> reason, of lost servers.
      again: 64 bits of the keys of a push with `again`, the same for all tasks; None without `again`.
      copies: position of an episode -> number of the copy that it is stored as; all other episodes are left out. None for a task that
        stores all its episodes, and counts their copies.
    """

    budgets: Mapping[str, Mapping[str, int]] | None = None
    ledgers: Mapping[str, Sequence[MemoryLedger]] = field(default_factory=dict, compare=False)
    missing: Mapping[str, str] = field(default_factory=dict)
    again: int | None = None
    copies: Mapping[int, int] | None = None


class Outgoing(NamedTuple):
    """A good episode, cut and not yet sent."""

    episode: Episode
    key_name: str  # names the episode in item keys
    cuts: Sequence[tuple[int, OutputCut]]  # (number of an output, cut), of outputs whose ledgers lack the episode


Shared = list[list[tuple[int, Cut]]]
"""The cuts of an episode that have items, with the numbers of their outputs; those of a group share their rows."""


@dataclass
class _InFlight:
    """An episode with pieces that are not confirmed."""

    steps: int
    pieces: int
    rows: Sequence[tuple[int, int]]  # (output, items over all its tables), for the ledgers when it is confirmed


class _Opened(NamedTuple):
    sender: Sender
    budget: Budget
    writer: Writer


class Shard:
    """Prepares and sends the episodes of a push that go to one server. While the server is missing, episodes are left out and counted.

    Args:
      transport: None for a server that was missing when the push began.
      on_progress: called with the progress of this shard when it waits, and by `note`; by default that of the options.
      context: of a task of a distributed push; None for a whole push.

    Attributes:
      missing: why episodes are left out; "" while the server is there.
      sent: table -> keys of the items sent, with `move`.
    """

    def __init__(
        self,
        plan: PushPlan,
        address: str,
        transport: Transport | None,
        on_progress: Callable[[Progress], object] | None = None,
        context: TaskContext | None = None,
    ) -> None:
        self.address, self._plan, self._options, self._transport = address, plan, plan.options, transport
        self._on_progress = plan.options.on_progress if on_progress is None else on_progress
        self._context = context
        self.missing = "" if transport is not None else (context.missing if context else {}).get(address, AWAY)
        self.preparer = plan.ready.preparer()
        self._outputs = plan.options.outputs
        again = new_key_bits(plan.options.again) if context is None else context.again
        self._names = [ItemNames(output, plan.ready.identity, again) for output in self._outputs]
        self._tallies = [ItemCounts() for _ in self._outputs]
        self._ledgers: Sequence[Ledger] = ()
        self._resumes = False
        self._opened: _Opened | None = None
        self._stack = ExitStack()
        self._began = time.monotonic()
        self._in_flight: dict[str, _InFlight] = {}
        self._pushed = self._pushed_steps = self._resumed = self._duplicates = 0
        self._taken = array("Q")
        self.episodes_left_out = self.steps_left_out = 0
        self.sent: dict[str, list[Array]] = {}

    # Opening and closing.

    def __enter__(self) -> Shard:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Opens the ledgers, and the stream in the background."""
        with ExitStack() as stack:
            plan, context = self._plan, self._context
            self._ledgers = (
                open_ledgers(plan, self.address, stack) if context is None else context.ledgers.get(self.address, ())
            )
            self._resumes = self._options.resume and len(self._ledgers) > 0
            if self._transport is not None:
                info, tuning = plan.infos[self.address], plan.tuning
                sender = stack.enter_context(
                    Sender(
                        self._transport,
                        self._options.tables,
                        info,
                        tuning.window,
                        tuning.deadlines,
                        self.report_progress,
                    )
                )
                granted = None if context is None or context.budgets is None else context.budgets.get(self.address, {})
                tables = [info.tables[name] for name in self._options.tables] if granted is None else ()
                is_guarded = not self._options.allow_eviction
                budget = Budget(self._transport, tables, tuning.limits, tuning.deadlines, is_guarded, granted)
                stack.callback(budget.close)
                self._opened = _Opened(sender, budget, Writer(sender, self._options.chunk_length, budget))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Closes ledgers and stream. Items that are not confirmed by now may or may not be stored."""
        self._stack.close()

    # Episodes.

    def has(self, episode_id: str) -> bool:
        """Whether this server process has confirmed the episode for at least one output, by the ledgers."""
        return any(episode_id in ledger.confirmed for ledger in self._ledgers)

    def had(self, episode_id: str) -> bool:
        """Whether an earlier process of this server has confirmed it, by the ledgers."""
        return any(episode_id in ledger.here for ledger in self._ledgers)

    def knows(self, episode_id: str) -> bool:
        """Whether the episode need not be read: the ledgers of all outputs have it. Thread-safe."""
        return (
            self._transport is not None and self._resumes and all(episode_id in one.confirmed for one in self._ledgers)
        )

    def take_known(self, episode_id: str) -> None:
        """Counts an episode that the ledgers have."""
        self._unrecorded(episode_id)
        self._count_resumed(episode_id)

    def prepare(
        self, episode: Episode, found: Sequence[Problem] = (), examined: Examined | None = None
    ) -> Outgoing | None:
        """Checks and cuts an episode as recorded; None when nothing of it is to be sent, or its server is missing. Arguments as of
        `Preparer.prepare`.

        Raises:
          InvalidEpisode, ViewError: the episode is bad or cannot be cut, and the policy is to stop; the report counts it as rejected.
          CapacityError: by a ledger, the push is larger than a table.
        """
        if self.missing:
            self.episodes_left_out += 1
            self.steps_left_out += len(episode)
            return None
        wanted = self._unrecorded(episode.id) if self._resumes else range(len(self._outputs))
        if not wanted:
            self._count_resumed(episode.id)
            return None
        is_dropped = self._options.duplicates == ONCE and is_copy(episode.id)
        prepared = self.preparer.prepare(episode, found, wanted, is_dropped, examined)
        if not prepared.is_good:
            return None
        if is_dropped:
            self._duplicates += 1
            return None
        return Outgoing(episode, prepared.key_name, list(zip(wanted, prepared.cuts)))

    def send(self, ready: Sequence[Outgoing]) -> None:
        """Sends the items of episodes, which come in the order in which they were prepared; together, if they are cut alike and no table is
        near its limit.

        Raises:
          CapacityError: the items would evict others, or another client's items evicted some of this push.
          TransportError: sending failed.
        """
        shared = [_shared(outgoing) for outgoing in ready]
        if len(ready) > 1 and self._go_together(ready, shared):
            self._send(ready, shared)
        else:
            for outgoing, own in zip(ready, shared):
                self._send([outgoing], [own])

    def _go_together(self, ready: Sequence[Outgoing], shared: Sequence[Shared]) -> bool:
        if not all(cut.items_per_table for outgoing in ready for _, cut in outgoing.cuts):
            return False
        if len({tuple(tuple(number for number, _ in group) for group in own) for own in shared}) > 1:
            return False
        if not all(can_be_joined([[cut for _, cut in group] for group in groups]) for groups in zip(*shared)):
            return False
        try:
            items_by_table = self._items_to_send(ready)
        except CapacityError:
            return False  # not of the first of them, perhaps
        return self._open.budget.is_ample(items_by_table)

    def _send(self, ready: Sequence[Outgoing], shared: Sequence[Shared]) -> None:
        """Sends the items of one episode, or of several that go together."""
        sender, budget, writer = self._open
        items_by_table = self._items_to_send(ready)
        if budget.wants_a_look(items_by_table):
            writer.drain()
            budget.look()
        budget.admit(items_by_table, self._options.again)
        for one, own in zip(ready, shared):
            if own:
                self._in_flight[one.episode.id] = _InFlight(len(one.episode), len(own), self._ledger_rows(one))
            else:
                self._count_stored(len(one.episode))
        parts = [self._parts(outgoing, own) for outgoing, own in zip(ready, shared)]
        ids = [one.episode.id for one in ready]
        for group in zip(*parts):
            encoded = writer.write(ids[0], group[0], [*zip(ids, group)][1:])
            if self._options.move:
                for table, keys in encoded.table_keys.items():
                    self.sent.setdefault(table, []).append(keys)
        for episode, _, cuts in ready:
            for number, cut in cuts:
                self._tallies[number].add(cut.items_per_table, cut.is_of_stream)
            counts = {table: cut.items_per_table for _, cut in cuts for table in cut.output.tables}
            self._count_taken(episode.id, len(episode), counts)
        budget.watch(sender.confirmed_items)

    def _items_to_send(self, ready: Sequence[Outgoing]) -> dict[str, int]:
        """Table -> items of the episodes, where there are any; raises CapacityError for more than a table holds."""
        items_by_table: dict[str, int] = {}
        for place, (number, cut) in enumerate(ready[0].cuts):
            items = sum(one.cuts[place][1].items_per_table for one in ready)
            self._check_size(number, items)
            items_by_table |= dict.fromkeys(cut.output.tables if items else (), items)
        return items_by_table

    def _ledger_rows(self, outgoing: Outgoing) -> Sequence[tuple[int, int]]:
        made = [(number, cut.items_in_all_tables) for number, cut in outgoing.cuts if cut.items_per_table]
        return made if self._ledgers else ()

    def _parts(self, outgoing: Outgoing, shared: Shared) -> list[list[Part]]:
        """What is sent of an episode, group by group. The names of the items may depend on the episodes before."""
        for number, _ in outgoing.cuts:
            self._names[number].take_in(outgoing.key_name)
        return [[self._names[number].part(cut) for number, cut in group] for group in shared]

    # Sending.

    @property
    def awaits_nothing(self) -> bool:
        return self._open.sender.awaits_nothing

    def check(self) -> None:
        """Raises the error that has ended the sending, if any."""
        self._open.sender.check()

    def flush(self) -> None:
        """Sends the request in the making; raises as `send` does."""
        self._open.writer.flush()

    def drain(self) -> None:
        """Flushes, and waits until everything is confirmed; raises as `send` does."""
        self._open.writer.drain()

    def finish(self) -> None:
        """Drains, and checks the tables a last time; raises as `send` does."""
        self.drain()
        self._open.budget.final_check()

    def wind_up(self, error: BaseException, linger_seconds: float | None = None) -> None:
        """After an error that ends the push: waits for confirmations of what was sent, and records them. Raises nothing, so that the error is seen.

        After an interruption it waits `linger_seconds` at most.
        """
        if not isinstance(error, Exception):
            self._open.sender.linger(LINGER_SECONDS if linger_seconds is None else linger_seconds)
        with suppress(Exception):
            self._open.writer.drain_after(error)
        with suppress(Exception):
            self.record()
        if can_send_after(error):
            with suppress(Exception):
                self._open.budget.final_check()

    def lose(self, error: Rlds2ReverbError) -> None:
        """Continues without the server: confirmed episodes go into the ledgers, and later ones are left out."""
        self.missing = reason_of(error)
        self.wind_up(error)
        self.close()

    # Ledgers and report.

    def note(self) -> None:
        self.record()
        self.report_progress(Reason())

    def record(self) -> None:
        """Writes confirmed episodes into the ledgers."""
        rows: dict[int, list[tuple[str, int]]] = {}
        for episode_id, _ in self._open.sender.take_finished():
            episode = self._in_flight[episode_id]
            episode.pieces -= 1
            if not episode.pieces:
                del self._in_flight[episode_id]
                self._count_stored(episode.steps)
                for number, items in episode.rows:
                    rows.setdefault(number, []).append((episode_id, items))
        for number, finished in rows.items():
            self._ledgers[number].record(finished)

    def report_progress(self, reason: Reason) -> None:
        self._on_progress(self.progress(reason))

    def progress(self, reason: Reason = Reason()) -> Progress:
        opened, preparer = self._opened, self.preparer
        return Progress(
            preparer.episodes + self._resumed + self.episodes_left_out,
            preparer.steps + self.steps_left_out,
            self._plan.episodes,
            0 if opened is None else opened.sender.confirmed_items,
            0 if opened is None else opened.sender.sent_bytes,
            time.monotonic() - self._began,
            reason.text,
            reason.held_by,
        )

    def report(self) -> PushReport:
        """The report so far. Thread-safe."""
        opened, preparer = self._opened, self.preparer
        # How many episodes one of many servers gets is not known before they are read.
        count = self._plan.episodes if len(self._plan.names) == 1 else None
        return replace(
            report_of_nothing(self._plan),
            episodes_read=preparer.episodes + self.episodes_left_out,
            steps_read=preparer.steps + self.steps_left_out,
            episodes_pushed=self._pushed,
            steps_pushed=self._pushed_steps,
            items_confirmed=0 if opened is None else opened.sender.confirmed_items,
            items_new=0 if self._transport is None else None if opened is None else opened.budget.new_items(),
            items_made=self._by_table([one.items_per_table for one in self._tallies]),
            without_items=self._by_table([one.without_items for one in self._tallies]),
            left_over=self._by_table([one.left_over for one in preparer.cutters]),
            rejected=dict(preparer.policy.rejected),
            steps_rejected=preparer.steps_rejected,
            advice=dict(preparer.policy.advice),
            repaired=dict(preparer.policy.repaired),
            ends_mended=preparer.ends_mended,
            notices=self._plan.notices,
            episodes_resumed=self._resumed,
            episodes_duplicate=self._duplicates,
            episodes_left_out=self.episodes_left_out,
            episodes_unread=None if count is None else count - preparer.episodes - self._resumed,
            bytes=0 if opened is None else opened.sender.sent_bytes,
            seconds=time.monotonic() - self._began,
            reconnects=0 if opened is None else opened.sender.reconnects,
            stopped=self.missing,
        )

    @property
    def taken_rows(self) -> Array:
        """[episodes, 3 + tables] uint64 of a task: number of the name, whether a ledger has it, steps, items by table."""
        return np.array(self._taken, np.uint64).reshape(-1, 3 + len(self._options.tables))

    def _unrecorded(self, episode_id: str) -> list[int]:
        """Numbers of the outputs whose ledgers lack the episode; counts its items for the other outputs."""
        missing = []
        for number in range(len(self._outputs)):
            items = self._recorded_items(number, episode_id)
            if items is None:
                missing.append(number)
            else:
                self._tallies[number].items_per_table += items
                self._check_size(number, 0)
        return missing

    def _recorded_items(self, number: int, episode_id: str) -> int | None:
        """Items of the episode in each table of an output, by the ledger; None when the ledger lacks it."""
        items = self._ledgers[number].confirmed.get(episode_id) if self._ledgers else None
        return None if items is None else items // len(self._outputs[number].tables)

    def _check_size(self, number: int, next_items: int) -> None:
        if not self._options.allow_eviction:
            items = self._tallies[number].items_per_table + next_items
            check_size(self._outputs[number], self._plan.infos[self.address], items, f"more than {items - 1}")

    def _count_resumed(self, episode_id: str) -> None:
        self._resumed += 1
        items = {
            table: self._recorded_items(number, episode_id) or 0
            for number, output in enumerate(self._outputs)
            for table in output.tables
        }
        self._count_taken(episode_id, None, items)

    def _count_stored(self, steps: int) -> None:
        self._pushed += 1
        self._pushed_steps += steps

    def _count_taken(self, name: str, steps: int | None, items_by_table: Mapping[str, int]) -> None:
        """For a task, notes an episode that is stored or in flight; `steps` is None if a ledger has it."""
        if self._context is not None:
            items = (items_by_table.get(table, 0) for table in self._options.tables)
            self._taken.extend((number_of(name), steps is None, steps or 0, *items))

    def _by_table(self, counts: Sequence[int]) -> dict[str, int]:
        return {table: count for output, count in zip(self._outputs, counts) for table in output.tables if count}

    @property
    def _open(self) -> _Opened:
        assert self._opened is not None  # used only while the shard is open and its server there
        return self._opened


def _shared(outgoing: Outgoing) -> Shared:
    made = [(number, cut.cut) for number, cut in outgoing.cuts if cut.items_per_table]
    return [
        [(made[place][0], cut) for place, cut in zip(places, share([made[place][1] for place in places]))]
        for places in groups([cut for _, cut in made])
    ]


def open_ledgers(plan: PushPlan, address: str, stack: ExitStack) -> tuple[SqliteLedger, ...]:
    """Opens the ledgers of a push to one server, one per output, all in one file; () for a push without a ledger. The stack closes them.

    Per output, so that an output added later is filled without sending the rest again. The process of a missing server is not known,
    so its rows prove nothing.

    Raises:
      LedgerError: the file cannot be used.
    """
    path = plan.options.ledger
    if path is None:
        return ()
    process = f"{plan.infos[address].state_id:032x}" if address in plan.infos else ""
    ledgers = [
        stack.enter_context(SqliteLedger(path, push, process, plan.names[address])) for push in names_in_ledger(plan)
    ]
    for ledger in ledgers:
        ledger.note_source(dataset_of(plan.source), plan.episodes)
    return tuple(ledgers)
