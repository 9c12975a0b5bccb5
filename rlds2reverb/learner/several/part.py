"""One server's part in what several give of a table."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from rlds2reverb.errors import Rlds2ReverbError, Stalled, TransportError, WireError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.feed import Feed
from rlds2reverb.learner.joining import Piece
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.learner.several.servers import Servers
from rlds2reverb.learner.several.sizes import Sizes
from rlds2reverb.push.tables import table_of
from rlds2reverb.specs import Nest

_COUNTS = ("received", "lost_at_most", "reconnects", "restarts")


class Part:
    """The table on one server, as `feed.Batches`: its sampler is made when it is first asked. Any thread may stop and close it.

    Args:
      servers: of the group.
      sizes: of the table.
      number: the server's.
      table: its name.
      options: how this server is sampled. Where `samples` is given, however many, it is asked for what `allow` says.
      structure: nest of what the samples' columns are called; None where nothing tells.

    Attributes:
      number, structure: as given.
    """

    def __init__(
        self, servers: Servers, sizes: Sizes, number: int, table: str, options: SampleOptions, structure: Nest | None
    ) -> None:
        self._servers, self._sizes, self._table, self._options = servers, sizes, table, options
        self.number, self.structure = number, structure
        self._lock = threading.Lock()  # of the sampler, and of whether there may be another one
        self._sampler: Sampler | None = None
        self._is_stopped = False
        self._before = dict.fromkeys(_COUNTS, 0)  # of samplers that are closed
        self._rests: deque[Batch] = deque()  # that came of a server which is lost now
        self._owed = self._passed = 0

    def allow(self, samples: int) -> None:
        """Says that so many samples will be taken next: no more are asked for, where those of all servers are counted."""
        if self._options.samples is None or samples <= self._owed:
            return
        with self._lock:
            more, self._owed = samples - self._owed, samples
            if self._sampler is not None:
                self._sampler.allow(more)
                return
        self._open()

    def next_batch(self) -> Batch | None:
        """The next batch; None when none came for a while, when the server is missing, which `sizes` knows then, and when it is closed.

        Raises:
          TransportError: the server is gone, and none may be missing; or another fault. Names the server.
          WireError, ServerRestarted: as a `Sampler` does.
        """
        if self._rests:
            return self._rest()
        if (sampler := self._open()) is None:
            return None
        try:
            batch = sampler.next_batch()
        except TransportError as error:
            self._note_loss(error)
            self._gather(sampler)
            return self._rest()
        if batch is not None:
            self._passed += batch.size
            self._owed -= batch.size
        return batch

    def stop(self) -> None:
        """Asks for nothing more."""
        with self._lock:
            self._is_stopped = True
            if self._sampler is not None:
                self._sampler.stop()

    def drain(self, quiet_seconds: float) -> Iterator[Batch]:
        """What was asked for; see `Sampler.drain`. Raises as `next_batch`, after what came was handed out."""
        self.stop()
        while (batch := self._rest()) is not None:
            yield batch
        if self._sampler is None:
            return
        try:
            yield from self._sampler.drain(quiet_seconds)
        except TransportError as error:
            self._note_loss(error)

    def close(self) -> None:
        """Ends it for good."""
        with self._lock:
            self._is_stopped = True
            sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()
            self._count(sampler)

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more, once it was stopped."""
        sampler = self._sampler
        return not self._rests and (sampler is None or sampler.is_closed)

    @property
    def unread(self) -> int:
        """Items that came and were not handed out yet. Of episodes that are cut, only those that are cut already."""
        sampler = self._sampler
        on_the_way = 0 if sampler is None or self._options.cut is not None else sampler.received - self._passed
        return on_the_way + sum(batch.size for batch in self._rests)

    @property
    def received(self) -> int:
        """Samples that came so far."""
        return self._total("received")

    @property
    def lost_at_most(self) -> int:
        """Samples that the server may have taken and nobody gets."""
        return self._total("lost_at_most")

    @property
    def reconnects(self) -> int:
        """How often a stream was opened in place of one that broke."""
        return self._total("reconnects")

    @property
    def restarts(self) -> int:
        """How often another server process answered."""
        return self._total("restarts")

    def _open(self) -> Sampler | None:
        """The sampler, made if there is none; None where there is to be none."""
        with self._lock:
            if self._sampler is None and not self._is_stopped and not self._sizes.is_away(self.number):
                transport, info = self._servers.transports[self.number], self._sizes.infos[self.number]
                options = self._options
                if options.samples is not None:
                    options = replace(options, samples=max(1, self._owed))
                self._sampler = Sampler(transport, info, table_of(info, self._table), options)
                self._passed = 0
            return self._sampler

    def _note_loss(self, error: TransportError) -> None:
        """The server is missing, if it may be. Raises as `next_batch`."""
        if isinstance(error, Stalled) or not error.retryable:
            raise self._servers.named(self.number, error) from error
        self._servers.lost(self.number, error)
        self._sizes.lose(self.number)

    def _gather(self, sampler: Sampler) -> None:
        """Keeps what came of a server that is lost, and leaves the sampler."""
        try:
            self._rests.extend(sampler.drain(0.0))
        except TransportError:
            pass  # it was told: it is why the server is lost
        finally:
            with self._lock:
                is_ours, self._sampler = self._sampler is sampler, None
            if is_ours:  # else `close` has it
                self._count(sampler)
            self._owed = sum(batch.size for batch in self._rests)

    def _rest(self) -> Batch | None:
        if not self._rests:
            return None
        batch = self._rests.popleft()
        self._owed -= batch.size
        return batch

    def _count(self, sampler: Sampler) -> None:
        with self._lock:
            for name in _COUNTS:
                self._before[name] += getattr(sampler, name)

    def _total(self, name: str) -> int:
        with self._lock:
            now: int = 0 if self._sampler is None else getattr(self._sampler, name)
            return self._before[name] + now


def rest_of(feed: Feed) -> int:
    """Samples that are left of the batch in use."""
    rest = feed.rest()
    return 0 if rest is None else rest.size


def drained(feed: Feed, part: Part, quiet_seconds: float, failures: list[Rlds2ReverbError]) -> Iterator[Piece]:
    """All that one server still gives; an error waits at the end."""
    yield from feed.take(rest_of(feed))
    try:
        for batch in part.drain(quiet_seconds):
            feed.see(batch)
            yield Piece(part.number, batch, 0, batch.size)
    except (TransportError, WireError) as error:
        failures.append(error)
