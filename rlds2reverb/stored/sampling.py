"""A running server's table, sampled until every item was seen: Reverb has no call that lists items.

What that does to the server: every sample counts in an item's times_sampled, and is counted by the table's rate limiter. So a table
whose items leave after so many samples, or whose limiter weighs samples against inserts, is refused unless the caller says that it may be
disturbed; one whose sampler gives the same item over and over cannot be read at all.

What was seen is the table at one moment when nobody inserted or removed items meanwhile. That is checked: the server's counts are the
same before and after.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.remarks import note
from rlds2reverb.stored.chunks import ChunkBuilder, Chunks
from rlds2reverb.stored.items import Items
from rlds2reverb.stored.messages import reader_of
from rlds2reverb.stored.snapshot import Snapshot
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.wire.limiter import samples_allowed
from rlds2reverb.wire.messages import SampleRequest, TableInfo
from rlds2reverb.wire.sample.requests import encode_sample_request

_RANDOM = ("uniform", "prioritized")
_AT_ONCE = 1 << 14
_LIMITER_SECONDS = 10.0
_SILENT_SECONDS = 60.0
_SURE = 12
"""One uniform sampling in e^12 does not see every item in the samples that are allowed."""
_PATIENCE = 8
"""Prioritized tables get so many times the samples of uniform ones."""


def why_not(table: TableInfo) -> str:
    """Why sampling a table would change what others get from it; "" when it would not."""
    if table.max_times_sampled > 0:
        return f"its items leave after {table.max_times_sampled} samples, so that reading it takes them out"
    limiter = table.rate_limiter
    if samples_allowed(table) < _most_samples(table) or limiter.max_diff < 1e300:
        return "its rate limiter weighs samples against inserts, and would count those that are read"
    return ""


def sampled(transport: Transport, people: str, table: TableInfo, may_disturb: bool) -> Snapshot:
    """Samples a table until every item was seen.

    Args:
      transport: the way to the server.
      people: what messages call the source.
      table: as the server tells of it now.
      may_disturb: whether samples may take items out, and use up what a rate limiter allows.

    Raises:
      SourceError: sampling cannot show every item, or would disturb others; or the table changed meanwhile, or items never came.
      TransportError: the server is gone, or sent nothing for a minute.
    """
    where = f'{people}: table "{table.name}"'
    if not table.current_size:
        raise SourceError(f"{where} holds no items")
    _check(where, table, may_disturb)
    before = transport.server_info()
    taking, wanted = _Taking(where), table.current_size
    most, taken = _most_samples(table), 0
    while len(taking.seen) < wanted and taken < most:
        taken += taking.take(transport, SampleRequest(table.name, _next(table, most - taken), _LIMITER_SECONDS))
    after = transport.server_info()
    now = after.tables.get(table.name)
    if now is None or after.state_id != before.state_id or now.rate_limiter.inserts != table.rate_limiter.inserts:
        raise SourceError(f"{where} was written to while it was sampled; stop the writers, or use through=checkpoint")
    if len(taking.seen) != wanted or (table.max_times_sampled <= 0 and now.current_size != wanted):
        raise SourceError(
            f"{where}: {len(taking.seen):,} of {wanted:,} items came in {taken:,} samples; items of priority 0 never do, and others "
            "may have been removed meanwhile; use through=checkpoint"
        )
    text = f"table sampled until each of its {wanted:,} items was seen: {taken:,} samples, which count in times_sampled"
    return Snapshot(people, table.name, table.signature, *taking.found(), (note("read_by_sampling", text, taken),))


def _check(where: str, table: TableInfo, may_disturb: bool) -> None:
    is_random = table.sampler.startswith(_RANDOM)
    if not is_random and table.max_times_sampled < 1 and table.current_size > 1:
        raise SourceError(
            f"{where}: its sampler {table.sampler} gives the same item over and over; use through=checkpoint"
        )
    why = why_not(table)
    if why and not may_disturb:
        raise SourceError(f"{where}: {why}; use through=checkpoint, or allow it with disturb=yes")
    if why and table.rate_limiter.min_size_to_sample > 1 and table.max_times_sampled > 0:
        raise SourceError(
            f"{where}: its rate limiter gives none of the last {table.rate_limiter.min_size_to_sample - 1:,} items; use through=checkpoint"
        )
    if samples_allowed(table) < table.current_size:
        raise SourceError(
            f"{where}: its rate limiter allows {samples_allowed(table):,} samples of {table.current_size:,} items; use through=checkpoint"
        )


def _most_samples(table: TableInfo) -> int:
    """Samples after which an item that was not seen is taken for one that never comes."""
    size = table.current_size
    if table.max_times_sampled > 0:
        return size * table.max_times_sampled
    most = math.ceil(size * (math.log(max(1, size)) + _SURE))
    return most * (1 if table.sampler == "uniform" else _PATIENCE)


def _next(table: TableInfo, left: int) -> int:
    """Samples of the next stream."""
    return max(1, min(left, _AT_ONCE, table.current_size))


class _Taking:
    """What was seen so far."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.seen: set[int] = set()
        self._items, self._chunks = Items(where), ChunkBuilder()
        self._read = reader_of("Samples", where)
        self._item_begun: Any = None

    def take(self, transport: Transport, request: SampleRequest) -> int:
        """Asks for samples on a stream of their own, and reads it to its end; how many came.

        Raises:
          SourceError: none came, or more than were asked for.
          TransportError: the stream broke.
        """
        came = 0
        stream = transport.sample_stream(iter([encode_sample_request(request)]))
        try:
            with _impatient(stream) as heard:
                for message in stream:
                    heard()
                    came += self._take(message)
                    if came > request.samples:
                        break
        finally:
            stream.end()
        if not 0 < came <= request.samples:
            raise SourceError(
                f"{self._where}: {request.samples:,} samples were asked for, and {came:,} came; is that a Reverb server?"
            )
        return came

    def _take(self, message: bytes) -> int:
        came = 0
        for entry in self._read(message).entries:
            for chunk in entry.data:
                self._chunks.add(chunk)
            if entry.HasField("info"):
                self._item_begun = entry.info.item
            if entry.end_of_sequence and self._item_begun is not None:
                item, self._item_begun = self._item_begun, None
                came += 1
                if item.key not in self.seen:
                    self.seen.add(item.key)
                    self._items.add(item.SerializeToString())
        return came

    def found(self) -> tuple[Chunks, Items]:
        """Chunks and items."""
        self._items.close_writing()
        return self._chunks.built(), self._items


@contextmanager
def _impatient(stream: Stream) -> Iterator[Callable[[], None]]:
    """Inside the block a stream from which nothing is heard for a minute is cancelled: reading it raises an error then.

    Yields:
      What to call when something comes.
    """
    over, last = threading.Event(), [time.monotonic()]

    def heard() -> None:
        last[0] = time.monotonic()

    def watch() -> None:
        while not over.wait(1.0):
            if time.monotonic() - last[0] > _SILENT_SECONDS:
                stream.cancel()
                return

    threading.Thread(target=watch, name="rlds2reverb-stored", daemon=True).start()
    try:
        yield heard
    finally:
        over.set()
