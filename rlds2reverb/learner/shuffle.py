"""A small fixed buffer from which items are taken at random, as il-representations and webdataset do it.

The buffer is filled first. Each draw takes one item out, and the next one takes its place; at the end of an epoch it runs empty. So an
epoch is a permutation, and an item comes at most about so many places too early as the buffer has items. Every draw is a function of
(seed, epoch, number of the draw): the items in the buffer and that number say all that there is to restore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from rlds2reverb.wire.keys import TOP_BIT, keys, seed

T = TypeVar("T")

_DRAWS_AT_ONCE = 1024
_BITS = 63
"""Of a draw."""


class ShuffleBuffer(Generic[T]):
    """The buffer during one epoch.

    Args:
      size: items; 0 keeps their order.
      seed_number, epoch: what the draws depend on.
      held: the items in it.
      drawn: items that were taken out.
    """

    def __init__(self, size: int, seed_number: int, epoch: int, held: list[T] | None = None, drawn: int = 0) -> None:
        self._size = max(1, size)
        self._seed = seed("shuffle", str(seed_number), str(epoch))
        self.held: list[T] = [] if held is None else held
        self.drawn = drawn
        self._draws: list[int] = []
        self._first_draw = drawn

    def next(self, more: Callable[[], T | None]) -> tuple[T, int] | None:
        """The next item, and from how many it was drawn; None at the end.

        Args:
          more: the next item of the epoch, None at its end.
        """
        while len(self.held) < self._size and (item := more()) is not None:
            self.held.append(item)
        if not (count := len(self.held)):
            return None
        place = self._draw() * count >> _BITS
        self.drawn += 1
        self.held[place], self.held[-1] = self.held[-1], self.held[place]
        return self.held.pop(), count

    def _draw(self) -> int:
        """A number of `_BITS` bits, for the draw that is next."""
        if not self._first_draw <= self.drawn < self._first_draw + len(self._draws):
            numbers = np.arange(self.drawn, self.drawn + _DRAWS_AT_ONCE)
            self._draws, self._first_draw = (keys(self._seed, numbers) & ~TOP_BIT).tolist(), self.drawn
        return self._draws[self.drawn - self._first_draw]
