"""One episode after the other on its way: judged, cut, admitted, written, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import InvalidEpisode, ViewError
from rlds2reverb.identity import is_copy
from rlds2reverb.push.account import Account, LedgerRows, TakenEpisodes
from rlds2reverb.push.admission import Admission
from rlds2reverb.push.cutting import OutputCut
from rlds2reverb.push.judging import Accepted, Judge
from rlds2reverb.push.open_output import OpenOutput
from rlds2reverb.push.options import ONCE, PushOptions
from rlds2reverb.push.quota import Quota
from rlds2reverb.push.tables import check_size
from rlds2reverb.push.writer import Writer
from rlds2reverb.validation import Problem
from rlds2reverb.views.shared import groups, share
from rlds2reverb.wire.messages import ServerInfo

_Made = Sequence[tuple[OpenOutput, OutputCut]]
"""What outputs made of an episode."""


class Judged(NamedTuple):
    """A good episode, cut and not yet sent.

    Attributes:
      episode: as recorded.
      key_name: names it in item keys.
      made: what its outputs made of it.
    """

    episode: Episode
    key_name: str
    made: _Made


class Feeder:
    """Takes the episodes of a source, one after the other: `take`, or its two halves, `judge` and `send`, which may be called by two threads.

    Args:
      options: of the push.
      outputs: what it fills.
      info: the tables before it.
      judge, account, admission: of the push.
      taken: takes in the episodes that are stored; None where nobody needs them.

    Attributes:
      writer: takes the items; to be drained at the end.
    """

    def __init__(
        self,
        options: PushOptions,
        outputs: Sequence[OpenOutput],
        info: ServerInfo,
        judge: Judge,
        account: Account,
        admission: Admission | Quota,
        taken: TakenEpisodes | None = None,
    ) -> None:
        self._outputs, self._info = outputs, info
        self._judge, self._account, self._admission = judge, account, admission
        self.writer = Writer(admission, options.chunk_length, admission.expect)
        self._resumes = options.resume and any(one.ledger is not None for one in outputs)
        self._is_guarded, self._all_are_new = not options.allow_eviction, options.again
        self._stores_once = options.duplicates == ONCE
        self._taken = taken

    def take(self, episode: Episode, found: Sequence[Problem] = ()) -> None:
        """Sends what the outputs make of an episode as recorded, unless their ledgers have it.

        Args:
          episode: as recorded.
          found: its problems that other episodes show.

        Raises:
          InvalidEpisode, ViewError: it is bad, or cannot be cut, and the policy is to stop; it is in the account as rejected.
          CapacityError: its items would evict others.
          TransportError: sending failed.
        """
        if (judged := self.judge(episode, found)) is not None:
            self.send(judged)

    def knows(self, episode_id: str) -> bool:
        """Whether nothing is to be read of an episode: the ledgers of all outputs have it. From any thread."""
        return self._resumes and all(one.items_recorded(episode_id) is not None for one in self._outputs)

    def take_known(self, episode_id: str) -> None:
        """Counts an episode that it knows.

        Raises:
          CapacityError: its items and those before are more than a table holds.
        """
        self._without(episode_id)
        self._count_resumed(episode_id)

    def judge(self, episode: Episode, found: Sequence[Problem] = ()) -> Judged | None:
        """Judges and cuts an episode as recorded; None when nothing of it is to be sent. Streams go on after it.

        Arguments and errors as `take`, without those of sending.
        """
        wanted = self._without(episode.id) if self._resumes else self._outputs
        if not wanted:
            self._count_resumed(episode.id)
            return None
        self._account.count_read(episode)
        is_dropped = self._stores_once and is_copy(episode.id)
        accepted = self._judged(episode, wanted, found, is_dropped)
        if accepted is None:
            self._account.count_rejected(episode)
            return None
        if is_dropped:
            self._account.count_duplicate()
            return None
        self._account.ends_mended += accepted.is_end_mended
        return Judged(episode, accepted.key_name, list(zip(wanted, accepted.cuts)))

    def send(self, judged: Judged) -> None:
        """Sends what the outputs made of one episode, and counts it; episodes come in the order in which they were judged.

        Raises:
          CapacityError: its items would evict others.
          TransportError: sending failed.
        """
        for one, cut in judged.made:
            one.names.take_in(judged.key_name)
            self._check_size(one, cut.items_per_table)
        self._send_items(judged.episode, [(one, cut) for one, cut in judged.made if cut.items_per_table])
        for one, cut in judged.made:
            one.tally.add(cut)
        if self._taken is not None:
            items = {table: cut.items_per_table for one, cut in judged.made for table in one.output.tables}
            self._taken.add(judged.episode.id, len(judged.episode), items)

    def _without(self, episode_id: str) -> list[OpenOutput]:
        """The outputs whose ledgers do not have the episode. For the others its items are counted: they take up the tables, too."""
        missing = []
        for one in self._outputs:
            items = one.items_recorded(episode_id)
            if items is None:
                missing.append(one)
            else:
                one.tally.items_per_table += items
                self._check_size(one, 0)
        return missing

    def _count_resumed(self, episode_id: str) -> None:
        self._account.count_resumed()
        if self._taken is not None:
            items = {table: one.items_recorded(episode_id) or 0 for one in self._outputs for table in one.output.tables}
            self._taken.add(episode_id, None, items)

    def _judged(
        self, episode: Episode, wanted: Sequence[OpenOutput], found: Sequence[Problem], is_dropped: bool
    ) -> Accepted | None:
        """What the judge makes of an episode. One that ends the push is counted as rejected."""
        try:
            is_stored = len(wanted) < len(self._outputs)
            return self._judge.cut(episode, [one.cutter for one in wanted], is_stored, found, is_dropped)
        except (InvalidEpisode, ViewError):
            self._account.count_rejected(episode)
            raise

    def _send_items(self, episode: Episode, made: _Made) -> None:
        """Admits and writes the items, at least one per output; rows are shared."""
        items_by_table = {table: cut.items_per_table for one, cut in made for table in one.output.tables}
        if self._admission.wants_a_look(items_by_table):
            self.writer.drain()
            self._admission.look()
        self._admission.admit(items_by_table, self._all_are_new)
        together = groups([cut.cut for _, cut in made])
        self._account.count_sending(episode, len(together), _ledger_rows(made))
        for numbers in together:
            shared = share([made[number][1].cut for number in numbers])
            parts = [made[number][0].names.part(cut) for number, cut in zip(numbers, shared)]
            self.writer.write(episode.id, parts)

    def _check_size(self, one: OpenOutput, next_items: int) -> None:
        """Refuses what comes next where it makes the push larger than a table."""
        if self._is_guarded:
            items = one.tally.items_per_table + next_items
            check_size(one.output, self._info, items, f"more than {items - 1}")


def _ledger_rows(made: _Made) -> LedgerRows:
    return [(one.ledger, cut.items_in_all_tables) for one, cut in made if one.ledger is not None]
