"""A batch of several servers in the making."""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.learner.joining import Piece


class Draft:
    """The samples of a batch, as they come; kept when an error comes between, so that no sample is lost.

    Args:
      count: B, samples that it is to have.
    """

    def __init__(self, count: int) -> None:
        self._servers, self._shares = np.full(count, -1), np.zeros(count)
        self._pieces: list[Piece] = []
        self._places: list[Array] = []

    @classmethod
    def of(cls, piece: Piece, share: float) -> Draft:
        """That of one piece."""
        draft = cls(piece.size)
        draft.add(np.arange(piece.size), piece, share)
        return draft

    @property
    def left(self) -> Array:
        """Places of the samples that have not come."""
        return np.flatnonzero(self._servers < 0)

    @property
    def came(self) -> int:
        """How many came."""
        return sum(piece.size for piece in self._pieces)

    def add(self, places: Array, piece: Piece, share: float) -> None:
        """Takes samples for these places; their server was drawn with that probability."""
        self._servers[places], self._shares[places] = piece.part, share
        self._pieces.append(piece)
        self._places.append(places)

    def made(self) -> tuple[list[Piece], list[Array], Array, Array]:
        """What came, as if no more had been wanted: pieces; where their samples stand; [b] the server of each; [b] its probability."""
        there = self._servers >= 0
        rank = np.cumsum(there) - 1
        return self._pieces, [rank[places] for places in self._places], self._servers[there], self._shares[there]
