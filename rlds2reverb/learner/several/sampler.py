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
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.learner.batch import Batch, Packing
from rlds2reverb.learner.feed import Feed
from rlds2reverb.learner.interleave import joined_of
from rlds2reverb.learner.joining import Piece
from rlds2reverb.learner.options import LIST, SampleOptions
from rlds2reverb.learner.several.draft import Draft
from rlds2reverb.learner.several.part import Part
from rlds2reverb.learner.several.routes import Routes
from rlds2reverb.learner.several.servers import Servers
from rlds2reverb.learner.several.sizes import Sizes
from rlds2reverb.learner.weights import TABLE_MIN, Weights
from rlds2reverb.specs import Nest
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import SampleInfo

_PATIENCE_SECONDS = 3.0
"""After which a server without a sample is looked at; longer than it takes until a wait is told."""

_LOOK_SECONDS = 0.25
"""How often the servers are asked while all are empty."""


class SeveralSampler(Iterator[Batch]):
    """Iterates batches of one table of several servers; `info.source` is the server's number. Like a `Sampler`. Not thread-safe.

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
        _check(options)
        self.name, self._options = table.name, options
        self.structure: Nest | None = Packing(table, options).structure
        self._servers, self._sizes, self._routes = servers, sizes, routes
        self._weights = (
            None if options.weights is None else Weights(table, options.weights, options.beta, options.min_priority)
        )
        count = len(servers.transports)
        one = _of_one(options, count)
        self._parts = [Part(servers, sizes, number, table.name, one, self.structure) for number in range(count)]
        self._feeds = [Feed(part.number, part, servers.addresses[part.number]) for part in self._parts]
        self._handed = np.zeros(count, np.int64)  # samples of each server
        self._random = np.random.default_rng()
        self._draft: Draft | None = None
        self._items_leave = table.max_times_sampled > 0
        self._last_sizes = sizes.now()
        self._given = 0
        self._ended = threading.Event()

    def __iter__(self) -> SeveralSampler:
        """Batches, until all samples came, or none for `end_after_seconds`. Raises as `next_batch` does."""
        return self

    def __next__(self) -> Batch:
        """The next batch."""
        if (batch := self.next_batch()) is None:
            raise StopIteration
        return batch

    def __enter__(self) -> SeveralSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end.

        Raises:
          Stalled: no batch came for `timeout_seconds`; names the server that was waited for. Iterating may go on.
          ServerUnreachable: a server is gone; with `allow_missing`, all are.
          TransportError, WireError, ServerRestarted: as a `Sampler` does.
          ConfigError: a weight cannot be computed.
        """
        size = self._options.batch_size
        wanted = size if self._options.samples is None else min(size, self._options.samples - self._given)
        if wanted <= 0 or self._ended.is_set():
            return None
        self._draft = self._draft or Draft(wanted)
        self._fill(self._draft)
        draft, self._draft = self._draft, None
        came = wanted - len(draft.left)
        self._given += came
        if not came or (self._options.drop_last and came < size):
            return None
        return self._packed(draft)

    def stop(self) -> None:
        """Asks for no more samples, and ends; `drain` reads what was asked for."""
        self._ended.set()
        for part in self._parts:
            part.stop()

    def drain(self, quiet_seconds: float = 1.0) -> Iterator[Batch]:
        """Asks for no more, hands out all that was asked for, server by server, and closes. As a `Sampler` does.

        Raises:
          Rlds2ReverbError: as iterating does.
        """
        self.stop()
        shares = self._last_sizes / max(1.0, self._last_sizes.sum())
        try:
            if self._draft is not None and self._draft.pieces:
                yield self._packed(self._draft)
            for feed, part in zip(self._feeds, self._parts):
                rest = feed.rest()
                if rest is not None:
                    yield self._packed(Draft.of(rest, shares[part.number]))
                for batch in part.drain(quiet_seconds):
                    feed.see(batch)
                    yield self._packed(Draft.of(Piece(part.number, batch, 0, batch.size), shares[part.number]))
        finally:
            self.close()

    def close(self) -> None:
        """Ends it at once. Samples that were asked for and not read are lost."""
        self._ended.set()
        for part in self._parts:
            part.close()
        self._sizes.close()

    @property
    def received(self) -> int:
        """Samples that came so far, from all servers."""
        return sum(part.received for part in self._parts)

    @property
    def lost_at_most(self) -> int:
        """Samples that servers may have taken and nobody gets."""
        return sum(part.lost_at_most for part in self._parts)

    def _fill(self, draft: Draft) -> None:
        """Draws and takes samples until all are there, or it ends."""
        began = time.monotonic()
        while (left := draft.left).size and not self._ended.is_set():
            sizes = self._sizes.now() + self._unread
            if not sizes.sum() > 0:
                if self._is_over(began, "all servers"):
                    return
                self._look()
                continue
            self._last_sizes = sizes
            shares = sizes / sizes.sum()
            drawn = self._random.choice(len(sizes), size=len(left), p=shares)
            for number in np.unique(drawn).tolist():
                if not self._take(draft, left[drawn == number], number, float(shares[number]), began):
                    return

    def _take(self, draft: Draft, places: Array, number: int, share: float, began: float) -> bool:
        """Takes samples of one server, as long as it has some; whether to go on."""
        while len(places) and not self._ended.is_set():
            for piece in self._feeds[number].take(len(places)):
                draft.add(places[: piece.size], piece, share)
                self._handed[number] += piece.size
                places = places[piece.size :]
            if not len(places):
                return True
            if self._is_over(began, self._servers.addresses[number]):
                return False
            if not self._sizes.asked(number) + self._unread[number]:  # it is empty, or missing: others have the rest
                return True
        return True

    @property
    def _unread(self) -> Array:
        """[n] items of each server that are in its table no more, and not handed out."""
        if not self._items_leave:
            return np.zeros(len(self._parts))
        if self._options.cut is not None:  # what is received are episodes then, not what is cut out of them
            return np.array([0 if (rest := feed.rest()) is None else rest.size for feed in self._feeds])
        return np.array([part.received for part in self._parts]) - self._handed

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

    def _look(self) -> None:
        """All are empty or away: asks again, a little later."""
        self._ended.wait(_LOOK_SECONDS)
        if not self._ended.is_set():
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


def _check(options: SampleOptions) -> None:
    if options.epochs is not None:
        raise ConfigError(
            "sample: epochs: each server counts its own; sample them one by one, each with a client of its own"
        )
    if options.weights == TABLE_MIN:
        raise ConfigError(
            f'sample: weights "{TABLE_MIN}": items of one priority are not equally likely on all servers; use "batch_max"'
        )


def _of_one(options: SampleOptions, servers: int) -> SampleOptions:
    """How one server is sampled: its part of a batch at a time, and never waited for without end. What is of the whole batch is done to the whole."""
    bounds = [one for one in (options.timeout_seconds, options.end_after_seconds) if one is not None]
    return replace(
        options,
        batch_size=max(1, -(-options.batch_size // servers)),
        samples=None,
        drop_last=False,
        timeout_seconds=None,
        end_after_seconds=min([_PATIENCE_SECONDS, *bounds]),
        ragged=LIST,
        pad_to=None,
        weights=None,
        beta=None,
        min_priority=None,
    )
