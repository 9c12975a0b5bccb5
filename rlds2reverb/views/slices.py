"""Slices of fixed length chosen when the data is pushed, as TorchRL's `SliceSampler` chooses them when it samples.

Of an episode of rows r0 to r9 with length=4, `per_episode=2` keeps two of the seven slices r0-r3 to r6-r9, drawn without
replacement from a generator that depends on the seed and the episode's name only. An episode shorter than the length gives no
item when strict, else one item of all its rows.
Source: SliceSampler of TorchRL 0.5 (start uniform in [0, T - length], `strict_length`).

>>> import numpy as np
>>> from rlds2reverb.episodes import Episode
>>> episode = Episode({"observation": np.arange(10)}, {}, "e")
>>> len(Slices(length=4, per_episode=2).cut(episode).anchors)
2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array, Episode
from rlds2reverb.specs import Nest, map_leaves
from rlds2reverb.views.base import Cut, Window, check_flags, check_options
from rlds2reverb.views.steps import check_seed, generator, need, priorities


@dataclass(frozen=True)
class Slices:
    """Items of `length` consecutive rows, all step columns as recorded.

    Attributes:
      length: rows of an item.
      per_episode: slices kept of each episode, at most as many as there are.
      strict: a shorter episode gives no item; otherwise one item of all its rows.
      seed: of the choice.
      priority: of every item.

    Raises:
      ViewError: an option that makes no sense.
    """

    length: int = 32
    per_episode: int = 1
    strict: bool = True
    seed: int = 0
    priority: float = 1.0

    def __post_init__(self) -> None:
        check_options("slices", self.priority, length=self.length, per_episode=self.per_episode)
        check_seed("slices", self.seed)
        check_flags("slices", strict=self.strict)

    @property
    def label(self) -> str:
        """Name and options."""
        return f"slices:length={self.length},per_episode={self.per_episode},strict={self.strict},seed={self.seed}"

    def signature(self, step_spec: Nest) -> Nest:
        """The step spec with a leading axis of `length`; of any size when not strict."""
        steps: Mapping[str, Nest] = need("slices", step_spec)
        return map_leaves(lambda leaf: leaf.with_leading(self.length if self.strict else None), dict(steps))

    def cut(self, episode: Episode) -> Cut:
        """Starts in rising order."""
        anchors = self._starts(episode)
        windows = (Window(0, min(self.length, max(1, len(episode)))),) * len(episode.steps)
        return Cut.of_columns(dict(episode.steps), windows, anchors, priorities(len(anchors), self.priority))

    def _starts(self, episode: Episode) -> Array:
        starts = len(episode) - self.length + 1
        if starts < 1:
            return np.zeros(int(not self.strict and len(episode) > 0), np.int64)
        chosen = generator("slices", self.seed, episode).choice(starts, min(self.per_episode, starts), replace=False)
        return np.sort(chosen).astype(np.int64)
