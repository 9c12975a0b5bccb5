"""A cache of values that are expensive to make: open files, chunks, row groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Keeps the most recently used values. Used by one thread at a time.

    Args:
      most: bound of the sum of the kept values' sizes; the last used value always stays. May be set anew at any time.
      size: of a value; 1 by default, so that `most` is a number of values.
      close: is called with every value that is dropped.
    """

    def __init__(
        self, most: int, size: Callable[[V], int] = lambda _: 1, close: Callable[[V], object] = lambda _: None
    ) -> None:
        self.most, self._size, self._close = most, size, close
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._total = 0

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made when it is not kept."""
        if key not in self._kept:
            self.put(key, make())
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: K, value: V) -> None:
        """Keeps a value, in place of one that the key may have."""
        size = self._size(value)
        self._total += size - self._kept.get(key, (value, 0))[1]
        self._kept[key] = value, size
        while self._total > self.most and len(self._kept) > 1:
            self._drop_oldest()

    def clear(self) -> None:
        while self._kept:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (value, size) = self._kept.popitem(last=False)
        self._total -= size
        self._close(value)
