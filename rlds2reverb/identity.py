"""What an episode is called: by what is stored of it, so that the same episode has the same name wherever it is met.

A name is `content:` and 32 hex digits of a digest: of the record's bytes where a file has records (TFDS), of the stored rows and of the
bytes of images and videos where it has these (LeRobot, JPEG of Minari), of the columns otherwise. Neither a dataset's name, version, size or
place nor an episode's number is part of it. So a dataset that grows, other shards, slices, parts, other workers and a copied
folder give the names that were there before.

Two equal episodes have one name. Whoever stores episodes counts them (`Occurrences`): the first keeps the name, the second of the
same content becomes `content:...#2`. Which of them is the second does not matter: what is stored of them is equal. So where items hold
metadata, those are a part of what is counted (`push.names`).

An id that a caller gave an `Episode` is its name as it is; two episodes of one such id are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

CONTENT = "content:"

Names = npt.NDArray[np.uint64]
"""[n] numbers that stand for names, see `number_of`."""

NO_NAMES: Names = np.zeros(0, np.uint64)

_MERGED_AT = 1 << 16
"""Names that are kept in a Python set before they join the sorted array; at 10^7 episodes the array is merged 150 times."""


def content_name(digest: str) -> str:
    """The name of an episode with this digest of what is stored of it, in hex digits."""
    return f"{CONTENT}{digest}"


def is_content(name: str) -> bool:
    """Whether a name is that of a content, so that equal episodes share it."""
    return name.startswith(CONTENT)


def copy_name(name: str, number: int) -> str:
    """What the `number`-th episode of a name is called, counted from 1."""
    return name if number == 1 else f"{name}#{number}"


def is_copy(name: str) -> bool:
    """Whether a name is that of the second or a later episode of its content."""
    return is_content(name) and "#" in name


def number_of(name: str) -> int:
    """64 bits that stand for a name: even ones for contents, odd ones for ids that callers gave.

    Among 10^7 names two share their number with a probability of 5 in 10^6.
    """
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) & ~1 | (not is_content(name))


class Occurrences:
    """Counts how often each name has come, in 8 bytes a name.

    Attributes:
      copies: how many of the names had come before.
    """

    def __init__(self) -> None:
        self.copies = 0
        self._sorted = NO_NAMES
        self._recent: set[int] = set()
        self._counts: dict[int, int] = {}  # of names that came more than once

    def count(self, name: str) -> int:
        """Takes a name in; 1 when it is the first time, 2 the second time, and so on."""
        return self.add(number_of(name))

    def add(self, number: int) -> int:
        """As `count`, by the number of a name."""
        seen = self.seen(number) + 1
        if seen > 1:
            self.copies += 1
            self._counts[number] = seen
            return seen
        self._recent.add(number)
        if len(self._recent) >= _MERGED_AT:
            self._sorted = np.sort(np.concatenate([self._sorted, _numbers(self._recent)]), kind="stable")
            self._recent = set()
        return seen

    def seen(self, number: int) -> int:
        """How often a name has come, by its number."""
        return self._counts.get(number, int(number in self._recent or _holds(self._sorted, number)))


@dataclass(frozen=True, eq=False)
class KnownEpisodes:
    """Names with a number each, such as the items that a ledger says they have; frozen, in 16 bytes a name.

    A name is recognised by 95 bits.
    """

    numbers: Names = field(default_factory=lambda: NO_NAMES)
    values: Names = field(default_factory=lambda: NO_NAMES)

    @staticmethod
    def of(rows: Iterable[tuple[str, int]]) -> KnownEpisodes:
        """Of names and numbers; of a name that comes twice, one counts. The numbers are below 2^32."""
        flat = np.fromiter(
            (part for name, value in rows for part in (number_of(name), _check(name) << 32 | value)), np.uint64
        )
        pairs = flat.reshape(-1, 2)
        order = np.argsort(pairs[:, 0], kind="stable")
        return KnownEpisodes(pairs[order, 0], pairs[order, 1])

    def __len__(self) -> int:
        return len(self.numbers)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> int | None:
        """A name's number; None for a name that is not there."""
        number = number_of(name)
        at = int(np.searchsorted(self.numbers, np.uint64(number)))
        while at < len(self.numbers) and int(self.numbers[at]) == number:
            value = int(self.values[at])
            if value >> 32 == _check(name):
                return value & 0xFFFFFFFF
            at += 1
        return None


class Copies:
    """Which episodes are to be stored once more, when parts of a dataset are read apart and each counts for itself.

    Where a content has a copies in one part and b in another, the names of its first max(a, b) copies are stored. The others are set aside,
    part by part as they end, and numbered when all have ended.
    """

    def __init__(self) -> None:
        self._stored = Occurrences()
        self._aside: dict[int, list[tuple[int, int]]] = {}

    def take(self, part: int, contents: Iterable[tuple[int, int]]) -> list[bool]:
        """Takes in a part: (place of an episode in it, number of its content), ascending; whether each is set aside."""
        found: list[bool] = []
        local: dict[int, int] = {}
        aside = self._aside.setdefault(part, [])
        for place, content in contents:
            local[content] = local.get(content, 0) + 1
            found.append(local[content] <= self._stored.seen(content) and not content % 2)
            if found[-1]:
                aside.append((place, content))
            else:
                self._stored.add(content)
        return found

    def numbered(self) -> dict[int, dict[int, int]]:
        """Part -> place of an episode that was set aside -> the number of the copy that it is to be stored as."""
        return {
            part: {place: self._stored.add(content) for place, content in aside}
            for part, aside in sorted(self._aside.items())
            if aside
        }


def _check(name: str) -> int:
    """32 bits of a name that do not depend on `number_of`."""
    return xxhash.xxh32_intdigest(name.encode("utf-8", "surrogatepass"))


def _numbers(numbers: Iterable[int]) -> Names:
    return np.fromiter(numbers, np.uint64)


def _holds(numbers: Names, number: int) -> bool:
    at = int(np.searchsorted(numbers, np.uint64(number)))
    return at < len(numbers) and int(numbers[at]) == number


def repeated_ids(names: Names) -> Any:
    """Those of the names that callers gave, and that come more than once."""
    found, counts = np.unique(names[names % 2 == 1], return_counts=True)
    return found[counts > 1]
