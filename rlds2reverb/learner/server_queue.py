"""Batches of one table on one server, requested in the background by streams of samples.

    ServerQueue                   next_batch: waits, cuts, packs
      Watch                       finds out why nothing comes
      InFlight                    shared by all streams: samples still to be requested, batches that are ready
      SampleStream, one or more   sends requests, receives samples, builds batches

Batches that are ready are handed out before anything else is reported, a failure included.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

from rlds2reverb.errors import Rlds2ReverbError, ServerRestarted, Stalled, TransportError, WireError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.options import SampleOptions, count_owed_samples
from rlds2reverb.learner.packing import Packing
from rlds2reverb.learner.slices import Cutting
from rlds2reverb.specs import differences, view_in
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import PersistentStream, Reason, StreamWords, close_streams, why_silent
from rlds2reverb.wire.codec import encode_sample_request
from rlds2reverb.wire.messages import SampleRequest, ServerInfo, TableInfo, Wait, sample_wait
from rlds2reverb.wire.sample.batches import ChunkCache, FlatBatch, batch_builder, in_batches

T = TypeVar("T")

LOG = logging.getLogger("rlds2reverb.learner")
"""The log of samplers: waits, broken streams, losses."""

LOOK_SECONDS = 2.5
"""After which the table is looked at while nothing comes; longer than learners wait for the first reason."""

_LOG_AGAIN_SECONDS = 60.0  # after which the same wait is logged once more

# Streams wait as long as the learner does, whose waits are bounded here. One answer may have 2 MiB, which takes a slow connection its
# time; a stream that is given up as dead meanwhile brings the same again.
_DEADLINES = Deadlines(silence=10.0, stall=1e9)

_LONGER_SILENCE = 6.0  # factor of the silence after which a stream is given up, where its samples would be gone with it
_CLOSE_SECONDS = 1.0  # for threads that are in a call when the queue is closed; they end after the call

_WORDS = StreamWords(
    nothing_came="no sample came",
    gave_nothing="gave no sample",
    without="without a sample",
    way_out="Fill the table, change its rate limiter, or wait longer (timeout_seconds)",
)


class Counts(NamedTuple):
    """Numbers of samples that came, samples that servers may have taken and that were not read, reopened streams, and server restarts."""

    received: int = 0
    lost_at_most: int = 0
    reconnects: int = 0
    restarts: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(operator.add, self, other))


class ServerQueue:
    """Batches of one table on one server. Thread-safe; holds threads until it is closed.

    Raises:
      ConfigError: the structure in the options is not that of the table, or the table cannot give the requested epochs.

    Attributes:
      structure: see `Sampler`.
    """

    def __init__(self, transport: Transport, info: ServerInfo, table: TableInfo, options: SampleOptions) -> None:
        self._packing = Packing(table, options)
        self.structure = self._packing.structure
        cutter = self._packing.cutter
        self._cutting = None if cutter is None else Cutting(table.name, cutter, options.batch_size, options.drop_last)
        self._drops_last = options.drop_last and cutter is None  # of cut items, `Cutting` drops it
        self._drained = Drained() if options.epochs is not None else None
        if options.epochs is not None:
            options = replace(options, samples=count_owed_samples(table, options.epochs), epochs=None)
        self._options = options
        self._transport, self._table = transport, table
        self._window = InFlight(options.samples, info.state_id)
        self._changed = self._window.changed
        self._is_closed = self._was_closed_early = False
        self._ends_now = False  # the rest was handed out: the end follows
        prefetch, chunks = options.choose_prefetch(table), ChunkCache(options.arena_bytes)
        if not chunks.is_compiled:
            _log_once(
                "samples are read without the compiled library, more slowly: install a C compiler, then this package anew"
            )
        self._users = [
            SampleStream(transport, table, self._window, options.request_size, prefetch, chunks)
            for _ in range(options.streams)
        ]
        silence = _DEADLINES.silence * (_LONGER_SILENCE if table.max_times_sampled > 0 else 1.0)
        deadlines = replace(_DEADLINES, silence=silence, reconnect=options.reconnect_seconds)
        self._streams = [
            PersistentStream(transport, user, info.state_id, deadlines, changed=self._changed) for user in self._users
        ]
        on_wait: Callable[[Reason], object] = options.on_wait or WaitLog(table.name)
        self._watch = Watch(transport, self._streams, self._changed, on_wait, deadlines.notice)

    def next_batch(self) -> Batch | None:
        """See `Sampler.next_batch`."""
        return self._pack_next(self._next_flat)

    def allow(self, more: int) -> None:
        """Increases `samples`, where it is bounded. For a queue that has not ended."""
        with self._changed:
            if self._window.left is not None:
                self._window.left += more
                self._changed.notify_all()

    def stop(self) -> None:
        """Requests nothing more."""
        with self._changed:
            self._window.is_stopped = True
            self._changed.notify_all()

    def drain(self, quiet_seconds: float) -> Iterator[Batch]:
        """See `Sampler.drain`. Close it afterwards."""
        self.stop()
        if self._cutting is not None:
            self._cutting.drain()
        failures: list[Rlds2ReverbError] = []
        flats = self._left(quiet_seconds, failures)
        while (batch := self._pack_next(partial(next, flats, None))) is not None:
            yield batch
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Ends it at once: samples that were requested and not read are lost. Closing twice is harmless."""
        self._was_closed_early = True
        self._end()

    @property
    def is_closed(self) -> bool:
        """Whether its streams have ended: all samples came, or it was closed."""
        return self._is_closed

    def counts(self) -> Counts:
        uncut = 0 if self._cutting is None or not self._was_closed_early else self._cutting.held
        with self._changed:
            window, reconnects = self._window, sum(stream.reconnects for stream in self._streams)
            return Counts(window.received, window.lost_at_most + uncut, reconnects, window.restarts)

    # Waiting for a batch.

    def _pack_next(self, flats: Callable[[], FlatBatch | None]) -> Batch | None:
        flat = flats() if self._cutting is None else self._cutting.next(flats)
        return None if flat is None else self._packing.pack(flat)

    def _next_flat(self) -> FlatBatch | None:
        """Waits for the next batch as the server sent it; None at an end. Raises as `next_batch`."""
        while (flat := self._pop()) is None:
            with self._changed:
                is_end, self._ends_now = self._ends_now or self._is_closed, False
            if is_end:
                if self._is_empty:
                    self._end()  # a pending request would take what is inserted later
                return None
            if self._is_due_in_time():
                is_more = self._is_more()
            elif self._options.end_after_seconds is None and not self._is_empty:
                raise self._stall_error()
            else:
                is_more = self._ends_now = not self._drops_last and self._gather(are_short_ones_dropped=False)
            if not is_more:
                return None
        return flat

    def _left(self, quiet_seconds: float, failures: list[Rlds2ReverbError]) -> Iterator[FlatBatch]:
        """Yields batches until all samples came, or none for `quiet_seconds`, then the rest as a short one.

        Appends errors to `failures`.
        """
        try:
            while not self._is_closed:
                if (flat := self._pop()) is not None:
                    yield flat
                    continue
                with self._changed:
                    received = self._window.received
                    is_over = self._is_over
                if is_over or not self._watch.until(partial(self._is_due_since, received), quiet_seconds):
                    break
        except (TransportError, WireError) as error:
            failures.append(error)
        self._gather(are_short_ones_dropped=False)
        while (flat := self._pop()) is not None:
            yield flat

    def _pop(self) -> FlatBatch | None:
        with self._changed:
            return self._window.get() if self._window.ready and not self._is_closed else None

    def _is_due_in_time(self) -> bool:
        """Waits for a batch, or an end; False on a timeout, or when the table is empty for good."""
        seconds = self._options.end_after_seconds or self._options.timeout_seconds
        if self._drained is None:
            return self._watch.until(self._is_due, seconds)
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        while not self._watch.until(self._is_due, min(LOOK_SECONDS, max(0.0, end - time.monotonic()))):
            if self._is_found_empty(self._drained, end) or time.monotonic() >= end:
                return False
        return True

    def _is_found_empty(self, drained: Drained, end: float) -> bool:
        """Looks at the table; whether it is empty for good. A batch ends the look early, and so does the clock at `end`."""
        received = self.counts().received
        look = BackgroundCall(self._changed, partial(_look_at, self._transport, self._table))
        self._watch.is_done_until(lambda: look.is_over or self._is_due(), end)
        return look.is_over and drained.is_over(look.result(), received)

    @property
    def _is_empty(self) -> bool:
        return self._drained is not None and self._drained.was_over

    def _is_due(self) -> bool:
        """Whether a batch is ready, or none will come; raises the error that ended a stream. With the lock held."""
        if self._is_closed or self._window.ready:
            return True
        for stream in self._streams:
            if stream.failure is not None:
                raise stream.failure
        return self._is_over

    def _is_due_since(self, received: int) -> bool:
        return self._is_due() or self._window.received > received

    @property
    def _is_over(self) -> bool:
        """Whether nothing will be requested, and nothing is awaited. With the lock held."""
        return self._window.is_spent and all(user.awaits_nothing for user in self._users)

    def _is_more(self) -> bool:
        """Whether a batch can follow. After the last sample it makes batches of the rest; without a rest, it ends the streams."""
        with self._changed:
            if self._is_closed:
                return False
            is_more = bool(self._window.ready) or not self._is_over or self._gather(self._drops_last)
        if not is_more:
            self._end()
        return is_more

    def _gather(self, are_short_ones_dropped: bool) -> bool:
        """Makes batches of the samples that are in none yet; False without any. Dropped samples count as lost."""
        size = self._options.request_size
        with self._changed:
            rests = [rest for user in self._users if (rest := user.rest()) is not None]
            try:
                whole = list(in_batches(rests, size))
            except WireError:  # the streams brought items of different columns
                self._window.lost_at_most += sum(map(len, rests))
                raise
            if are_short_ones_dropped and whole and len(whole[-1]) < size:
                self._window.lost_at_most += len(whole.pop())
            self._window.put(whole)
            self._changed.notify_all()  # more may be requested
            return bool(whole)

    def _stall_error(self) -> Stalled:
        with self._changed:
            held = sum(user.held for user in self._users)
        return Stalled(
            f'server {self._transport.address}, table "{self._table.name}": no batch within {self._options.timeout_seconds:g} s '
            f"({counted(held, 'sample')} of {self._options.request_size:,} came); {self._watch.reason().text}. {_WORDS.way_out}"
        )

    def _end(self) -> None:
        """Ends all streams, and counts the samples that are lost with them."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        # Without the lock, which the threads that are waited for need to end.
        close_streams(self._streams, _CLOSE_SECONDS)
        with self._changed:
            unread = self._window.clear() + sum(user.held for user in self._users)
            awaited = sum(user.awaited for user in self._users)
            self._window.lost_at_most += unread + awaited
        if self._table.max_times_sampled > 0 and unread + awaited:
            LOG.warning(
                'table "%s": closed with %s that came and were not read, and %s asked for that the server may have taken, or '
                "takes from what is inserted next; with max_times_sampled %d they are gone: drain() before close()",
                self._table.name,
                counted(unread, "sample"),
                counted(awaited, "sample"),
                self._table.max_times_sampled,
            )


class InFlight:
    """The in-flight window of all streams of a queue, and the batches that are ready. Hold `changed` for every call.

    Attributes:
      changed: the lock, and the condition that all threads wait on.
      left: samples still to be requested; None for no end.
      is_stopped: nothing more is requested.
      received: samples that came.
      lost_at_most: samples that the server may have taken, and that were not read.
      restarts: how often another server process answered.
    """

    def __init__(self, samples: int | None, state_id: int) -> None:
        self.changed = threading.Condition()
        self.left = samples
        self.is_stopped = False
        self.received = self.lost_at_most = self.restarts = 0
        self._state_id = state_id
        self._ready: deque[tuple[FlatBatch, Callable[[int], object] | None]] = deque()

    def grant(self, samples: int) -> int:
        """Number of samples that may be requested now, at most so many; they count as requested."""
        if self.is_stopped:
            return 0
        if self.left is None:
            return samples
        granted = min(samples, self.left)
        self.left -= granted
        return granted

    def lose(self, awaited: int) -> None:
        """A stream broke that awaited so many samples: as many may be requested in their place."""
        self.lost_at_most += awaited
        if self.left is not None:
            self.left += awaited

    def answers(self, state_id: int) -> None:
        """Counts restarts by the process that answers; every stream notices a restart by itself."""
        self.restarts += state_id != self._state_id
        self._state_id = state_id

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is requested."""
        return self.is_stopped or self.left == 0

    @property
    def ready(self) -> int:
        """Number of batches that are ready."""
        return len(self._ready)

    def put(self, batches: Iterable[FlatBatch], on_read: Callable[[int], object] | None = None) -> None:
        """Appends batches; `on_read` is called with the number of samples of each that is read."""
        self._ready.extend((batch, on_read) for batch in batches)

    def get(self) -> FlatBatch:
        """Removes the oldest batch. There must be one."""
        batch, on_read = self._ready.popleft()
        if on_read is not None:
            on_read(len(batch))
        return batch

    def clear(self) -> int:
        """Removes all batches; returns the number of their samples."""
        unread = sum(len(batch) for batch, _ in self._ready)
        self._ready.clear()
        return unread


