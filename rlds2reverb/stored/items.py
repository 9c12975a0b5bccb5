"""The items of a table, laid aside as they came."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rlds2reverb.stored.messages import reader_of
from rlds2reverb.stored.spool import Spool

_AT_ONCE = 4096


class Items:
    """Add all items, then `close_writing`; then they can be read, in the order of their coming.

    Args:
      where: they are from; for messages.
    """

    def __init__(self, where: str) -> None:
        self._spool, self._ends = Spool(), array("q", [0])
        self._read = reader_of("Item", where)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, data: bytes) -> None:
        """Takes an Item message's bytes."""
        self._spool.write(data)
        self._ends.append(self._spool.size)

    def close_writing(self) -> None:
        """No more will come."""
        self._spool.close_writing()

    def one(self, number: int) -> Any:
        """The item of that number, as a message."""
        return self._messages(number, number + 1)[0]

    def parts(self) -> Iterator[list[Any]]:
        """All items as messages, a few thousand at a time."""
        for first in range(0, len(self), _AT_ONCE):
            yield self._messages(first, min(len(self), first + _AT_ONCE))

    def _messages(self, first: int, end: int) -> list[Any]:
        ends = self._ends[first : end + 1]
        data = self._spool.read(ends[0], ends[-1] - ends[0])
        return [self._read(data[start - ends[0] : stop - ends[0]]) for start, stop in pairwise(ends)]
