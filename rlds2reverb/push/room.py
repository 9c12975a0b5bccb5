"""What fits into the tables of a push: nothing is evicted that the push did not store itself.

This rests on what was observed in Reverb 0.14. An item with a new key counts as an insert; one with a known key does not, and
leaves the size as it was. Both counts of an answer belong to the same moment. So between two answers

| | is |
| --- | --- |
| items that were new | inserts now - inserts then |
| items that left (evicted, sampled away, deleted) | (inserts - size) now - (inserts - size) then |

Items that are sent may be new or known: each counts as new until the server has been asked again. An episode is sent at once when
its items fit even if all are new. When they might not fit, the push waits until nothing is on its way and asks the server again, since
items that were known have taken no place. If they still might not fit, and could all be there already (a push that was cut off, run
again), the push goes on in small requests: each has at most as many items as places are free, and the table is looked at after it.
Once no place is free, nothing can be tried any more, and the push is refused.

A worker's part of a push has a budget instead, which the driver of all workers hands out (`fleet.budget`): it asks the server nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from rlds2reverb.errors import CapacityError, TransportError
from rlds2reverb.transport.base import PendingInfo, Transport
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.wire.insert import EncodedEpisode, Request, RequestLimits
from rlds2reverb.wire.limiter import waits_when_full
from rlds2reverb.wire.messages import ServerInfo, TableInfo

_SHARE_ALONE, _SHARE_IN_COMPANY = 2, 4
"""A push fills one in so many of the free places that it saw before it looks again: others may fill the same places meanwhile."""

_ASK_SECONDS = 0.25
"""How often the tables are looked at while nothing is tight."""

_HOW_ON = (
    "make the table larger, push to another one, empty it first (reset of Reverb's client), or let the oldest items go with "
    "allow_eviction=True (--allow-eviction)"
)


class BudgetExceeded(CapacityError):
    """A worker's part of a push needs more places than it was given. What it has sent stays, and it can be run once more."""


