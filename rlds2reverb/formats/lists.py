"""The simplest source: a list of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlds2reverb.episode import Episode, is_content, metadata_specs
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.source import Source, check_shard, spec_of
from rlds2reverb.specs import Nest


class EpisodeList(Source):
    """A list of episodes as a source. Its specs are those of the first episode (with rows) of the whole list, also for a shard.

    Episodes without an id of their own are named by their content; equal ones have one name.

    Raises:
      SourceError: two episodes have the same id, or something in the list is no episode.
    """

    def __init__(self, episodes: Sequence[Episode], name: str = "episodes") -> None:
        self.name = name
        for number, episode in enumerate(episodes):
            if not isinstance(episode, Episode):
                raise SourceError(f"{name}: number {number} is a {type(episode).__name__}, expected an Episode")
        self._episodes = list(episodes)
        self._whole = self._episodes
        seen: set[str] = set()
        for episode in self._episodes:
            if episode.id in seen and not is_content(episode.id):
                raise SourceError(f'{name}: two episodes have the id "{episode.id}"; ids must differ, or be left out')
            seen.add(episode.id)

    @property
    def is_at_hand(self) -> bool:
        return True

    @property
    def episode_count(self) -> int | None:
        return len(self._episodes)

    def episode_lengths(self) -> Sequence[int] | None:
        return [len(episode) for episode in self._episodes]

    @property
    def has_random_access(self) -> bool:
        return True

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._episodes[number]) for number in numbers)

    def spec(self) -> Nest:
        for episode in self._whole:
            if len(episode):
                return spec_of(episode)
        raise SourceError(f"{self.name}: no episode with steps, so there is no step spec")

    def metadata_spec(self) -> Nest:
        return metadata_specs(self._whole[0]) if self._whole else {}

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    def shard(self, index: int, count: int) -> EpisodeList:
        check_shard(index, count)
        part = EpisodeList((), f"{self.name}[{index}/{count}]")
        part._episodes, part._whole = self._episodes[index::count], self._whole
        return part