class _Decoded(NamedTuple):
    """What an answer gave."""

    samples: int  # that it completes
    full: list[FlatBatch]  # the batches that these complete
    error: Exception | None  # what cannot be read of it


class SampleStream:
    """One stream of samples of one table, as a `StreamUser`; see there for when the lock is held.

    Bounds the samples that are requested, on their way, or ready to `prefetch` batches. A request fills the window once half of it is
    free: the server sends more at once the more is requested (observed in 0.14: 128 samples of a request first, then twice as many
    each time).

    Chunks that were decoded before the stream broke, or the server was restarted, stay: a chunk's key is drawn at random from
    64 bits by whoever writes it, never given twice, and comes back unchanged with a checkpoint.

    Attributes:
      awaited: samples that were requested and have not come.
      held: samples that came and are in no batch yet.
    """

    words = _WORDS

    def __init__(
        self,
        transport: Transport,
        table: TableInfo,
        window: InFlight,
        batch_size: int,
        prefetch: int,
        chunks: ChunkCache,
    ) -> None:
        self._transport, self._table, self._window = transport, table, window
        self._most, self._least = batch_size * prefetch, batch_size * max(1, prefetch // 2)
        self._builder = batch_builder(batch_size, chunks)
        # Locks in this order: `changed`, then `_building`. `decode` takes the second alone, since decoding may take long.
        self._building = threading.Lock()
        self._ready = 0  # samples in batches that are ready
        self.awaited = self.held = 0

    def open(self, messages: Iterator[bytes]) -> Stream:
        return self._transport.sample_stream(messages)

    def next_messages(self) -> tuple[bytes, ...]:
        samples = self._window.grant(self._free()) if self._is_request_due() else 0
        if not samples:
            return ()
        self.awaited += samples
        return (encode_sample_request(SampleRequest(self._table.name, samples)),)

    def _free(self) -> int:
        return self._most - self.awaited - self.held - self._ready

    def _is_request_due(self) -> bool:
        """Whether enough is free for a request; one sample is enough when the server has nothing to do."""
        return self._free() >= self._least or (not self.awaited and self._free() > 0)

    def decode(self, message: bytes) -> _Decoded:
        full: list[FlatBatch] = []
        error = None
        with self._building:
            before = self._builder.waiting
            try:
                self._builder.take(message, full)
            except (WireError, MemoryError) as caught:  # raised behind the batches that came before it
                error = caught
            return _Decoded(sum(map(len, full)) + self._builder.waiting - before, full, error)

    def take(self, answer: _Decoded) -> bool:
        samples, full, error = answer
        if samples > self.awaited:
            raise WireError(
                f'server {self._transport.address}, table "{self._table.name}": {samples} samples came where {self.awaited} were awaited'
            )
        in_batches = sum(map(len, full))
        self.awaited -= samples
        self.held += samples - in_batches
        self._ready += in_batches
        self._window.received += samples
        self._window.put(full, self._read)
        if error is not None:
            raise error
        return samples > 0

    def _read(self, samples: int) -> None:
        self._ready -= samples
        if self._is_request_due() and not self._window.is_spent:
            self._window.changed.notify_all()

    def lost(self) -> None:
        self._window.lose(self.awaited)
        self.awaited = 0
        with self._building:
            self._builder.lost()

    @property
    def awaits_nothing(self) -> bool:
        return not self.awaited

    def rest(self) -> FlatBatch | None:
        """Removes the samples that are in no batch yet; None without any."""
        with self._building:
            rest = self._builder.rest()
        self.held -= 0 if rest is None else len(rest)
        return rest

    def held_back(self, info: ServerInfo) -> list[Wait]:
        if self._table.name not in info.tables:
            return []
        wait = sample_wait(info.tables[self._table.name])
        return [wait] if wait.blocks else []

    def restarted(self, what: str, info: ServerInfo) -> None:
        """Continues with the new process if its table holds the same kind of items."""
        name = self._table.name
        if name not in info.tables:
            raise ServerRestarted(f'{what}; it has no table "{name}"; sample anew once it has one')
        before, now = self._table.signature, info.tables[name].signature
        is_other = before != now or view_in(before) != view_in(now)
        if before is not None and now is not None and is_other and (changes := differences(before, now)):
            raise ServerRestarted(
                f'{what}; its table "{name}" has another signature: {"; ".join(changes)}; sample anew to take it as it is'
            )
        self._window.answers(info.state_id)

    def resumed(self, why: str) -> None:
        LOG.warning(
            'table "%s": its stream of samples broke, and another one took its place: %s', self._table.name, why
        )


class Watch:
    """Waits for what streams bring. Several threads may wait; one of them calls `on_wait`.

    Another thread asks the server why nothing comes, so that a sample ends the wait at once, however slow the server answers.

    Args:
      changed: the lock and condition of all that is waited for.
      on_wait: called with the reason every `notice_seconds` of a wait, and with an empty one when the wait is over.
    """

    def __init__(
        self,
        transport: Transport,
        streams: Sequence[PersistentStream[Any]],
        changed: threading.Condition,
        on_wait: Callable[[Reason], object],
        notice_seconds: float,
    ) -> None:
        self._transport, self._streams, self._changed = transport, streams, changed
        self._on_wait, self._notice_seconds = on_wait, notice_seconds
        self._noticing = threading.Lock()
        self._call: BackgroundCall[Reason] | None = None
        self._noticed_at: float | None = None

    def until(self, done: Callable[[], bool], seconds: float | None) -> bool:
        """Waits until `done`, called with the lock held, is true; False when the time is over first. Raises what `done` does, and
        WireError when the server does not answer as Reverb.
        """
        began = time.monotonic()
        end = math.inf if seconds is None else began + seconds
        while not self.is_done_until(done, min(end, max(began, self._noticed_at or began) + self._notice_seconds)):
            if time.monotonic() >= end:
                return False
            self._notice(done, end)
        self._end_notice()
        return True

    def is_done_until(self, done: Callable[[], bool], end: float) -> bool:
        """As `until`, up to `end` of `time.monotonic` and without a notice."""
        with self._changed:
            while not (is_done := done()) and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return is_done

    def reason(self) -> Reason:
        """Why nothing comes: the server's latest explanation, or a new one that is waited for; raises WireError as `until`."""
        with self._changed:
            call = self._call
            if call is None or call.age_seconds > 2 * self._notice_seconds:
                call = self._ask()
        return call.result()

    def _ask(self) -> BackgroundCall[Reason]:
        """Asks the server, unless an answer is awaited. With the lock held."""
        if self._call is None or self._call.is_over:
            self._call = BackgroundCall(self._changed, lambda: why_silent(self._transport, self._streams))
        return self._call

    def _notice(self, done: Callable[[], bool], end: float) -> None:
        """Calls `on_wait` with the reason, unless the wait is over before the server has explained it."""
        if not self._noticing.acquire(blocking=False):  # another thread does
            self.is_done_until(done, min(end, time.monotonic() + self._notice_seconds))
            return
        try:
            with self._changed:
                call = self._ask()
            if self.is_done_until(lambda: done() or call.is_over, end) and call.is_over:
                reason = call.result()
                self._noticed_at = time.monotonic()
                self._on_wait(reason)
        finally:
            self._noticing.release()

    def _end_notice(self) -> None:
        if self._noticed_at is not None and self._noticing.acquire(blocking=False):
            try:
                noticed_at, self._noticed_at = self._noticed_at, None
                if noticed_at is not None:
                    self._on_wait(Reason())
            finally:
                self._noticing.release()


class BackgroundCall(Generic[T]):
    """A call in a thread of its own, which begins at once; `changed` is notified at its end."""

    def __init__(self, changed: threading.Condition, call: Callable[[], T]) -> None:
        self._changed, self._call = changed, call
        self._future: Future[T] = Future()
        self._over_at = math.inf
        threading.Thread(target=self._run, name="rlds2reverb-ask", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._over_at < math.inf

    @property
    def age_seconds(self) -> float:
        """Seconds since the result came; negative before it."""
        return time.monotonic() - self._over_at

    def result(self) -> T:
        """Waits for the result; raises what the call raised."""
        return self._future.result()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except Exception as error:  # not handled here: raised in the thread that wants the result
            self._future.set_exception(error)
        # Only now, with the result there: whoever sees `is_over` must not wait for it.
        with self._changed:
            self._over_at = time.monotonic()
            self._changed.notify_all()


class WaitLog:
    """Logs waits: the beginning of each reason, a reminder every minute, and the end. The default `on_wait`."""

    def __init__(self, table: str, write: Callable[[str], object] = LOG.warning) -> None:
        self._table, self._write = table, write
        self._logged: tuple[str, ...] | None = None
        self._noticed_at = 0.0

    def __call__(self, reason: Reason) -> None:
        now, kind = time.monotonic(), (*reason.held_by, reason.text.split(":")[0])  # the rest of it counts
        if not reason.text:
            self._write(f'table "{self._table}": samples come again')
            self._logged = None
        elif kind != self._logged or now - self._noticed_at > _LOG_AGAIN_SECONDS:
            self._write(f'table "{self._table}": waiting for samples: {reason.text}')
            self._logged, self._noticed_at = kind, now


@cache
def _log_once(text: str) -> None:
    LOG.warning(text)


def _look_at(transport: Transport, table: TableInfo) -> TableInfo | None:
    """The table as it is now, None when it is gone; as it was at first when the server does not answer.

    Streams wait for an absent server as long as they may, and a table that cannot be seen is not an empty one.
    """
    try:
        return transport.server_info().tables.get(table.name)
    except TransportError as error:
        if not error.retryable:
            raise
        return table


class Drained:
    """Finds out whether a table is empty for good: it was empty at two looks in a row, and no sample came between them."""

    def __init__(self) -> None:
        self._received_when_empty: int | None = None
        self.was_over = False

    def is_over(self, table: TableInfo | None, received: int) -> bool:
        """Judges by one more look: the table now, None when it is gone, and the samples received so far."""
        before = self._received_when_empty
        self._received_when_empty = received if table is None or not table.current_size else None
        self.was_over = self._received_when_empty is not None and before == received
        return self.was_over
