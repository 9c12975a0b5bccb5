"""Batches of a table of one or many servers, as if all its items were in one: every item is as likely as in one large table.

    BatchQueue            draws the server of each sample, and joins what the servers give into batches
      ServerPart            one server: its queue is opened when it is needed, and again when the server is back

Each sample's server is drawn with probability size / sum of sizes. So P = P on its server * that share, which is 1 / N for uniform
tables. `info` has that P and the sum N, and importance weights are made of them. Where items leave a table with their last sample,
those that came count for its size until they are handed out.

No server is waited for while another may have samples: after a while without a sample a server's size is requested, and if it
has become 0, its part of the batch is drawn anew. A server whose rate limiter holds its items back is waited for.

Of one server nothing is drawn: its queue has all options, and its batches are handed out as they come, without a copy.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, Stalled, TransportError, WireError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.joining import Feed, Piece, join_pieces
from rlds2reverb.learner.options import LIST, TABLE_MIN, SampleOptions
from rlds2reverb.learner.packing import Packing
from rlds2reverb.learner.server_queue import Counts, ServerQueue, WaitLog
from rlds2reverb.learner.weights import Weights
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import Nest
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import Reason
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import SampleInfo

_STALL_SECONDS = 3.0  # after which a server without a sample is looked at; longer than it takes until a wait is noticed
_LOOK_SECONDS = 0.25  # interval at which the servers are asked while all are empty


class BatchQueue:
    """Batches of one table; with more than one server, `info.source` is the number of a sample's server. Thread-safe.

    Raises:
      ConfigError: the structure in the options is not that of the table, the table cannot give the requested epochs, or an option is for
        one server only.

    Attributes:
      structure: see `Sampler`.
    """

    def __init__(self, servers: Servers, table: TableInfo, options: SampleOptions) -> None:
        self._name, self._options, self._servers = table.name, options, servers
        self.structure: Nest | None = Packing(table, options).structure
        count, part_options = len(servers), _part_options(options, len(servers))
        self._parts = [ServerPart(servers, server, table.name, part_options, self.structure) for server in servers]
        self._only = self._parts[0] if count == 1 else None
        self._feeds = [Feed(part.server.number, part, part.server.address) for part in self._parts]
        self._draws, self._ahead = Draws(count), options.choose_prefetch(table) - 1
        self._weights = (
            None if options.weights is None else Weights(table, options.weights, options.beta, options.min_priority)
        )
        self._routes = servers.routes_of(table.name)
        self._items_leave = table.max_times_sampled > 0
        self._last_sizes = self._sizes
        self._turn = threading.Lock()  # of the thread that makes a batch
        self._draft: Draft | None = None
        self._given = 0
        self._on_wait: Callable[[Reason], object] = options.on_wait or WaitLog(table.name)
        self._noticed_at: float | None = None
        self._stopped, self._ended = threading.Event(), threading.Event()
        if self._only is not None:  # the others are opened when they are drawn
            self._only.open(options.samples)

    def next_batch(self) -> Batch | None:
        """See `Sampler.next_batch`; of many servers, an error names its server."""
        if self._only is not None:
            return self._only.next_batch()
        with self._turn:
            return self._next()

    def stop(self) -> None:
        """Requests no more samples; those that were requested still come, and iterating ends after them."""
        self._stopped.set()
        for part in self._parts:
            part.stop()

    def drain(self, quiet_seconds: float) -> Iterator[Batch]:
        """See `Sampler.drain`: server by server, the first error at the end. For the thread that iterates."""
        self.stop()
        if self._only is not None:
            yield from self._only.drain(quiet_seconds)
            return
        shares = self._last_shares()
        failures: list[Rlds2ReverbError] = []
        draft, self._draft = self._draft, None
        if draft is not None and draft.came:
            yield self._pack(draft)
        for feed, part in zip(self._feeds, self._parts):
            for piece in _drain_part(feed, part, quiet_seconds, failures):
                whole = Draft(piece.size)
                whole.add(np.arange(piece.size), piece, shares[part.server.number])
                yield self._pack(whole)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Ends it at once. Samples that were requested and not read are lost."""
        self._stopped.set()
        self._ended.set()
        for part in self._parts:
            part.close()

    def counts(self) -> Counts:
        counts = reduce(Counts.plus, (part.counts() for part in self._parts))
        if not self._ended.is_set():
            return counts
        draft = self._draft
        unread = int(self._unread.sum()) + (0 if draft is None else draft.came)
        return counts._replace(lost_at_most=counts.lost_at_most + unread)

    def _next(self) -> Batch | None:
        size, sizes = self._options.batch_size, self._batch_sizes(1)
        if not sizes:
            self.close()
        if self._ended.is_set():
            return None
        draft = self._draft = self._draft or Draft(sizes[0])
        began = time.monotonic()
        self._fill(draft, began)
        if self._stopped.is_set():
            self._fill_left(draft, began)
        if self._ended.is_set() or not draft.came or (self._options.drop_last and draft.came < size):
            return None  # the draft is kept for the next call
        self._draft = None
        self._given += draft.came
        return self._pack(draft)

    def _batch_sizes(self, batches: int) -> list[int]:
        size, samples = self._options.batch_size, self._options.samples
        if samples is None:
            return [size] * batches
        left = samples - self._given
        counts = [min(size, left - start) for start in range(0, min(left, size * batches), size)]
        return [count for count in counts if count == size or not self._options.drop_last]

    def _fill(self, draft: Draft, began: float) -> None:
        """Draws servers and takes samples until the draft is full, the queue ends, or it is stopped."""
        while (left := draft.left).size and not self._stopped.is_set():
            self._servers.refresh()
            sizes = self._sizes + (self._unread if self._items_leave else 0)
            if not sizes.sum() > 0:
                if self._is_over(began, "all servers"):
                    return
                if time.monotonic() - began >= Deadlines.notice:
                    self._notice(Reason("the table is empty on all servers"))
                self._stopped.wait(_LOOK_SECONDS)
                if not self._stopped.is_set():
                    self._servers.infos()
                continue
            self._notice(Reason())
            self._last_sizes = sizes
            draw = self._draw(len(left), sizes)
            for number in np.unique(draw.servers).tolist():
                places = left[draw.servers == number]
                if not self._take(draft, places, number, float(draw.shares[number]), began):
                    return

    def _draw(self, count: int, sizes: Array) -> Draw:
        """Draws the servers of the next samples, and allows each server to request its part."""
        draw = self._draws.next(count, sizes)
        if self._options.samples is not None:
            self._draws.ahead(self._batch_sizes(1 + self._ahead)[1:], sizes)
            for part, feed, samples in zip(self._parts, self._feeds, self._draws.count(draw).tolist()):
                part.allow(samples - _count_rest(feed))
        return draw

    def _take(self, draft: Draft, places: Array, number: int, share: float, began: float) -> bool:
        """Takes samples of one server as long as it has some; False at an end."""
        server = self._servers[number]
        while len(places) and not self._stopped.is_set():
            places = self._take_samples(draft, places, number, share)
            if not len(places):
                return True
            if not self._ask_size(server) + self._unread[number]:  # empty, or missing: the rest is drawn anew
                return True
            if self._is_over(began, server.address):
                return False
        return True

    def _take_samples(self, draft: Draft, places: Array, number: int, share: float) -> Array:
        """Fills places with the samples that one server gives; returns the places that are left."""
        for piece in self._feeds[number].take(len(places)):
            draft.add(places[: piece.size], piece, share)
            places = places[piece.size :]
        return places

    def _fill_left(self, draft: Draft, began: float) -> None:
        """After a stop: takes what was requested, server by server, and closes after the last sample."""
        shares = self._last_shares()
        for part in self._parts:
            while (left := draft.left).size and not self._ended.is_set():
                number = part.server.number
                left = self._take_samples(draft, left, number, float(shares[number]))
                if not len(left):
                    return
                if part.is_over or not self._ask_size(part.server) + self._unread[number]:
                    break
                if self._is_over(began, part.server.address):
                    return
        if not draft.came or (draft.left.size and self._options.drop_last):
            self.close()

    @property
    def _sizes(self) -> Array:
        """[n] float64 items of each server at its last answer; 0 for a missing one."""
        return np.array([server.size_of(self._name) for server in self._servers], np.float64)

    def _ask_size(self, server: Server) -> int:
        """Items of one server, asked for now; 0 for one that is missing. Raises as `Servers.each`."""
        self._servers.look([server])
        return server.size_of(self._name)

    def _last_shares(self) -> Array:
        shares: Array = self._last_sizes / max(1.0, self._last_sizes.sum())
        return shares

    @property
    def _unread(self) -> Array:
        """[n] items of each server that came and were not handed out."""
        return np.array([part.unread + _count_rest(feed) for part, feed in zip(self._parts, self._feeds)])

    def _is_over(self, began: float, whom: str) -> bool:
        """Whether it ends because nothing came for too long; raises Stalled where that is an error."""
        waited, options = time.monotonic() - began, self._options
        if options.timeout_seconds is not None and waited >= options.timeout_seconds:
            raise Stalled(
                f'table "{self._name}" of {whom}: no batch came for {options.timeout_seconds:g} s. Fill the table, change its rate '
                "limiter, or wait longer (timeout_seconds)"
            )
        return options.end_after_seconds is not None and waited >= options.end_after_seconds

    def _notice(self, reason: Reason) -> None:
        """Calls `on_wait` for a wait on empty tables; the servers' queues call it for other waits."""
        now, noticed_at = time.monotonic(), self._noticed_at
        if reason.text and (noticed_at is None or now - noticed_at >= Deadlines.notice):
            self._noticed_at = now
            self._on_wait(reason)
        elif not reason.text and noticed_at is not None:
            self._noticed_at = None
            self._on_wait(reason)

    def _pack(self, draft: Draft) -> Batch:
        pieces, places, servers, shares = draft.join()
        batch = join_pieces(self._feeds, pieces, servers, self._options.ragged, self._options.pad_to, places)
        info = batch.info
        self._routes.remember(info.key, servers)
        # Each server told P and N of its own table: P of all is P * share, N is the sum.
        total = np.full(len(servers), max(1, int(self._last_sizes.sum())), np.int64)
        info = info._replace(probability=info.probability * shares, table_size=total)
        if self._weights is not None:
            sampled = SampleInfo(info.key, info.probability, info.table_size, info.priority, info.times_sampled)
            info = info._replace(weight=self._weights.next(sampled))
        return Batch(batch.data, info)


