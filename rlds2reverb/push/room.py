"""What a push knows about one of its tables: how much fits, what was new in it, what left it. Arithmetic only.

This rests on what was observed in Reverb 0.14. An item with a new key counts as an insert; one with a known key does not, and
leaves the size as it was. Both counts of an answer belong to the same moment. So between two answers

| | is |
| --- | --- |
| items that were new | inserts now - inserts then |
| items that left (evicted, sampled away, deleted) | (inserts - size) now - (inserts - size) then |

Items that are sent may be new or known: each counts as new until the server has been asked again.
"""

from __future__ import annotations

from rlds2reverb.errors import CapacityError
from rlds2reverb.wire.limiter import inserts_allowed, waits_when_full
from rlds2reverb.wire.messages import TableInfo

_SHARE_ALONE, _SHARE_IN_COMPANY = 2, 4
"""A push fills one in so many of the free places that it saw before it looks again: others may fill the same places meanwhile."""

_HOW_ON = (
    "make the table larger, push to another one, empty it first (reset of Reverb's client), or let the oldest items go with "
    "allow_eviction=True (--allow-eviction)"
)


class TableRoom:
    """The account of one table during one push.

    Args:
      first: the table before the push.
      guarded: nothing may be evicted; False lets everything in and only counts.

    Attributes:
      name: the table's.
      guarded: whether items that would evict others are held back; never in a table that lets inserts wait when it is full.
      last: the table as last seen.
      sent: items handed to the sender so far.
      reserved: free places that belong to items of the push, which it has taken out itself for a while.
      put_back: items that it took out and put back.
    """

    def __init__(self, first: TableInfo, guarded: bool) -> None:
        self.name = first.name
        self.last = self._first = first
        self.guarded = guarded and not waits_when_full(first)
        self._free = first.free  # places that nothing sent can have taken since
        self._known = True
        self._others_removed = 0
        self._has_company = False  # somebody else was seen to insert
        self.sent = self.reserved = self.put_back = 0

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
        new = self.inserted - self.put_back
        alone = self._known and not (self.guarded and self._others_removed and self.last.max_times_sampled <= 0)
        return new if alone and 0 <= new <= self.sent else None

    def wants_a_look(self, items: int) -> bool:
        """Whether to look again: items that the last answer may not know of, and so many more, fill a large part of its free places."""
        share = _SHARE_IN_COMPANY if self._has_company else _SHARE_ALONE
        return self.guarded and self.free - self._free + items > self.free // share

    def fits(self, items: int) -> bool:
        """Whether so many more items fit, even if all are new."""
        return not self.guarded or items <= self._free - self.reserved

    def send(self, items: int) -> None:
        """Takes note of items that are about to be sent."""
        self.sent += items
        self._free -= items

    def see(self, info: TableInfo, on_their_way: int = 0) -> None:
        """Takes note of an answer of the server.

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
        self._has_company = self._has_company or self.inserted - self.put_back > self.sent
        if removed > 0 and self.free <= 0:  # not full: deleted by key
            self._refuse_eviction(removed)

    def see_taken(self, info: TableInfo, most: int) -> int:
        """Takes note of an answer after the push took out `most` items. Returns how many were there; their places are reserved."""
        taken = max(0, min(most, self._removed_by(info)))
        self.last = info
        self.reserved += taken
        return taken

    def inserts_until(self, info: TableInfo) -> int:
        """Inserts between the table as last seen and this answer."""
        return max(0, info.rate_limiter.inserts - self.last.rate_limiter.inserts)

    def see_withdrawn(self, info: TableInfo) -> None:
        """Takes note of an answer after the push took out items that were new, and are to stay out."""
        withdrawn = self._removed_by(info)
        self.last = info
        self.sent -= withdrawn
        self.put_back += withdrawn  # as inserts, they count no more

    def see_put_back(self, items: int) -> None:
        """Takes note of items that are back."""
        self.reserved -= items
        self.put_back += items

    @property
    def takeable(self) -> int:
        """Items that may be taken out so that the rate limiter lets them in again, and known ones after them."""
        return max(0, inserts_allowed(self.last) - self.reserved - 1)

    def check_takeable(self, items: int) -> None:
        """Refuses to take out what would not come back in.

        Raises:
          CapacityError: the rate limiter would hold it back.
        """
        if items > self.takeable:
            raise CapacityError(
                f'table "{self.name}" is full ({self.last.current_size} items), and its rate limiter lets {inserts_allowed(self.last)} '
                f"inserts through before it waits for samples: too few to find out whether the next {items} items of this push are "
                f"in it; go on after more samples, use the ledger of the push that stored them, or {_HOW_ON}"
            )

    def certainly_new(self, items: int, all_are_new: bool) -> int:
        """How many of the next items the table cannot have, at least. Ask when nothing is on its way.

        Args:
          items: how many come next.
          all_are_new: they have keys that no push before can have used.
        """
        if all_are_new:
            return items
        own = 0 if self._others_removed else self.sent - self.reserved
        others = self.last.current_size - own  # the next items may be among them
        return max(0, items - max(0, others))

    def refuse_what_cannot_fit(self, items: int, all_are_new: bool) -> None:
        """Refuses items when too many of them are certainly new.

        Raises:
          CapacityError: says how many.
        """
        new = self.certainly_new(items, all_are_new)
        if self.guarded and new > self.free - self.reserved:
            raise self.refusal(new, items)

    def refusal(self, new: int, items: int) -> CapacityError:
        """The error for items that would evict others: of the next `items`, at least `new` are not there."""
        return CapacityError(
            f'table "{self.name}" holds {self.last.current_size + self.reserved} of at most {self.last.max_size} items, so '
            f"{max(0, self.free - self.reserved)} more fit; of the next {items} of this push at least {new} {'is' if new == 1 else 'are'} not in it and would evict "
            f"others; {_HOW_ON}"
        )

    def disturbance(self) -> CapacityError:
        """The error for a full table that somebody else changes while the push tries its items in it; what was new is unknown now."""
        self._known = False
        return CapacityError(
            f'table "{self.name}" is full, and somebody else changes it while this push looks whether its items are in it (since the push '
            f"began {self.inserted} inserts, {self.sent} items sent by it); run the same push again when nobody else does, or {_HOW_ON}"
        )

    def _removed_by(self, info: TableInfo) -> int:
        """Items that left since the table was last seen."""
        if info.rate_limiter.inserts >= self.last.rate_limiter.inserts:
            return _removals(info) - _removals(self.last)
        self._known, self._first = False, info  # the table was reset, or another server process answers
        return 0

    def _refuse_eviction(self, evicted: int) -> None:
        if not self.guarded or self.last.max_times_sampled > 0:  # items leave with their last sample, too
            return
        raise CapacityError(
            f'table "{self.name}": {evicted} items were evicted during this push, which had seen room for its own: somebody '
            f"else fills the table, too ({self.last.current_size} of at most {self.last.max_size} items; since the push began "
            f"{self.inserted} inserts, {self.sent} items sent by it); let one push end before the next, or {_HOW_ON}"
        )


def _removals(table: TableInfo) -> int:
    return table.rate_limiter.inserts - table.current_size
