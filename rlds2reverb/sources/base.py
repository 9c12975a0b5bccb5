"""What every source offers, and the simplest one: a list of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import ArraySpec, Nest


class Source(Protocol):
    """A dataset as episodes. Iterating twice reads it twice, in the same order."""

    @property
    def name(self) -> str:
        """What people call it; for messages."""

    @property
    def episode_count(self) -> int | None:
        """How many episodes it has, or None when unknown."""

    @property
    def step_count(self) -> int | None:
        """How many steps it has in all, or None when unknown without reading."""

    def spec(self) -> Nest:
        """The steps' spec: a nest of `ArraySpec` without the time axis.

        Raises:
          SourceError: the dataset is empty or cannot be read, so there is nothing to derive it from.
        """

    def __iter__(self) -> Iterator[Episode]:
        """Reads the episodes.

        Raises:
          SourceError: the data cannot be read; says at which episode.
        """

    def shard(self, index: int, count: int) -> Source:
        """Every `count`-th episode, starting with number `index`.

        Raises:
          SourceError: not 0 <= index < count.
        """


def check_shard(index: int, count: int) -> None:
    """Raises `SourceError` unless 0 <= index < count."""
    if not 0 <= index < count:
        raise SourceError(f"shard {index} of {count}: expected 0 <= index < count")


class EpisodeList:
    """A list of episodes as a source.

    Episodes without an id of their own get one from their content and their number, so the same list pushed
    again makes the same item keys.

    Raises:
      SourceError: two episodes have the same id, or something in the list is no episode.
    """

    def __init__(self, episodes: Sequence[Episode], name: str = "episodes") -> None:
        self.name = name
        for number, episode in enumerate(episodes):
            if not isinstance(episode, Episode):
                raise SourceError(f"{name}: number {number} is a {type(episode).__name__}, expected an Episode")
        self._episodes = [_with_unique_id(number, episode) for number, episode in enumerate(episodes)]
        seen: set[str] = set()
        for episode in self._episodes:
            if episode.id in seen:
                raise SourceError(f'{name}: two episodes have the id "{episode.id}"; ids must differ, or be left out')
            seen.add(episode.id)

    @property
    def episode_count(self) -> int | None:
        """The length of the list."""
        return len(self._episodes)

    @property
    def step_count(self) -> int | None:
        """The sum of the episodes' lengths."""
        return sum(len(episode) for episode in self._episodes)

    def spec(self) -> Nest:
        """The spec of the first episode with rows."""
        for episode in self._episodes:
            if len(episode):
                return spec_of(episode)
        raise SourceError(f"{self.name}: no episode with steps, so there is no step spec")

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    def shard(self, index: int, count: int) -> EpisodeList:
        """Every `count`-th episode, named as in the whole list."""
        check_shard(index, count)
        part = EpisodeList((), f"{self.name}[{index}/{count}]")
        part._episodes = self._episodes[index::count]
        return part


def _with_unique_id(number: int, episode: Episode) -> Episode:
    if not episode.id.startswith("content:"):
        return episode
    return Episode(episode.steps, episode.metadata, f"{episode.id}#{number}")


def spec_of(episode: Episode) -> Nest:
    """The step spec of one episode; '/'-joined paths become nested dicts.

    Raises:
      SourceError: a column has the name of a group of columns ("a" beside "a/b").
    """
    nest: dict[str, Nest] = {}
    for path, column in episode.steps.items():
        *parents, leaf = path.split("/")
        level = nest
        for parent in parents:
            level = level.setdefault(parent, {})
            if not isinstance(level, dict):
                raise SourceError(f'column "{path}" lies below another column; rename one of them')
        if leaf in level:
            raise SourceError(f'column "{path}" has the name of a group of columns; rename one of them')
        is_text = column.dtype.kind in "SUO"
        level[leaf] = ArraySpec(column.shape[1:], np.dtype(object) if is_text else column.dtype)
    return nest
