"""Results of tasks in the order of their episodes, whatever the order in which they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from rlds2reverb.scale.tasks import Task

T = TypeVar("T")


class InTurn(Generic[T]):
    """Holds results back until all before them are there.

    Args:
      start: the first episode of all.
    """

    def __init__(self, start: int = 0) -> None:
        self._episodes = start  # the first that was not handed on
        self._held: dict[int, tuple[Task, T]] = {}  # by the first episode

    def take(self, task: Task, result: T) -> Iterator[T]:
        """Takes a result; those whose turn it is now."""
        self._held[task.start] = task, result
        while (found := self._held.pop(self._episodes, None)) is not None:
            self._episodes = found[0].stop
            yield found[1]

    @property
    def held(self) -> int:
        """How many results are held back."""
        return len(self._held)

    @property
    def next(self) -> int:
        """The episode whose turn it is."""
        return self._episodes

    def rest(self) -> Iterator[T]:
        """Those that are still held back, in order."""
        for start in sorted(self._held):
            yield self._held.pop(start)[1]
