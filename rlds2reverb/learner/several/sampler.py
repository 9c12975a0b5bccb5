"""Samples one table of several servers as if it were one: every item of all of them is as likely as in one large table.

Each sample's server is drawn with probability size / sum of sizes. So P = P on its server * that share, which is 1 / N for uniform
tables. `info` has that P and the sum N, and importance weights are made of them.

Items that leave a table with their last sample count for its size until they are handed out.

No server is waited for while another may have what is wanted: after a while without a sample its size is looked at, and where it
has become 0, its part of the batch is drawn anew. A server whose rate limiter holds its items back is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import Rlds2ReverbError, Stalled
from rlds2reverb.learner.batch import Batch, Packing
from rlds2reverb.learner.batch_iterator import BatchIterator
from rlds2reverb.learner.feed import Feed
from rlds2reverb.learner.interleave import joined_of
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.several.draft import Draft
from rlds2reverb.learner.several.options import check, of_one
from rlds2reverb.learner.several.part import Part, drained, rest_of
from rlds2reverb.learner.several.plans import Plan, Plans
from rlds2reverb.learner.several.routes import Routes
from rlds2reverb.learner.several.servers import Servers
from rlds2reverb.learner.several.sizes import Sizes
from rlds2reverb.learner.watch import WaitLog
from rlds2reverb.learner.weights import Weights
from rlds2reverb.specs import Nest
from rlds2reverb.transport.stream_user import Reason
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import SampleInfo

_LOOK_SECONDS = 0.25
"""How often the servers are asked while all are empty."""


class SeveralSampler(BatchIterator):
    """Iterates batches of one table of several servers; `info.source` is the server's number. Like a `Sampler`.

    Several threads may iterate, one after the other, and any may stop or close it.

    A server that fails ends it with an error that names the server; where some may be missing, its samples come from the others,
    and it takes part again once it answers.

    Args:
      servers: of the group.
      table: the table as all servers together tell of it.
      sizes: of the table.
      options: how; `samples` counts what comes out. Each server is asked for its part of a batch.
      routes: told which server each key came from.

    Raises:
      ConfigError: an option that is for one server only.

    Attributes:
      name: of the table.
      structure: nest of what the samples' columns are called; None where nothing tells.
    """

    def __init__(
        self, servers: Servers, table: TableInfo, sizes: Sizes, options: SampleOptions, routes: Routes
    ) -> None:
        check(options)
        self.name, self._options = table.name, options
        self.structure: Nest | None = Packing(table, options).structure
        self._servers, self._sizes, self._routes = servers, sizes, routes
        self._weights = (
            None if options.weights is None else Weights(table, options.weights, options.beta, options.min_priority)
        )
        count = len(servers.transports)
        one = of_one(options, count)
        self._parts = [Part(servers, sizes, number, table.name, one, self.structure) for number in range(count)]
        self._feeds = [Feed(part.number, part, servers.addresses[part.number]) for part in self._parts]
        self._plans, self._ahead = Plans(count), options.prefetch_of(table) - 1
        self._turn = threading.Lock()  # of the thread that makes a batch
        self._draft: Draft | None = None
        self._items_leave = table.max_times_sampled > 0
        self._last_sizes = sizes.now()
        self._given = 0
        self._on_wait: Callable[[Reason], object] = options.on_wait or WaitLog(table.name)
        self._told_at: float | None = None
        self._stopped, self._ended = threading.Event(), threading.Event()

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end.

        Raises:
          Stalled: no batch came for `timeout_seconds`; names the server that was waited for. Iterating may go on.
          ServerUnreachable: a server is gone; with `allow_missing`, all are.
          TransportError, WireError, ServerRestarted: as a `Sampler` does.
          ConfigError: a weight cannot be computed.
        """
        with self._turn:
            return self._next()

    def stop(self) -> None:
        """Asks for no more samples; those that were asked for still come, and iterating ends after them."""
        self._stopped.set()
        for part in self._parts:
            part.stop()

    def drain(self, quiet_seconds: float = 1.0) -> Iterator[Batch]:
        """Asks for no more, hands out all that was asked for, server by server, and closes. As a `Sampler` does. For the thread that iterates.

        Raises:
          Rlds2ReverbError: as iterating does; the first, after all servers gave what they had.
        """
        self.stop()
        shares = self._last_sizes / max(1.0, self._last_sizes.sum())
        failures: list[Rlds2ReverbError] = []
        try:
            draft, self._draft = self._draft, None
            if draft is not None and draft.came:
                yield self._packed(draft)
            for feed, part in zip(self._feeds, self._parts):
                for piece in drained(feed, part, quiet_seconds, failures):
                    yield self._packed(Draft.of(piece, shares[part.number]))
        finally:
            self.close()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Ends it at once. Samples that were asked for and not read are lost."""
        self._stopped.set()
        self._ended.set()
        for part in self._parts:
            part.close()
        self._sizes.close()

    @property
    def received(self) -> int:
        """Samples that came so far, from all servers."""
        return sum(part.received for part in self._parts)

    @property
    def reconnects(self) -> int:
        """How often a stream was opened in place of one that broke, to any server."""
        return sum(part.reconnects for part in self._parts)

    @property
    def restarts(self) -> int:
        """How often another server process answered, at any address."""
        return sum(part.restarts for part in self._parts)

    @property
    def lost_at_most(self) -> int:
        """Samples that servers may have taken and nobody gets: of streams that broke, and unread when it was closed."""
        lost = sum(part.lost_at_most for part in self._parts)
        if not self._ended.is_set():
            return lost
        draft = self._draft
        return lost + int(self._unread.sum()) + (0 if draft is None else draft.came)

    def _next(self) -> Batch | None:
        size, counts = self._options.batch_size, self._counts(1)
        if not counts:
            self.close()
        if self._ended.is_set():
            return None
        draft = self._draft = self._draft or Draft(counts[0])
        began = time.monotonic()
        self._fill(draft, began)
        if self._stopped.is_set():
            self._fill_left(draft, began)
        if self._ended.is_set() or not draft.came or (self._options.drop_last and draft.came < size):
            return None  # what came is kept for the next call
        self._draft = None
        self._given += draft.came
        return self._packed(draft)

    def _counts(self, batches: int) -> list[int]:
        """The sizes of the next so many batches."""
        size, samples = self._options.batch_size, self._options.samples
        if samples is None:
            return [size] * batches
        left = samples - self._given
        counts = [min(size, left - start) for start in range(0, min(left, size * batches), size)]
        return [count for count in counts if count == size or not self._options.drop_last]

    def _fill(self, draft: Draft, began: float) -> None:
        """Draws and takes samples until all are there, it ends, or it is stopped."""
        while (left := draft.left).size and not self._stopped.is_set():
            sizes = self._sizes.now() + (self._unread if self._items_leave else 0)
            if not sizes.sum() > 0:
                if self._is_over(began, "all servers"):
                    return
                if time.monotonic() - began >= Deadlines.notice:
                    self._tell(Reason("the table is empty on all servers"))
                self._look()
                continue
            self._tell(Reason())
            self._last_sizes = sizes
            plan = self._planned(len(left), sizes)
            for number in np.unique(plan.servers).tolist():
                places = left[plan.servers == number]
                if not self._take(draft, places, number, float(plan.shares[number]), began):
                    return

    def _planned(self, count: int, sizes: Array) -> Plan:
        """Which servers give the next so many; they are told what is wanted of them all."""
        plan = self._plans.next(count, sizes)
        if self._options.samples is not None:
            self._plans.ahead(self._counts(1 + self._ahead)[1:], sizes)
            for part, feed, wanted in zip(self._parts, self._feeds, self._plans.wanted(plan).tolist()):
                part.allow(wanted - rest_of(feed))
        return plan

    def _take(self, draft: Draft, places: Array, number: int, share: float, began: float) -> bool:
        """Takes samples of one server, as long as it has some; whether to go on."""
        while len(places) and not self._stopped.is_set():
            places = self._taken(draft, places, number, share)
            if not len(places):
                return True
            if self._is_over(began, self._servers.addresses[number]):
                return False
            if not self._sizes.asked(number) + self._unread[number]:  # it is empty, or missing: others have the rest
                return True
        return True

    def _taken(self, draft: Draft, places: Array, number: int, share: float) -> Array:
        """Takes what one server gives; the places that are left."""
        for piece in self._feeds[number].take(len(places)):
            draft.add(places[: piece.size], piece, share)
            places = places[piece.size :]
        return places

    def _fill_left(self, draft: Draft, began: float) -> None:
        """After a stop: takes what was asked for, server by server, and closes after the last of it."""
        shares = self._last_sizes / max(1.0, self._last_sizes.sum())
        for part in self._parts:
            while (left := draft.left).size and not self._ended.is_set():
                rest = self._taken(draft, left, part.number, float(shares[part.number]))
                if not len(rest):
                    return
                if part.is_over or not self._sizes.asked(part.number) + self._unread[part.number]:
                    break
                if self._is_over(began, self._servers.addresses[part.number]):
                    return
        if not draft.came or (draft.left.size and self._options.drop_last):
            self.close()

    @property
    def _unread(self) -> Array:
        """[n] items of each server that came and were not handed out; where items leave, they are in its table no more."""
        return np.array([part.unread + rest_of(feed) for part, feed in zip(self._parts, self._feeds)])

    def _is_over(self, began: float, whom: str) -> bool:
        """Whether it ends because nothing came for too long.

        Raises:
          Stalled: that is an error.
        """
        waited, options = time.monotonic() - began, self._options
        if options.timeout_seconds is not None and waited >= options.timeout_seconds:
            raise Stalled(
                f'table "{self.name}" of {whom}: no batch came for {options.timeout_seconds:g} s. Fill the table, change its rate '
                "limiter, or wait longer (timeout_seconds)"
            )
        return options.end_after_seconds is not None and waited >= options.end_after_seconds

    def _tell(self, reason: Reason) -> None:
        """Tells a wait for tables that are all empty, each time that it has lasted so long again, and its end; of others the servers' samplers tell."""
        now, told_at = time.monotonic(), self._told_at
        if reason.text and (told_at is None or now - told_at >= Deadlines.notice):
            self._told_at = now
            self._on_wait(reason)
        elif not reason.text and told_at is not None:
            self._told_at = None
            self._on_wait(reason)

    def _look(self) -> None:
        """All are empty or away: asks again, a little later."""
        self._stopped.wait(_LOOK_SECONDS)
        if not self._stopped.is_set():
            self._sizes.put(self._servers.infos())

    def _packed(self, draft: Draft) -> Batch:
        pieces, places, servers, shares = draft.made()
        batch = joined_of(self._feeds, pieces, servers, self._options.ragged, self._options.pad_to, places)
        info = batch.info
        self._routes.remember(info.key, servers)
        total = np.full(len(servers), max(1, int(self._last_sizes.sum())), np.int64)
        info = info._replace(probability=info.probability * shares, table_size=total)
        if self._weights is not None:
            told = SampleInfo(info.key, info.probability, info.table_size, info.priority, info.times_sampled)
            info = info._replace(weight=self._weights.next(told))
        return Batch(batch.data, info)
