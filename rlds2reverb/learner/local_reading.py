"""Reads a source as a push does: the same checks, the same cuts, the same keys; the items stay here."""

from __future__ import annotations

from collections.abc import Generator

from rlds2reverb.learner.items import Block, block_of
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.names import ItemNames
from rlds2reverb.validation.problems import ENDS_ALIKE


class Reading:
    """One pass over a source.

    Args:
      ready: the source, for one output with one table.
      first: episodes to pass over at the start; only where `can_skip`.
      silent_until: bad episodes before this one are not written into a quarantine file: they are there.

    Attributes:
      rejected: code of a problem -> episodes that were left out for it so far.
    """

    def __init__(self, ready: Preparation, first: int = 0, silent_until: int = 0) -> None:
        self._ready, self._first, self._silent_until = ready, first, silent_until
        self._preparer = ready.preparer()
        self._policy = self._preparer.policy

    @property
    def rejected(self) -> dict[str, int]:
        """Code of a problem -> episodes that were left out for it, without those before `silent_until`."""
        return dict(self._policy.rejected)

    def blocks(self) -> Generator[Block, None, None]:
        """The items, episode by episode; without the episodes that have none. Those of equal episodes have equal keys.

        Raises:
          InvalidEpisode, ViewError: an episode is bad, and the policy is to stop.
          SourceError: the data cannot be read.
          WireError: a column's dtype could not be stored.
        """
        (output,), preparer = self._ready.outputs, self._preparer
        names = ItemNames(output, self._ready.identity)
        silent = self._ready.options.silent().policy()
        for number, (episode, found) in enumerate(self._ready.read(start=self._first), self._first):
            preparer.policy = silent if number < self._silent_until else self._policy
            prepared = preparer.prepare(episode, found)
            if not prepared.is_good:
                continue
            names.take_in(prepared.key_name)
            (made,) = prepared.cuts
            if made.items_per_table:
                yield block_of(number, episode.id, names.part(made.cut))


def can_skip(ready: Preparation) -> bool:
    """Whether an episode's items are the same when those before it are not read.

    Items of streams depend on the episodes before. So does whether an episode is left out because it ends as others do; where that
    stops the reading instead, it leaves out nothing.
    """
    is_of_stream = any(output.is_of_stream for output in ready.outputs)
    return not is_of_stream and (ready.options.stops or ENDS_ALIKE in ready.options.allow)
