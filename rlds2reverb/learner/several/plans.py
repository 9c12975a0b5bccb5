"""Which server each sample is to come from; drawn a few batches ahead where no more may be asked for than is wanted."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from rlds2reverb.episodes import Array


class Plan(NamedTuple):
    """Of some samples.

    Attributes:
      servers: [n] the server that each is to come from.
      shares: by server, with which probability it was drawn.
    """

    servers: Array
    shares: Array


class Plans:
    """Draws servers.

    Args:
      servers: how many there are.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._random = np.random.default_rng()
        self._later: deque[Plan] = deque()

    def next(self, count: int, sizes: Array) -> Plan:
        """That of so many samples; `sizes` are the items of each server, and one of them has some."""
        if self._later and len(self._later[0].servers) == count:
            return self._later.popleft()
        return self._drawn(count, sizes)

    def ahead(self, counts: list[int], sizes: Array) -> None:
        """Draws for the batches after the next one, of these sizes, where it was not done yet."""
        for count in counts[len(self._later) :]:
            self._later.append(self._drawn(count, sizes))

    def wanted(self, now: Plan) -> Array:
        """By server, how many samples are wanted of it: now, and later."""
        return np.bincount(np.concatenate([plan.servers for plan in (now, *self._later)]), minlength=self._servers)

    def _drawn(self, count: int, sizes: Array) -> Plan:
        shares = sizes / sizes.sum()
        return Plan(self._random.choice(len(sizes), size=count, p=shares), shares)
