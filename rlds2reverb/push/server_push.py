"""The one place where an episode goes out to a server, whoever brings it: a source, a worker, or an environment loop.

    ServerPush      prepares and sends the episodes of one server
      OutputLedgers   what earlier pushes have stored there
      Account         what this push has sent and stored there

`prepare` and `send` may be called by two threads, one each; everything else belongs to the thread that sends.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut, can_be_joined, groups, share
from rlds2reverb.episode import Array, Episode, Notice, is_copy, number_of
from rlds2reverb.errors import CapacityError
from rlds2reverb.prepare.endings import Endings
from rlds2reverb.prepare.policy import Examined
from rlds2reverb.prepare.preparation import ItemCounts, OutputCut, Preparer
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.capacity import Budget, GrantedBudget, WatchedBudget
from rlds2reverb.push.keys import ItemNames, dataset_of, names_in_ledger, new_key_bits
from rlds2reverb.push.ledger import Ledger, MemoryLedger, OutputLedgers, SqliteLedger
from rlds2reverb.push.options import ONCE, PushOptions
from rlds2reverb.push.pages import PageKind, PageWriter
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.sender import Sender, Writer, can_send_after
from rlds2reverb.push.tables import check_size
from rlds2reverb.servers.episodes import Deletions
from rlds2reverb.servers.group import Server
from rlds2reverb.text import counted
from rlds2reverb.transport.stream import Reason
from rlds2reverb.wire.insert import Part
from rlds2reverb.wire.messages import EPISODES

TOGETHER_ROWS, TOGETHER_BYTES = 1024, 1 << 19
"""Episodes are taken together while one more like the last keeps them within so many rows, which fill a request
(`wire.insert.RequestLimits`), and until they have so many bytes: most of what a short one costs does not depend on its length."""

LINGER_SECONDS = 2.0  # how long an interrupted push waits for confirmations of what it has sent


@dataclass(frozen=True)
class TaskContext:
    """What a task of a distributed push shares with the tasks in other processes.

    The driver sends it with the task; the worker adds what all its tasks share, `ledgers` and `again`.

    Attributes:
      budgets: address -> table -> most items that the task may store there; a table without a budget takes any number. None for a task
        that has the tables to itself, and watches them.
      missing: address -> reason, of lost servers.
      copies: position of an episode -> number of the copy that it is stored as; all other episodes are left out. None for a task that
        stores all its episodes, and counts their copies.
      endings: how the episodes of earlier tasks end, as far as those have ended.
      ledgers: address -> one per output; () without a ledger.
      again: 64 bits of the keys of a push with `again`, the same for all tasks; None without `again`.
      push_ids: address -> id of the journal's entry, of servers that have one.
      deletions: what stays out of the tables.
    """

    budgets: Mapping[str, Mapping[str, int]] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[int, int] | None = None
    endings: Endings = field(default_factory=Endings)
    ledgers: Mapping[str, Sequence[MemoryLedger]] = field(default_factory=dict, compare=False)
    again: int | None = None
    push_ids: Mapping[str, str] = field(default_factory=dict)
    deletions: Deletions = field(default_factory=Deletions, compare=False)


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


SENT, KNOWN, DELETED_BEFORE = range(3)
"""How an episode was taken: stored or in flight, in a ledger, or left out because it was deleted."""


class Account:
    """What a push has sent to one server, and what of it is stored.

    Attributes:
      tallies: items of each output, those of resumed episodes included.
      withheld: table -> items of these that it did not get, because their episodes were deleted from it.
      pushed, pushed_steps: episodes that are stored whole.
      resumed: episodes that the ledgers have.
      duplicates: good episodes that are left out because an equal one was stored.
      left_out, left_out_steps: episodes left out because the server is missing.
      deleted: episodes left out because they were deleted from the tables.
      sent_keys: table -> keys of the items sent, with `move`.
    """

    def __init__(self, options: PushOptions, is_of_task: bool) -> None:
        self._options, self._is_of_task = options, is_of_task
        self.tallies = [ItemCounts() for _ in options.outputs]
        self.withheld = Counter[str]()
        self.pushed = self.pushed_steps = self.resumed = self.duplicates = self.deleted = 0
        self.left_out = self.left_out_steps = 0
        self.sent_keys: dict[str, list[Array]] = {}
        self._in_flight: dict[str, _InFlight] = {}
        self._taken = array("Q")

    def leave_out(self, episode: Episode) -> None:
        self.left_out += 1
        self.left_out_steps += len(episode)

    def resume(self, episode_id: str, items_by_table: Mapping[str, int]) -> None:
        """Counts an episode that the ledgers of all outputs have."""
        self.resumed += 1
        self._take(episode_id, KNOWN, None, items_by_table)

    def leave_deleted(self, episode_id: str) -> None:
        """Counts an episode that was deleted from all tables that would get its items."""
        self.deleted += 1
        self._take(episode_id, DELETED_BEFORE, None, {})

    def withhold(self, number: int, items: int, tables: Collection[str]) -> None:
        """Counts items of an output that only these of its tables get."""
        for table in self._options.outputs[number].tables:
            if table not in tables:
                self.withheld[table] += items

    def items_made(self) -> dict[str, int]:
        """Table -> items that it got, or has by the ledgers; tables with any."""
        made = self.by_table([tally.items_per_table for tally in self.tallies])
        if self.withheld:
            made = {table: items for table in made if (items := made[table] - self.withheld[table])}
        return made

    def begin(self, outgoing: Outgoing, pieces: int, has_ledgers: bool) -> None:
        """An episode is about to be sent in so many pieces, each of which is confirmed by itself."""
        steps = len(outgoing.episode)
        if not pieces:
            self._store(steps)
            return
        # As if all tables of the output got them: which do not is in the list of deletions, and may change.
        tables = [len(output.tables) for output in self._options.outputs]
        rows = [(number, cut.items_per_table * tables[number]) for number, cut in outgoing.cuts if cut.items_per_table]
        self._in_flight[outgoing.episode.id] = _InFlight(steps, pieces, rows if has_ledgers else ())

    def send(self, outgoing: Outgoing) -> None:
        """The items of an episode were handed to the sender."""
        for number, cut in outgoing.cuts:
            self.tallies[number].add(cut.items_per_table, cut.is_of_stream)
            if len(cut.output.tables) < len(self._options.outputs[number].tables):
                self.withhold(number, cut.items_per_table, cut.output.tables)
        counts = {table: cut.items_per_table for _, cut in outgoing.cuts for table in cut.output.tables}
        self._take(outgoing.episode.id, SENT, len(outgoing.episode), counts)

    def confirm(self, episode_ids: Iterable[str]) -> dict[int, list[tuple[str, int]]]:
        """Takes in confirmed pieces; returns what the ledgers are to record: output -> (episode, items over all its tables)."""
        rows: dict[int, list[tuple[str, int]]] = {}
        for episode_id in episode_ids:
            episode = self._in_flight[episode_id]
            episode.pieces -= 1
            if episode.pieces:
                continue
            del self._in_flight[episode_id]
            self._store(episode.steps)
            for number, items in episode.rows:
                rows.setdefault(number, []).append((episode_id, items))
        return rows

    @property
    def taken_rows(self) -> Array:
        """[episodes, 3 + tables] uint64 of a task: number of the name, how it was taken, steps, items by table."""
        return np.array(self._taken, np.uint64).reshape(-1, 3 + len(self._options.tables))

    def by_table(self, counts: Sequence[int]) -> dict[str, int]:
        """Table -> count of its output, where there are any."""
        outputs = self._options.outputs
        return {table: count for output, count in zip(outputs, counts) for table in output.tables if count}

    def _store(self, steps: int) -> None:
        self.pushed += 1
        self.pushed_steps += steps

    def _take(self, name: str, how: int, steps: int | None, items_by_table: Mapping[str, int]) -> None:
        """Notes an episode for the driver; `steps` is None if it was not sent."""
        if self._is_of_task:
            items = (items_by_table.get(table, 0) for table in self._options.tables)
            self._taken.extend((number_of(name), how, steps or 0, *items))


class _Connection(NamedTuple):
    sender: Sender
    budget: Budget
    writer: Writer


class ServerPush:
    """Prepares and sends the episodes of a push that go to one server. While the server is missing, episodes are left out and counted.

    Args:
      preparer: counts the episodes of this server alone.
      on_wait: called with the reason when nothing was confirmed for a while, and with an empty reason afterwards.
      context: of a task of a distributed push; None for a whole push.

    Attributes:
      push_id: of the journal's entry, under which the server lists the episodes; "" to list none. Set it before the first episode is sent.
      deletions: what stays out of the tables; set it before `open`.
    """

    def __init__(
        self,
        plan: PushPlan,
        server: Server,
        preparer: Preparer,
        on_wait: Callable[[Reason], object],
        context: TaskContext | None = None,
    ) -> None:
        self.push_id = "" if context is None else context.push_ids.get(server.address, "")
        self.deletions = Deletions() if context is None else context.deletions
        self._pages: PageWriter | None = None
        self._is_ending = False
        self._withheld_from = Counter[str]()  # table -> episodes
        self._unrecorded: dict[int, list[tuple[str, int]]] = {}
        self.server, self.preparer = server, preparer
        self._plan, self._options, self._context, self._on_wait = plan, plan.options, context, on_wait
        self._outputs = plan.options.outputs
        again = new_key_bits(plan.options.again) if context is None else context.again
        self._names = [ItemNames(output, plan.ready.identity, again) for output in self._outputs]
        self.account = Account(plan.options, is_of_task=context is not None)
        self.ledgers = OutputLedgers((), self._outputs)
        self._resumes = False
        self._connection: _Connection | None = None
        self._stack = ExitStack()
        self._began = time.monotonic()

    # Opening and closing.

    def __enter__(self) -> ServerPush:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Opens the ledgers, and the stream in the background."""
        with ExitStack() as stack:
            plan, options, context, address = self._plan, self._options, self._context, self.server.address
            if context is None:
                ledgers: Sequence[Ledger] = open_ledgers(plan, self.server, stack, self.deletions)
            else:
                ledgers = context.ledgers.get(address, ())
            self.ledgers = OutputLedgers(ledgers, self._outputs)
            self._resumes = options.resume and len(ledgers) > 0
            if self.server.is_connected:
                transport, info, tuning = self.server.transport, plan.infos[address], plan.tuning
                sender = stack.enter_context(
                    Sender(transport, options.tables, info, tuning.window, tuning.deadlines, self._on_wait)
                )
                budget: Budget
                if context is None or context.budgets is None:
                    tables = [info.tables[name] for name in options.tables]
                    is_guarded = not options.allow_eviction
                    budget = WatchedBudget(transport, tables, tuning.limits, tuning.deadlines, is_guarded)
                else:
                    budget = GrantedBudget(context.budgets.get(address, {}), tuning.limits)
                stack.callback(budget.close)
                self._connection = _Connection(sender, budget, Writer(sender, options, budget))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Closes ledgers and stream. Items that are not confirmed by now may or may not be stored."""
        self._stack.close()

    # Episodes.

    def knows(self, episode_id: str) -> bool:
        """Whether the episode need not be read: each table has it by a ledger, or it was deleted from there. Thread-safe."""
        if not self.server.is_connected or not (self._resumes or len(self.deletions)):
            return False
        return not self._outputs_to_send(episode_id, self.deletions.tables_without(episode_id))

    def take_known(self, episode_id: str) -> None:
        """Counts an episode of which nothing is to be sent."""
        without = self.deletions.tables_without(episode_id)
        self._note_streams(without)
        tables = [table for number in range(len(self._outputs)) for table in self._tables_with(number, without)]
        if not tables:
            self.account.leave_deleted(episode_id)
            return
        self._count_known(episode_id, without)
        items = self.ledgers.items_by_table(episode_id)
        self.account.resume(episode_id, {table: items.get(table, 0) for table in tables})

    def _outputs_to_send(self, episode_id: str, without: Collection[str]) -> list[int]:
        """Numbers of the outputs that lack the episode: neither a ledger has it, nor was it deleted from all of their tables."""
        lacking = self.ledgers.lacking(episode_id) if self._resumes else range(len(self._outputs))
        return [number for number in lacking if self._tables_with(number, without)] if without else [*lacking]

    def _count_known(self, episode_id: str, without: Collection[str]) -> None:
        """Counts the items of an episode for the outputs whose ledgers have it."""
        for number, items in self.ledgers.items_of(episode_id).items() if self._resumes else ():
            self.account.tallies[number].items_per_table += items
            if without:
                self.account.withhold(number, items, self._tables_with(number, without))
            self._check_size(number, 0)

    def prepare(
        self, episode: Episode, problems: Sequence[Problem] = (), examined: Examined | None = None
    ) -> Outgoing | None:
        """Checks and cuts an episode as recorded; None when nothing of it is to be sent, or its server is missing.

        Args:
          problems: those that only other episodes show.
          examined: what `Preparer.examine_together` found; None to examine it now.

        Raises:
          InvalidEpisode, ViewError: the episode is bad or cannot be cut, and the policy is to stop; the report counts it as rejected.
          CapacityError: by a ledger, the push is larger than a table.
        """
        if self.server.missing:
            self.account.leave_out(episode)
            return None
        without = self.deletions.tables_without(episode.id)
        outputs = self._outputs_to_send(episode.id, without)
        if not outputs:
            self.take_known(episode.id)
            return None
        self._note_streams(without)
        self._count_known(episode.id, without)
        is_dropped = self._options.duplicates == ONCE and is_copy(episode.id)
        prepared = self.preparer.prepare(episode, problems, outputs, is_dropped, examined)
        if not prepared.is_good:
            return None
        if is_dropped:
            self.account.duplicates += 1
            return None
        cuts = list(zip(outputs, prepared.cuts))
        if without:
            cuts = [
                (number, cut._replace(output=replace(cut.output, tables=self._tables_with(number, without))))
                for number, cut in cuts
            ]
        return Outgoing(episode, prepared.key_name, cuts)

    def _tables_with(self, number: int, without: Collection[str]) -> tuple[str, ...]:
        """The tables of an output that get an episode which was deleted from some.

        Of a stream all or none: a table that lacked the episode would get its last steps with the next one's.
        """
        output = self._outputs[number]
        tables = tuple(table for table in output.tables if table not in without)
        return () if output.is_of_stream and len(tables) < len(output.tables) else tables

    def _note_streams(self, without: Set[str]) -> None:
        """Counts an episode for the tables of streams that it was not deleted from, and that do not get it."""
        for output in self._outputs if without else ():
            if output.is_of_stream and not without.isdisjoint(output.tables):
                self._withheld_from.update(table for table in output.tables if table not in without)

    def send(self, ready: Sequence[Outgoing]) -> None:
        """Sends the items of episodes, which come in the order in which they were prepared; together, if they are cut alike and no table is
        near its limit.

        Raises:
          CapacityError: the items would evict others, or another client's items evicted some of this push.
          TransportError: sending failed.
        """
        shared = [_share_rows(outgoing) for outgoing in ready]
        goes_together = len(ready) > 1 and self._go_together(ready, shared)
        batches = [(ready, shared)] if goes_together else [([outgoing], [own]) for outgoing, own in zip(ready, shared)]
        sender, budget, writer = self._open
        for together, rows in batches:
            items_by_table = self._items_to_send(together)
            if budget.wants_a_look(items_by_table):
                writer.drain()
                budget.look()
            budget.admit(items_by_table, self._options.again)
            # Begun before it is sent: a confirmation may come while the rest is still being written.
            for outgoing, own in zip(together, rows):
                self.account.begin(outgoing, len(own), len(self.ledgers) > 0)
            parts: list[list[list[Part]]] = []  # of each episode, group by group
            for outgoing, own in zip(together, rows):
                # In this order, since the names of a stream's items depend on the episodes before.
                for number, _ in outgoing.cuts:
                    self._names[number].take_in(outgoing.key_name)
                tables = {number: cut.output.tables for number, cut in outgoing.cuts}
                parts.append(
                    [[self._names[number].part(cut, tables[number]) for number, cut in group] for group in own]
                )
                if self.push_id:
                    self._list(outgoing)
            ids = [outgoing.episode.id for outgoing in together]
            for group in zip(*parts):
                encoded = writer.write(ids[0], group[0], [*zip(ids, group)][1:])
                if self._options.move:
                    for table, keys in encoded.table_keys.items():
                        self.account.sent_keys.setdefault(table, []).append(keys)
            for outgoing in together:
                self.account.send(outgoing)
            budget.watch(sender.confirmed_items)

    def _go_together(self, ready: Sequence[Outgoing], shared: Sequence[Shared]) -> bool:
        if not all(cut.items_per_table for outgoing in ready for _, cut in outgoing.cuts):
            return False
        if len({tuple(tuple(number for number, _ in group) for group in own) for own in shared}) > 1:
            return False
        if (
            len(self.deletions)
            and len({tuple(cut.output.tables for _, cut in outgoing.cuts) for outgoing in ready}) > 1
        ):
            return False
        if not all(can_be_joined([[cut for _, cut in group] for group in groups]) for groups in zip(*shared)):
            return False
        try:
            items_by_table = self._items_to_send(ready)
        except CapacityError:
            return False  # the first episodes may fit: each is sent by itself until one does not
        return self._open.budget.is_ample(items_by_table)

    def _items_to_send(self, ready: Sequence[Outgoing]) -> dict[str, int]:
        """Table -> items of the episodes, where there are any; raises CapacityError for more than a table holds."""
        items_by_table: dict[str, int] = {}
        for place, (number, cut) in enumerate(ready[0].cuts):
            items = sum(outgoing.cuts[place][1].items_per_table for outgoing in ready)
            self._check_size(number, items, cut.output.tables)
            items_by_table |= dict.fromkeys(cut.output.tables if items else (), items)
        return items_by_table

    def _list(self, outgoing: Outgoing) -> None:
        """Has the server's list of episodes name this one."""
        if self._pages is None:
            seconds = self._plan.tuning.deadlines.stall
            source = self._plan.source.name
            listed = self._plan.infos[self.server.address].own_tables[EPISODES].current_size
            self._pages = PageWriter(self.server.transport, self.push_id, source, seconds, listed)
        for number, cut in outgoing.cuts:
            if cut.items_per_table:
                names = self._names[number]
                kind = PageKind(cut.output.tables, names.push_seed, cut.is_of_stream)
                self._pages.add(kind, outgoing.episode.id, names.key_name, cut.cut)

    def _check_size(self, number: int, next_items: int, tables: Sequence[str] = ()) -> None:
        """Raises CapacityError if the output makes more items than one of its tables, or of these, holds."""
        if self._options.allow_eviction:
            return
        output, info = self._outputs[number], self._plan.infos[self.server.address]
        made = self.account.tallies[number].items_per_table + next_items
        if not self.account.withheld:
            check_size(output, info, made, f"more than {made - 1}")
            return
        for table in tables or output.tables:
            items = made - self.account.withheld[table]
            check_size(replace(output, tables=(table,)), info, items, f"more than {items - 1}")

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
        """Drains, and checks the tables a last time; raises as `send` does. The list of episodes is written meanwhile."""
        with nullcontext() if self._pages is None else self._pages.finished_beside():
            self.drain()
        self._is_ending = True
        self._open.budget.final_check()

    def wind_up(self, error: BaseException, linger_seconds: float | None = None) -> None:
        """After an error that ends the push: waits for confirmations of what was sent, and records them. Raises nothing, so that the error is seen.

        After an interruption it waits `linger_seconds` at most.
        """
        if not isinstance(error, Exception):
            self._open.sender.linger(LINGER_SECONDS if linger_seconds is None else linger_seconds)
        with suppress(Exception):
            self._open.writer.drain_after(error)
        self._is_ending = True
        if self._pages is not None:
            self._pages.seconds = LINGER_SECONDS
            self._pages.finish()
        with suppress(Exception):
            self.record()
        if can_send_after(error):
            with suppress(Exception):
                self._open.budget.final_check()

    def record(self) -> None:
        """Writes confirmed episodes into the ledgers; with a list of episodes once that has them, a moment later."""
        rows = self.account.confirm(id_ for id_, _ in self._open.sender.take_finished())
        if self._pages is None or not len(self.ledgers):
            self.ledgers.record(rows)
            return
        for number, finished in rows.items():
            self._unrecorded.setdefault(number, []).extend(finished)
        if self._unrecorded and (self._pages.is_due or self._is_ending):
            self._pages.flush()
            confirmed, self._unrecorded = self._unrecorded, {}
            for number, finished in confirmed.items():
                listed, unlisted = self._pages.take_listed(finished)
                self.ledgers.record({number: listed})
                if unlisted:  # unless they are written later, the same push sends them once more, and lists them then
                    self._unrecorded[number] = unlisted

    @property
    def notices(self) -> tuple[Notice, ...]:
        """That not all episodes are listed, or that a stream lacks some in tables that they were not deleted from."""
        withheld = tuple(
            Notice(
                "left_out_of_stream",
                f'table "{table}": {counted(count, "episode")} left out, deleted from another table of the same push: items of a stream go '
                "to all of its tables; give each table the view by itself (--into TABLE=VIEW)",
                count,
            )
            for table, count in self._withheld_from.items()
        )
        if self._pages is None or not (reason := self._pages.failure):
            return withheld
        text = (
            f"server {self.server.address}: its list of episodes lacks some of this push, so that delete does not find them by push or dataset, "
            f"until the same push runs again: {reason}"
        )
        return (*withheld, Notice("episodes_not_listed", text))

    # Progress and report.

    def progress(self, reason: Reason = Reason()) -> Progress:
        connection, preparer, account = self._connection, self.preparer, self.account
        return Progress(
            preparer.episodes + account.resumed + account.left_out + account.deleted,
            preparer.steps + account.left_out_steps,
            self._plan.episodes,
            0 if connection is None else connection.sender.confirmed_items,
            0 if connection is None else connection.sender.sent_bytes,
            time.monotonic() - self._began,
            reason.text,
            reason.held_by,
        )

    def report(self) -> PushReport:
        """The report so far. Thread-safe."""
        connection, preparer, account = self._connection, self.preparer, self.account
        # How many episodes one of many servers gets is not known before they are read.
        count = self._plan.episodes if len(self._plan.names) == 1 else None
        items_new = None if connection is None else connection.budget.new_items()
        return replace(
            report_of_nothing(self._plan),
            episodes_read=preparer.episodes + account.left_out,
            steps_read=preparer.steps + account.left_out_steps,
            episodes_pushed=account.pushed,
            steps_pushed=account.pushed_steps,
            items_confirmed=0 if connection is None else connection.sender.confirmed_items,
            items_new=items_new if self.server.is_connected else 0,
            items_made=account.items_made(),
            without_items=account.by_table([tally.without_items for tally in account.tallies]),
            left_over=account.by_table([cutter.left_over for cutter in preparer.cutters]),
            rejected=dict(preparer.policy.rejected),
            steps_rejected=preparer.steps_rejected,
            advice=dict(preparer.policy.advice),
            repaired=dict(preparer.policy.repaired),
            ends_mended=preparer.ends_mended,
            notices=self._plan.notices,
            episodes_resumed=account.resumed,
            episodes_duplicate=account.duplicates,
            episodes_left_out=account.left_out,
            episodes_deleted=account.deleted,
            episodes_unread=None if count is None else count - preparer.episodes - account.resumed - account.deleted,
            bytes=0 if connection is None else connection.sender.sent_bytes,
            seconds=time.monotonic() - self._began,
            reconnects=0 if connection is None else connection.sender.reconnects,
            stopped=self.server.missing,
        )

    @property
    def _open(self) -> _Connection:
        assert self._connection is not None  # used only while this is open and the server there
        return self._connection


