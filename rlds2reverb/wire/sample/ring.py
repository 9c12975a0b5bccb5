"""Places in a ring of bytes: what came first leaves first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """What wants a place.

    Attributes:
      size: bytes.
      step: it begins at a multiple of so many bytes, at least 1.
    """

    size: int
    step: int


class Ring:
    """Gives out places; knows nothing of what is there.

    Attributes:
      used: bytes of all that is there, gaps within it included.
      touched: bytes from the beginning on that were ever given out.
    """

    def __init__(self) -> None:
        self.used = self.touched = 0
        self._head = 0  # where the youngest ends
        self._blocks: deque[tuple[int, int]] = deque()  # [start, end) of each, the oldest first

    def place(self, pieces: Sequence[Piece], end: int) -> list[int] | None:
        """Where each piece begins; together they are one block. None when it does not fit before `end` and beside the others."""
        for begin, stop in self._gaps(end):
            starts, at = [], begin
            for piece in pieces:
                at += -at % piece.step
                starts.append(at)
                at += piece.size
            if at <= stop:
                self._blocks.append((begin, at))
                self._head = at
                self.used += at - begin
                self.touched = max(self.touched, at)
                return starts
        return None

    def drop_oldest(self) -> int:
        """The oldest block leaves; its bytes."""
        begin, end = self._blocks.popleft()
        self.used -= end - begin
        return end - begin

    def _gaps(self, end: int) -> Iterator[tuple[int, int]]:
        """[begin, end) of what is free. One byte stays free before the oldest, so that a full ring is none that is empty."""
        if not self._blocks:
            yield 0, end
            return
        tail = self._blocks[0][0]
        if self._head >= tail:
            yield self._head, end
            yield 0, min(end, tail - 1)
        else:
            yield self._head, min(end, tail - 1)
