"""Tasks: ranges of a source's episodes, and how many episodes each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_EPISODES = 512
"""Of a task. What a lost worker has done is done again, and a finished task is written down: both by the task."""

_FEWEST_EPISODES = 16
"""Of a task, where there are as many. Some problems only several episodes show (`validation.endings`)."""

_TASKS_EACH = 8
"""Tasks that a worker gets at least, where there are enough episodes, so that all workers end at about the same time."""


@dataclass(frozen=True)
class Task:
    """Episodes that one worker reads, from one number to another.

    Attributes:
      number: of the task; a later one has later episodes.
      start, stop: of the episodes, in the order of the source; `stop` is left out.
      terms: what the worker is told beside it.
    """

    number: int
    start: int
    stop: int
    terms: Any = None

    @property
    def episodes(self) -> int:
        """How many."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"episodes {self.start:,} to {self.stop - 1:,}"


class Outcome(NamedTuple):
    """What came of a task.

    Attributes:
      value: the result; of what was done before the error, if there is one. None where nothing was begun.
      error: what stopped it.
    """

    value: Any
    error: BaseException | None = None


def divided(episodes: int, workers: int, most: int = MOST_EPISODES) -> list[Task]:
    """All episodes in tasks, in order.

    Args:
      episodes: how many there are.
      workers: how many take tasks at a time.
      most: episodes of a task.
    """
    size = min(most, max(_FEWEST_EPISODES, -(-episodes // (workers * _TASKS_EACH))))
    starts = range(0, episodes, size)
    return [Task(number, start, min(start + size, episodes)) for number, start in enumerate(starts)]
