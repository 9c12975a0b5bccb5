"""Reads a source as a push does: the same checks, the same cuts, the same keys; the items stay here."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from rlds2reverb.learner.items import Block, block_of
from rlds2reverb.push.account import Account
from rlds2reverb.push.cutting import Cutter
from rlds2reverb.push.judging import Judge
from rlds2reverb.push.names import ItemNames
from rlds2reverb.push.opening import Opened
from rlds2reverb.push.options import PushOptions
from rlds2reverb.sources.base import episodes_of
from rlds2reverb.specs import flatten
from rlds2reverb.validation import Policy, Standard
from rlds2reverb.validation.endings import with_problems_of_ends
from rlds2reverb.validation.policy import QUARANTINE, SKIP, STOPPING
from rlds2reverb.validation.problems import ENDS_ALIKE


class Reading:
    """One pass over a source.

    Args:
      opened: the source, for one output with one table.
      first: episodes to pass over at the start; only where `can_skip`.
      silent_until: bad episodes before this one are not written into a quarantine file: they are there.

    Attributes:
      account: of the episodes so far.
      policy: counts what was rejected.
    """

    def __init__(self, opened: Opened, first: int = 0, silent_until: int = 0) -> None:
        options = opened.options
        (self._output,), (signature,) = options.outputs, opened.signatures
        self._opened, self._first, self._silent_until = opened, first, silent_until
        self._cutter = Cutter(self._output, signature)
        self._names = ItemNames(self._output, opened.identity)
        self.account = Account()
        self.policy = Policy(options.on_invalid, options.quarantine, options.allow, options.strict)
        standard = Standard(flatten(opened.step_spec), options.conventions, opened.metadata)
        self._judge = Judge(self.policy, standard)
        self._silent_judge = Judge(_silent(options), standard) if silent_until else self._judge

    def blocks(self) -> Generator[Block, None, None]:
        """The items, episode by episode; without the episodes that have none. Those of equal episodes have equal keys.

        Raises:
          InvalidEpisode, ViewError: an episode is bad, and the policy is to stop.
          SourceError: the data cannot be read.
          WireError: a column's dtype could not be stored.
        """
        episodes = episodes_of(self._opened.source, self._first)
        judged = with_problems_of_ends(episodes, self._opened.options.conventions)
        for number, (episode, found) in enumerate(judged, self._first):
            self.account.count_read(episode)
            judge = self._silent_judge if number < self._silent_until else self._judge
            accepted = judge.cut(episode, [self._cutter], is_stored=False, found=found)
            if accepted is None:
                self.account.count_rejected(episode)
                continue
            self._names.take_in(accepted.key_name)
            (made,) = accepted.cuts
            if made.items_per_table:
                yield block_of(number, episode.id, self._names.part(made.cut))


def can_skip(options: PushOptions) -> bool:
    """Whether an episode's items are the same when those before it are not read.

    Items of streams depend on the episodes before. So does whether an episode is left out because it ends as others do; where that
    stops the reading instead, it leaves out nothing.
    """
    is_of_stream = any(output.is_of_stream for output in options.outputs)
    return not is_of_stream and (options.on_invalid in STOPPING or ENDS_ALIKE in options.allow)


def _silent(options: PushOptions) -> Policy:
    action = SKIP if options.on_invalid == QUARANTINE else options.on_invalid
    return Policy(action, None, options.allow, options.strict)


def without_report(opened: Opened) -> Opened:
    """For a further pass: a bad episode is written into a quarantine file once."""
    if opened.options.on_invalid != QUARANTINE:
        return opened
    return replace(opened, options=replace(opened.options, on_invalid=SKIP, quarantine=None))
