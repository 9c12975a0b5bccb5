"""What the streams of one sampler share: how many samples are still to be asked for, and the batches that are ready."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from rlds2reverb.wire.sample.batches import FlatBatch

Taken = Callable[[int], object]
"""Told by how many samples there is more room for others."""


class Pool:
    """Not thread-safe: hold `changed`, which every stream's thread and the caller's wait on.

    Args:
      samples: to ask for in all; None for no end.
      state_id: of the server process that was asked for its tables.

    Attributes:
      changed: the lock, and the condition over all that is here.
      left: samples still to be asked for; None for no end.
      is_stopped: nothing more is asked for.
      received: samples that came.
      lost_at_most: samples that the server may have taken, and that nobody gets.
      restarts: how often another server process answered.
    """

    def __init__(self, samples: int | None, state_id: int) -> None:
        self.changed = threading.Condition()
        self.left = samples
        self.is_stopped = False
        self.received = self.lost_at_most = self.restarts = 0
        self._state_id = state_id
        self._ready: deque[tuple[FlatBatch, Taken]] = deque()

    def grant(self, wanted: int) -> int:
        """How many of them may be asked for; they count as asked for."""
        if self.is_stopped:
            return 0
        if self.left is None:
            return wanted
        granted = min(wanted, self.left)
        self.left -= granted
        return granted

    def lose(self, awaited: int) -> None:
        """A stream broke that was to bring so many: others may be asked for in their place."""
        self.lost_at_most += awaited
        if self.left is not None:
            self.left += awaited

    def answers(self, state_id: int) -> None:
        """A server process answers; every stream notices a restart by itself."""
        self.restarts += state_id != self._state_id
        self._state_id = state_id

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is asked for."""
        return self.is_stopped or self.left == 0

    @property
    def ready(self) -> int:
        """Batches to be read."""
        return len(self._ready)

    def put(self, batches: Iterable[FlatBatch], taken: Taken) -> None:
        """Puts batches behind those that are ready; `taken` is called when one of them is read."""
        self._ready.extend((batch, taken) for batch in batches)

    def get(self) -> FlatBatch:
        """Takes out the batch that has been ready for longest. There must be one."""
        batch, taken = self._ready.popleft()
        taken(len(batch))
        return batch

    def clear(self) -> int:
        """Takes all batches out; how many samples they held."""
        unread = sum(len(batch) for batch, _ in self._ready)
        self._ready.clear()
        return unread