class ServerPart:
    """The table on one server, as `Batches`: its queue is opened at the first call. Any thread may stop and close it.

    If the options have `samples`, whatever their number, the server is asked for as many as `open` and `allow` say.
    """

    def __init__(
        self, servers: Servers, server: Server, table: str, options: SampleOptions, structure: Nest | None
    ) -> None:
        self._servers, self._table, self._options = servers, table, options
        self.server, self.structure = server, structure
        # Of the queue, and of whether there may be another one. A signal handler may call `stop` in a thread that holds it.
        self._lock = threading.RLock()
        self._queue: ServerQueue | None = None
        self._is_stopped = False
        self._before = Counts()  # of queues that are closed
        self._rests: deque[Batch] = deque()  # read from a server that is lost now
        self._owed = self._passed = 0  # samples allowed and not handed out; samples of this queue that were handed out

    def open(self, samples: int | None) -> None:
        """Opens the queue now, and allows to request so many samples; None for all."""
        self._owed = samples or 0
        self._open()

    def allow(self, samples: int) -> None:
        """Allows to request as many samples as will be taken next; matters only where `samples` bounds those of all servers."""
        if self._options.samples is None or samples <= self._owed:
            return
        # The queue is opened without the lock, which `_open` takes itself.
        with self._lock:
            more, self._owed = samples - self._owed, samples
            if self._queue is not None:
                self._queue.allow(more)
                return
        self._open()

    def next_batch(self) -> Batch | None:
        """The next batch; None after a while without one, of a missing server, and after `close`.

        Raises as a `Sampler` does, with the server's name, also when the server is gone and may not be missing.
        """
        if self._rests:
            return self._rest()
        if (queue := self._open()) is None:
            return None
        try:
            batch = queue.next_batch()
        except TransportError as error:
            self._note_loss(error)
            self._gather(queue)
            return self._rest()
        if batch is not None:
            self._passed += batch.size
            self._owed -= batch.size
        return batch

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._queue is not None:
                self._queue.stop()

    def drain(self, quiet_seconds: float) -> Iterator[Batch]:
        """Yields what was requested; see `Sampler.drain`. Raises as `next_batch`, after what came was handed out."""
        self.stop()
        while (batch := self._rest()) is not None:
            yield batch
        if self._queue is None:
            return
        try:
            yield from self._queue.drain(quiet_seconds)
        except TransportError as error:
            self._note_loss(error)

    def close(self) -> None:
        with self._lock:
            self._is_stopped = True
            queue = self._queue
        if queue is not None:
            queue.close()
            self._count(queue)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes, once it was stopped."""
        queue = self._queue
        return not self._rests and (queue is None or queue.is_closed)

    @property
    def unread(self) -> int:
        """Items that came and were not handed out; without those of episodes that are not cut yet."""
        queue = self._queue
        on_the_way = 0 if queue is None or self._options.cut is not None else queue.counts().received - self._passed
        return on_the_way + sum(batch.size for batch in self._rests)

    def counts(self) -> Counts:
        """The counts of all its queues together."""
        with self._lock:
            return self._before if self._queue is None else self._before.plus(self._queue.counts())

    def _open(self) -> ServerQueue | None:
        """The queue, opened at the first call; None after a stop, and of a missing server."""
        with self._lock:
            info = self.server.info
            if self._queue is None and not self._is_stopped and not self.server.missing and info is not None:
                options = self._options
                if options.samples is not None:
                    # A number from the start, since `allow` only adds to one; the options take none below 1.
                    options = replace(options, samples=max(1, self._owed))
                self._queue = ServerQueue(self.server.transport, info, table_of(info, self._table), options)
                self._passed = 0
            return self._queue

    def _note_loss(self, error: TransportError) -> None:
        """Marks the server as missing, if it may be. Raises as `next_batch`."""
        if isinstance(error, Stalled) or not error.retryable:
            self._servers.fail(self.server, error)
        self._servers.lose(self.server, error)

    def _gather(self, queue: ServerQueue) -> None:
        """Keeps what came of a lost server, and closes its queue."""
        # Of a table whose items leave with their last sample, what came is nowhere else.
        try:
            self._rests.extend(queue.drain(0.0))
        except TransportError:
            pass  # the error that lost the server
        finally:
            queue.close()
            self._count(queue)
            self._owed = sum(batch.size for batch in self._rests)

    def _rest(self) -> Batch | None:
        if not self._rests:
            return None
        batch = self._rests.popleft()
        self._owed -= batch.size
        return batch

    def _count(self, queue: ServerQueue) -> None:
        """Adds the counts of a closed queue to those before it, once: `close` may be called while a lost server's queue is closed."""
        with self._lock:
            if self._queue is queue:
                self._before, self._queue = self._before.plus(queue.counts()), None