def _share_rows(outgoing: Outgoing) -> Shared:
    """The cuts that have items, in groups that share their rows, so that rows are stored once."""
    cuts = [(number, cut.cut) for number, cut in outgoing.cuts if cut.items_per_table]
    return [
        [(cuts[place][0], cut) for place, cut in zip(places, share([cuts[place][1] for place in places]))]
        for places in groups([cut for _, cut in cuts])
    ]


def open_ledgers(plan: PushPlan, server: Server, stack: ExitStack, deletions: Deletions) -> tuple[SqliteLedger, ...]:
    """Opens the ledgers of a push to one server, one per output, all in one file; () for a push without a ledger. The stack closes them.

    Per output, so that an output added later is filled without sending the rest again. The process of a missing server is not known,
    so its rows prove nothing.

    Args:
      deletions: what was deleted from the servers, and let in again, which the ledgers then forget.

    Raises:
      LedgerError: the file cannot be used.
    """
    path = plan.options.ledger
    if path is None:
        return ()
    process = f"{plan.infos[server.address].state_id:032x}" if server.address in plan.infos else ""
    ledgers = [
        stack.enter_context(SqliteLedger(path, push, process, server.name, deletions.restores))
        for push in names_in_ledger(plan)
    ]
    for ledger in ledgers:
        ledger.note_source(dataset_of(plan.source), plan.episodes)
    return tuple(ledgers)
