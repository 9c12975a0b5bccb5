"""What a push is told that is one part of a larger one, and what it hands back: the parts may run in different processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rlds2reverb.identity import KnownEpisodes


class Noted:
    """Confirmed episodes of one output, in memory: in the place of the ledger that only the whole push writes.

    Args:
      confirmed, here: see `Ledger`.

    Attributes:
      rows: what was confirmed since: (episode, items over all tables).
    """

    def __init__(self, confirmed: KnownEpisodes = KnownEpisodes(), here: KnownEpisodes = KnownEpisodes()) -> None:
        self.confirmed, self.here = confirmed, here
        self.rows: list[tuple[str, int]] = []

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
      copies: place of an episode -> the number of the copy that it is stored as; the other episodes are left out. None for a part of
        which all episodes are stored, and copies of one content counted.
      again: the bits that make the keys of a push with `again`, the same for all parts; None for one without.
    """

    places: Mapping[str, int] | None = None
    notes: tuple[Noted, ...] = field(default=(), compare=False)
    again: int | None = None
    copies: Mapping[int, int] | None = None
