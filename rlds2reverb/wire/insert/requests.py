"""Encoded episodes -> requests of the insert stream, none too large, none too small.

A request carries chunks (1), items (2) and the keys of chunks to keep for later items (3). After a request with
items the server forgets every chunk that is not kept. Short episodes share a request; long ones are spread over
several, and every request knows the chunks from earlier ones that it needs (`prelude`), so that it can be sent
again on a new stream. Measured: requests of 256 to 1,024 items beat smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wire.varint import bytes_field

_ZERO = np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class EncodedEpisode:
    """One episode, encoded but not yet cut into requests.

    Attributes:
      episode_id: what the sender calls the episode; comes back when all its items are confirmed.
      chunks: every chunk as a `chunks` field.
      chunk_key_varints: [n_chunks, 10] uint8.
      items: [n] object array of bytes, every item as an `items` field, in the order of insertion.
      item_keys: [n] uint64.
      first_chunk, last_chunk: [n] the chunks that an item refers to.
      table_keys: table -> the keys of its items, in the order of insertion.
    """

    episode_id: str
    chunks: list[bytes]
    chunk_key_varints: Array
    items: Array
    item_keys: Array
    first_chunk: Array
    last_chunk: Array
    table_keys: Mapping[str, Array] = field(default_factory=dict)

    def only(self, item_keys: Array) -> EncodedEpisode:
        """The episode with these of its items alone, and with no chunk after the last that they refer to."""
        chosen = np.isin(self.item_keys, item_keys)
        end = int(self.last_chunk[chosen].max(initial=-1)) + 1
        return replace(
            self,
            chunks=self.chunks[:end],
            chunk_key_varints=self.chunk_key_varints[:end],
            items=self.items[chosen],
            item_keys=self.item_keys[chosen],
            first_chunk=self.first_chunk[chosen],
            last_chunk=self.last_chunk[chosen],
            table_keys={table: keys[np.isin(keys, item_keys)] for table, keys in self.table_keys.items()},
        )


@dataclass(frozen=True)
class RequestLimits:
    """When a request is full.

    Attributes:
      items: most items.
      bytes: most bytes of chunks and items. Only a single item that needs more makes a larger request: of messages with
        at most so many bytes of chunks each, or with one chunk.
    """

    items: int = 1024
    bytes: int = 2 << 20


@dataclass(frozen=True, eq=False)
class Request:
    """Some items with all they need.

    Attributes:
      messages: one or more messages, to be sent in this order; only the last has items.
      earlier_chunks: chunks from earlier requests that the items, or later ones of the episode, refer to.
      message_bytes: most bytes of a message of these.
      item_keys: [n] uint64, in the order in which the server confirms them.
      finishes: id and number of items, over all tables, of every episode whose last item is in this request.
    """

    messages: tuple[bytes, ...]
    earlier_chunks: tuple[bytes, ...]
    message_bytes: int
    item_keys: Array
    finishes: tuple[tuple[str, int], ...]

    @property
    def prelude(self) -> tuple[bytes, ...]:
        """Messages with the earlier chunks, sent first on a stream that has not carried those requests.

        Joined only when asked for: in a long episode each request has them, and they may be the whole episode so far.
        """
        return tuple(_grouped(self.earlier_chunks, self.message_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the messages, without the prelude."""
        return sum(len(message) for message in self.messages)


@dataclass
class _Draft:
    """A request in the making."""

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
        at = _Cursor(episode)
        while at.item < len(episode.items):
            room = max(0, self.limits.items - self._draft.items)
            stop = at.items_that_fit(room, self.limits.bytes - self._draft.bytes)
            if stop == at.item and self._draft.items:
                yield from self.flush()
                continue
            self._append(at, max(stop, at.item + 1))
            if self._draft.items >= self.limits.items or self._draft.bytes >= self.limits.bytes:
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

    def _append(self, at: _Cursor, stop: int) -> None:
        draft, episode = self._draft, at.episode
        if not draft.items:
            draft.earlier_chunks = at.earlier_chunks()
        groups = _grouped(at.new_chunks(stop), self.limits.bytes)
        draft.leading += groups[:-1]
        draft.parts += groups[-1:]
        draft.parts += episode.items[at.item : stop].tolist()
        draft.keys.append(episode.item_keys[at.item : stop])
        draft.bytes += at.advance(stop)
        draft.items += len(draft.keys[-1])
        draft.keep = at.keep()
        if at.item == len(episode.items):
            draft.finishes.append((episode.episode_id, len(episode.items)))


class _Cursor:
    """How far one episode has been put into requests."""

    def __init__(self, episode: EncodedEpisode) -> None:
        self.episode = episode
        self.item = 0
        self._chunk = 0
        sizes = np.fromiter(map(len, episode.items.tolist()), np.int64, len(episode.items))
        self._item_bytes: Array = np.concatenate((_ZERO, np.cumsum(sizes)))
        self._chunk_bytes: Array = np.concatenate((_ZERO, np.cumsum([len(chunk) for chunk in episode.chunks])))
        # Chunks needed up to and including each item, and by each item or any later one.
        self._needed_end = np.maximum.accumulate(episode.last_chunk) + 1
        self._needed_from = np.minimum.accumulate(episode.first_chunk[::-1])[::-1]

    def items_that_fit(self, items: int, size: int) -> int:
        """End of the longest run of items, from the next one, within these limits; may be empty."""
        end = min(len(self.episode.items), self.item + items)
        cost = (
            self._item_bytes[self.item + 1 : end + 1]
            - self._item_bytes[self.item]
            + self._chunk_bytes[np.maximum(self._needed_end[self.item : end], self._chunk)]
            - self._chunk_bytes[self._chunk]
        )
        return self.item + int(np.searchsorted(cost, size, side="right"))

    def earlier_chunks(self) -> tuple[bytes, ...]:
        """The chunks of earlier requests that the next item, or a later one, refers to."""
        return tuple(self.episode.chunks[self._needed_from[self.item] : self._chunk])

    def new_chunks(self, stop: int) -> list[bytes]:
        """The chunks that must be sent for items up to `stop` and were not yet."""
        end = max(self._chunk, int(self._needed_end[stop - 1]))
        return self.episode.chunks[self._chunk : end]

    def advance(self, stop: int) -> int:
        """Moves on to item `stop`; the bytes passed."""
        end = max(self._chunk, int(self._needed_end[stop - 1]))
        size = self._item_bytes[stop] - self._item_bytes[self.item]
        size += self._chunk_bytes[end] - self._chunk_bytes[self._chunk]
        self.item, self._chunk = stop, end
        return int(size)

    def keep(self) -> bytes:
        """The keep_chunk_keys field (3, packed): chunks sent that items to come refer to."""
        if self.item == len(self.episode.items):
            return b""
        first = self._needed_from[self.item]
        kept = self.episode.chunk_key_varints[first : self._chunk]
        return bytes_field(3, kept.tobytes()) if len(kept) else b""


def _grouped(chunks: Sequence[bytes], message_bytes: int) -> list[bytes]:
    """Chunk fields joined to messages of at most `message_bytes`, but at least one chunk each."""
    groups: list[list[bytes]] = []
    size = 0
    for chunk in chunks:
        if not groups or size + len(chunk) > message_bytes:
            groups.append([])
            size = 0
        groups[-1].append(chunk)
        size += len(chunk)
    return [b"".join(group) for group in groups]
