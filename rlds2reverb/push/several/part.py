"""One server's part in a push to several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from rlds2reverb.episodes import Array, Episode
from rlds2reverb.errors import Rlds2ReverbError, reason_of
from rlds2reverb.push import part as push_part
from rlds2reverb.push.admission import unheard
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.ledgers import open_ledgers
from rlds2reverb.push.part import Noted
from rlds2reverb.push.plan import report_of_nothing
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.running import RunningPush
from rlds2reverb.push.several.plan import SeveralPlan
from rlds2reverb.transport.base import Transport
from rlds2reverb.validation import Problem
from rlds2reverb.wire.insert.requests import EncodedEpisode

AWAY = "ServerUnreachable: it was missing when the push began"
"""Of a server that could not be reached then."""


@dataclass(frozen=True)
class Share:
    """What a push to several servers is told that is one part of a larger one.

    Attributes:
      parts: address -> what the push to that server is told.
      missing: address -> why, of the servers that are lost.
      copies: see `push.part.Part`.
    """

    parts: Mapping[str, push_part.Part]
    missing: Mapping[str, str]
    copies: Mapping[int, int] | None = None


class Part:
    """The episodes that one server gets; left out and counted while it is missing. Use as a context manager.

    Args:
      plan: of the whole push.
      address: the server's.
      transport: the way to it; None when it is missing from the beginning.
      on_progress: told how far this part is.
      share: of a larger push; None for a whole one.

    Attributes:
      address: as given.
      push: what runs; None without a transport.
      missing: why its episodes are left out; "" while they are not.
      episodes_left_out, steps_left_out: so far.
      sent: table -> keys of the items that were sent, where items are to be moved.
    """

    def __init__(
        self,
        plan: SeveralPlan,
        address: str,
        transport: Transport | None,
        on_progress: Callable[[Progress], object],
        share: Share | None = None,
    ) -> None:
        self.address, self._plan, self._stack = address, plan, ExitStack()
        self._share = None if share is None else share.parts[address]
        self.push = (
            None
            if transport is None
            else RunningPush(
                transport,
                plan.parts[address].telling(on_progress),
                name=plan.names[address],
                on_encoded=self._note_keys if plan.options.move else unheard,
                part=self._share,
            )
        )
        self.missing = "" if transport is not None else AWAY if share is None else share.missing[address]
        self.episodes_left_out = self.steps_left_out = 0
        self.sent: dict[str, list[Array]] = {}
        self._ledgers: Sequence[Ledger | Noted] = () if self._share is None else self._share.notes

    def __enter__(self) -> Part:
        with ExitStack() as stack:
            if self.push is None and self._share is None:
                self._ledgers = open_ledgers(self._plan, stack, self._plan.names[self.address], is_away=True)
            elif self.push is not None:
                stack.enter_context(self.push)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def running(self) -> RunningPush | None:
        """What runs; None when the server is missing."""
        return None if self.missing else self.push

    def has(self, episode_id: str) -> bool:
        """Whether a ledger says that this server process has confirmed the episode."""
        if self.push is not None:
            return self.push.has(episode_id)
        return any(episode_id in ledger.confirmed for ledger in self._ledgers)

    def had(self, episode_id: str) -> bool:
        """Whether a ledger says that another process of this name has confirmed it."""
        if self.push is not None:
            return self.push.had(episode_id)
        return any(episode_id in ledger.here for ledger in self._ledgers)

    def knows(self, episode_id: str) -> bool:
        """Whether nothing is to be read of an episode: the ledgers of all outputs have it."""
        return self.push is not None and self.push.knows(episode_id)

    def take_known(self, episode_id: str) -> None:
        """Counts an episode that it knows; raises as `RunningPush.take_known`."""
        if self.push is not None:
            self.push.take_known(episode_id)

    def take(self, episode: Episode, found: Sequence[Problem]) -> None:
        """Sends what the outputs make of an episode, or leaves it out; raises as `RunningPush.take`."""
        if (push := self.running) is not None:
            push.take(episode, found)
        else:
            self.episodes_left_out += 1
            self.steps_left_out += len(episode)

    def lose(self, error: Rlds2ReverbError) -> None:
        """Goes on without the server: what it confirmed is written down, and what comes next is left out."""
        self.missing = reason_of(error)
        if self.push is not None:
            self.push.wind_up(error)
            self.push.close()

    def _note_keys(self, episode: EncodedEpisode) -> None:
        for table, keys in episode.table_keys.items():
            self.sent.setdefault(table, []).append(keys)

    def report(self) -> PushReport:
        """The account of this part so far."""
        nothing = replace(report_of_nothing(self._plan), items_new=0)
        report = nothing if self.push is None else self.push.report()
        return replace(
            report,
            episodes_read=report.episodes_read + self.episodes_left_out,
            steps_read=report.steps_read + self.steps_left_out,
            episodes_left_out=self.episodes_left_out,
            episodes_unread=None,
            stopped=self.missing,
        )
