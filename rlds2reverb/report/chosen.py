"""A few things out of many, chosen by a seed and their names: the same ones whatever the order in which they come."""

from __future__ import annotations

from typing import Generic, TypeVar

import xxhash

Value = TypeVar("Value")


def mark_of(name: bytes, seed: int) -> int:
    """A number of 64 bits that a name and a seed decide."""
    return xxhash.xxh3_64_intdigest(name, seed=seed)


class Chosen(Generic[Value]):
    """The things with the smallest marks.

    Args:
      most: how many.
      seed: decides which; at least 0.
    """

    def __init__(self, most: int, seed: int) -> None:
        self._most, self._seed = most, seed
        self._kept: dict[tuple[int, str], Value] = {}

    def wants(self, name: str) -> bool:
        """Whether a thing of this name would be kept; one that is there already is not taken again."""
        key = self._key(name)
        return key not in self._kept and (len(self._kept) < self._most or key < max(self._kept))

    def add(self, name: str, value: Value) -> None:
        """Takes a thing in."""
        self._kept[self._key(name)] = value
        if len(self._kept) > self._most:
            del self._kept[max(self._kept)]

    def add_chosen(self, other: Chosen[Value]) -> None:
        """Takes in what was chosen elsewhere by the same seed."""
        for (_, name), value in other._kept.items():
            if self.wants(name):
                self.add(name, value)

    def values(self) -> list[Value]:
        """What was chosen, in the order of the marks."""
        return [self._kept[key] for key in sorted(self._kept)]

    def _key(self, name: str) -> tuple[int, str]:
        return mark_of(name.encode("utf-8", "surrogateescape"), self._seed), name
