"""Which places of a stream of items go to which learner: ranks of a training run, and workers that make batches for a rank.

The stream is the one that a single learner reads. It is dealt in rounds: of every `world_size` places each rank gets one, so that all
ranks get equally many. `batch_size` rounds are a batch of each rank, and the batches of a rank go to its workers in turn:

| place | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | ... |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| rank of 2 | 0 | 1 | 0 | 1 | 0 | 1 | 0 | 1 | 0 | |
| batch, of 2 items | 0 | 0 | 0 | 0 | 1 | 1 | 1 | 1 | 2 | |
| worker of 2 | 0 | 0 | 0 | 0 | 1 | 1 | 1 | 1 | 0 | |

So a position is a place of the common stream, between two rounds, and the same on every rank. From there on the rest can be dealt to any
other number of ranks or workers: every place still comes once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.episode import Array


@dataclass(frozen=True)
class Share:
    """The places of one learner. Places count from where dealing begins.

    Attributes:
      rank, world_size: the learner, and how many there are.
      worker, workers: which of its batches: the numbers `worker`, `worker + workers`, ...
      batch_size: places of a batch of one rank.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    batch_size: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether all places are of this learner."""
        return self.world_size == self.workers == 1

    def at(self, numbers: Array) -> Array:
        """[n] int64, the places of its items of these numbers [n]; both count from 0."""
        batch, item = np.divmod(numbers, self.batch_size)
        places: Array = ((batch * self.workers + self.worker) * self.batch_size + item) * self.world_size + self.rank
        return places

    def count(self, stop: int) -> int:
        """Number of its places below `stop`."""
        batch_places = self.batch_size * self.world_size
        turns, left = divmod(stop, batch_places * self.workers)
        in_batch = min(max(0, left - self.worker * batch_places), batch_places)
        return turns * self.batch_size + (in_batch - self.rank + self.world_size - 1) // self.world_size

    def between(self, start: int, stop: int) -> Array:
        """[n] int64, its places from `start` to before `stop`, ascending."""
        return self.at(np.arange(self.count(start), self.count(stop)))

    def end_of(self, start: int, count: int) -> int:
        """The end of the round of its `count`-th place from `start` on: there a position is the same on every rank."""
        last = int(self.at(np.array([self.count(start) + int(count) - 1]))[0])
        return self.end_of_round(last + self.world_size)

    def end_of_round(self, place: int) -> int:
        """The last end of a round at or before a place."""
        return place // self.world_size * self.world_size
