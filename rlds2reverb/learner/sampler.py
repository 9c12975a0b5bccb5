"""Samples a table: batches, one after the other, made in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from rlds2reverb.learner.batch import Batch, Packing
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.sampling import Sampling
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream import KeptStream
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.messages import ServerInfo, TableInfo
from rlds2reverb.wire.sample.batches import FlatBatch

_FOR_EVER_SECONDS = 1e9


class Sampler:
    """Iterates batches. Close it, or use it as a context manager; `drain` first where no sample may get lost.

    Args:
      transport: the way to the server.
      info: the server's tables.
      table: of which one.
      options: how.

    Raises:
      ConfigError: the structure that is asked for is not that of the table.

    Attributes:
      name: of the table.
      structure: nest of what the samples' columns are called: `spec`, else the table's signature; None without either.
    """

    def __init__(self, transport: Transport, info: ServerInfo, table: TableInfo, options: SampleOptions) -> None:
        self.name, self.structure = table.name, table.signature if options.spec is None else options.spec
        self._options = options
        self._packing = Packing(table, options)
        self._changed = threading.Condition()
        self._deadlines = replace(Deadlines(), stall=options.timeout_seconds or _FOR_EVER_SECONDS)
        shares = _shares(options.samples, options.streams)
        self._samplings = [
            Sampling(
                transport, table, options.batch_size, options.prefetch, share, options.arena_bytes // options.streams
            )
            for share in shares
        ]
        self._streams = [
            KeptStream(transport, sampling, info.state_id, self._deadlines, self._tell, self._changed)
            for sampling in self._samplings
        ]
        self._is_closed = False

    def __iter__(self) -> Iterator[Batch]:
        """Batches, until all samples came or `end_after_seconds` without one.

        Raises:
          Stalled: none came for `timeout_seconds`; says what the rate limiter waits for.
          TransportError: the server is gone, or refuses.
          WireError: an answer that is not Reverb's.
          ServerRestarted: the new server process has no such table any more.
        """
        while (batch := self.next_batch()) is not None:
            yield batch

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end. Raises as iterating does."""
        while not self._is_closed:
            if (flat := self._next_flat()) is None:
                return None
            if len(flat) == self._options.batch_size or not self._options.drop_last:
                return self._packing.pack(flat)
        return None

    def stop(self) -> None:
        """Asks for no more samples; those that were asked for still come, and iterating ends after them."""
        with self._changed:
            for sampling in self._samplings:
                sampling.stop()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends it at once. Samples that were asked for and not read are lost; `stop` and read to the end where that matters."""
        self._is_closed = True
        for stream in self._streams:
            stream.close()

    def _tell(self, reason: object) -> None:
        self._options.on_wait(reason)  # type: ignore[arg-type]

    def _next_flat(self) -> FlatBatch | None:
        end = self._options.end_after_seconds
        if end is not None and not self._is_there_within(end):
            return self._rest()
        self._streams[0].wait(self._is_due)
        with self._changed:
            for sampling in self._samplings:
                if sampling.ready:
                    batch = sampling.ready.popleft()
                    self._changed.notify_all()  # there is room for the next request
                    return batch
        return self._rest()

    def _is_there_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        with self._changed:
            while not self._is_due() and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._is_due()

    def _is_due(self) -> bool:
        """Whether there is a batch, or never will be. With the lock held."""
        for stream in self._streams:
            if stream.failure is not None:
                raise stream.failure
        return any(one.ready for one in self._samplings) or all(one.is_over for one in self._samplings)

    def _rest(self) -> FlatBatch | None:
        for sampling in self._samplings:
            if (rest := sampling.rest()) is not None:
                return rest
        return None


def _shares(samples: int | None, streams: int) -> list[int | None]:
    """How many samples each stream brings."""
    if samples is None:
        return [None] * streams
    return [samples // streams + (number < samples % streams) for number in range(streams)]
