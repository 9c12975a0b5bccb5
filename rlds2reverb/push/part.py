"""What a push is told that is one part of a larger one, and what it hands back: the parts may run in different processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


class Noted:
    """Confirmed episodes of one output, in memory: in the place of the ledger that only the whole push writes.

    Args:
      known: episode -> items over all tables, of those that the ledger has.
      here: the episodes that another process of the server's name confirmed.

    Attributes:
      rows: what was confirmed since: (episode, items over all tables).
    """

    def __init__(self, known: Mapping[str, int], here: Collection[str] = ()) -> None:
        self._known, self._here = known, here
        self.rows: list[tuple[str, int]] = []

    def __contains__(self, episode: str) -> bool:
        return episode in self._known

    def was_here(self, episode: str) -> bool:
        """Whether another process of the server's name confirmed the episode."""
        return episode in self._here

    def items_in_all_tables(self, episode: str) -> int:
        """Items that a known episode has, over all tables of the push."""
        return self._known[episode]

    def record(self, finished: Iterable[tuple[str, int]]) -> None:
        """Takes note of confirmed episodes (id, items over all tables)."""
        self.rows += finished


@dataclass(frozen=True)
class Part:
    """One of the parts of a push.

    Attributes:
      places: table -> items that it may store at most, for nothing may be evicted; a table that is not named takes any number. None
        for a part that has the tables to itself, and sees to that by itself.
      notes: per output, its confirmed episodes; () without a ledger.
      again: the bits that make the keys of a push with `again`, the same for all parts; None for one without.
    """

    places: Mapping[str, int] | None = None
    notes: tuple[Noted, ...] = field(default=(), compare=False)
    again: int | None = None
