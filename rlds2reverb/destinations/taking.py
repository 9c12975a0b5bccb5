"""Episodes on their way from the source to the sink: read and judged in this process, or by workers.

What the other episodes show of one is known only when all before it, and a few behind, are read. So whoever drives the conversion decides
about each, in order, and counts; a worker has done all else by then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlds2reverb.errors import ConversionError
from rlds2reverb.prepare.preparation import Preparer
from rlds2reverb.remarks import Remark
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import Ending


@dataclass(frozen=True)
class Written:
    """What is written of an episode.

    Attributes:
      encoded: for the sink.
      steps, bytes: of it; bytes as columns in memory.
      is_end_mended: whether its last row is not as recorded.
      odd_flags: paths of the flags that do not come back as they are.
      jpeg: paths of images that are JPEG files, which the format's own system decodes otherwise; see `Job.odd_jpeg`.
    """

    encoded: Any
    steps: int
    bytes: int
    is_end_mended: bool
    odd_flags: tuple[str, ...]
    jpeg: tuple[str, ...] = ()


Accepted = Callable[[], Written]
"""Makes what is written. Raises ConversionError: the format cannot hold it."""


class Taken(Protocol):
    """An episode that was read."""

    @property
    def id(self) -> str:
        """Of the episode."""

    @property
    def title(self) -> str:
        """As messages name it."""

    @property
    def steps(self) -> int:
        """How many it has, as recorded."""

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """Decides about it, and has that counted; None when it is rejected.

        Args:
          preparer: of the conversion; its policy counts.
          found: what others show.

        Raises:
          InvalidEpisode: it is bad and the policy is to stop.
        """


@dataclass(frozen=True)
class Read:
    """One that a worker has read, judged by itself, and encoded where it is good so far.

    Attributes:
      id, recorded_id, title: see `episodes.Episode`.
      steps: as recorded.
      problems, mended: what it shows by itself; see `validation.policy.Examined`.
      ending: how it ends; None where that cannot tell.
      too_short: why the format holds nothing of it.
      written: None where it is rejected anyway.
      error: why the format cannot hold it.
    """

    id: str
    recorded_id: str | None
    title: str
    steps: int
    problems: tuple[Problem, ...]
    mended: tuple[Problem, ...]
    ending: Ending | None
    too_short: Problem | None = None
    written: Written | None = None
    error: ConversionError | None = None

    def accepted(self, preparer: Preparer, found: Sequence[Problem]) -> Accepted | None:
        """See `Taken.accepted`."""
        if not preparer.policy.accepts(self, [*self.problems, *found], self.mended):
            return None
        if self.too_short is not None:
            preparer.policy.reject(self, [self.too_short])
            return None
        return self._made

    def _made(self) -> Written:
        if self.error is not None:
            raise self.error
        assert self.written is not None  # it is good
        return self.written


class Readers(Protocol):
    """Workers that read the source of a conversion.

    Attributes:
      workers: how many at a time.
    """

    workers: int

    @property
    def parts_again(self) -> int:
        """Parts of the source that were begun anew, for their workers were lost."""

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What their sources say of the dataset."""

    def read(self, start: int) -> Generator[Read, None, None]:
        """The episodes from a number on, in order. Closing it stops all workers.

        Raises:
          Rlds2ReverbError: as reading the source does, at the same episode; or a worker cannot begin.
          WorkersLost: one was lost again and again.
        """
