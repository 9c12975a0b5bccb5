"""Encoded episodes -> requests of the insert stream.

A request carries chunks (1), items (2) and the keys of chunks to keep for later items (3). After a request with items the server forgets
every chunk that is not kept. Short episodes share a request, a long one fills many, and every request knows the chunks from earlier ones
that it needs (`Request.prelude`), so that it can be sent again on a new stream. Requests of 256 to 1,024 items were measured to beat
smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.protobuf import bytes_field

_ZERO = np.zeros(1, np.int64)


class EpisodeEnd(NamedTuple):
    episode_id: str  # what the sender calls the episode; comes back when all its items are confirmed
    stop: int  # none of its items is at this place or behind it
    items: int


@dataclass(frozen=True, eq=False)
class EncodedEpisode:
    """One episode, or short ones together, encoded but not yet cut into requests."""

    ends: Sequence[EpisodeEnd]
    chunks: list[bytes]  # every chunk as a `chunks` field
    chunk_key_varints: Array  # [n_chunks, 10] uint8
    items: Array  # [n] object array of bytes, every item as an `items` field, in the order of insertion
    item_keys: Array  # [n] uint64
    # [n] the chunks that an item refers to
    first_chunk: Array
    last_chunk: Array
    # table -> the keys of its items, in the order of insertion
    table_keys: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestLimits:
    """When a request is full."""

    items: int = 1024  # most items
    # Most bytes of chunks and items. Only a single item that needs more makes a larger request: of messages with at most
    # so many bytes of chunks each, or with one chunk. Reverb's own client stops at 40 MB a request.
    bytes: int = 2 << 20


@dataclass(frozen=True, eq=False)
class Request:
    """Some items with all they need."""

    messages: tuple[bytes, ...]  # one or more messages, to be sent in this order; only the last has items
    # chunks from earlier requests that the items, or later ones of the episode, refer to
    earlier_chunks: tuple[bytes, ...]
    message_bytes: int  # most bytes of a message of these
    item_keys: Array  # [n] uint64, in the order in which the server confirms them
    # id and number of items, over all tables, of every episode whose last item is in this request
    finishes: tuple[tuple[str, int], ...]

    @property
    def prelude(self) -> tuple[bytes, ...]:
        """Messages with the earlier chunks, sent first on a stream that has not carried those requests.

        Joined on demand: in a long episode each request has them, and they may be the whole episode so far.
        """
        return tuple(_group_chunks(self.earlier_chunks, self.message_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the messages, without the prelude."""
        return sum(len(message) for message in self.messages)


@dataclass
class _Draft:
    """The request in the making."""

    leading: list[bytes] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    earlier_chunks: tuple[bytes, ...] = ()
    keys: list[Array] = field(default_factory=list)
    keep: bytes = b""
    finishes: list[tuple[str, int]] = field(default_factory=list)
    items: int = 0
    bytes: int = 0


