"""Items of a push that it takes out of a full table for a while, and puts back whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ServerUnreachable
from rlds2reverb.push.room import TableRoom
from rlds2reverb.push.sender import Sender
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.waiting import Deadlines, retry_until
from rlds2reverb.wire.insert.requests import EncodedEpisode, Request, RequestBuilder, RequestLimits
from rlds2reverb.wire.insert.session import SessionWindow
from rlds2reverb.wire.messages import ServerInfo


@dataclass(eq=False)
class Out:
    """Items of the push that were taken out of a table.

    Attributes:
      room: of which table.
      keys: [n] uint64, of those that were there, in the order in which a push stores them.
      pieces: the episodes that have them.
      asking: [0 or 1] the key that may be out as well; the server has not said yet.
      travelling: keys of the request that brings them back, new ones included, while it is not known to be stored.
    """

    room: TableRoom
    keys: Array
    pieces: Sequence[EncodedEpisode]
    asking: Array
    travelling: Array | None = None

    @property
    def taken(self) -> int:
        """How many are out."""
        return len(self.keys)

    def has_back(self, keys: Array) -> None:
        """These are back."""
        left = self.keys[~np.isin(self.keys, keys)]
        self.room.see_put_back(len(self.keys) - len(left))
        self.keys = left


class Loans:
    """All that is out, of all tables of one push.

    Args:
      transport: the way to the server.
      rooms: one per table.
      limits, deadlines: of the push.
    """

    def __init__(
        self, transport: Transport, rooms: Sequence[TableRoom], limits: RequestLimits, deadlines: Deadlines
    ) -> None:
        self._transport, self._rooms, self._limits, self._deadlines = transport, rooms, limits, deadlines
        self._out: list[Out] = []

    @property
    def items(self) -> int:
        """Items that were in a table, were taken out, and are not back. Where that is not known, they count."""
        return sum(out.taken + len(out.asking) for out in self._out)

    def info(self, deadlines: Deadlines) -> ServerInfo:
        """Asks for all tables, again until a deadline.

        Raises:
          TransportError: no answer.
        """
        return retry_until(deadlines.reconnect, deadlines, self._transport.server_info)

    def look(self) -> None:
        """Shows all rooms their tables, when nothing is on its way.

        Raises:
          CapacityError: items were evicted.
          TransportError: no answer.
        """
        info = self.info(self._deadlines)
        for room in self._rooms:
            if room.name in info.tables:
                room.see(info.tables[room.name])

    def went_back(self, out: Out) -> None:
        """Takes note of items that went back with a request of the push."""
        self._out.remove(out)
        out.travelling = None
        out.room.see_put_back(out.taken)

    def put_back(self, deadlines: Deadlines) -> None:
        """Stores again what was taken out, over a stream of its own and never beyond what is free; does nothing when nothing is out.

        Where somebody else has taken the places, `items` says how many items are not back.

        Raises:
          TransportError: it could not be stored again within the deadlines.
        """
        while self._out:
            self._settle(deadlines)
            info = self.info(deadlines)
            if not (parts := self._parts_with_room(info)):
                return
            with Sender(
                self._transport,
                tuple(room.name for room in self._rooms),
                info,
                SessionWindow(),
                deadlines,
                lambda _: None,
            ) as sender:
                for request in self._requests_of(parts):
                    sender.send(request)
                sender.drain()
            for out, keys in parts:
                out.has_back(keys)
            self._out = [out for out in self._out if out.taken]

    def take(self, room: TableRoom, keys: Array, pieces: Sequence[EncodedEpisode], most_absent: int) -> Out:
        """Takes items out one after the other, so that it is certain which were there.

        Args:
          room: of the table.
          keys: [n] uint64, in the order in which a push stores them.
          pieces: the episodes that have them.
          most_absent: when more were not there, the rest is left alone.

        Raises:
          CapacityError: the rate limiter would not let them in again; nothing was taken out.
          TransportError: the server does not answer.
        """
        room.check_takeable(len(keys))
        out = Out(room, keys[:0], pieces, keys[:0])
        self._out.append(out)  # before it happens: whatever interrupts, they are put back
        for number in range(len(keys)):
            if number - out.taken > max(0, most_absent):
                break
            out.asking = keys[number : number + 1]
            self._ask(out, self._deadlines)
        return out

    def _ask(self, out: Out, deadlines: Deadlines) -> None:
        """Takes one out, and looks whether it was there. Doing so again after an interruption does no harm."""
        self._delete(out.room, out.asking, deadlines)
        info = self.info(deadlines)
        if out.room.name in info.tables and out.room.see_taken(info.tables[out.room.name], 1):
            out.keys = np.append(out.keys, out.asking)
        out.asking = out.asking[:0]

    def _settle(self, deadlines: Deadlines) -> None:
        """Finds out what an interruption left open: whether a key was taken out, and which went back with a request."""
        for out in self._out:
            if len(out.asking):
                self._ask(out, deadlines)
            if out.travelling is not None:
                info = self.info(deadlines)
                if out.room.name in info.tables:  # all of the request's items are inserts: they were absent, or are out
                    out.has_back(out.travelling[: out.room.inserts_until(info.tables[out.room.name])])
                out.travelling = None
        self._out = [out for out in self._out if out.taken]

    def withdraw(self, room: TableRoom, keys: Array) -> None:
        """Takes out items that were new, for good.

        Raises:
          TransportError: the server does not answer.
        """
        if len(keys):
            self._delete(room, keys, self._deadlines)
            room.see_withdrawn(self.info(self._deadlines).tables.get(room.name, room.last))

    def _delete(self, room: TableRoom, keys: Array, deadlines: Deadlines) -> None:
        """Deletes by key, again until a deadline, which does no harm. Asking for the tables leaves a connection that is silent."""

        def attempt() -> None:
            try:
                self._transport.delete_items(room.name, keys)
            except ServerUnreachable:
                self._transport.server_info()
                raise

        retry_until(deadlines.reconnect, deadlines, attempt)

    def _parts_with_room(self, info: ServerInfo) -> list[tuple[Out, Array]]:
        """What may go back now: as many of each table's items as have free places. Known ones take none, so ask again."""
        parts = []
        for room in self._rooms:
            outs = [out for out in self._out if out.room is room]
            free = info.tables[room.name].free if room.name in info.tables else 0
            for out in outs:
                keys = out.keys[: min(out.taken, free)]
                free -= len(keys)
                if len(keys):
                    parts.append((out, keys))
        return parts

    def _requests_of(self, parts: Sequence[tuple[Out, Array]]) -> Iterator[Request]:
        builder = RequestBuilder(self._limits)
        for out, keys in parts:
            for piece in out.pieces:
                yield from builder.add(piece.only(keys))
        yield from builder.flush()
