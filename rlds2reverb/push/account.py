"""The account of one push while it runs: what was read, what is on its way, what is stored."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.episodes import Array, Episode
from rlds2reverb.identity import number_of
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.part import Noted

LedgerRows = Sequence[tuple[Ledger | Noted, int]]
"""Ledgers that get a row when an episode is confirmed. Each comes with the items to write down: over all tables of its output."""


@dataclass
class _OnItsWay:
    steps: int
    pieces: int  # not yet reported as stored by the sender
    rows: LedgerRows


class TakenEpisodes:
    """The episodes of a part of a push that are stored, or are on their way, in 8 bytes and more each.

    Args:
      tables: of the push.
    """

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = tuple(tables)
        self._rows = array("Q")

    def add(self, name: str, steps: int | None, items_per_table: Mapping[str, int]) -> None:
        """Takes in one: its steps, None for one that a ledger has, and how many items each table gets or has of it."""
        items = (items_per_table.get(table, 0) for table in self.tables)
        self._rows.extend((number_of(name), steps is None, steps or 0, *items))

    @property
    def rows(self) -> Array:
        """[episodes, 3 + tables] uint64: what stands for the name, whether a ledger has it, steps, items by table."""
        return np.array(self._rows, np.uint64).reshape(-1, 3 + len(self.tables))


@dataclass
class Account:
    """What a push has seen. A report is made of it and of the counts of the policy and the sender.

    Attributes:
      began: when, by the monotonic clock.
      episodes_read, steps_read: from the source, without those resumed.
      episodes_pushed, steps_pushed: of these, confirmed.
      steps_rejected: of rejected episodes.
      ends_mended: accepted episodes whose last row is not as it was recorded.
      episodes_resumed: the ledger has them; nothing was read of them.
      episodes_duplicate: good ones that were left out, because an equal one came before.
    """

    began: float = field(default_factory=time.monotonic)
    episodes_read: int = 0
    steps_read: int = 0
    episodes_pushed: int = 0
    steps_pushed: int = 0
    steps_rejected: int = 0
    ends_mended: int = 0
    episodes_resumed: int = 0
    episodes_duplicate: int = 0
    _on_their_way: dict[str, _OnItsWay] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Since the push began."""
        return time.monotonic() - self.began

    def count_read(self, episode: Episode) -> None:
        """An episode came from the source."""
        self.episodes_read += 1
        self.steps_read += len(episode)

    def count_resumed(self) -> None:
        """An episode is in the source that the ledger has."""
        self.episodes_resumed += 1

    def count_duplicate(self) -> None:
        """The episode is not sent, because an equal one was."""
        self.episodes_duplicate += 1

    def count_rejected(self, episode: Episode) -> None:
        """The episode is not sent; the policy counts why."""
        self.steps_rejected += len(episode)

    def count_sending(self, episode: Episode, pieces: int, rows: LedgerRows) -> None:
        """The episode goes out in so many pieces. Without any there is nothing to wait for: it counts as stored."""
        if pieces:
            self._on_their_way[episode.id] = _OnItsWay(len(episode), pieces, rows)
        else:
            self._stored(len(episode))

    def take_confirmed(self, episodes: Iterable[str]) -> dict[Ledger | Noted, list[tuple[str, int]]]:
        """A piece of each of these episodes is stored; the rows (episode, items) that ledgers get for those that are whole."""
        rows: dict[Ledger | Noted, list[tuple[str, int]]] = {}
        for episode in episodes:
            found = self._on_their_way[episode]
            found.pieces -= 1
            if not found.pieces:
                del self._on_their_way[episode]
                self._stored(found.steps)
                for ledger, items in found.rows:
                    rows.setdefault(ledger, []).append((episode, items))
        return rows

    def _stored(self, steps: int) -> None:
        self.episodes_pushed += 1
        self.steps_pushed += steps
