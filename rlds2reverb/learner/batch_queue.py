"""The batches of one table on one server: asked for by streams of samples, put together, and waited for.

    BatchQueue                    next_batch: waits, cuts, packs
      Watch                       why nothing comes
      InFlight                    what all streams share: samples still to be asked for, batches that are ready
      SampleStream, one or more   requests out, samples in, batches built

What is ready is handed out before anything else is said, a failure included.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from rlds2reverb.errors import Rlds2ReverbError, ServerRestarted, Stalled, TransportError, WireError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.learner.packing import Packing
from rlds2reverb.learner.slices import Cutting
from rlds2reverb.specs import differences, view_in
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import PersistentStream, Reason, StreamWords, close_streams, why_silent
from rlds2reverb.wire.limiter import Wait, sample_wait
from rlds2reverb.wire.messages import SampleRequest, ServerInfo, TableInfo
from rlds2reverb.wire.sample.batches import BatchBuilder, FlatBatch, in_batches
from rlds2reverb.wire.sample.stream import encode_sample_request

T = TypeVar("T")

LOG = logging.getLogger("rlds2reverb.learner")
"""The log of samplers: waits, broken streams, losses."""

LOOK_SECONDS = 2.5
"""How long nothing comes before the table is looked at; longer than learners wait for the first reason."""

_LOG_AGAIN_SECONDS = 60.0
"""After which the same wait is logged once more."""

_DEADLINES = Deadlines(silence=10.0, stall=1e9)
"""Streams wait for as long as the learner does, whose waits are bounded here. One answer may have 2 MiB, which takes a slow
connection its time; a stream that is taken for dead meanwhile brings the same again."""

_LONGER_SILENCE = 6.0
"""Times as long is the silence in which a stream is taken for dead where its samples would be gone with it."""

_CLOSE_SECONDS = 1.0
"""For threads that are in the middle of a call when all is closed; they end after it."""

_WORDS = StreamWords(
    nothing_came="no sample came",
    gave_nothing="gave no sample",
    without="without a sample",
    way_out="Fill the table, change its rate limiter, or wait longer (timeout_seconds)",
)


class BatchQueue:
    """Batches of one table on one server. Thread-safe; holds threads until it is closed.

    Args:
      transport: the way to the server.
      info: the server's tables.
      table: of which one.
      options: how.

    Raises:
      ConfigError: the structure that is asked for is not that of the table, or it cannot give the epochs that are asked for.

    Attributes:
      structure: see `Sampler`.
    """

    def __init__(self, transport: Transport, info: ServerInfo, table: TableInfo, options: SampleOptions) -> None:
        self._packing = Packing(table, options)
        self.structure = self._packing.structure
        cutter = self._packing.cutter
        self._cutting = None if cutter is None else Cutting(table.name, cutter, options.batch_size, options.drop_last)
        self._drops_last = options.drop_last and cutter is None  # of what is cut, the cutting drops it
        self._latest: TableInfo | None = table
        self._drained = Drained(lambda: self._latest) if options.epochs is not None else None
        self._options = options = options.in_samples(table)
        self._transport, self._table = transport, table
        self._window = InFlight(options.samples, info.state_id)
        self._changed = self._window.changed
        self._is_closed = self._is_left = False
        self._ends_now = False  # the rest was handed out: what follows is the end
        prefetch, arena_bytes = options.prefetch_of(table), max(1, options.arena_bytes // options.streams)
        self._users = [
            SampleStream(transport, table, self._window, options.request_size, prefetch, arena_bytes)
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
        """The next batch, waited for; None when all samples came, or none for `end_after_seconds`: then later ones may follow.

        Raises:
          Stalled: no batch came for `timeout_seconds`; says what the rate limiter waits for.
          TransportError: the server is gone for longer than `reconnect_seconds`, or refuses.
          WireError: an answer that is not Reverb's.
          ServerRestarted: the new server process has no such table any more, or one of another signature.
        """
        return self._packed(self._next_flat)

    def allow(self, more: int) -> None:
        """Makes `samples`, where that is bounded, so many more. For a queue that has not ended."""
        with self._changed:
            if self._window.left is not None:
                self._window.left += more
                self._changed.notify_all()

    def stop(self) -> None:
        """Asks for nothing more."""
        with self._changed:
            self._window.is_stopped = True
            self._changed.notify_all()

    def drain(self, quiet_seconds: float) -> Iterator[Batch]:
        """Asks for no more, and gives all that comes until nothing came for so long. Close it afterwards. See `Sampler.drain`.

        Raises:
          TransportError, WireError: as `next_batch` does, after what came was handed out.
        """
        self.stop()
        if self._cutting is not None:
            self._cutting.drain()
        failures: list[Rlds2ReverbError] = []
        flats = self._left(quiet_seconds, failures)
        while (batch := self._packed(partial(next, flats, None))) is not None:
            yield batch
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Ends it at once: samples that were asked for and not read are lost. Any number of times."""
        self._is_left = True
        self._end()

    # What became of the samples.

    @property
    def is_closed(self) -> bool:
        """Whether its streams have ended: all samples came, or it was closed."""
        return self._is_closed

    @property
    def received(self) -> int:
        """Samples that came so far."""
        with self._changed:
            return self._window.received

    @property
    def reconnects(self) -> int:
        """How often a stream was opened in place of one that broke."""
        with self._changed:
            return sum(stream.reconnects for stream in self._streams)

    @property
    def restarts(self) -> int:
        """How often another server process answered."""
        with self._changed:
            return self._window.restarts

    @property
    def lost_at_most(self) -> int:
        """Samples that the server may have taken and that were not read: of streams that broke, and unread when it was closed."""
        uncut = 0 if self._cutting is None or not self._is_left else self._cutting.held
        with self._changed:
            return self._window.lost_at_most + uncut

    # Waiting for a batch.

    def _packed(self, flats: Callable[[], FlatBatch | None]) -> Batch | None:
        flat = flats() if self._cutting is None else self._cutting.next(flats)
        return None if flat is None else self._packing.pack(flat)

    def _next_flat(self) -> FlatBatch | None:
        """The next batch of what the server sent, waited for; None at an end. Raises as `next_batch`."""
        while (flat := self._popped()) is None:
            if self._ends():
                if self._is_empty:
                    self._end()  # a request that is left would take what is inserted later
                return None
            if self._is_due_in_time():
                is_more = self._is_more()
            elif self._options.end_after_seconds is None and not self._is_empty:
                raise self._stalled()
            else:
                is_more = self._ends_now = not self._drops_last and self._gather(are_short_ones_dropped=False)
            if not is_more:
                return None
        return flat

    def _left(self, quiet_seconds: float, failures: list[Rlds2ReverbError]) -> Iterator[FlatBatch]:
        """Yields the batches that still come, then the rest as a short batch; appends errors to `failures`."""
        try:
            yield from self._until_quiet(quiet_seconds)
        except (TransportError, WireError) as error:
            failures.append(error)
        self._gather(are_short_ones_dropped=False)
        while (flat := self._popped()) is not None:
            yield flat

    def _until_quiet(self, quiet_seconds: float) -> Iterator[FlatBatch]:
        """Yields batches until all samples have come, or none came for `quiet_seconds`."""
        while not self._is_closed:
            if (flat := self._popped()) is not None:
                yield flat
                continue
            with self._changed:
                received = self._window.received
                is_over = self._is_over
            if is_over or not self._watch.until(partial(self._is_due_since, received), quiet_seconds):
                return

    def _popped(self) -> FlatBatch | None:
        with self._changed:
            return self._window.get() if self._window.ready and not self._is_closed else None

    def _ends(self) -> bool:
        """Whether iteration ends now: once after the rest, always when closed."""
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
        look = BackgroundCall(self._changed, partial(_look_at, self._transport, self._table))
        self._watch.is_done_until(lambda: look.is_over or self._is_due(), end)
        if not look.is_over:
            return False
        self._latest = look.result()
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
        """Whether nothing more is asked for, and nothing awaited. With the lock held."""
        return self._window.is_spent and all(user.awaits_nothing for user in self._users)

    def _is_more(self) -> bool:
        """Whether a batch can follow. After the last sample it makes batches of the rest; without one, streams end."""
        with self._changed:
            if self._is_closed:
                return False
            is_more = bool(self._window.ready) or not self._is_over or self._gather(self._drops_last)
        if not is_more:
            self._end()
        return is_more

    def _gather(self, are_short_ones_dropped: bool) -> bool:
        """Makes batches of the samples that are in none yet; whether there is one. What is dropped counts as lost."""
        size = self._options.request_size
        with self._changed:
            rests = [rest for user in self._users if (rest := user.rest()) is not None]
            whole = list(in_batches(rests, size))
            if are_short_ones_dropped and whole and len(whole[-1]) < size:
                self._window.lost_at_most += len(whole.pop())
            self._window.put(whole)
            self._changed.notify_all()  # there is room for other samples
            return bool(whole)

    def _stalled(self) -> Stalled:
        with self._changed:
            held = sum(user.held for user in self._users)
        return Stalled(
            f'server {self._transport.address}, table "{self._table.name}": no batch within {self._options.timeout_seconds:g} s '
            f"({counted(held, 'sample')} of {self._options.request_size:,} came); {self._watch.reason().text}. {_WORDS.way_out}"
        )

    def _end(self) -> None:
        """Ends all streams, and counts what is lost with them."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
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
    """The in-flight window of all streams of a queue, and their batches that are ready. Hold `changed`, which all threads wait on.

    Args:
      samples: to ask for in all; None for no end.
      state_id: of the server process that was asked for its tables.

    Attributes:
      changed: the lock, and the condition over all that is here.
      left: samples still to be asked for; None for no end.
      is_stopped: nothing more is asked for.
      received: samples that came.
      lost_at_most: samples that the server may have taken, and that are not read.
      restarts: how often another server process answered.
    """

    def __init__(self, samples: int | None, state_id: int) -> None:
        self.changed = threading.Condition()
        self.left = samples
        self.is_stopped = False
        self.received = self.lost_at_most = self.restarts = 0
        self._state_id = state_id
        self._ready: deque[tuple[FlatBatch, Callable[[int], object] | None]] = deque()

    def grant(self, wanted: int) -> int:
        """How many of them may be asked for; they count as asked for."""
        if self.is_stopped:
            return 0
        if self.left is None:
            return wanted
        granted = min(wanted, self.left)
        self.left -= granted
        return granted

    def lose(self, awaited: int) -> None:
        """A stream broke that was to bring so many: others may be asked for in their place."""
        self.lost_at_most += awaited
        if self.left is not None:
            self.left += awaited

    def answers(self, state_id: int) -> None:
        """A server process answers; every stream notices a restart by itself."""
        self.restarts += state_id != self._state_id
        self._state_id = state_id

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is asked for."""
        return self.is_stopped or self.left == 0

    @property
    def ready(self) -> int:
        """Batches to be read."""
        return len(self._ready)

    def put(self, batches: Iterable[FlatBatch], on_read: Callable[[int], object] | None = None) -> None:
        """Puts batches behind those that are ready; `on_read` is called with the samples of each that is read."""
        self._ready.extend((batch, on_read) for batch in batches)

    def get(self) -> FlatBatch:
        """Takes out the batch that has been ready for longest. There must be one."""
        batch, on_read = self._ready.popleft()
        if on_read is not None:
            on_read(len(batch))
        return batch

    def clear(self) -> int:
        """Takes all batches out; how many samples they held."""
        unread = sum(len(batch) for batch, _ in self._ready)
        self._ready.clear()
        return unread


