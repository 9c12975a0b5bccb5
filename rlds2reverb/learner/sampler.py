"""Samples a table: batches, one after the other, requested in the background, of one server or of many as if they were one.

Sampler            what a learner holds: iterates, and closes its queue
BatchQueue         draws servers, and joins what each gives
ServerQueue        one for each server: requests samples, waits, cuts, packs

A `BatchQueue` has a `ServerQueue` for each server, also for a single one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator

from rlds2reverb.errors import TransportError
from rlds2reverb.learner.batch import Batch, BatchIterator
from rlds2reverb.learner.batch_queue import BatchQueue
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.server_queue import Counts
from rlds2reverb.servers.group import Servers
from rlds2reverb.servers.tables import table_of


class Sampler(BatchIterator):
    """Iterates batches. Close it, or use it as a context manager; `drain` first where no sample may get lost.

    Several threads may iterate, and any may stop or close it: each batch goes to one of them, and all end. A sampler that is dropped
    without a `close` ends its streams by itself: their threads hold the queue, and not the sampler.

    A stream that breaks is opened anew, and a restarted server is used again: samples that were on their way are requested once more.
    Both are logged to `rlds2reverb.learner`. When one of many servers fails, an error that names the server ends the sampler; with
    `allow_missing`, samples come from the remaining servers, and it takes part again once it answers.

    It belongs to the process that made it: in a forked process everything but `close` raises a TransportError.

    Args:
      servers: one or many.
      table: the table's name; servers without such a table give nothing.
      options: batch size, prefetch, cuts, weights; `samples` counts those of all servers together.

    Raises:
      ConfigError: no server has such a table, the structure in the options is not that of the table, or an option is for one
        server only.
      SpecMismatch: the table's signature differs between servers.
      ServerUnreachable: no answer within the deadline.

    Attributes:
      name: of the table.
      structure: nest of the names of the samples' columns: `spec`, else the table's signature; None without either.
      options: as given.
    """

    def __init__(self, servers: Servers, table: str, options: SampleOptions) -> None:
        table_info = table_of(servers.server_info(), table)
        self._queue = queue = BatchQueue(servers, table_info, options.share_out())
        self.name, self.structure, self.options = table, queue.structure, options
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _end_dropped, queue, self._process)

    def next_batch(self) -> Batch | None:
        """Returns the next batch; None after the last sample, or after `end_after_seconds` without one: iterating again continues.

        Raises:
          Stalled: no batch came for `timeout_seconds`; says what the server waits for. Iterating may continue.
          ServerUnreachable: a server is gone for longer than `reconnect_seconds`; with `allow_missing`, all are.
          TransportError: a server refuses.
          WireError: an answer that is not Reverb's.
          ServerRestarted: the new server process no longer has such a table, or one of another signature.
          ConfigError: the items do not have the columns of the structure, or a weight cannot be computed.
        """
        self._check_process()
        return self._queue.next_batch()

    def stop(self) -> None:
        """Requests no more samples; those that were requested still come, and iterating ends after them."""
        self._check_process()
        self._queue.stop()

    def drain(self, quiet_seconds: float = 1.0) -> Iterator[Batch]:
        """Requests no more, yields everything that was requested, and closes: if the table holds as much, no sample is lost.

        The last batch may be shorter than the rest, also with `drop_last`. Many servers are drained one after the other.

        A table that runs empty gives less than was requested, and the server sends no notice of it. So draining also ends when nothing
        came for `quiet_seconds`. The server learns of the end only when it has the next sample to send: then that one is lost (observed
        with 0.14: one item of those inserted later). `lost_at_most` counts samples that were requested in vain.

        Raises:
          TransportError, WireError: as iterating does, after everything that came was handed out.
        """
        self._check_process()
        batches = self._queue.drain(quiet_seconds)
        try:
            while (batch := next(batches, None)) is not None:
                yield batch
                self._check_process()
        finally:
            self.close()

    def close(self) -> None:
        """Ends it at once. Samples that were requested and not read are lost (`lost_at_most`); `drain` where that matters."""
        self._finalizer.detach()
        if self._process == os.getpid():
            self._queue.close()

    @property
    def received(self) -> int:
        """Samples that came so far."""
        return self._counts().received

    @property
    def reconnects(self) -> int:
        """How often a stream was opened in place of one that broke."""
        return self._counts().reconnects

    @property
    def restarts(self) -> int:
        """How often another server process answered."""
        return self._counts().restarts

    @property
    def lost_at_most(self) -> int:
        """Samples that servers may have taken and that were not read: those of broken streams, and those unread at `close`."""
        return self._counts().lost_at_most

    def _counts(self) -> Counts:
        self._check_process()
        return self._queue.counts()

    def _check_process(self) -> None:
        """Refuses a forked process: a lock may have been held at the fork, and the samples belong to the parent."""
        if self._process != os.getpid():
            raise TransportError(
                "this sampler was made before the process was forked, and has no threads here: make another one"
            )


def _end_dropped(queue: BatchQueue, process: int) -> None:
    """Ends the streams of a sampler that was dropped, or at the end of the interpreter.

    The garbage collector may run anywhere, with any lock held: so a thread does it. At its end, the interpreter starts no thread.
    """
    if process != os.getpid():
        return
    if threading.main_thread().is_alive():
        threading.Thread(target=queue.close, name="rlds2reverb-close", daemon=True).start()
    else:
        queue.close()
