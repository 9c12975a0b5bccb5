"""What the stream of a sampler is for: requests go, samples come, batches are built. See `stream_user.StreamUser`.

How many samples are under way is bounded here. A request asks for as much as there is room for, once half of it is free: the
server takes more at once the more it is asked for (observed in 0.14: 128 samples of a request first, then twice as many each time).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from rlds2reverb.errors import ServerRestarted, WireError
from rlds2reverb.learner.pool import Pool
from rlds2reverb.learner.watch import LOG
from rlds2reverb.specs import differences, view_in
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.stream_user import StreamWords
from rlds2reverb.wire.limiter import Wait, sample_wait
from rlds2reverb.wire.messages import SampleRequest, ServerInfo, TableInfo
from rlds2reverb.wire.sample.batches import BatchBuilder, FlatBatch
from rlds2reverb.wire.sample.requests import encode_sample_request

STREAM_WORDS = StreamWords(
    nothing_came="no sample came",
    gave_nothing="gave no sample",
    without="without a sample",
    way_out="Fill the table, change its rate limiter, or wait longer (timeout_seconds)",
)


class Sampling:
    """One stream of samples of one table. See `StreamUser` for when the pool's lock is held.

    Chunks that were decoded before the stream broke, or the server was restarted, stay: a chunk's key is drawn at random from
    64 bits by whoever writes it, never given twice, and comes back unchanged with a checkpoint.

    Args:
      transport: the way to the server.
      table: as the server tells of it.
      pool: shared with the other streams of the sampler.
      batch_size: samples of a batch.
      prefetch: batches that may be asked for, on their way, or ready.
      arena_bytes: most bytes of decoded chunks that are kept.

    Attributes:
      awaited: samples that were asked for and have not come.
      held: samples that came and are in no batch yet.
    """

    words = STREAM_WORDS

    def __init__(
        self, transport: Transport, table: TableInfo, pool: Pool, batch_size: int, prefetch: int, arena_bytes: int
    ) -> None:
        self._transport, self._table, self._pool = transport, table, pool
        self._most, self._least = batch_size * prefetch, batch_size * max(1, prefetch // 2)
        self._builder = BatchBuilder(batch_size, arena_bytes)
        self._building = threading.Lock()
        self._ready = 0  # samples in batches that are ready
        self.awaited = self.held = 0

    def open(self, messages: Iterator[bytes]) -> Stream:
        """A sample stream."""
        return self._transport.sample_stream(messages)

    def next_messages(self) -> tuple[bytes, ...]:
        """The next request, as far as there is room for what it brings."""
        wanted = self._pool.grant(self._room) if self._asks else 0
        if not wanted:
            return ()
        self.awaited += wanted
        return (encode_sample_request(SampleRequest(self._table.name, wanted)),)

    @property
    def _room(self) -> int:
        return self._most - self.awaited - self.held - self._ready

    @property
    def _asks(self) -> bool:
        """Whether there is room enough for a request; any is enough when the server has nothing to do."""
        return self._room >= self._least or (not self.awaited and self._room > 0)

    def decode(self, message: bytes) -> tuple[int, list[FlatBatch]]:
        """How many samples an answer ends, and the batches that they complete."""
        with self._building:
            before = self._builder.waiting
            full = self._builder.take(message)
            return sum(map(len, full)) + self._builder.waiting - before, full

    def take(self, answer: tuple[int, list[FlatBatch]]) -> bool:
        """Takes note of samples, and puts their batches beside the others.

        Raises:
          WireError: more came than were asked for.
        """
        samples, full = answer
        if samples > self.awaited:
            raise WireError(
                f'server {self._transport.address}, table "{self._table.name}": {samples} samples came where {self.awaited} were awaited'
            )
        in_batches = sum(map(len, full))
        self.awaited -= samples
        self.held += samples - in_batches
        self._ready += in_batches
        self._pool.received += samples
        self._pool.put(full, self._taken)
        return samples > 0

    def lost(self) -> None:
        """What was asked for will be asked for again."""
        self._pool.lose(self.awaited)
        self.awaited = 0
        with self._building:
            self._builder.lost()

    @property
    def awaits_nothing(self) -> bool:
        """Whether every sample that was asked for is there."""
        return not self.awaited

    def rest(self) -> FlatBatch | None:
        """The samples that are in no batch yet; None when there are none."""
        with self._building:
            rest = self._builder.rest()
        self.held -= 0 if rest is None else len(rest)
        return rest

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
            raise ServerRestarted(f'{told}; it has no table "{name}"; sample anew once it has one')
        before, now = self._table.signature, info.tables[name].signature
        is_other = before != now or view_in(before) != view_in(now)
        if before is not None and now is not None and is_other and (changes := differences(before, now)):
            raise ServerRestarted(
                f'{told}; its table "{name}" has another signature: {"; ".join(changes)}; sample anew to take it as it is'
            )
        self._pool.answers(info.state_id)

    def resumed(self, why: str) -> None:
        """Tells the log."""
        LOG.warning(
            'table "%s": its stream of samples broke, and another one took its place: %s', self._table.name, why
        )

    def _taken(self, samples: int) -> None:
        self._ready -= samples
        if self._asks and not self._pool.is_spent:
            self._pool.changed.notify_all()