class RequestBuilder:
    """Cuts encoded episodes into requests; keeps the last, unfilled one until `flush`.

    Attributes:
      limits: when a request is full; may be changed at any time.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self._draft = _Draft()

    def add(self, episode: EncodedEpisode) -> Iterator[Request]:
        """The requests that became full with this episode; consume it wholly before the next call."""
        # Chunks behind the last one that an item needs are not sent: rows at the end that are in no item.
        items, chunks = episode.items.tolist(), episode.chunks[: int(episode.last_chunk.max(initial=-1)) + 1]
        size = sum(map(len, items)) + sum(map(len, chunks))
        # The usual case: an episode that fits into one request needs no chunks of others, so nothing has to be counted item by item.
        if items and len(items) <= self.limits.items and size <= self.limits.bytes:
            if self._is_full(0.5) and not self._has_room(len(items), size):
                yield from self.flush()  # an episode in one request is worth one that is half full
            if self._has_room(len(items), size):
                draft = self._draft
                draft.parts += chunks
                draft.parts += items
                draft.keys.append(episode.item_keys)
                draft.items += len(items)
                draft.bytes += size
                draft.keep = b""
                draft.finishes += [(end.episode_id, end.items) for end in episode.ends]
                if self._is_full():
                    yield from self.flush()
                return
        at = _Cursor(episode)
        while at.item < len(episode.items):
            most = max(0, self.limits.items - self._draft.items)
            stop = at.items_that_fit(most, self.limits.bytes - self._draft.bytes)
            if stop == at.item and self._draft.items:
                yield from self.flush()
                continue
            # At least one item: a request that is empty will never have more room for it.
            self._append(at, max(stop, at.item + 1))
            if self._is_full():
                yield from self.flush()

    def flush(self) -> Iterator[Request]:
        """The request in the making, if it has any items."""
        draft, self._draft = self._draft, _Draft()
        if draft.items:
            body = b"".join((*draft.parts, draft.keep))
            yield Request(
                (*draft.leading, body),
                draft.earlier_chunks,
                self.limits.bytes,
                np.concatenate(draft.keys),
                tuple(draft.finishes),
            )

    def _is_full(self, share: float = 1.0) -> bool:
        return self._draft.items >= share * self.limits.items or self._draft.bytes >= share * self.limits.bytes

    def _has_room(self, items: int, size: int) -> bool:
        return self._draft.items + items <= self.limits.items and self._draft.bytes + size <= self.limits.bytes

    def _append(self, at: _Cursor, stop: int) -> None:
        """Adds the items up to `stop`, and the chunks that they need and that were not sent."""
        draft, episode = self._draft, at.episode
        if not draft.items:  # chunks of earlier requests that this item, or a later one, refers to
            draft.earlier_chunks = tuple(episode.chunks[at.needed_from[at.item] : at.chunk])
        chunk_end = max(at.chunk, int(at.needed_end[stop - 1]))
        groups = _group_chunks(episode.chunks[at.chunk : chunk_end], self.limits.bytes)
        # Messages without items come first: only a message with items makes the server forget what is not kept.
        draft.leading += groups[:-1]
        draft.parts += groups[-1:]
        draft.parts += episode.items[at.item : stop].tolist()
        draft.keys.append(episode.item_keys[at.item : stop])
        draft.finishes += [(end.episode_id, end.items) for end in episode.ends if at.item < end.stop <= stop]
        draft.bytes += at.advance(stop, chunk_end)
        draft.items += len(draft.keys[-1])
        if stop == len(episode.items):
            draft.keep = b""
        else:  # Chunks sent that items to come refer to. Reverb refuses a key of a chunk that it does not hold.
            kept = episode.chunk_key_varints[at.needed_from[stop] : chunk_end]
            draft.keep = bytes_field(3, kept.tobytes()) if len(kept) else b""


class _Cursor:
    """The next item of an episode, and the first chunk that was not sent."""

    def __init__(self, episode: EncodedEpisode) -> None:
        self.episode = episode
        self.item = self.chunk = 0
        sizes = np.fromiter(map(len, episode.items.tolist()), np.int64, len(episode.items))
        self._item_bytes: Array = np.concatenate((_ZERO, np.cumsum(sizes)))
        self._chunk_bytes: Array = np.concatenate((_ZERO, np.cumsum([len(chunk) for chunk in episode.chunks])))
        # Chunks needed up to and including each item, and by each item or any later one. Items need not be in the order of
        # their chunks: those of several views are sorted by the last chunk only.
        self.needed_end = np.maximum.accumulate(episode.last_chunk) + 1
        self.needed_from = np.minimum.accumulate(episode.first_chunk[::-1])[::-1]

    def items_that_fit(self, items: int, size: int) -> int:
        """End of the longest run of items, from the next one, within these limits; may be empty."""
        end = min(len(self.episode.items), self.item + items)
        cost = (
            self._item_bytes[self.item + 1 : end + 1]
            - self._item_bytes[self.item]
            + self._chunk_bytes[np.maximum(self.needed_end[self.item : end], self.chunk)]
            - self._chunk_bytes[self.chunk]
        )
        return self.item + int(np.searchsorted(cost, size, side="right"))

    def advance(self, item: int, chunk: int) -> int:
        """Moves to an item and a chunk; returns the bytes passed."""
        size = self._item_bytes[item] - self._item_bytes[self.item]
        size += self._chunk_bytes[chunk] - self._chunk_bytes[self.chunk]
        self.item, self.chunk = item, chunk
        return int(size)


def _group_chunks(chunks: Sequence[bytes], message_bytes: int) -> list[bytes]:
    """Joins chunk fields to messages of at most `message_bytes`, but at least one chunk each."""
    groups: list[list[bytes]] = []
    size = 0
    for chunk in chunks:
        if not groups or size + len(chunk) > message_bytes:
            groups.append([])
            size = 0
        groups[-1].append(chunk)
        size += len(chunk)
    return [b"".join(group) for group in groups]
