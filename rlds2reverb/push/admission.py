"""Lets the items of a push into their tables as long as that evicts nothing which the push did not store itself.

It stands between the writer, whose requests it takes, and the sender. Every episode is first admitted, then expected when it is encoded.

An episode is sent at once when its items fit even if all are new. When they might not fit, the push waits until nothing is on
its way and asks the server again, since items that were known have taken no room. If they still might not fit, and could all be
there already (the same push again, into a full table), the push goes on *carefully*; see `careful`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from rlds2reverb.errors import CapacityError, TransportError
from rlds2reverb.push.careful import CarefulSender
from rlds2reverb.push.loans import Loans
from rlds2reverb.push.room import TableRoom
from rlds2reverb.push.sender import Sender
from rlds2reverb.transport.base import PendingInfo, Transport
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.insert.requests import EncodedEpisode, Request, RequestLimits
from rlds2reverb.wire.messages import ServerInfo

_ASK_SECONDS = 0.25
"""How often the tables are looked at while nothing is tight."""


def unheard(_: EncodedEpisode) -> None:
    """Takes an episode, and tells nobody."""


class Admission:
    """The way of requests to the sender, for one push. Use as a context manager.

    Args:
      transport: the way to the server; asked for the tables, and told to take items out.
      sender: sends to the same server.
      rooms: one per table.
      limits, deadlines: of the push.
      on_expect: told every admitted episode when it is encoded.
    """

    def __init__(
        self,
        transport: Transport,
        sender: Sender,
        rooms: Sequence[TableRoom],
        limits: RequestLimits,
        deadlines: Deadlines,
        on_expect: Callable[[EncodedEpisode], object] = unheard,
    ) -> None:
        self._on_expect = on_expect
        self._transport, self._sender, self._limits, self._deadlines = transport, sender, limits, deadlines
        self._rooms = {room.name: room for room in rooms}
        self._question: tuple[PendingInfo, int] | None = None  # asked when so many items were confirmed
        self._asked_at = time.monotonic()
        self._is_careful = False
        self._loans = Loans(transport, rooms, limits, deadlines)
        self._careful = CarefulSender(sender, self._rooms, self._loans, limits)
        self._seen_at_end = False

    def __enter__(self) -> Admission:
        return self

    def __exit__(self, *_: object) -> None:
        """Drops the question that may be on its way."""
        self._drop_question()

    @property
    def taken_out(self) -> int:
        """Items that were in a table, were taken out, and are not back."""
        return self._loans.items

    def wants_a_look(self, items_by_table: Mapping[str, int]) -> bool:
        """Whether to `look` before so many items are admitted (table -> items): they are a large part of what was free."""
        if self._is_careful:
            return False  # every request looks
        return any(self._rooms[table].wants_a_look(items) for table, items in items_by_table.items())

    def look(self) -> None:
        """Asks for the tables. Drain the writer before: nothing may be on its way.

        Raises:
          CapacityError: items were evicted.
          TransportError: the server does not answer.
        """
        self._drop_question()
        self._loans.look()

    def admit(self, items_by_table: Mapping[str, int], all_are_new: bool) -> None:
        """Makes sure that an episode's items may be sent; the episode comes next.

        Args:
          items_by_table: table -> items of the episode.
          all_are_new: no push before can have stored them.

        Raises:
          CapacityError: they would evict others.
        """
        tight = self._wanting(items_by_table)
        for room in tight:
            room.refuse_what_cannot_fit(items_by_table[room.name], all_are_new)
        self._is_careful = self._is_careful or bool(tight)

    def expect(self, episode: EncodedEpisode) -> RequestLimits:
        """Takes note of an admitted episode whose requests come; returns how large they may be."""
        self._on_expect(episode)
        if self._is_careful:
            return self._careful.expect(episode)
        for table, keys in episode.table_keys.items():
            self._rooms[table].send(len(keys))
        return self._limits

    def send(self, request: Request) -> None:
        """Sends a request of an expected episode.

        Raises:
          CapacityError: it turned out that its items would evict others; none of those that were new is left.
          TransportError: sending failed.
        """
        if self._is_careful:
            self._careful.send(request)
        else:
            self._sender.send(request)

    def drain(self) -> None:
        """Waits until everything sent is confirmed.

        Raises:
          TransportError: sending failed.
        """
        self._sender.drain()

    def watch(self) -> None:
        """Notices what others do to the tables, a few times per second, however often it is called. Waits for nothing.

        Raises:
          CapacityError: items were evicted.
        """
        if self._is_careful or not any(room.guarded for room in self._rooms.values()):
            return  # each request looks; or nobody minds
        if self._question is not None and self._question[0].is_over:
            (question, confirmed), self._question = self._question, None
            if (info := question.answer()) is not None:
                self._see(info, sum(room.sent for room in self._rooms.values()) - confirmed)
        if self._question is None and time.monotonic() - self._asked_at > _ASK_SECONDS:
            self._asked_at = time.monotonic()
            confirmed = self._sender.confirmed_items
            self._question = self._transport.ask_server_info(), confirmed

    def finish(self) -> None:
        """When all is confirmed: puts back what was taken out, looks at the tables a last time.

        Raises:
          CapacityError: items were evicted, or would be.
          TransportError: sending failed.
        """
        self.put_back(self._deadlines)
        self.look_back()
        if self.taken_out:
            raise CapacityError(
                f"{self.taken_out} items of this push were in a full table, were taken out to see whether the others are in it, and have no "
                "place any more: somebody else fills the table, too. Run the same push again when nobody else does"
            )

    def put_back(self, deadlines: Deadlines) -> None:
        """Stores again what was taken out, as far as there is room; `taken_out` says what is not back.

        Raises:
          TransportError: it could not be stored again within the deadlines.
        """
        self._loans.put_back(deadlines)

    def look_back(self) -> None:
        """Looks at the tables when all is done. When the server has gone meanwhile, `new_items` stays unknown.

        Raises:
          CapacityError: items were evicted.
        """
        with suppress(TransportError):
            info = self._transport.server_info()
            self._seen_at_end = True
            self._see(info, 0)

    def new_items(self) -> int | None:
        """How many of all items sent the tables did not have; None when that is not known."""
        counts = [room.new_items for room in self._rooms.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if self._seen_at_end and len(known) == len(counts) else None

    def take_finished(self) -> list[str]:
        """The ids of episodes stored since the last call."""
        withdrawn = self._careful.withdrawn
        return [episode_id for episode_id, _ in self._sender.take_finished() if episode_id not in withdrawn]

    def _wanting(self, items_by_table: Mapping[str, int]) -> list[TableRoom]:
        return [self._rooms[table] for table, items in items_by_table.items() if not self._rooms[table].fits(items)]

    def _drop_question(self) -> None:
        if self._question is not None:
            self._question[0].drop()
            self._question = None

    def _see(self, info: ServerInfo, on_their_way: int) -> None:
        for name, room in self._rooms.items():
            if name in info.tables:
                room.see(info.tables[name], on_their_way)
