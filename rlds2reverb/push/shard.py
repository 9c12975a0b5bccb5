"""The one place where an episode goes out to a server, whoever brings it: a source, a worker, or an environment loop.

Episodes are prepared (`prepare`), and what came of them is sent (`send`). These two may be called by two threads, one each; everything
else here belongs to the thread that sends.
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

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import (
    CapacityError,
    Rlds2ReverbError,
    ServerRestarted,
    ServerUnreachable,
    TransportError,
    reason_of,
)
from rlds2reverb.identity import is_copy, number_of
from rlds2reverb.prepare.cutting import OutputCut, Tally
from rlds2reverb.prepare.options import Progress
from rlds2reverb.prepare.policy import REPAIR
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.push.keys import ItemNames, new_key_bits
from rlds2reverb.push.ledger import Ledger, MemoryLedger, SqliteLedger
from rlds2reverb.push.options import ONCE
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.room import Budget
from rlds2reverb.push.sender import Sender, Writer, can_send_after
from rlds2reverb.push.tables import check_size
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream import Reason
from rlds2reverb.views.shared import groups, share

LINGER_SECONDS = 2.0
"""How long an interrupted push waits for confirmations of what it has sent."""

AWAY = "ServerUnreachable: it was missing when the push began"
"""Of a server that could not be reached then."""


class LostServers:
    """Which servers of a push are lost, and whether it may continue without them.

    Args:
      plan: of the push.
      missing: address -> why, of those that were lost before.
      on_lost: called with the address and the error of a server that is lost.

    Attributes:
      missing: address -> why.
    """

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
        """Around what concerns one server; where it is lost with it and may be, the block just ends.

        Raises:
          Rlds2ReverbError: as the block does; of several servers, the error names the one.
        """
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
        """Takes in the servers that another process lost; returns those that are news.

        Raises:
          ServerUnreachable: none is left.
        """
        new = [address for address in missing if address not in self.missing]
        self.missing.update({address: missing[address] for address in new})
        if len(self.missing) == len(self._plan.names):
            raise ServerUnreachable(
                f"no server is left of {', '.join(self._plan.names)}; {'; '.join(f'{one}: {self.missing[one]}' for one in new)}"
            )
        return new


@dataclass(frozen=True)
class TaskContext:
    """The context of a push that is one task of a larger one, whose other tasks may run in other processes.

    Attributes:
      budgets: address -> table -> items that it may store at most there, for nothing may be evicted; a table that is not named takes any
        number. None for a task that has the tables to itself, and watches them.
      ledgers: address -> one per output; () without a ledger.
      missing: address -> why, of the servers that are lost.
      again: the bits that make the keys of a push with `again`, the same for all tasks; None for one without.
      copies: place of an episode -> the number of the copy that it is stored as; the other episodes are left out. None for a task of
        which all episodes are stored, and copies of one content counted.
    """

    budgets: Mapping[str, Mapping[str, int]] | None = None
    ledgers: Mapping[str, Sequence[MemoryLedger]] = field(default_factory=dict, compare=False)
    missing: Mapping[str, str] = field(default_factory=dict)
    again: int | None = None
    copies: Mapping[int, int] | None = None


class Outgoing(NamedTuple):
    """A good episode, cut and not yet sent.

    Attributes:
      episode: as recorded.
      key_name: names it in item keys.
      cuts: number of an output -> what it makes of the episode; of those whose ledgers do not have it.
    """

    episode: Episode
    key_name: str
    cuts: Sequence[tuple[int, OutputCut]]


@dataclass
class _OnItsWay:
    """An episode of which some pieces are not confirmed."""

    steps: int
    pieces: int
    rows: Sequence[tuple[int, int]]  # (output, items over all its tables), for the ledgers when it is confirmed


class _Opened(NamedTuple):
    """What a shard has while it is open."""

    sender: Sender
    budget: Budget
    writer: Writer


class Shard:
    """The way of a push's episodes to the tables of one server; while that is missing, they are left out and counted.

    Args:
      plan: of the whole push.
      address: the server's.
      transport: the way to it; None when it is missing from the beginning.
      on_progress: called with how far this shard is when it waits, and by `note`; None for that of the options.
      context: of a task of a larger push; None for a whole one.

    Attributes:
      address: as given.
      missing: why its episodes are left out; "" while they are not.
      episodes_left_out, steps_left_out: so far.
      preparer: prepares the episodes, and counts them.
      sent: table -> keys of the items that were sent, where items are to be moved.
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
        self._tallies = [Tally() for _ in self._outputs]
        self._ledgers: Sequence[Ledger] = ()
        self._resumes = False
        self._opened: _Opened | None = None
        self._stack = ExitStack()
        self._began = time.monotonic()
        self._on_their_way: dict[str, _OnItsWay] = {}
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
        """Opens the ledgers, and the stream in the background.

        Raises:
          LedgerError: a ledger cannot be used.
        """
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
        """Closes them. What is not confirmed by now may or may not be stored."""
        self._stack.close()

    # Episodes.

    def has(self, episode_id: str) -> bool:
        """Whether a ledger says that the server process has confirmed an episode, for one of the outputs at least."""
        return any(episode_id in ledger.confirmed for ledger in self._ledgers)

    def had(self, episode_id: str) -> bool:
        """Whether a ledger says that another process of the server's name has confirmed it."""
        return any(episode_id in ledger.here for ledger in self._ledgers)

    def knows(self, episode_id: str) -> bool:
        """Whether nothing is to be read of an episode: the ledgers of all outputs have it. From any thread."""
        return (
            self._transport is not None and self._resumes and all(episode_id in one.confirmed for one in self._ledgers)
        )

    def take_known(self, episode_id: str) -> None:
        """Counts an episode that it knows.

        Raises:
          CapacityError: its items and those before are more than a table holds.
        """
        self._unrecorded(episode_id)
        self._count_resumed(episode_id)

    def take(self, episode: Episode, found: Sequence[Problem] = ()) -> None:
        """Sends what the outputs make of an episode as recorded, unless their ledgers have it; raises as `prepare` and `send` do.

        Args:
          episode: as recorded.
          found: its problems that other episodes show.
        """
        if self.missing:
            self.episodes_left_out += 1
            self.steps_left_out += len(episode)
        elif (outgoing := self.prepare(episode, found)) is not None:
            self.send(outgoing)

    def prepare(self, episode: Episode, found: Sequence[Problem] = ()) -> Outgoing | None:
        """Judges and cuts an episode as recorded; None when nothing of it is to be sent. Streams go on after it.

        Arguments as of `take`.

        Raises:
          InvalidEpisode, ViewError: it is bad, or cannot be cut, and the policy is to stop; it is in the account as rejected.
          CapacityError: a ledger has more of it than a table holds.
        """
        wanted = self._unrecorded(episode.id) if self._resumes else range(len(self._outputs))
        if not wanted:
            self._count_resumed(episode.id)
            return None
        is_dropped = self._options.duplicates == ONCE and is_copy(episode.id)
        prepared = self.preparer.prepare(episode, found, wanted, is_dropped)
        if not prepared.is_good:
            return None
        if is_dropped:
            self._duplicates += 1
            return None
        return Outgoing(episode, prepared.key_name, list(zip(wanted, prepared.cuts)))

    def send(self, outgoing: Outgoing) -> None:
        """Sends what the outputs made of one episode, and counts it; episodes come in the order in which they were prepared.

        Raises:
          CapacityError: its items would evict others, or others' evict those of this push.
          TransportError: sending failed.
        """
        episode, (sender, budget, writer) = outgoing.episode, self._open
        for number, cut in outgoing.cuts:
            self._names[number].take_in(outgoing.key_name)
            self._check_size(number, cut.items_per_table)
        made = [(number, cut) for number, cut in outgoing.cuts if cut.items_per_table]
        items_by_table = {table: cut.items_per_table for _, cut in made for table in cut.output.tables}
        if budget.wants_a_look(items_by_table):
            writer.drain()
            budget.look()
        budget.admit(items_by_table, self._options.again)
        together = groups([cut.cut for _, cut in made])
        self._count_sending(episode, len(together), made)
        for numbers in together:  # rows are shared
            shared = share([made[place][1].cut for place in numbers])
            encoded = writer.write(
                episode.id, [self._names[made[place][0]].part(cut) for place, cut in zip(numbers, shared)]
            )
            if self._options.move:
                for table, keys in encoded.table_keys.items():
                    self.sent.setdefault(table, []).append(keys)
        for number, cut in outgoing.cuts:
            self._tallies[number].add(cut.items_per_table, cut.is_of_stream)
        self._count_taken(
            episode.id,
            len(episode),
            {table: cut.items_per_table for _, cut in outgoing.cuts for table in cut.output.tables},
        )
        budget.watch(sender.confirmed_items)

    # Sending.

    @property
    def awaits_nothing(self) -> bool:
        """Whether everything sent is confirmed."""
        return self._open.sender.awaits_nothing

    def check(self) -> None:
        """Raises what has ended the sending, if anything has."""
        self._open.sender.check()

    def flush(self) -> None:
        """Sends what is kept for the next request; raises as `send` does."""
        self._open.writer.flush()

    def drain(self) -> None:
        """Sends what is kept, and waits until everything is confirmed; raises as `send` does."""
        self._open.writer.drain()

    def finish(self) -> None:
        """Drains, and looks at the tables a last time; raises as `send` does."""
        self.drain()
        self._open.budget.final_check()

    def wind_up(self, error: BaseException, linger_seconds: float | None = None) -> None:
        """Waits for what was sent before an error, where that makes sense, and records it. What fails now is not raised: the error is.

        Args:
          error: what ended the push.
          linger_seconds: how long to wait for confirmations where it was an interruption; two seconds by default.
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
        """Continues without the server: what it confirmed goes into the ledgers, and what comes next is left out."""
        self.missing = reason_of(error)
        self.wind_up(error)
        self.close()

    # The account.

    def note(self) -> None:
        """Writes into the ledgers what is confirmed, and reports progress."""
        self.record()
        self.report_progress(Reason())

    def record(self) -> None:
        """Writes into the ledgers what is confirmed.

        Raises:
          LedgerError: a ledger cannot be written.
        """
        rows: dict[int, list[tuple[str, int]]] = {}
        for episode_id, _ in self._open.sender.take_finished():
            found = self._on_their_way[episode_id]
            found.pieces -= 1
            if not found.pieces:
                del self._on_their_way[episode_id]
                self._count_stored(found.steps)
                for number, items in found.rows:
                    rows.setdefault(number, []).append((episode_id, items))
        for number, finished in rows.items():
            self._ledgers[number].record(finished)

    def report_progress(self, reason: Reason) -> None:
        """Reports progress, and why nothing moves, if so."""
        self._on_progress(self.progress(reason))

    def progress(self, reason: Reason = Reason()) -> Progress:
        """How far it is."""
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
        """The account so far; from any thread. Of several servers nobody knows how many episodes one gets."""
        opened, preparer = self._opened, self.preparer
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
        """[episodes, 3 + tables] uint64 of a task: what stands for the name, whether a ledger has it, steps, items by table."""
        return np.array(self._taken, np.uint64).reshape(-1, 3 + len(self._options.tables))

    def _unrecorded(self, episode_id: str) -> list[int]:
        """Numbers of the outputs whose ledgers lack the episode; where a ledger has it, its items are counted."""
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
        """Items that each table of an output has of an episode by its ledger; None when it is not there."""
        items = self._ledgers[number].confirmed.get(episode_id) if self._ledgers else None
        return None if items is None else items // len(self._outputs[number].tables)

    def _check_size(self, number: int, next_items: int) -> None:
        """Refuses what comes next where it makes the push larger than a table."""
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

    def _count_sending(self, episode: Episode, pieces: int, made: Sequence[tuple[int, OutputCut]]) -> None:
        """Records that the episode is sent in `pieces` pieces; an episode without pieces counts as stored."""
        rows = [(number, cut.items_in_all_tables) for number, cut in made] if self._ledgers else []
        if pieces:
            self._on_their_way[episode.id] = _OnItsWay(len(episode), pieces, rows)
        else:
            self._count_stored(len(episode))

    def _count_stored(self, steps: int) -> None:
        self._pushed += 1
        self._pushed_steps += steps

    def _count_taken(self, name: str, steps: int | None, items_by_table: Mapping[str, int]) -> None:
        """For a task, records an episode that is stored or in flight; `steps` is None if a ledger has it."""
        if self._context is not None:
            items = (items_by_table.get(table, 0) for table in self._options.tables)
            self._taken.extend((number_of(name), steps is None, steps or 0, *items))

    def _by_table(self, counts: Sequence[int]) -> dict[str, int]:
        """Table -> count, where there is any; given by output."""
        return {table: count for output, count in zip(self._outputs, counts) for table in output.tables if count}

    @property
    def _open(self) -> _Opened:
        assert self._opened is not None  # it is asked for while the shard is open, and its server there
        return self._opened


def open_ledgers(plan: PushPlan, address: str, stack: ExitStack) -> tuple[SqliteLedger, ...]:
    """Opens the ledgers of a push to one server, to be closed by the stack: one per output, all in one file; () for a push without one.

    So an output that is added later is filled without sending the others again. Of a server that is away nobody knows the process,
    so nothing is proof that it has an episode.

    Raises:
      LedgerError: the file cannot be used.
    """
    path = plan.options.ledger
    if path is None:
        return ()
    mended = (REPAIR,) if plan.options.on_invalid == REPAIR else ()
    process = f"{plan.infos[address].state_id:032x}" if address in plan.infos else ""
    pushes = [
        "|".join((ItemNames(one, plan.ready.identity).identity, *mended, *one.tables)) for one in plan.options.outputs
    ]
    return tuple(stack.enter_context(SqliteLedger(path, push, process, plan.names[address])) for push in pushes)
