"""Who looks at the episodes beside an inspection, in its one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rlds2reverb.episodes import Array, Episode
from rlds2reverb.push.cutting import OutputCut
from rlds2reverb.reports.inspected import Inspection
from rlds2reverb.validation import Problem


class Watcher(Protocol):
    """Sees every episode once."""

    def add(
        self, episode: Episode, columns: Mapping[str, Array], problems: Sequence[Problem], cuts: Sequence[OutputCut]
    ) -> None:
        """Takes in an episode.

        Args:
          episode: as recorded, or as the transform makes it.
          columns: its values that mean something, see `inspection.meant`.
          problems: what is wrong with it. By several workers, that which only others show is not among them.
          cuts: what the views make of it, one per table; none of a bad one.
        """

    def add_part(self, other: Any) -> None:
        """Takes in what another of the same kind saw of the episodes that follow."""


Watch = Callable[[Inspection], Watcher]
"""Makes a watcher of an inspection that has read nothing yet. Workers make their own, so it must be one that can be sent to them."""