class TableCapacity:
    """The account of one table during one push. Arithmetic only.

    Args:
      first: the table before the push.
      guarded: nothing may be evicted; False lets everything in and only counts.

    Attributes:
      name: the table's.
      guarded: whether items that would evict others are held back; never in a table that lets inserts wait when it is full.
      last: the table as last seen.
      sent: items handed to the sender so far.
    """

    def __init__(self, first: TableInfo, guarded: bool) -> None:
        self.name = first.name
        self.last = self._first = first
        self.guarded = guarded and not waits_when_full(first)
        self._free = first.free  # places that nothing sent can have taken since
        self._known = True
        self._others_removed = 0
        self._has_company = False  # somebody else was seen to insert
        self.sent = 0

    @property
    def free(self) -> int:
        """Free places when the table was last seen."""
        return self.last.free

    @property
    def inserted(self) -> int:
        """Inserts since the push began, anybody's."""
        return self.last.rate_limiter.inserts - self._first.rate_limiter.inserts

    @property
    def new_items(self) -> int | None:
        """How many of the items sent the table did not have; None when somebody else has changed the table meanwhile."""
        alone = self._known and not (self.guarded and self._others_removed and self.last.max_times_sampled <= 0)
        return self.inserted if alone and 0 <= self.inserted <= self.sent else None

    def wants_a_look(self, items: int) -> bool:
        """Whether to look again: items that the last answer may not know of, and so many more, fill a large part of its free places."""
        share = _SHARE_IN_COMPANY if self._has_company else _SHARE_ALONE
        return self.guarded and self.free - self._free + items > self.free // share

    def fits(self, items: int) -> bool:
        """Whether so many more items fit, even if all are new."""
        return not self.guarded or items <= self._free

    def send(self, items: int) -> None:
        """Counts items that are about to be sent."""
        self.sent += items
        self._free -= items

    def see(self, info: TableInfo, on_their_way: int = 0) -> None:
        """Takes in an answer of the server.

        Args:
          info: the table.
          on_their_way: items sent that the answer may not know of yet.

        Raises:
          CapacityError: items were evicted although those of this push had room.
        """
        removed = self._removed_by(info)
        self.last = info
        self._free = self.free - on_their_way
        self._others_removed += removed
        self._has_company = self._has_company or self.inserted > self.sent
        is_watched = self.guarded and self.last.max_times_sampled <= 0  # else items leave with their last sample, too
        if is_watched and removed > 0 and self.free <= 0:  # not full: deleted by key
            raise CapacityError(
                f'table "{self.name}": {removed} items were evicted during this push, which had seen room for its own: somebody '
                f"else fills the table, too ({self.last.current_size} of at most {self.last.max_size} items; since the push began "
                f"{self.inserted} inserts, {self.sent} items sent by it); let one push end before the next, or {_HOW_ON}"
            )

    def refuse_what_cannot_fit(self, items: int, all_are_new: bool) -> None:
        """Refuses items when too many of them are certainly new, or when no place is free to try them in. Ask when nothing is on its way.

        Args:
          items: how many come next.
          all_are_new: they have keys that no push before can have used.

        Raises:
          CapacityError: says how many, and how to go on.
        """
        if not self.guarded or not items:
            return
        new = self._certainly_new(items, all_are_new)
        if new > self.free:
            raise CapacityError(
                f'table "{self.name}" holds {self.last.current_size} of at most {self.last.max_size} items, so {max(0, self.free)} more '
                f"fit; of the next {items} of this push at least {new} {'is' if new == 1 else 'are'} not in it and would evict others; {_HOW_ON}"
            )
        if self.free <= 0:
            self.refuse_full(items)

    def refuse_full(self, items: int) -> None:
        """Refuses items of which nobody knows whether the table has them, for there is no place to try them in.

        Raises:
          CapacityError: always; says how to go on.
        """
        raise CapacityError(
            f'table "{self.name}" is full ({self.last.current_size} of at most {self.last.max_size} items), so it cannot be found out '
            f"whether the next {items} of this push are in it: any that is not would evict another one. Use the ledger of the push that "
            f"stored them (ledger=FILE, --ledger FILE), {_HOW_ON}"
        )

    def _certainly_new(self, items: int, all_are_new: bool) -> int:
        """How many of the next items the table cannot have, at least."""
        if all_are_new:
            return items
        own = 0 if self._others_removed else self.sent
        others = self.last.current_size - own  # the next items may be among them
        return max(0, items - max(0, others))

    def _removed_by(self, info: TableInfo) -> int:
        """Items that left since the table was last seen."""
        if info.rate_limiter.inserts >= self.last.rate_limiter.inserts:
            return _removals(info) - _removals(self.last)
        self._known, self._first = False, info  # the table was reset, or another server process answers
        return 0


