"""What the stream of a sampler is for: requests go, samples come, batches are built. See `stream_user.StreamUser`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from rlds2reverb.errors import ServerRestarted
from rlds2reverb.specs import differences
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.stream_user import StreamWords
from rlds2reverb.wire.limiter import Wait, sample_wait
from rlds2reverb.wire.messages import SampleRequest, ServerInfo, TableInfo
from rlds2reverb.wire.sample.batches import BatchBuilder, FlatBatch
from rlds2reverb.wire.sample.requests import encode_sample_request

_WORDS = StreamWords(
    nothing_came="no sample came",
    gave_nothing="gave no sample",
    without="without a sample",
    way_out="Fill the table, change its rate limiter, or wait longer (timeout_seconds)",
)


class Sampling:
    """One stream of samples of one table. All but `open` and `decode` is called with the stream's lock held.

    Args:
      transport: the way to the server.
      table: as the server tells of it.
      batch_size, prefetch: see `SampleOptions`.
      samples: how many to ask for in all; None for no end.
      arena_bytes: most bytes of decoded chunks that are kept.

    Attributes:
      ready: batches to be read.
      received: samples that came.
      restarts: how often another server process answered.
      lost: samples at most that the server has taken, and that got lost with a stream that broke.
    """

    words = _WORDS

    def __init__(
        self,
        transport: Transport,
        table: TableInfo,
        batch_size: int,
        prefetch: int,
        samples: int | None,
        arena_bytes: int,
    ) -> None:
        self._transport, self._table = transport, table
        self._batch_size, self._most_under_way = batch_size, batch_size * prefetch
        self._left = samples
        self._builder = BatchBuilder(batch_size, arena_bytes)
        self._building = threading.Lock()
        self._awaited = 0
        self._is_stopped = False
        self.ready: deque[FlatBatch] = deque()
        self.received = self.restarts = self.lost_at_most = 0

    def open(self, messages: Iterator[bytes]) -> Stream:
        """A sample stream."""
        return self._transport.sample_stream(messages)

    def next_messages(self) -> tuple[bytes, ...]:
        """The next request, as far as there is room for what it brings."""
        under_way = self._awaited + len(self.ready) * self._batch_size
        wanted = self._batch_size if self._left is None else min(self._batch_size, self._left)
        if self._is_stopped or not wanted or under_way + wanted > self._most_under_way:
            return ()
        self._awaited += wanted
        if self._left is not None:
            self._left -= wanted
        return (encode_sample_request(SampleRequest(self._table.name, wanted)),)

    def decode(self, message: bytes) -> tuple[int, list[FlatBatch]]:
        """How many samples an answer ends, and the batches that they complete."""
        with self._building:
            before = self._builder.waiting
            full = self._builder.take(message)
            return sum(map(len, full)) + self._builder.waiting - before, full

    def take(self, answer: tuple[int, list[FlatBatch]]) -> bool:
        """Takes note of samples, and puts their batches beside the others."""
        samples, full = answer
        self._awaited -= samples
        self.received += samples
        self.ready.extend(full)
        return samples > 0

    def lost(self) -> None:
        """What was asked for will be asked for again."""
        self.lost_at_most += self._awaited
        if self._left is not None:
            self._left += self._awaited
        self._awaited = 0
        with self._building:
            self._builder.lost()

    @property
    def awaits_nothing(self) -> bool:
        """Whether every sample that was asked for is there."""
        return not self._awaited

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more, and nothing is ready."""
        return not self.ready and not self._awaited and (self._is_stopped or self._left == 0)

    def stop(self) -> None:
        """Asks for nothing more."""
        self._is_stopped = True

    def rest(self) -> FlatBatch | None:
        """What is left when it is over; a batch that is shorter than others."""
        with self._building:
            return self._builder.rest()

    def held_back(self, info: ServerInfo) -> list[Wait]:
        """The rate limiter that holds the samples back."""
        if self._table.name not in info.tables:
            return []
        wait = sample_wait(info.tables[self._table.name])
        return [wait] if wait.blocks else []

    def restarted(self, told: str, info: ServerInfo) -> None:
        """Goes on with the new process, when its table holds the same kind of items."""
        name = self._table.name
        if name not in info.tables:
            raise ServerRestarted(f'{told}; it has no table "{name}"')
        before, now = self._table.signature, info.tables[name].signature
        if before is not None and now is not None and (changes := differences(before, now)):
            raise ServerRestarted(f'{told}; its table "{name}" has another signature: {"; ".join(changes)}')
        self.restarts += 1
