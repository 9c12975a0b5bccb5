"""Sends the items of a push to tables that may have no room for them: few at a time, and looks at the tables after each request.

A request needs as many free places as it has items. When there are fewer, the request's own items are taken out by key, one
after the other, which shows which of them were there:

- More were absent than have room. The request would evict others, so what was there goes back, and the push is refused.
- All others have room. The request goes, and its known items go back with it. The first items found there are then taken out
  once more, and stay out until the end. Every later request is tried in their places; known items are only assigned, as in a
  table with room.

At most `_LOAN` items per table are taken out. No sampler sees them for a while. They come back with the push's priority, sampled
0 times and as the newest. Their inserts count for the rate limiter, which is asked before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.push.loans import Loans, Out
from rlds2reverb.push.pieces import Piece
from rlds2reverb.push.room import TableRoom
from rlds2reverb.push.sender import Sender
from rlds2reverb.wire.insert.requests import EncodedEpisode, Request, RequestLimits

_LOAN = 256
"""Most items of a careful request; so many are taken out of a full table at once."""

_QUIET_LOOKS = 3
_QUIET_SECONDS = 0.1
"""How often and how far apart a full table is looked at before items that seem new are taken out of it again."""

_SHARE = 16
"""Items taken out may use up one in so many of the inserts that a rate limiter still lets through; each comes back twice."""


class CarefulSender:
    """Sends requests that evict nothing, whatever the tables hold.

    Args:
      sender: sends to the server; nothing else is on its way.
      rooms: by table.
      loans: what is taken out.
      limits: of the push.

    Attributes:
      withdrawn: ids of episodes that were stored, and partly taken out again.
    """

    def __init__(self, sender: Sender, rooms: Mapping[str, TableRoom], loans: Loans, limits: RequestLimits) -> None:
        self._sender, self._rooms, self._loans, self._limits = sender, rooms, loans, limits
        self._pieces: list[Piece] = []  # until all their items are stored
        self._found: dict[str, Out] = {}  # table -> items of the push that were there, and may be taken out again
        self._disturbed: set[str] = set()  # tables that took more items than were sent
        self.withdrawn: set[str] = set()

    def expect(self, episode: EncodedEpisode) -> RequestLimits:
        """Takes note of an episode whose requests come; returns how large they may be."""
        self._pieces.append(Piece(episode))
        return replace(self._limits, items=self._most_items())

    def send(self, request: Request) -> None:
        """Sends a request, and waits until it is stored.

        Raises:
          CapacityError: it turned out that its items would evict others; none of those that were new is left.
          TransportError: sending failed.
        """
        own = self._by_table(request)
        taken = {room.name: out for room, keys in own if (out := self._make_room(room, keys)) is not None}
        before = {room.name: room.inserted for room, _ in own}
        for room, keys in own:
            if (out := taken.get(room.name)) is not None:
                out.travelling = keys
        self._sender.send(request)
        self._sender.drain()
        for room, keys in own:
            room.send(len(keys))
            if (out := taken.get(room.name)) is not None:
                self._loans.went_back(out)
                before[room.name] += out.taken
                self._found[room.name] = out
        self._loans.look()
        for room, keys in own:
            self._note_new(room, keys, room.inserted - before[room.name], request)
        self._let_go(request)

    def _most_items(self) -> int:
        """Items of a request: as many as have free places, or may be given some."""
        most = self._limits.items
        for name, room in self._rooms.items():
            if room.guarded:
                found = self._found[name].taken if name in self._found else 0
                most = min(most, max(room.free, found, min(_LOAN, room.takeable // _SHARE)))
        return max(1, most)

    def _by_table(self, request: Request) -> list[tuple[TableRoom, Array]]:
        """Every table that the request fills, and its keys in the order in which they are stored."""
        keys: dict[str, list[Array]] = {}
        for piece in self._pieces:
            for table, own in piece.keys_of(request.item_keys).items():
                keys.setdefault(table, []).append(own)
        return [(self._rooms[table], np.concatenate(parts)) for table, parts in keys.items()]

    def _make_room(self, room: TableRoom, keys: Array) -> Out | None:
        """Makes a free place for every item. What it returns was taken out, and goes back with the request.

        Raises:
          CapacityError: there are not so many, and not all of the items were there.
        """
        if not room.guarded or len(keys) <= room.free:
            return None
        found = self._found.pop(room.name, None)
        if found is not None and len(keys) <= room.free + found.taken:
            self._loans.take(room, found.keys, found.pieces, len(found.keys))
            if len(keys) <= room.free:
                return None
        spare = room.free - room.reserved
        pieces = [piece.encoded.only(keys) for piece in self._pieces if piece.keys_of(keys)]
        out = self._loans.take(room, keys, pieces, spare)
        if len(keys) > spare + out.taken:
            self._refuse(room, max(0, spare) + 1, len(keys))
        return out

    def _note_new(self, room: TableRoom, keys: Array, new: int, request: Request) -> None:
        """Takes note of how many items of a request were new; where they took the places of items taken out, it is undone.

        Raises:
          CapacityError: it was.
        """
        if new > len(keys):
            self._disturbed.add(room.name)
        if room.guarded and room.free < room.reserved:
            self.withdrawn.update(episode_id for episode_id, _ in request.finishes)
            self._check_quiet(room)  # else nothing tells which items were new, so none is taken out
            self._loans.withdraw(room, keys[max(0, len(keys) - new) :])
            self._refuse(room, new, len(keys))
        if new == len(keys):
            for piece in self._pieces:
                for own in piece.keys_of(keys).values():
                    piece.new.setdefault(room.name, []).append(own)

    def _check_quiet(self, room: TableRoom) -> None:
        """Sees that nobody else changes the table, as far as a few looks with nothing on its way can tell.

        Raises:
          CapacityError: somebody does.
        """
        counts = {(room.inserted, room.free)}
        for _ in range(_QUIET_LOOKS):
            time.sleep(_QUIET_SECONDS)
            self._loans.look()
            counts.add((room.inserted, room.free))
        if len(counts) > 1 or room.new_items is None:
            raise room.disturbance()

    def _let_go(self, request: Request) -> None:
        """Forgets the episodes of which all items are stored."""
        for piece in self._pieces:
            piece.left -= sum(map(len, piece.keys_of(request.item_keys).values()))
        self._pieces = [piece for piece in self._pieces if piece.left]

    def _refuse(self, room: TableRoom, new: int, items: int) -> NoReturn:
        """Takes out what was new of unfinished episodes; what was there is put back at the end of the push.

        Raises:
          CapacityError: always; another one where somebody else changes a table, so that what was new is not certain, and stays.
        """
        error = room.refusal(new, items)
        for name in sorted({name for piece in self._pieces for name in piece.new}):
            self._check_quiet(self._rooms[name])
            if name in self._disturbed:
                raise self._rooms[name].disturbance()
            for piece in self._pieces:
                self._loans.withdraw(self._rooms[name], np.concatenate(piece.new.pop(name, [np.zeros(0, np.uint64)])))
        raise error
