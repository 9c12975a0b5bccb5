"""The source that an environment loop is: episodes come one by one, when they are there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds2reverb.episodes import FLAGS, Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.metadata import metadata_specs
from rlds2reverb.sources.base import Source
from rlds2reverb.specs import ArraySpec, Nest


class LiveSource(Source):
    """Episodes as they are handed in; see `Source`.

    Args:
      name: what messages call it.
      step_spec: of the steps as recorded; absent flags are added.
      example: an episode with the metadata that all have; None for none.
    """

    def __init__(self, name: str, step_spec: Nest, example: Episode | None = None) -> None:
        self.name, self._example = name, example
        flags = {flag: ArraySpec((), np.dtype(bool)) for flag in FLAGS if flag not in step_spec}
        self._spec = {**step_spec, **flags}
        self._next: list[Episode] = []

    def spec(self) -> Nest:
        """The steps' spec, with all flags."""
        return self._spec

    def metadata_spec(self) -> Nest:
        """That of the example."""
        return {} if self._example is None else metadata_specs(self._example)

    def hand_in(self, episode: Episode) -> None:
        """The episode that an iterator gives next."""
        self._next.append(episode)

    def __iter__(self) -> Iterator[Episode]:
        while self._next:
            yield self._next.pop()

    def shard(self, index: int, count: int) -> Source:
        """Refuses.

        Raises:
          SourceError: always.
        """
        raise SourceError(f"{self.name}: an environment loop has no shards; got {index} of {count}")
