"""Samples a table: batches, one after the other, made in the background.

The threads that receive samples know the supply, not the `Sampler`: so one that nobody holds any more is collected, and that
ends its streams.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

from rlds2reverb.errors import Rlds2ReverbError, TransportError, WireError
from rlds2reverb.learner.batch import Batch, Packing, cutter_of
from rlds2reverb.learner.batch_iterator import BatchIterator
from rlds2reverb.learner.cutting import Cutting
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.supply import Supply
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.messages import ServerInfo, TableInfo
from rlds2reverb.wire.sample.batches import FlatBatch


class Sampler(BatchIterator):
    """Iterates batches. Close it, or use it as a context manager; `drain` first where no sample may get lost.

    Several threads may iterate, and any may close it: each batch goes to one of them, and all end. A sampler that is dropped
    without a `close` ends its streams by itself.

    A stream that breaks is opened anew, and a restarted server is taken up again: what was on its way is asked for once more.
    The log `rlds2reverb.learner` is told of both.

    It belongs to the process that made it: in one that was forked from it everything but `close` raises a TransportError.

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
        self._packing = Packing(table, options)
        self.name, self.structure = table.name, self._packing.structure
        self._cutting = Cutting(table.name, cutter_of(table, options), options.batch_size, options.drop_last)
        self._supply = Supply(transport, info, table, options.in_samples(table), options.epochs is not None)
        self._finalizer = weakref.finalize(self, _end_dropped, self._supply)

    @property
    def received(self) -> int:
        """Samples that came so far."""
        return self._supply.received

    @property
    def reconnects(self) -> int:
        """How often a stream was opened in place of one that broke."""
        return self._supply.reconnects

    @property
    def restarts(self) -> int:
        """How often another server process answered."""
        return self._supply.restarts

    @property
    def lost_at_most(self) -> int:
        """Samples that the server may have taken and nobody gets: of streams that broke, and unread when it was closed."""
        return self._supply.lost_at_most + (0 if self._finalizer.alive else self._cutting.held)

    @property
    def is_closed(self) -> bool:
        """Whether its streams have ended: all samples came, or it was closed."""
        return self._supply.is_closed

    def allow(self, more: int) -> None:
        """Makes `samples`, where that is bounded, so many more. For a sampler that has not ended."""
        self._supply.allow(more)

    def next_batch(self) -> Batch | None:
        """The next batch; None when all samples came, or none for `end_after_seconds`: then iterating goes on with later ones.

        Raises:
          Stalled: no batch came for `timeout_seconds`; says what the rate limiter waits for.
          TransportError: the server is gone for longer than `reconnect_seconds`, or refuses.
          WireError: an answer that is not Reverb's.
          ServerRestarted: the new server process has no such table any more, or one of another signature.
        """
        return self._next(self._supply.next_flat)

    def _next(self, flats: Callable[[], FlatBatch | None]) -> Batch | None:
        self._supply.check_ours()
        flat = self._cutting.next(flats)
        return None if flat is None else self._packing.pack(flat)

    def stop(self) -> None:
        """Asks for no more samples; those that were asked for still come, and iterating ends after them."""
        self._supply.stop()

    def drain(self, quiet_seconds: float = 1.0) -> Iterator[Batch]:
        """Asks for no more, hands out all that was asked for, and closes: where the table holds that much, no sample is lost.

        The last batch may be shorter than others, with `drop_last`, too.

        A table that runs empty gives less than it was asked for, and says nothing. So this ends, too, when nothing came for
        `quiet_seconds`. The server hears of it when it has the next sample to send: then that one is lost (observed with 0.14:
        one item of those inserted later). `lost_at_most` counts what was asked for in vain.

        Raises:
          TransportError: as iterating does, after what came was handed out.
          WireError: an answer that is not Reverb's, likewise.
        """
        self.stop()
        self._cutting.drain()
        failures: list[Rlds2ReverbError] = []
        flats = self._drained(quiet_seconds, failures)
        try:
            while (batch := self._next(partial(next, flats, None))) is not None:
                yield batch
        finally:
            self.close()
        if failures:
            raise failures[0]

    def _drained(self, quiet_seconds: float, failures: list[Rlds2ReverbError]) -> Iterator[FlatBatch]:
        """All that comes, and then what is left; an error in between waits at the end."""
        try:
            yield from self._supply.until_quiet(quiet_seconds)
        except (TransportError, WireError) as error:
            failures.append(error)
        yield from self._supply.rests()

    def close(self) -> None:
        """Ends it at once. Samples that were asked for and not read are lost (`lost_at_most`); `drain` where that matters."""
        self._finalizer.detach()
        self._supply.close()


def _end_dropped(supply: Supply) -> None:
    """Ends the streams of a sampler that nobody holds any more, or at the end of the interpreter.

    The garbage collector may run anywhere, with any lock held: so a thread does it. At its end, the interpreter starts none.
    """
    if not supply.is_ours:
        return
    if threading.main_thread().is_alive():
        threading.Thread(target=supply.close, name="rlds2reverb-close", daemon=True).start()
    else:
        supply.close()