class SampleStream:
    """One stream of samples of one table, as a `StreamUser`, which says when the lock is held.

    How many samples are under way is bounded here. A request asks for as much as there is room for, once half of it is free: the
    server takes more at once the more it is asked for (observed in 0.14: 128 samples of a request first, then twice as many each time).

    Chunks that were decoded before the stream broke, or the server was restarted, stay: a chunk's key is drawn at random from
    64 bits by whoever writes it, never given twice, and comes back unchanged with a checkpoint.

    Args:
      transport: the way to the server.
      table: as the server tells of it.
      window: shared with the other streams of the queue.
      batch_size: samples of a batch.
      prefetch: batches that may be asked for, on their way, or ready.
      arena_bytes: most bytes of decoded chunks that are kept.

    Attributes:
      awaited: samples that were asked for and have not come.
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
        arena_bytes: int,
    ) -> None:
        self._transport, self._table, self._window = transport, table, window
        self._most, self._least = batch_size * prefetch, batch_size * max(1, prefetch // 2)
        self._builder = BatchBuilder(batch_size, arena_bytes)
        self._building = threading.Lock()
        self._ready = 0  # samples in batches that are ready
        self.awaited = self.held = 0

    def open(self, messages: Iterator[bytes]) -> Stream:
        """A sample stream."""
        return self._transport.sample_stream(messages)

    def next_messages(self) -> tuple[bytes, ...]:
        """The next request, for as many samples as there is room for."""
        wanted = self._window.grant(self._room) if self._has_room else 0
        if not wanted:
            return ()
        self.awaited += wanted
        return (encode_sample_request(SampleRequest(self._table.name, wanted)),)

    @property
    def _room(self) -> int:
        return self._most - self.awaited - self.held - self._ready

    @property
    def _has_room(self) -> bool:
        """Whether there is room enough for a request; any is enough when the server has nothing to do."""
        return self._room >= self._least or (not self.awaited and self._room > 0)

    def decode(self, message: bytes) -> tuple[int, list[FlatBatch]]:
        """How many samples an answer ends, and the batches that they complete."""
        with self._building:
            before = self._builder.waiting
            full = self._builder.take(message)
            return sum(map(len, full)) + self._builder.waiting - before, full

    def take(self, answer: tuple[int, list[FlatBatch]]) -> bool:
        """Counts samples, and puts their batches beside the others.

        Raises:
          WireError: more came than were asked for.
        """
        samples, full = answer
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
        return samples > 0

    def lost(self) -> None:
        """What was asked for will be asked for again."""
        self._window.lose(self.awaited)
        self.awaited = 0
        with self._building:
            self._builder.lost()

    @property
    def awaits_nothing(self) -> bool:
        """Whether every sample that was asked for is there."""
        return not self.awaited

    def rest(self) -> FlatBatch | None:
        """The samples that are in no batch yet; None when there are none."""
        with self._building:
            rest = self._builder.rest()
        self.held -= 0 if rest is None else len(rest)
        return rest

    def held_back(self, info: ServerInfo) -> list[Wait]:
        """The rate limiter that holds the samples back."""
        if self._table.name not in info.tables:
            return []
        wait = sample_wait(info.tables[self._table.name])
        return [wait] if wait.blocks else []

    def restarted(self, what: str, info: ServerInfo) -> None:
        """Continues with the new process, when its table holds the same kind of items."""
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

    def _read(self, samples: int) -> None:
        self._ready -= samples
        if self._has_room and not self._window.is_spent:
            self._window.changed.notify_all()


class Watch:
    """Waits for what streams bring. Several threads may wait; one of them calls `on_wait`.

    The server is asked in another thread: what comes meanwhile ends the wait at once, however slow the server answers.

    Args:
      transport: asked why, when nothing comes.
      streams: which may be silent.
      changed: the lock and condition of all that is waited for.
      on_wait: called with the reason after `notice_seconds` and as often again, and with an empty one when the wait is over.
      notice_seconds: see there.
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
        """Waits until the claim holds, which is asked with the lock held; False when the time was over first.

        Raises:
          Exception: whatever `done` raises.
          WireError: the server, when it was asked for the reason, gave an answer that is not Reverb's.
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
        """Waits until the claim holds or the clock, `time.monotonic`, is at `end`, without a notice; whether it holds."""
        with self._changed:
            while not (is_done := done()) and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return is_done

    def reason(self) -> Reason:
        """Why nothing comes, as the server explained it just now, or else explains it; waits for that.

        Raises:
          WireError: the server gave an answer that is not Reverb's.
        """
        with self._changed:
            call = self._call
            if call is None or call.age_seconds > 2 * self._notice_seconds:
                call = self._ask()
        return call.result()

    def _ask(self) -> BackgroundCall[Reason]:
        """Asks the server, unless an answer is awaited already. With the lock held."""
        if self._call is None or self._call.is_over:
            self._call = BackgroundCall(self._changed, lambda: why_silent(self._transport, self._streams))
        return self._call

    def _notice(self, done: Callable[[], bool], end: float) -> None:
        """Calls `on_wait` with the reason, unless the wait is over before the server has explained it."""
        if not self._noticing.acquire(blocking=False):  # another thread is at it
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
    """A call in a thread of its own, which begins at once; so whoever wants the result takes what comes meanwhile.

    The thread ends with the result, or with the deadline of the call.

    Args:
      changed: notified when the result is there.
      call: gives the result, or raises.
    """

    def __init__(self, changed: threading.Condition, call: Callable[[], T]) -> None:
        self._changed, self._call = changed, call
        self._results: list[T] = []
        self._failure: Exception | None = None
        self._over_at = math.inf
        threading.Thread(target=self._run, name="rlds2reverb-ask", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether the result is there, or none will come."""
        return self._over_at < math.inf

    @property
    def age_seconds(self) -> float:
        """Seconds since the result came; negative before it."""
        return time.monotonic() - self._over_at

    def result(self) -> T:
        """The result, waited for.

        Raises:
          Exception: what the call raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_over)
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as error:  # not handled here: raised in the thread that wants the result
            self._failure = error
        with self._changed:
            self._over_at = time.monotonic()
            self._changed.notify_all()


class WaitLog:
    """Writes waits to the log: each reason's beginning, once more every minute, and that it is over. The default `on_wait`.

    Args:
      table: as messages call it.
      write: takes the lines instead of the log.
    """

    def __init__(self, table: str, write: Callable[[str], object] = LOG.warning) -> None:
        self._table, self._write = table, write
        self._logged: tuple[str, ...] | None = None
        self._noticed_at = 0.0

    def __call__(self, reason: Reason) -> None:
        """Logs a reason, when it is new."""
        now, kind = time.monotonic(), (*reason.held_by, reason.text.split(":")[0])  # the rest of it counts
        if not reason.text:
            self._write(f'table "{self._table}": samples come again')
            self._logged = None
        elif kind != self._logged or now - self._noticed_at > _LOG_AGAIN_SECONDS:
            self._write(f'table "{self._table}": waiting for samples: {reason.text}')
            self._logged, self._noticed_at = kind, now


def _look_at(transport: Transport, table: TableInfo) -> TableInfo | None:
    """The table as the server tells of it now, None when it is gone; as it was at first when the server does not answer.

    Streams wait for a server that is away as long as they may, and a table that cannot be seen is not an empty one.
    """
    try:
        return transport.server_info().tables.get(table.name)
    except TransportError as error:
        if not error.retryable:
            raise
        return table


class Drained:
    """Tells when a table is empty for good. Ask it when nothing came for `LOOK_SECONDS`.

    Args:
      look: the table, as the server tells of it now; None when it is gone.

    Attributes:
      was_over: what it said last.
    """

    def __init__(self, look: Callable[[], TableInfo | None]) -> None:
        self._look = look
        self._received_when_empty: int | None = None
        self.was_over = False

    def is_over(self, received: int) -> bool:
        """Whether it was empty at the look before, too, and no sample came in between.

        Args:
          received: samples that have come so far.
        """
        table = self._look()
        was = self._received_when_empty
        self._received_when_empty = received if table is None or not table.current_size else None
        self.was_over = self._received_when_empty is not None and was == received
        return self.was_over
