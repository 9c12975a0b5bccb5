"""A table of a server in memory: what it holds, what it lets in, what it evicts, and what it tells of itself.

Source of the rules: reverb/cc/table.cc, and what was observed with 0.14; `tests/contract/transport.py` holds them to a real server.

| event | a known key | a new key |
| --- | --- | --- |
| insert | waits for the limiter; the priority is assigned, nothing is counted | waits for the limiter, is counted; one more than max_size evicts |
| delete | gone | passed over |
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire import codec
from rlds2reverb.wire.limiter import inserts_allowed, inserts_needed
from rlds2reverb.wire.messages import Chunk, Item, TableInfo


@dataclass
class StoredItem:
    """An item that a table holds.

    Attributes:
      key: its key.
      priority: as last assigned.
      values: one array per column, in the order of the signature.
      times_sampled: since it was inserted.
    """

    key: int
    priority: float
    values: tuple[Array, ...]
    times_sampled: int = 0


class MemoryTable:
    """One table. Not thread-safe; the server holds a lock.

    Args:
      info: what it is; the counts of its limiter are those to go on from, as after a checkpoint.

    Attributes:
      items: by key, in the order of insertion.
      inserts, samples: counted by the limiter.
      assigned: how often an item came whose key was there.
      evicted, deleted: items that were removed for another one, or by key.
      drawn_with: probability of the last sample.
    """

    def __init__(self, info: TableInfo) -> None:
        self._info = info
        self._random = random.Random(0)  # noqa: S311 - the same draws in every run, no secrets
        self.items: dict[int, StoredItem] = {}
        self.inserts, self.samples = info.rate_limiter.inserts, info.rate_limiter.samples
        self.assigned = self.evicted = self.deleted = 0
        self.drawn_with = 1.0

    @property
    def info(self) -> TableInfo:
        """The table as the server tells of it. Episodes and unique samples are not counted."""
        limiter = replace(self._info.rate_limiter, inserts=self.inserts, samples=self.samples)
        return replace(self._info, current_size=len(self.items), rate_limiter=limiter)

    @property
    def inserts_allowed(self) -> int:
        """New items that may be inserted now, one after the other."""
        return inserts_allowed(self.info)

    @property
    def may_be_sampled(self) -> bool:
        """Whether a sample may be taken now."""
        return bool(self.items) and not inserts_needed(self.info)

    def put(self, key: int, values: Iterable[Array], priority: float = 1.0) -> None:
        """Assigns the priority of a known key, inserts a new one, and evicts when that is one too many."""
        if key in self.items:
            self.assigned += 1
            self.items[key].priority = priority
            return
        self.items[key] = StoredItem(key, priority, tuple(values))
        self.inserts += 1
        if len(self.items) > self._info.max_size:  # the new one is among those that may go
            del self.items[self._chosen(self._info.remover)]
            self.evicted += 1

    def update(self, priorities: Iterable[tuple[int, float]]) -> None:
        """Gives items other priorities, one after the other; keys that are not there are passed over.

        Raises:
          Refused: one that is negative or not a number, where something is prioritized by it; those before it stay.
        """
        is_weight = "(" in self._info.sampler + self._info.remover
        for key, priority in priorities:
            if key in self.items:
                if is_weight and not priority >= 0:
                    raise Refused("INVALID_ARGUMENT", f"Priority {priority} must be a number of at least 0")
                self.items[key].priority = priority

    def reset(self) -> None:
        """Takes all items out; the limiter's counts start anew."""
        self.items.clear()
        self.inserts = self.samples = 0

    def emptied(self) -> MemoryTable:
        """The table as it was at first."""
        return MemoryTable(self._info)

    def delete(self, keys: Iterable[int]) -> None:
        """Takes items out; keys that are not there are passed over."""
        for key in keys:
            self.deleted += self.items.pop(key, None) is not None

    def _probability(self, item: StoredItem) -> float:
        """With which the sampler draws an item that it holds."""
        sampler = self._info.sampler
        if sampler == "uniform":
            return 1 / len(self.items)
        if "(" not in sampler:
            return 1.0
        weights = self._weights(sampler)
        return float(item.priority ** _exponent(sampler)) / sum(weights) if any(weights) else 1 / len(self.items)

    def sample(self) -> StoredItem:
        """Takes one sample; an item leaves with its last one. Only when one may be taken."""
        item = self.items[self._chosen(self._info.sampler)]
        self.drawn_with = self._probability(item)
        item.times_sampled += 1
        self.samples += 1
        if 0 < self._info.max_times_sampled <= item.times_sampled:
            del self.items[item.key]
        return item

    def _chosen(self, selector: str) -> int:
        """The key that a sampler or remover selects."""
        if selector == "fifo":
            return next(iter(self.items))
        if selector == "lifo":
            return next(reversed(self.items))
        if selector in ("min_heap", "max_heap"):
            sign = 1 if selector == "min_heap" else -1
            return min(self.items.values(), key=lambda item: sign * item.priority).key
        weights = self._weights(selector)
        return self._random.choices(list(self.items), weights if any(weights) else None)[0]

    def _weights(self, selector: str) -> list[float]:
        exponent = _exponent(selector)
        return [item.priority**exponent for item in self.items.values()]


def _exponent(selector: str) -> float:
    """Of a prioritized selector; 0 of a uniform one."""
    return float(selector.removeprefix("prioritized(").rstrip(")")) if "(" in selector else 0.0


# Source: reverb_service_impl.cc, and what was observed with 0.14.

Stored = tuple[Item, tuple[Array, ...]]
"""An item and its values, one array per column."""


class Refused(Exception):
    """The server would end the stream, or answer the call, with this status.

    Attributes:
      status: gRPC's name of it.
      details: a sentence.
    """

    def __init__(self, status: str, details: str) -> None:
        super().__init__(f"{status}: {details}")
        self.status, self.details = status, details


class ReceivedStream:
    """One stream: chunks are held until a request with items that does not keep them.

    Attributes:
      held: chunks by key.
    """

    def __init__(self) -> None:
        self.held: dict[int, Chunk] = {}

    def feed(self, message: bytes) -> list[Stored]:
        """The items of one message with their values, in order.

        Raises:
          Refused: the message breaks the rules.
          WireError: it is no such message.
        """
        request = codec.decode_insert_request(message)
        if not request.chunks and not request.items:
            raise Refused("INVALID_ARGUMENT", "a request with neither chunks nor items")
        self.held.update({chunk.key: chunk for chunk in request.chunks})
        try:
            stored = [(item, codec.item_values(item, self.held)) for item in request.items]
        except WireError as error:
            raise Refused("INTERNAL", str(error)) from error
        if not set(request.keep_chunk_keys) <= set(self.held):
            raise Refused("FAILED_PRECONDITION", "kept chunks that the stream does not hold")
        if request.items:
            self.held = {key: self.held[key] for key in request.keep_chunk_keys}
        return stored

    def feed_all(self, messages: Iterable[bytes]) -> list[Stored]:
        """The items of several messages; raises as `feed` does."""
        return [stored for message in messages for stored in self.feed(message)]
