"""A source as workers get it: by its name, which each opens anew, or, where it has none, as an object that can be pickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import Source, Tally, first_episodes
from rlds2reverb.sources.mix import MixOf
from rlds2reverb.sources.mixed import MixedSource


@dataclass(frozen=True)
class Named:
    """A source.

    Attributes:
      source: its name, a mix by names, or an object that `open_source` takes.
      limit: at most so many episodes; None for all.
    """

    source: Any
    limit: int | None = None

    def open(self) -> Source:
        """Opens it.

        Raises:
          SourceError: as `open_source`.
        """
        source = self.source.open() if isinstance(self.source, MixOf) else open_source(self.source)
        return first_episodes(source, self.limit)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What each part of a mix has given, in its last reading here; () for any other source, and for a mix by name."""
        return self.source.tallies if isinstance(self.source, (MixOf, MixedSource)) else ()

    def add(self, tallies: Sequence[Tally]) -> None:
        """Takes in what the parts of a mix gave in another process."""
        if isinstance(self.source, (MixOf, MixedSource)):
            self.source.add(tallies)
