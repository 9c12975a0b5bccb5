"""The samples of one table, from all streams of a sampler: batches of columns, waited for, gathered at the end, counted when lost.

What is ready is handed out before anything else is said, a failure included.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from rlds2reverb.errors import Stalled, TransportError
from rlds2reverb.learner.epochs import LOOK_SECONDS, Drained, look_at
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.pieces import pieces
from rlds2reverb.learner.pool import Pool
from rlds2reverb.learner.question import Question
from rlds2reverb.learner.sampling import STREAM_WORDS, Sampling
from rlds2reverb.learner.watch import LOG, WaitLog, Watch
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.closing import close_streams
from rlds2reverb.transport.stream import KeptStream
from rlds2reverb.transport.stream_user import Reason, unheard
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.messages import ServerInfo, TableInfo
from rlds2reverb.wire.sample.batches import FlatBatch
from rlds2reverb.wording import counted

_DEADLINES = Deadlines(silence=10.0, stall=1e9)
"""Streams wait for as long as the learner does, whose waits are bounded here. One answer may have 2 MiB, which takes a slow
connection its time; a stream that is taken for dead meanwhile brings the same again."""

_CAREFUL = 6.0
"""Times as long is the silence in which a stream is taken for dead where its samples would be gone with it."""

_CLOSE_SECONDS = 1.0
"""For threads that are in the middle of a call when all is closed; they end after it."""


class Supply:
    """Flat batches of one table. Thread-safe. See `Sampler`, which makes batches of them, and has the same arguments.

    Args:
      ends_empty: end for good when the table is empty.
    """

    def __init__(
        self,
        transport: Transport,
        info: ServerInfo,
        table: TableInfo,
        options: SampleOptions,
        ends_empty: bool = False,
    ) -> None:
        self._transport, self._table, self._options = transport, table, options
        self._drops_last = options.drop_last and options.cut is None  # of what is cut, the sampler drops it
        self._process = os.getpid()
        self._pool = Pool(options.samples, info.state_id)
        self._changed = self._pool.changed
        self._is_closed = False
        self._seen: TableInfo | None = table
        self._drained = Drained(lambda: self._seen) if ends_empty else None
        self._ends_now = False  # the rest was handed out: what follows is the end
        prefetch, arena_bytes = options.prefetch_of(table), max(1, options.arena_bytes // options.streams)
        self._samplings = [
            Sampling(transport, table, self._pool, options.request_size, prefetch, arena_bytes)
            for _ in range(options.streams)
        ]
        silence = _DEADLINES.silence * (_CAREFUL if table.max_times_sampled > 0 else 1.0)
        deadlines = replace(_DEADLINES, silence=silence, reconnect=options.reconnect_seconds)
        self._streams = [
            KeptStream(transport, sampling, info.state_id, deadlines, changed=self._changed)
            for sampling in self._samplings
        ]
        on_wait: Callable[[Reason], object] = options.on_wait or WaitLog(table.name)
        self._watch = Watch(transport, self._streams, self._changed, on_wait, deadlines.notice)

    @property
    def received(self) -> int:
        """Samples that came so far."""
        self.check_ours()
        with self._changed:
            return self._pool.received

    @property
    def reconnects(self) -> int:
        """How often a stream was opened in place of one that broke."""
        self.check_ours()
        with self._changed:
            return sum(stream.reconnects for stream in self._streams)

    @property
    def restarts(self) -> int:
        """How often another server process answered."""
        self.check_ours()
        with self._changed:
            return self._pool.restarts

    @property
    def lost_at_most(self) -> int:
        """See `Sampler.lost_at_most`."""
        self.check_ours()
        with self._changed:
            return self._pool.lost_at_most

    @property
    def is_closed(self) -> bool:
        """See `Sampler.is_closed`."""
        return self._is_closed

    def allow(self, more: int) -> None:
        """See `Sampler.allow`."""
        with self._changed:
            if self._pool.left is not None:
                self._pool.left += more
                self._changed.notify_all()

    def stop(self) -> None:
        """Asks for nothing more."""
        self.check_ours()
        with self._changed:
            self._pool.is_stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all streams, and counts what is lost with them. Any number of times."""
        if not self.is_ours:
            return
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        close_streams(self._streams, _CLOSE_SECONDS)
        self._count_lost()

    @property
    def is_ours(self) -> bool:
        """Whether this process has the threads, rather than the one that it was forked from."""
        return self._process == os.getpid()

    def check_ours(self) -> None:
        """Refuses a forked process with a TransportError: the lock may have been held just then, and the samples are the other's."""
        if not self.is_ours:
            raise TransportError(
                "this sampler was made before the process was forked, and has no threads here: make another one"
            )

    # Waiting for a batch.

    def next_flat(self) -> FlatBatch | None:
        """The next batch, waited for; None at an end.

        Raises:
          TransportError: this process was forked from that of the streams; or as `Sampler` does.
        """
        quiet_seconds = self._options.end_after_seconds
        while (flat := self._popped()) is None:
            if self._ends():
                if self._is_empty:
                    self.close()  # a request that is left would take what is inserted later
                return None
            if self._is_due_in_time():
                is_more = self._is_more()
            elif quiet_seconds is None and not self._is_empty:
                raise self._stalled()
            else:
                is_more = self._ends_now = not self._drops_last and self._gather(are_short_ones_dropped=False)
            if not is_more:
                return None
        return flat

    def until_quiet(self, quiet_seconds: float) -> Iterator[FlatBatch]:
        """Batches, until nothing comes any more, or nothing came for so long."""
        while not self._is_closed:
            if (flat := self._popped()) is not None:
                yield flat
                continue
            with self._changed:
                is_there = partial(self._is_due_since, self._pool.received)
                is_over = self._is_over
            if is_over or not self._watch.until(is_there, quiet_seconds):
                return

    def rests(self) -> Iterator[FlatBatch]:
        """What is there, and in the end what is in no batch yet, in a short batch if need be, whatever `drop_last` says."""
        self.check_ours()
        self._gather(are_short_ones_dropped=False)
        while (flat := self._popped()) is not None:
            yield flat

    def _popped(self) -> FlatBatch | None:
        self.check_ours()
        with self._changed:
            return self._pool.get() if self._pool.ready and not self._is_closed else None

    def _ends(self) -> bool:
        """Whether this is the end that is due after the rest."""
        with self._changed:
            ends, self._ends_now = self._ends_now or self._is_closed, False
            return ends

    def _is_due_in_time(self) -> bool:
        """Waits for a batch, or an end; False when that took too long, or when the table is empty for good."""
        seconds = self._options.end_after_seconds or self._options.timeout_seconds
        if self._drained is None:
            return self._watch.until(self._is_due, seconds)
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        while not self._watch.until(self._is_due, min(LOOK_SECONDS, max(0.0, end - time.monotonic()))):
            if self._is_found_empty(self._drained, end) or time.monotonic() >= end:
                return False
        return True

    def _is_found_empty(self, drained: Drained, end: float) -> bool:
        """Looks at the table; whether it is empty for good. What comes meanwhile ends the look, and so does the clock at `end`."""
        received = self.received
        look = Question(self._changed, partial(look_at, self._transport, self._table))
        self._watch.is_done_until(lambda: look.is_over or self._is_due(), end)
        if not look.is_over:
            return False
        self._seen = look.answer()
        return drained.is_over(received)

    @property
    def _is_empty(self) -> bool:
        """Whether the table was found empty for good."""
        return self._drained is not None and self._drained.was_over

    def _is_due(self) -> bool:
        """Whether there is a batch, or none will come. With the lock held.

        Raises:
          Exception: what has ended a stream for good.
        """
        if self._is_closed or self._pool.ready:
            return True
        for stream in self._streams:
            if stream.failure is not None:
                raise stream.failure
        return self._is_over

    def _is_due_since(self, received: int) -> bool:
        return self._is_due() or self._pool.received > received

    @property
    def _is_over(self) -> bool:
        """Whether nothing more is asked for, and nothing awaited. With the lock held."""
        return self._pool.is_spent and all(sampling.awaits_nothing for sampling in self._samplings)

    def _is_more(self) -> bool:
        """After a wait: whether there is a batch. At the end of all samples the rest is one, and streams end after it."""
        with self._changed:
            if self._is_closed:
                return False
            is_more = bool(self._pool.ready) or not self._is_over or self._gather(self._drops_last)
        if not is_more:
            self.close()
        return is_more

    def _gather(self, are_short_ones_dropped: bool) -> bool:
        """Makes batches of the samples that are in none yet; whether there is one. What is dropped counts as lost."""
        with self._changed:
            rests = [rest for sampling in self._samplings if (rest := sampling.rest()) is not None]
            whole = list(pieces(rests, self._options.request_size))
            if are_short_ones_dropped and whole and len(whole[-1]) < self._options.request_size:
                self._pool.lost_at_most += len(whole.pop())
            self._pool.put(whole, unheard)
            self._changed.notify_all()  # there is room for other samples
            return bool(whole)

    def _stalled(self) -> Stalled:
        with self._changed:
            held = sum(sampling.held for sampling in self._samplings)
        return Stalled(
            f'server {self._transport.address}, table "{self._table.name}": no batch within {self._options.timeout_seconds:g} s '
            f"({counted(held, 'sample')} of {self._options.request_size:,} came); {self._watch.reason().text}. {STREAM_WORDS.way_out}"
        )

    def _count_lost(self) -> None:
        with self._changed:
            unread = self._pool.clear() + sum(sampling.held for sampling in self._samplings)
            awaited = sum(sampling.awaited for sampling in self._samplings)
            self._pool.lost_at_most += unread + awaited
        if self._table.max_times_sampled > 0 and unread + awaited:
            LOG.warning(
                'table "%s": closed with %s that came and were not read, and %s asked for that the server may have taken, or '
                "takes from what is inserted next; with max_times_sampled %d they are gone: drain() before close()",
                self._table.name,
                counted(unread, "sample"),
                counted(awaited, "sample"),
                self._table.max_times_sampled,
            )
