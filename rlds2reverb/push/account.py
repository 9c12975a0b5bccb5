"""The account of one push while it runs: what was read, what is on its way, what is stored."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.part import Noted

LedgerRows = Sequence[tuple[Ledger | Noted, int]]
"""Ledgers that get a row when an episode is confirmed. Each comes with the items to write down: over all tables of its output."""


@dataclass
class _OnItsWay:
    steps: int
    pieces: int  # not yet reported as stored by the sender
    rows: LedgerRows


@dataclass
class Account:
    """What a push has seen. A report is made of it and of the counts of the policy and the sender.

    Attributes:
      are_ids_checked: whether two episodes of one id are refused; else the caller sees to it, and ids are not remembered.
      began: when, by the monotonic clock.
      episodes_read, steps_read: from the source, without those resumed.
      episodes_pushed, steps_pushed: of these, confirmed.
      steps_rejected: of rejected episodes.
      ends_mended: accepted episodes whose last row is not as it was recorded.
      episodes_resumed, steps_resumed: the ledger has them.
    """

    are_ids_checked: bool = True
    began: float = field(default_factory=time.monotonic)
    episodes_read: int = 0
    steps_read: int = 0
    episodes_pushed: int = 0
    steps_pushed: int = 0
    steps_rejected: int = 0
    ends_mended: int = 0
    episodes_resumed: int = 0
    steps_resumed: int = 0
    _on_their_way: dict[str, _OnItsWay] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """Since the push began."""
        return time.monotonic() - self.began

    @property
    def ids(self) -> Collection[str]:
        """Of the episodes that came, resumed ones included; () where ids are not checked."""
        return self._ids

    def count_read(self, episode: Episode) -> None:
        """An episode came from the source.

        Raises:
          SourceError: another one of the same id came before; nothing of this one is counted.
        """
        self._meet(episode)
        self.episodes_read += 1
        self.steps_read += len(episode)

    def count_resumed(self, episode: Episode) -> None:
        """An episode came that the ledger has; raises as `count_read` does."""
        self._meet(episode)
        self.episodes_resumed += 1
        self.steps_resumed += len(episode)

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

    def _meet(self, episode: Episode) -> None:
        if not self.are_ids_checked:
            return
        if episode.id in self._ids:
            raise SourceError(
                f'two episodes have the id "{episode.id}", and their items the same keys; nothing of the second was sent. Ids must '
                "differ: does the split name records twice?"
            )
        self._ids.add(episode.id)

    def _stored(self, steps: int) -> None:
        self.episodes_pushed += 1
        self.steps_pushed += steps