class Budget:
    """What a push may send to the tables of one server. Every episode is first admitted, then expected when it is encoded.

    Either the tables are watched, and the server is asked how they are; or the places are granted, and nobody is asked.

    Args:
      transport: the way to the server.
      tables: the tables to watch, as they are before the push; () for a budget that is granted.
      limits, deadlines: of the push.
      guarded: nothing may be evicted.
      granted: table -> items that may be sent, even if all are new; a table that is not named takes any number.
    """

    def __init__(
        self,
        transport: Transport,
        tables: Sequence[TableInfo],
        limits: RequestLimits,
        deadlines: Deadlines,
        guarded: bool = True,
        granted: Mapping[str, int] | None = None,
    ) -> None:
        self._transport, self._limits, self._deadlines = transport, limits, deadlines
        self._capacities = {table.name: TableCapacity(table, guarded) for table in tables}
        self._granted = dict(granted or {})
        self._left = dict(self._granted)
        self._pending: list[EncodedEpisode] = []  # while it is tight, until all their items are sent
        self._question: tuple[PendingInfo, int] | None = None  # asked when so many items were confirmed
        self._asked_at = time.monotonic()
        self._seen_at_end = False
        self.is_tight = False

    def close(self) -> None:
        """Drops the question that may be on its way."""
        if self._question is not None:
            self._question[0].drop()
            self._question = None

    def wants_a_look(self, items_by_table: Mapping[str, int]) -> bool:
        """Whether to `look` before so many items are admitted (table -> items): they are a large part of what was free."""
        if self.is_tight:
            return False  # every request looks
        return any(
            self._capacities[table].wants_a_look(items)
            for table, items in items_by_table.items()
            if table in self._capacities
        )

    def look(self) -> None:
        """Asks for the tables. Nothing may be on its way.

        Raises:
          CapacityError: items were evicted.
          TransportError: the server does not answer.
        """
        self.close()
        self._see(retry_until(self._deadlines.reconnect, self._deadlines, self._transport.server_info), 0)

    def admit(self, items_by_table: Mapping[str, int], all_are_new: bool) -> None:
        """Makes sure that an episode's items may be sent; the episode comes next.

        Args:
          items_by_table: table -> items of the episode.
          all_are_new: no push before can have stored them.

        Raises:
          CapacityError: they would evict others, or nobody can tell.
          BudgetExceeded: fewer places were granted.
        """
        for table, items in items_by_table.items():
            if table in self._left and items > self._left[table]:
                granted, used = self._granted[table], self._granted[table] - self._left[table]
                raise BudgetExceeded(
                    f'table "{table}": {granted:,} places for this part of the push, which needs more than {used + items - 1:,}'
                )
        for table, items in items_by_table.items():
            capacity = self._capacities.get(table)
            if capacity is not None and not capacity.fits(items):
                capacity.refuse_what_cannot_fit(items, all_are_new)
                self.is_tight = True

    def expect(self, episode: EncodedEpisode) -> None:
        """Counts an admitted episode whose requests come."""
        if self.is_tight:
            self._pending.append(episode)
            return
        for table, keys in episode.table_keys.items():
            if table in self._left:
                self._left[table] -= len(keys)
            if table in self._capacities:
                self._capacities[table].send(len(keys))

    @property
    def limits(self) -> RequestLimits:
        """How large the next request may be: while it is tight, as many items as places are free in any table."""
        if not self.is_tight:
            return self._limits
        free = [one.free for one in self._capacities.values() if one.guarded and one.free > 0]
        return replace(self._limits, items=min(self._limits.items, *free)) if free else replace(self._limits, items=1)

    def check(self, request: Request) -> None:
        """Looks whether a request of expected episodes may go. While it is tight, `look` when it is confirmed.

        Raises:
          CapacityError: no place is free to try its items in.
        """
        if not self.is_tight:
            return
        items = Counter[str]()
        for episode in self._pending:
            items.update(
                {table: int(np.isin(keys, request.item_keys).sum()) for table, keys in episode.table_keys.items()}
            )
        for table, count in items.items():
            capacity = self._capacities[table]
            if capacity.guarded and count > max(0, capacity.free):
                capacity.refuse_full(count)
        for table, count in items.items():
            self._capacities[table].send(count)
        self._pending = [one for one in self._pending if not (one.item_keys[-1] == request.item_keys).any()]

    def watch(self, confirmed_items: int) -> None:
        """Notices what others do to the tables, a few times per second, however often it is called. Waits for nothing.

        Args:
          confirmed_items: that the server has confirmed by now.

        Raises:
          CapacityError: items were evicted.
        """
        if self.is_tight or not any(one.guarded for one in self._capacities.values()):
            return  # each request looks; or nobody minds
        if self._question is not None and self._question[0].is_over:
            (question, confirmed), self._question = self._question, None
            if (info := question.answer()) is not None:
                self._see(info, sum(one.sent for one in self._capacities.values()) - confirmed)
        if self._question is None and time.monotonic() - self._asked_at > _ASK_SECONDS:
            self._asked_at = time.monotonic()
            self._question = self._transport.ask_server_info(), confirmed_items

    def final_check(self) -> None:
        """Looks at the tables when all is done. When the server has gone meanwhile, `new_items` stays unknown.

        Raises:
          CapacityError: items were evicted.
        """
        if self._capacities:
            with suppress(TransportError):
                info = self._transport.server_info()
                self._seen_at_end = True
                self._see(info, 0)

    def new_items(self) -> int | None:
        """How many of all items sent the tables did not have; None when that is not known."""
        counts = [one.new_items for one in self._capacities.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if self._seen_at_end and len(known) == len(counts) else None

    def _see(self, info: ServerInfo, on_their_way: int) -> None:
        for name, capacity in self._capacities.items():
            if name in info.tables:
                capacity.see(info.tables[name], on_their_way)


def _removals(table: TableInfo) -> int:
    return table.rate_limiter.inserts - table.current_size
