"""What the two kinds of storage have in common: an episode's columns as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rlds2reverb.episodes import Array
from rlds2reverb.readers.minari.spaces import Leaf

OBSERVATIONS, ACTIONS, INFOS = "observations", "actions", "infos"
REWARDS, TERMINATIONS, TRUNCATIONS = "rewards", "terminations", "truncations"


@dataclass(frozen=True, eq=False)
class Images:
    """A column of images as the bytes of their JPEG files."""

    files: list[bytes]


class StoredEpisode(Protocol):
    """One episode. Each method raises `BrokenEpisode` for what cannot be read."""

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | Images:
        """A column of "observations" or "actions", with so many rows; what has more or fewer is broken."""

    def plain(self, name: str) -> Array:
        """The column "rewards", "terminations" or "truncations", [T]."""

    def others(self) -> Iterator[tuple[str, Array | None]]:
        """Path and values of every further column, `infos/...` first of all; None for what is no column of numbers or texts."""


Episodes = Callable[[int], StoredEpisode]
"""An episode by the number that it has among `Stored.numbers`."""


class Stored(Protocol):
    """The files of a dataset."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers that the episodes there have, ascending."""

    def opened(self) -> AbstractContextManager[Episodes]:
        """The files, open for reading episodes."""

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """Of every episode: feature -> value, as it is stored."""
