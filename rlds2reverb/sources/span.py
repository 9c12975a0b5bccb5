"""Episodes of a source from one number to another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rlds2reverb.episodes import Episode
from rlds2reverb.remarks import Remark
from rlds2reverb.sources.base import Source, between, check_shard, remarks_of
from rlds2reverb.specs import Nest


class Span:
    """Episodes number `start` to `stop` of a source, under the names that they have in the whole.

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

    def spec(self) -> Nest:
        """The source's."""
        return self._source.spec()

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The source's."""
        return remarks_of(self._source)

    def __iter__(self) -> Iterator[Episode]:
        numbers = self._numbers
        episodes = between(self._source, numbers.start, numbers.stop)
        return islice(episodes, 0, numbers.stop - numbers.start, numbers.step)

    def shard(self, index: int, count: int) -> Span:
        """Every `count`-th of them."""
        check_shard(index, count)
        some = self._numbers[index::count]
        return Span(self._source, some.start, some.stop, some.step)
