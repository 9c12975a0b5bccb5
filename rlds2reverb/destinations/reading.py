"""The episodes of a conversion that are left, with what others show of them: read by this process, or by workers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter

from rlds2reverb.destinations.job import Job
from rlds2reverb.destinations.taking import Accepted, Readers, Taken
from rlds2reverb.episodes import Episode
from rlds2reverb.prepare.preparation import Preparer
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import Endings, problems_in_order

Judged = Generator[tuple[Taken, list[Problem]], None, None]
"""Episodes, in order, and what others show of each."""


@dataclass(frozen=True)
class Here:
    """One that was read by this process, which does the rest when it is accepted."""

    job: Job
    episode: Episode

    @property
    def id(self) -> str:
        """Of the episode."""
        return self.episode.id

    @property
    def title(self) -> str:
        """As messages name it."""
        return self.episode.title

    @property
    def steps(self) -> int:
        """How many it has, as recorded."""
        return len(self.episode)

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """See `Taken.accepted`."""
        prepared, is_end_mended = self.job.prepared(preparer, self.episode, found)
        return None if prepared is None else lambda: self.job.written(prepared, is_end_mended)


def read_here(job: Job, left: Iterable[Episode], endings: Endings, on_clear: Callable[[Endings], object]) -> Judged:
    """By this process.

    Args:
      job: of the conversion.
      left: the episodes.
      endings: of those before them.
      on_clear: see `Preparation.read`.
    """
    for episode, found in job.ready.read(left, endings=endings, on_clear=on_clear):
        yield Here(job, episode), found


def read_by(readers: Readers, start: int, endings: Endings, on_clear: Callable[[Endings], object]) -> Judged:
    """By workers, from episode number `start` on; other arguments as `read_here`."""
    with closing(readers.read(start)) as reads:
        yield from problems_in_order(reads, attrgetter("ending"), endings, on_clear)
