"""Episodes of a source from one number to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from rlds2reverb.episodes import Episode, KnownEpisode
from rlds2reverb.remarks import Remark
from rlds2reverb.sources.base import (
    IsKnown,
    Source,
    check_shard,
    episode_lengths_of,
    episodes_of,
    read,
    remarks_of,
    unless_known,
)
from rlds2reverb.specs import Nest


class Span:
    """Episodes number `start` to `stop` of a source.

    Args:
      source: any.
      start, stop: numbers, in the order of the source; `stop` is left out.
      step: takes every so many-th.
    """

    def __init__(self, source: Source, start: int, stop: int, step: int = 1) -> None:
        self._source, self._numbers = source, range(start, stop, step)
        self.name = source.name

    @property
    def episode_count(self) -> int | None:
        """How many they are; None where the source's number is not known."""
        whole = self._source.episode_count
        return (
            None if whole is None else len(self._numbers[: len(range(self._numbers.start, whole, self._numbers.step))])
        )

    def episode_lengths(self) -> Sequence[int] | None:
        """Those of the source that are among them."""
        whole = episode_lengths_of(self._source)
        return None if whole is None else whole[self._numbers.start : self._numbers.stop : self._numbers.step]

    def spec(self) -> Nest:
        """The source's."""
        return self._source.spec()

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The source's."""
        return remarks_of(self._source)

    def __iter__(self) -> Iterator[Episode]:
        return episodes_of(self)

    def read_range(self, start: int, stop: int | None, is_known: IsKnown) -> Iterator[Episode | KnownEpisode]:
        """See `base.read`."""
        numbers = self._numbers[start:stop]
        if numbers.step == 1:
            return read(self._source, numbers.start, numbers.stop, is_known)
        episodes = episodes_of(self._source, numbers.start, numbers.stop)
        return unless_known(islice(episodes, 0, None, numbers.step), is_known)

    def shard(self, index: int, count: int) -> Span:
        """Every `count`-th of them."""
        check_shard(index, count)
        some = self._numbers[index::count]
        return Span(self._source, some.start, some.stop, some.step)
