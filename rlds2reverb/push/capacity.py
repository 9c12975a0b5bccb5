"""What fits into the tables of a push, so that it evicts nothing.

Observed in Reverb 0.14: an item with a new key counts as an insert; one with a known key does not, and leaves the size as it was.
Both counts of an answer belong to the same moment. So between two answers

- new items = inserts now - inserts then;
- items that left (evicted, sampled away, deleted) = (inserts - size) now - (inserts - size) then.

Each item sent counts as new until the server is asked again. An episode is sent at once when its items fit even if all are new. When
they might not, the push waits until nothing is in flight and asks the server, since known items took no place. If they still might not
fit, but the table could have them all already (a push that was cut off, run again), the push continues in small requests of at most as
many items as places are free, and asks after each. With no place free it is refused.

So a push asks in one of two ways: `WatchedBudget` asks the server, and `GrantedBudget` is what the driver of a distributed push has
granted to a task (`fleet.budget`), since a worker's view of a table is outdated as soon as another worker fills it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import numpy as np

from rlds2reverb.errors import CapacityError, TransportError
from rlds2reverb.push.report import sum_if_known
from rlds2reverb.transport.base import PendingInfo, Transport
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.wire.insert import EncodedEpisode, Request, RequestLimits
from rlds2reverb.wire.messages import ServerInfo, TableInfo, waits_when_full

# A push fills a half (a quarter, once another client was seen to insert) of the places that it saw free before it asks again.
_SHARE_ALONE, _SHARE_IN_COMPANY = 2, 4
_ASK_SECONDS = 0.25  # how often the server is asked while places are plenty

_HOW_ON = (
    "make the table larger, push to another one, empty it first (reset of Reverb's client), or let the oldest items go with "
    "allow_eviction=True (--allow-eviction)"
)


class BudgetExceeded(CapacityError):
    """A task of a distributed push needs more places than it was granted. What it has sent stays, and the task can be run again."""


class TableCapacity:
    """The places of one table during one push. Arithmetic only.

    Args:
      first: the table before the push.
      guarded: nothing may be evicted; False only counts.

    Attributes:
      guarded: whether items that would evict others are held back; never for a table whose inserts wait when it is full.
      last: the table as last seen.
      sent: items handed to the sender so far.
    """

    def __init__(self, first: TableInfo, guarded: bool) -> None:
        self.name = first.name
        self.last = self._first = first
        self.guarded = guarded and not waits_when_full(first)
        self._free = first.free  # places that no item sent can have taken since
        self._known = True
        self._others_removed = 0
        self._has_company = False  # another client was seen to insert
        self.sent = 0

    @property
    def free(self) -> int:
        return self.last.free

    @property
    def inserted(self) -> int:
        """Inserts of all clients since the push began."""
        return self.last.rate_limiter.inserts - self._first.rate_limiter.inserts

    @property
    def new_items(self) -> int | None:
        """Items sent that the table did not have; None when another client has changed the table meanwhile."""
        alone = self._known and not (self.guarded and self._others_removed and self.last.max_times_sampled <= 0)
        return self.inserted if alone and 0 <= self.inserted <= self.sent else None

    def wants_a_look(self, items: int) -> bool:
        """Whether to ask the server before sending: with these items, much of what was free may be taken."""
        share = _SHARE_IN_COMPANY if self._has_company else _SHARE_ALONE
        return self.guarded and self.free - self._free + items > self.free // share

    def fits(self, items: int) -> bool:
        """Whether the items fit even if all are new."""
        return not self.guarded or items <= self._free

    def send(self, items: int) -> None:
        self.sent += items
        self._free -= items

    def see(self, info: TableInfo, in_flight: int = 0) -> None:
        """Takes in an answer of the server that may not count the items in flight yet."""
        inserts, inserts_before = info.rate_limiter.inserts, self.last.rate_limiter.inserts
        # Inserts less the items that are there are those that have left, since both counts of an answer belong to one moment.
        removed = (inserts - info.current_size) - (inserts_before - self.last.current_size)
        if inserts < inserts_before:  # the table was reset, or another server process answers
            self._known, self._first, removed = False, info, 0
        self.last = info
        self._free = self.free - in_flight
        self._others_removed += removed
        self._has_company = self._has_company or self.inserted > self.sent
        is_watched = self.guarded and self.last.max_times_sampled <= 0  # else items leave with their last sample, too
        if is_watched and removed > 0 and self.free <= 0:  # not full: deleted by key
            raise CapacityError(
                f'table "{self.name}": {removed} items were evicted during this push, which had seen free places for its own: another '
                f"client fills the table as well ({self.last.current_size} of at most {self.last.max_size} items; since the push began "
                f"{self.inserted} inserts, {self.sent} items sent by it); let one push end before the next, or {_HOW_ON}"
            )

    def refuse_what_cannot_fit(self, items: int, all_are_new: bool) -> None:
        """Refuses items if too many of them are certainly new, or if no place is free to try them in. Call it when nothing is in flight.

        Args:
          all_are_new: their keys cannot have been used by an earlier push.
        """
        if not self.guarded or not items:
            return
        new = items
        if not all_are_new:
            own = 0 if self._others_removed else self.sent
            new = max(0, items - max(0, self.last.current_size - own))  # the rest may be in the table already
        if new > self.free:
            raise CapacityError(
                f'table "{self.name}" holds {self.last.current_size} of at most {self.last.max_size} items, so {max(0, self.free)} more '
                f"fit; of the next {items} of this push at least {new} {'is' if new == 1 else 'are'} not in it and would evict others; {_HOW_ON}"
            )
        if self.free <= 0:
            self.refuse_full(items)

    def refuse_full(self, items: int) -> None:
        """Raises CapacityError for items that may be in the table, when no place is free to try them in."""
        raise CapacityError(
            f'table "{self.name}" is full ({self.last.current_size} of at most {self.last.max_size} items), so it cannot be found out '
            f"whether the next {items} of this push are in it: any that is not would evict another one. Use the ledger of the push that "
            f"stored them (ledger=FILE, --ledger FILE), {_HOW_ON}"
        )


class Budget(Protocol):
    """What a push may send to the tables of one server: `admit` the next episode, then `expect` it once it is encoded.

    A budget that asks nothing of the server inherits what does nothing here; `return` tells the type checker that it may.

    Attributes:
      is_tight: places are so few that each request is confirmed, and followed by a `look`, before the next one.
    """

    is_tight: bool = False

    @property
    def limits(self) -> RequestLimits:
        """Limits of the next request."""

    def is_ample(self, items_by_table: Mapping[str, int]) -> bool:
        """Whether these items (table -> number) may be sent at once: `admit` refuses none, and nothing needs to be asked before."""

    def admit(self, items_by_table: Mapping[str, int], all_are_new: bool) -> None:
        """Makes sure that the items of the next episode may be sent; `all_are_new` if no earlier push can have stored them.

        Raises:
          CapacityError: they would evict others, or might.
          BudgetExceeded: fewer places were granted.
        """

    def expect(self, episode: EncodedEpisode) -> None:
        """Counts an admitted episode before its requests are sent."""

    def check(self, request: Request) -> None:
        """Checks a request of expected episodes right before it is sent; raises CapacityError if it might evict."""
        return

    def wants_a_look(self, items_by_table: Mapping[str, int]) -> bool:
        """Whether to `look` before these items are admitted."""
        return False

    def look(self) -> None:
        """Asks for the tables, with nothing in flight; raises CapacityError if items were evicted, and TransportError without an answer."""
        return

    def watch(self, confirmed_items: int) -> None:
        """Asks for the tables a few times per second, however often it is called, and does not wait for the answer."""
        return

    def final_check(self) -> None:
        """Looks when everything is confirmed. If the server has gone meanwhile, `new_items` stays unknown."""
        return

    def new_items(self) -> int | None:
        """Items sent that the tables did not have; None when that is not known."""
        return None

    def close(self) -> None:
        """Drops a question that was not answered."""
        return


class GrantedBudget(Budget):
    """Places that the driver of a distributed push has granted to a task. The driver watches the tables, and knows what is new in them.

    Args:
      places: table -> items that may be sent, even if all are new; a table that is not named takes any number.
    """

    def __init__(self, places: Mapping[str, int], limits: RequestLimits) -> None:
        self._places, self._left, self._limits = places, dict(places), limits

    @property
    def limits(self) -> RequestLimits:
        return self._limits

    def is_ample(self, items_by_table: Mapping[str, int]) -> bool:
        return all(items <= self._left.get(table, items) for table, items in items_by_table.items())

    def admit(self, items_by_table: Mapping[str, int], all_are_new: bool) -> None:
        for table, items in items_by_table.items():
            if table in self._left and items > self._left[table]:
                places, used = self._places[table], self._places[table] - self._left[table]
                raise BudgetExceeded(
                    f'table "{table}": {places:,} places for this part of the push, which needs more than {used + items - 1:,}'
                )

    def expect(self, episode: EncodedEpisode) -> None:
        for table, keys in episode.table_keys.items():
            if table in self._left:
                self._left[table] -= len(keys)


class WatchedBudget(Budget):
    """Watches the tables itself: asks the server for them.

    Args:
      tables: as they are before the push.
      guarded: nothing may be evicted.
    """

    def __init__(
        self,
        transport: Transport,
        tables: Sequence[TableInfo],
        limits: RequestLimits,
        deadlines: Deadlines,
        guarded: bool = True,
    ) -> None:
        self._transport, self._limits, self._deadlines = transport, limits, deadlines
        self._capacities = {table.name: TableCapacity(table, guarded) for table in tables}
        self._is_guarded = any(capacity.guarded for capacity in self._capacities.values())
        self._pending: list[EncodedEpisode] = []  # while it is tight, until all their items are sent
        self._question: tuple[PendingInfo, int] | None = None  # asked when so many items were confirmed
        self._asked_at = time.monotonic()
        self._seen_at_end = False
        self.is_tight = False

    def close(self) -> None:
        if self._question is not None:
            self._question[0].drop()
            self._question = None

    def wants_a_look(self, items_by_table: Mapping[str, int]) -> bool:
        if self.is_tight:
            return False  # every request looks
        return any(self._capacities[table].wants_a_look(items) for table, items in items_by_table.items())

    def is_ample(self, items_by_table: Mapping[str, int]) -> bool:
        if self.is_tight or self.wants_a_look(items_by_table):
            return False
        return all(self._capacities[table].fits(items) for table, items in items_by_table.items())

    def look(self) -> None:
        # The answer to an earlier question may be older than items that were confirmed since.
        self.close()
        self._see(retry_until(self._deadlines.reconnect, self._deadlines, self._transport.server_info), 0)

    def admit(self, items_by_table: Mapping[str, int], all_are_new: bool) -> None:
        for table, items in items_by_table.items():
            capacity = self._capacities[table]
            if not capacity.fits(items):
                capacity.refuse_what_cannot_fit(items, all_are_new)
                self.is_tight = True

    def expect(self, episode: EncodedEpisode) -> None:
        if self.is_tight:
            self._pending.append(episode)  # `check` counts its items request by request
            return
        for table, keys in episode.table_keys.items():
            self._capacities[table].send(len(keys))

    @property
    def limits(self) -> RequestLimits:
        """While it is tight, at most as many items as the fullest table has free places."""
        if not self.is_tight:
            return self._limits
        free = [capacity.free for capacity in self._capacities.values() if capacity.guarded and capacity.free > 0]
        return replace(self._limits, items=min(self._limits.items, *free)) if free else replace(self._limits, items=1)

    def check(self, request: Request) -> None:
        if not self.is_tight:
            return
        items = Counter[str]()
        for episode in self._pending:
            items.update(
                {table: int(np.isin(keys, request.item_keys).sum()) for table, keys in episode.table_keys.items()}
            )
        # All tables are judged before any is counted: a request goes out whole or not at all.
        for table, count in items.items():
            capacity = self._capacities[table]
            if capacity.guarded and count > max(0, capacity.free):
                capacity.refuse_full(count)
        for table, count in items.items():
            self._capacities[table].send(count)
        # An episode's items go out in order, so the one with its last key is its last request.
        self._pending = [episode for episode in self._pending if not (episode.item_keys[-1] == request.item_keys).any()]

    def watch(self, confirmed_items: int) -> None:
        if self.is_tight or not self._is_guarded:
            return  # each request looks; or evictions are allowed
        if self._question is not None and self._question[0].is_over:
            (question, confirmed), self._question = self._question, None
            if (info := question.answer()) is not None:
                # What was confirmed before the question is in the answer; all else may or may not be.
                self._see(info, sum(capacity.sent for capacity in self._capacities.values()) - confirmed)
        if self._question is None and time.monotonic() - self._asked_at > _ASK_SECONDS:
            self._asked_at = time.monotonic()
            self._question = self._transport.ask_server_info(), confirmed_items

    def final_check(self) -> None:
        with suppress(TransportError):
            info = self._transport.server_info()
            self._seen_at_end = True
            self._see(info, 0)

    def new_items(self) -> int | None:
        return sum_if_known(capacity.new_items for capacity in self._capacities.values()) if self._seen_at_end else None

    def _see(self, info: ServerInfo, in_flight: int) -> None:
        for name, capacity in self._capacities.items():
            if name in info.tables:
                capacity.see(info.tables[name], in_flight)
