"""A source as workers get it: by its name, which each opens anew, or, where it has none, as an object that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import Source, first_episodes


@dataclass(frozen=True)
class Named:
    """A source.

    Attributes:
      source: its name, or an object that `open_source` takes.
      limit: at most so many episodes; None for all.
    """

    source: Any
    limit: int | None = None

    def open(self) -> Source:
        """Opens it.

        Raises:
          SourceError: as `open_source`.
        """
        return first_episodes(open_source(self.source), self.limit)


def known_count(source: Source) -> int:
    """How many episodes a source has.

    Raises:
      SourceError: only reading tells.
    """
    count = source.episode_count
    if count is None:
        raise SourceError(
            f"{source.name}: only reading tells how many episodes it has, so it cannot be divided among workers (--workers, --ray); leave them out"
        )
    return count