def _count_rest(feed: Feed) -> int:
    piece = feed.rest()
    return 0 if piece is None else piece.size


def _drain_part(
    feed: Feed, part: ServerPart, quiet_seconds: float, failures: list[Rlds2ReverbError]
) -> Iterator[Piece]:
    """Yields everything that one server still gives; appends an error to `failures`."""
    yield from feed.take(_count_rest(feed))
    try:
        for batch in part.drain(quiet_seconds):
            feed.see(batch)
            yield Piece(part.server.number, batch, 0, batch.size)
    except (TransportError, WireError) as error:
        failures.append(error)


class Draft:
    """The samples of an unfinished batch of `count`; kept when an error comes between, so that no sample is lost."""

    def __init__(self, count: int) -> None:
        self._servers, self._shares = np.full(count, -1), np.zeros(count)
        self._pieces: list[Piece] = []
        self._places: list[Array] = []

    @property
    def left(self) -> Array:
        """Places of the samples that have not come."""
        return np.flatnonzero(self._servers < 0)

    @property
    def came(self) -> int:
        return sum(piece.size for piece in self._pieces)

    def add(self, places: Array, piece: Piece, share: float) -> None:
        """Puts samples at these places; `share` is the probability with which their server was drawn."""
        self._servers[places], self._shares[places] = piece.part, share
        self._pieces.append(piece)
        self._places.append(places)

    def join(self) -> tuple[list[Piece], list[Array], Array, Array]:
        """The pieces, the places of their samples without gaps, and [b] the server of each sample and its probability."""
        there = self._servers >= 0
        rank = np.cumsum(there) - 1
        return self._pieces, [rank[places] for places in self._places], self._servers[there], self._shares[there]


