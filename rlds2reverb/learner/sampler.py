"""Samples a table: batches, one after the other, made in the background, of one server or of many as if they were one.

Sampler                      what a learner holds: iterates, and ends what it holds
BatchQueue                 of one server: its batches, waited for
or ShardedQueue            of many: draws servers, and joins what the queue of each gives
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from rlds2reverb.errors import TransportError
from rlds2reverb.learner.batch import Batch, BatchIterator
from rlds2reverb.learner.batch_queue import BatchQueue
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.servers import ServerPool
from rlds2reverb.learner.shards import ShardedQueue
from rlds2reverb.push.tables import table_of
from rlds2reverb.specs import Nest


class _Queue(Protocol):
    """Where a sampler's batches come from. Thread-safe; see `Sampler` for what each of these does."""

    @property
    def structure(self) -> Nest | None: ...

    @property
    def received(self) -> int: ...

    @property
    def reconnects(self) -> int: ...

    @property
    def restarts(self) -> int: ...

    @property
    def lost_at_most(self) -> int: ...

    def next_batch(self) -> Batch | None: ...

    def stop(self) -> None: ...

    def drain(self, quiet_seconds: float) -> Iterator[Batch]: ...

    def close(self) -> None: ...


class Sampler(BatchIterator):
    """Iterates batches. Close it, or use it as a context manager; `drain` first where no sample may get lost.

    Several threads may iterate, and any may stop or close it: each batch goes to one of them, and all end. A sampler that is dropped
    without a `close` ends its streams by itself: their threads know the queue, and not the sampler.

    A stream that breaks is opened anew, and a restarted server is used again: what was on its way is requested once more.
    The log `rlds2reverb.learner` has both. One of many servers that fails ends it with an error that names the server; where
    some may be missing, samples come from the others, and it takes part again once it answers.

    It belongs to the process that made it: in one that was forked from it everything but `close` raises a TransportError.

    Args:
      servers: one or many.
      table: the table's name; servers that have none of it give nothing.
      options: how; `samples` counts what comes of all servers together.

    Raises:
      ConfigError: no server has such a table, the structure that is asked for is not that of the table, or an option is for one
        server only.
      SpecMismatch: the table has not the same signature on all servers that have it.
      ServerUnreachable: no answer within the deadline.

    Attributes:
      name: of the table.
      structure: nest of what the samples' columns are called: `spec`, else the table's signature; None without either.
    """

    def __init__(self, servers: ServerPool, table: str, options: SampleOptions) -> None:
        infos = servers.infos()
        found = table_of(servers.merged(infos), table)
        queue: _Queue
        if len(servers) == 1:
            queue = BatchQueue(servers.transports[0], infos[0], found, options)
        else:
            queue = ShardedQueue(servers, infos, found, options)
        self.name, self.structure, self._queue = table, queue.structure, queue
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _end_dropped, queue, self._process)

    def next_batch(self) -> Batch | None:
        """The next batch; None when all samples came, or none for `end_after_seconds`: then iterating continues with later ones.

        Raises:
          Stalled: no batch came for `timeout_seconds`; says what the server waits for. Iterating may continue.
          ServerUnreachable: a server is gone for longer than `reconnect_seconds`; where some may be missing, all are.
          TransportError: a server refuses.
          WireError: an answer that is not Reverb's.
          ServerRestarted: the new server process has no such table any more, or one of another signature.
          ConfigError: the items do not have the columns of the structure, or a weight cannot be computed.
        """
        self._check_process()
        return self._queue.next_batch()

    def stop(self) -> None:
        """Asks for no more samples; those that were asked for still come, and iterating ends after them."""
        self._check_process()
        self._queue.stop()

    def drain(self, quiet_seconds: float = 1.0) -> Iterator[Batch]:
        """Asks for no more, hands out all that was asked for, and closes: where the table holds that much, no sample is lost.

        The last batch may be shorter than others, with `drop_last`, too. Of many servers, one follows the other.

        A table that runs empty gives less than it was asked for, and says nothing. So this ends, too, when nothing came for
        `quiet_seconds`. The server hears of it when it has the next sample to send: then that one is lost (observed with 0.14:
        one item of those inserted later). `lost_at_most` counts what was asked for in vain.

        Raises:
          TransportError, WireError: as iterating does, after what came was handed out.
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
        """Ends it at once. Samples that were asked for and not read are lost (`lost_at_most`); `drain` where that matters."""
        self._finalizer.detach()
        if self._process == os.getpid():
            self._queue.close()

    @property
    def received(self) -> int:
        """Samples that came so far."""
        self._check_process()
        return self._queue.received

    @property
    def reconnects(self) -> int:
        """How often a stream was opened in place of one that broke."""
        self._check_process()
        return self._queue.reconnects

    @property
    def restarts(self) -> int:
        """How often another server process answered."""
        self._check_process()
        return self._queue.restarts

    @property
    def lost_at_most(self) -> int:
        """Samples that servers may have taken and that were not read: of streams that broke, and unread when it was closed."""
        self._check_process()
        return self._queue.lost_at_most

    def _check_process(self) -> None:
        """Refuses a forked process: a lock may have been held just then, and the samples are the other's."""
        if self._process != os.getpid():
            raise TransportError(
                "this sampler was made before the process was forked, and has no threads here: make another one"
            )


def _end_dropped(queue: _Queue, process: int) -> None:
    """Ends the streams of a sampler that was dropped, or at the end of the interpreter.

    The garbage collector may run anywhere, with any lock held: so a thread does it. At its end, the interpreter starts none.
    """
    if process != os.getpid():
        return
    if threading.main_thread().is_alive():
        threading.Thread(target=queue.close, name="rlds2reverb-close", daemon=True).start()
    else:
        queue.close()
