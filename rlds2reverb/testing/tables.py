"""A table of a server in memory: its items, its limiter, its evictions, and its description.

Source of the rules: reverb/cc/table.cc, and what was observed with 0.14; `tests/support/contract/transport.py` holds them to a real server.

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
from rlds2reverb.wire.messages import Chunk, Item, TableInfo, inserts_allowed, inserts_needed, priority_exponent


@dataclass
class StoredItem:
    """An item of a table; `values` are one array per column, in the order of the signature."""

    key: int
    priority: float
    values: tuple[Array, ...]
    times_sampled: int = 0


class MemoryTable:
    """One table. Not thread-safe; the server holds a lock.

    Args:
      info: its description; its limiter's counts are continued, as after a checkpoint.

    Attributes:
      items: by key, in the order of insertion.
      inserts, samples: counted by the limiter.
      assigned: number of inserts of a known key.
      evicted, deleted: number of items that were removed for a new item, or by key.
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
        """Its description now. Episodes and unique samples are not counted."""
        limiter = replace(self._info.rate_limiter, inserts=self.inserts, samples=self.samples)
        return replace(self._info, current_size=len(self.items), rate_limiter=limiter)

    @property
    def inserts_allowed(self) -> int:
        """Number of new items that may be inserted now."""
        return inserts_allowed(self.info)

    @property
    def may_be_sampled(self) -> bool:
        return bool(self.items) and not inserts_needed(self.info)

    def put(self, key: int, values: Iterable[Array], priority: float = 1.0) -> None:
        """Assigns the priority of a known key, or inserts a new one, and evicts an item beyond max_size."""
        if key in self.items:
            self.assigned += 1
            self.items[key].priority = priority
            return
        self.items[key] = StoredItem(key, priority, tuple(values))
        self.inserts += 1
        if len(self.items) > self._info.max_size:  # the new one may be evicted, too
            del self.items[self._choose(self._info.remover)]
            self.evicted += 1

    def update(self, priorities: Iterable[tuple[int, float]]) -> None:
        """Changes priorities, one after the other; unknown keys are ignored.

        Raises:
          Refused: a priority is negative or not a number, and a selector is prioritized by it; those before it stay changed.
        """
        is_weight = "(" in self._info.sampler + self._info.remover
        for key, priority in priorities:
            if key in self.items:
                if is_weight and not priority >= 0:
                    raise Refused("INVALID_ARGUMENT", f"Priority {priority} must be a number of at least 0")
                self.items[key].priority = priority

    def reset(self) -> None:
        """Removes all items, and resets the limiter's counts."""
        self.items.clear()
        self.inserts = self.samples = 0

    def emptied(self) -> MemoryTable:
        """A new table of the same description."""
        return MemoryTable(self._info)

    def delete(self, keys: Iterable[int]) -> None:
        """Removes items; unknown keys are ignored."""
        for key in keys:
            self.deleted += self.items.pop(key, None) is not None

    def _probability(self, item: StoredItem) -> float:
        sampler = self._info.sampler
        if sampler != "uniform" and priority_exponent(sampler) is None:
            return 1.0
        weights = self._weights(sampler)
        return (
            float(item.priority ** (priority_exponent(sampler) or 0.0)) / sum(weights)
            if any(weights)
            else 1 / len(self.items)
        )

    def sample(self) -> StoredItem:
        """Draws one sample, which `may_be_sampled` must allow; an item leaves with its last sample."""
        item = self.items[self._choose(self._info.sampler)]
        self.drawn_with = self._probability(item)
        item.times_sampled += 1
        self.samples += 1
        if 0 < self._info.max_times_sampled <= item.times_sampled:
            del self.items[item.key]
        return item

    def _choose(self, selector: str) -> int:
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
        exponent = priority_exponent(selector) or 0.0  # 0 for a uniform selector
        return [item.priority**exponent for item in self.items.values()]


Stored = tuple[Item, tuple[Array, ...]]
"""An item and its values, one array per column."""


class Refused(Exception):
    """The server ends the stream, or answers the call, with this status; `status` is gRPC's name of it."""

    def __init__(self, status: str, details: str) -> None:
        super().__init__(f"{status}: {details}")
        self.status, self.details = status, details


class ReceivedStream:
    """The chunks of one insert stream, held until a request with items does not keep them (reverb_service_impl.cc)."""

    def __init__(self) -> None:
        self.held: dict[int, Chunk] = {}

    def feed(self, message: bytes) -> list[Stored]:
        """The items of one message with their values, in order.

        Raises:
          Refused: the message breaks the rules.
          WireError: it is no insert request.
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