class Draw(NamedTuple):
    """`servers`, [n], the server of each sample; `shares`, by server, the probability with which it was drawn."""

    servers: Array
    shares: Array


class Draws:
    """Draws servers by the sizes of their tables, also for later batches."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._random = np.random.default_rng()
        self._later: deque[Draw] = deque()

    def next(self, count: int, sizes: Array) -> Draw:
        """The draw of the next samples; `sizes` are the items of each server, not all 0."""
        if self._later and len(self._later[0].servers) == count:
            return self._later.popleft()
        return self._draw(count, sizes)

    def ahead(self, counts: list[int], sizes: Array) -> None:
        """Draws for the batches after the next one, of these counts, those that are not drawn yet."""
        for count in counts[len(self._later) :]:
            self._later.append(self._draw(count, sizes))

    def count(self, now: Draw) -> Array:
        """[servers] samples of each server, in this draw and later ones."""
        return np.bincount(np.concatenate([draw.servers for draw in (now, *self._later)]), minlength=self._servers)

    def _draw(self, count: int, sizes: Array) -> Draw:
        shares = sizes / sizes.sum()
        return Draw(self._random.choice(len(sizes), size=count, p=shares), shares)


def _part_options(options: SampleOptions, servers: int) -> SampleOptions:
    """Options of each server: its part of a batch at a time, and bounded waits. Padding, weights and drop_last apply to whole batches.

    `samples` stays where samples of all servers are counted; of episodes that are cut, the number of items of each is not known.

    Raises:
      ConfigError: an option is for one server only.
    """
    if servers == 1:
        return options
    if options.epochs is not None:
        raise ConfigError(
            "sample: epochs: each server counts its own; sample them one by one, each with a client of its own"
        )
    if options.weights == TABLE_MIN:
        raise ConfigError(
            f'sample: weights "{TABLE_MIN}": items of one priority are not equally likely on all servers; use "batch_max"'
        )
    bounds = [seconds for seconds in (options.timeout_seconds, options.end_after_seconds) if seconds is not None]
    return replace(
        options,
        batch_size=max(1, -(-options.batch_size // servers)),
        samples=options.samples if options.cut is None else None,
        drop_last=False,
        timeout_seconds=None,
        end_after_seconds=min([_STALL_SECONDS, *bounds]),
        ragged=LIST,
        pad_to=None,
        weights=None,
        beta=None,
        min_priority=None,
    )
