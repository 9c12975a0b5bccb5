"""The simplest source: a list of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from rlds2reverb.episode import Episode, Notice, is_content, metadata_specs, note
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import MOST, agree, spread
from rlds2reverb.formats.source import Source, check_shard, spec_of
from rlds2reverb.specs import ArraySpec, Nest, flatten, nested
from rlds2reverb.text import counted


class EpisodeList(Source):
    """A list of episodes as a source. Its specs are those of most episodes (with rows) of the whole list, also for a shard (`agreement`).

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

    @cached_property
    def _looks(self) -> Mapping[int, Mapping[str, ArraySpec]]:
        filled = [number for number, episode in enumerate(self._whole) if len(episode)]
        return {number: flatten(spec_of(self._whole[number])) for number in spread(filled)}

    def spec(self) -> Nest:
        if not self._looks:
            raise SourceError(f"{self.name}: no episode with steps, so there is no step spec")
        return nested(agree(self._looks, MOST).specs)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Which columns some episodes do not have as most have them."""
        looks = self._looks.values()
        specs = agree(self._looks, MOST).specs if looks else {}
        found = []
        for path in dict.fromkeys(path for columns in looks for path in columns):
            unlike = sum(columns.get(path) != specs.get(path) for columns in looks)
            if unlike:
                text = (
                    f"{unlike:,} of {counted(len(looks), 'episode')} looked at have another dtype or shape of it than most, or lack it, or have "
                    "it where most lack it: the spec is that of most, and those are bad"
                )
                found.append(note("spec_of_most", text, unlike, path))
        return tuple(found)

    def metadata_spec(self) -> Nest:
        """The spec of the features that most episodes have."""
        features = {number: metadata_specs(self._whole[number]) for number in spread(range(len(self._whole)))}
        return dict(agree(features, MOST).specs) if features else {}

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    def shard(self, index: int, count: int) -> EpisodeList:
        check_shard(index, count)
        part = EpisodeList((), f"{self.name}[{index}/{count}]")
        part._episodes, part._whole = self._episodes[index::count], self._whole
        return part
