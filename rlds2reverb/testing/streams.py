"""Insert and sample streams of a server in memory: both sides.

Every sampled item comes with one chunk of its own, which holds one row per column: the item's value. Samples are drawn when the
client reads, not before. Source of the rules: docs/wire.md; `tests/support/contract/samples.py` holds them to a real server.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.protobuf import bytes_field
from rlds2reverb.testing.tables import MemoryTable, ReceivedStream, Refused, Stored
from rlds2reverb.transport.base import stream_error
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.schema import message_class

CANCELLED = Refused("CANCELLED", "Locally cancelled by application!")


@dataclass
class StreamPlan:
    """Planned behaviour of one insert stream.

    Attributes:
      items: number of confirmed items after which it ends; None to leave the end to the client.
      status: of that end; None for no error.
      response: sent in place of the first confirmation.
      empty_answers: while there is nothing to confirm, repeat confirmations without a key.
      silent_after: number of confirmed items after which it neither reads nor confirms, like a half-open connection.
    """

    items: int | None = None
    status: str | None = None
    response: bytes | None = None
    empty_answers: bool = False
    silent_after: int | None = None

    @property
    def _end(self) -> int | None:
        return self.items


@dataclass
class SamplePlan:
    """Planned behaviour of one sample stream.

    Attributes:
      samples: number of samples after which it ends; None to leave the end to the client.
      status: of that end; None for no error.
      response: sent in place of the first samples.
      silent_after: number of samples after which it neither reads nor sends, like a half-open connection.
      at_once: most samples of one answer.
    """

    samples: int | None = None
    status: str | None = None
    response: bytes | None = None
    silent_after: int | None = None
    at_once: int = 128

    @property
    def _end(self) -> int | None:
        return self.samples


Plan = TypeVar("Plan", bound=StreamPlan | SamplePlan)


class ServerSide(ABC, Generic[Plan]):
    """The server's side of a stream. Thread-safe.

    Args:
      changed: the server's lock and condition.
      plan: may be replaced at any time.
      done: keys of items that were confirmed, or of samples that were sent; grows.

    Attributes:
      over: whether the stream has ended, on either side.
    """

    def __init__(self, changed: threading.Condition, plan: Plan, done: list[int]) -> None:
        self._changed, self._done = changed, done
        self.plan: Plan = plan
        self._refused: Refused | None = None
        self._is_half_closed = False
        self.over = False

    @abstractmethod
    def next_response(self) -> bytes | None:
        """Waits for the next answer; None at the end of the stream.

        Raises:
          Refused: it ends with a status.
        """

    @abstractmethod
    def _take(self, message: bytes) -> None:
        """Takes in a message of the client; raises Refused or WireError. With the lock held."""

    @property
    def _is_silent(self) -> bool:
        return self.plan.silent_after is not None and len(self._done) >= self.plan.silent_after

    @property
    def _is_planned_end(self) -> bool:
        return self.plan._end is not None and len(self._done) >= self.plan._end

    def _most(self, count: int) -> int:
        """So many, or as many as the plan leaves."""
        ends = (end for end in (self.plan._end, self.plan.silent_after) if end is not None)
        return min([count, *(end - len(self._done) for end in ends)])

    def _planned_response(self) -> bytes | None:
        response, self.plan.response = self.plan.response, None
        return response

    def _end(self) -> None:
        """With the lock held. Raises Refused where it ends with a status."""
        self.over = True
        self._changed.notify_all()
        if self._refused is not None:
            raise self._refused
        if self._is_planned_end and self.plan.status is not None:
            raise Refused(self.plan.status, "as planned")

    def read(self, messages: Iterator[bytes]) -> None:
        """Takes in the client's messages to their end; in a thread of its own."""
        try:
            for message in messages:
                with self._changed:
                    if self.over:
                        return
                    self._take(message)
        except Refused as refused:
            self.refuse(refused)
        except WireError as error:
            self.refuse(Refused("INTERNAL", str(error)))
        except Exception as error:  # as gRPC does
            self.refuse(Refused("UNKNOWN", f"Exception iterating requests! {error!r}"))
            raise
        with self._changed:
            self._is_half_closed = True
            self._changed.notify_all()

    def refuse(self, refused: Refused) -> None:
        """Ends it with a status, after the answers that can still be given."""
        with self._changed:
            self._refused = self._refused or refused
            self._changed.notify_all()

    def cut(self) -> None:
        """Ends it at once, from the client's side."""
        with self._changed:
            self.over = True
            self._changed.notify_all()


class MemoryStream:
    """The client's side; see `base.Stream`."""

    def __init__(
        self,
        side: ServerSide[Any],
        address: str,
        doing: str,
        messages: Iterator[bytes],
        ended: Callable[[MemoryStream], None],
    ) -> None:
        self._side, self._address, self._doing, self._ended = side, address, doing, ended
        threading.Thread(target=side.read, args=(messages,), name="rlds2reverb-memory", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        try:
            while (response := self._side.next_response()) is not None:
                yield response
        except Refused as refused:
            raise stream_error(self._address, self._doing, refused.status, refused.details) from refused

    def cancel(self) -> None:
        self._side.cut()

    def end(self) -> None:
        self.cancel()
        self._ended(self)

    def abandon(self) -> None:
        """As `cancel`: there is no connection that could be dead."""
        self.cancel()


class Gate:
    """Shared by all insert streams of a server. Under the server's lock.

    Args:
      batch: most items that one answer confirms.

    Attributes:
      admitted: number of further items to store; None for no bound.
      requests: messages with items that were accepted.
      fails_after: number of requests after which every later one ends its stream with `failure`; None for no bound.
    """

    def __init__(self, tables: Mapping[str, MemoryTable], batch: int) -> None:
        self.tables = tables
        self.admitted: int | None = None
        self.requests = 0
        self.fails_after: int | None = None
        self.failure = Refused("DATA_LOSS", "as planned")
        self.batch = batch

    def check(self, stored: list[Stored]) -> None:
        """Counts a message; raises Refused if a table does not exist, or requests fail by now."""
        for item, _ in stored:
            if item.table not in self.tables:
                raise Refused("NOT_FOUND", f"Priority table {item.table} was not found")
        if stored:
            if self.requests == self.fails_after:
                raise self.failure
            self.requests += 1

    def insert(self, waiting: deque[Stored], most: int) -> list[int]:
        """Stores the first items, as many as limiters and `admitted` allow; returns their keys."""
        keys: list[int] = []
        most = min(most, self.batch, self.batch if self.admitted is None else self.admitted)
        allowed: dict[str, int] = {}
        while waiting and len(keys) < most:
            item, values = waiting[0]
            table = self.tables[item.table]
            left = allowed.setdefault(item.table, table.inserts_allowed)
            if not left:
                break
            allowed[item.table] = left - (item.key not in table.items)
            table.put(item.key, values, item.priority)
            keys.append(item.key)
            waiting.popleft()
        if self.admitted is not None:
            self.admitted -= len(keys)
        return keys


class ServerStream(ServerSide[StreamPlan]):
    """The server's side of an insert stream. Thread-safe.

    Attributes:
      messages: as they came.
      confirmed: keys in the order in which they were confirmed.
      waiting: items that are not confirmed.
      most_waiting: the largest number of them so far.
    """

    def __init__(self, changed: threading.Condition, gate: Gate, plan: StreamPlan) -> None:
        self.confirmed: list[int] = []
        super().__init__(changed, plan, self.confirmed)
        self._gate = gate
        self._rules = ReceivedStream()
        self.messages: list[bytes] = []
        self.waiting: deque[Stored] = deque()
        self.most_waiting = 0

    def next_response(self) -> bytes | None:
        with self._changed:
            while not self.over:
                if (response := self._response()) is not None:
                    self._changed.notify_all()
                    return response
                is_read = self._is_half_closed and not self.waiting and not self._is_silent
                if self._is_planned_end or is_read or self._refused is not None:
                    self._end()
                    return None
                self._changed.wait(0.01 if self.plan.empty_answers else None)
                if self.plan.empty_answers and not self.over:
                    return b""
        raise CANCELLED

    def _take(self, message: bytes) -> None:
        self.messages.append(message)
        self._changed.notify_all()  # before what may end it: `until` may wait for just this message
        if self._is_silent:
            return
        stored = self._rules.feed(message)
        self._gate.check(stored)
        self.waiting.extend(stored)
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def _response(self) -> bytes | None:
        if self._is_silent or self._is_planned_end:
            return None
        if self.waiting and (response := self._planned_response()) is not None:
            return response
        keys = self._gate.insert(self.waiting, self._most(len(self.waiting)))
        self.confirmed += keys
        return codec.encode_confirmed_keys(keys) if keys else None


# The text is Reverb 0.14's, also for samples.
_TIMED_OUT = Refused("DEADLINE_EXCEEDED", "Rate Limiter: Timeout exceeded before the right to insert was acquired.")


class Sampled(NamedTuple):
    """One sample; `values` are the item's, one array per column."""

    key: int
    priority: float
    times_sampled: int
    probability: float
    table_size: int
    values: tuple[Array, ...]


def decode_sample_request(message: bytes) -> SampleRequest:
    """The inverse of `encode_sample_request`; raises WireError for another message."""
    try:
        proto = message_class("SampleStreamRequest").FromString(message)
    except (DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"SampleStreamRequest: {len(message)} bytes that are no such message ({error})") from error
    milliseconds = proto.rate_limiter_timeout.milliseconds
    return SampleRequest(proto.table, proto.num_samples, milliseconds / 1000 if milliseconds > 0 else None)


def encode_samples(samples: Iterable[Sampled]) -> bytes:
    """SampleStreamResponse: every item with a chunk of its own, one row per column, squeezed."""
    response = message_class("SampleStreamResponse")()
    for sample in samples:
        entry = response.entries.add(end_of_sequence=True)
        info, item = entry.info, entry.info.item
        info.probability, info.table_size = sample.probability, sample.table_size
        item.key, item.priority, item.times_sampled = sample.key, sample.priority, sample.times_sampled
        chunk = message_class("ChunkTensors")()
        for value in sample.values:
            row = value[np.newaxis]
            chunk.tensors.add().MergeFromString(
                codec.tensor_header(row.dtype, row.shape) + bytes_field(4, codec.content_bytes(row))
            )
        content = chunk.SerializeToString()
        # Another content has another key: an item's values may change, a chunk never does.
        chunk_key = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        entry.data.add(chunk_key=chunk_key, data=content)
        item.flat_trajectory = _trajectory(chunk_key, len(sample.values))
    data: bytes = response.SerializeToString()
    return data


def _trajectory(chunk_key: int, columns: int) -> bytes:
    """The first row of every tensor of one chunk, squeezed."""
    trajectory = message_class("FlatTrajectory")()
    for number in range(columns):
        trajectory.columns.add(squeeze=True).chunk_slices.add(chunk_key=chunk_key, length=1, index=number)
    data: bytes = trajectory.SerializeToString()
    return data


class ServerSamples(ServerSide[SamplePlan]):
    """The server's side of a sample stream. Thread-safe.

    Attributes:
      requests: as they came.
      sent: keys of the samples, in their order.
    """

    def __init__(self, changed: threading.Condition, table: Callable[[str], MemoryTable], plan: SamplePlan) -> None:
        self.sent: list[int] = []
        super().__init__(changed, plan, self.sent)
        self._table = table
        self._waiting: deque[SampleRequest] = deque()
        self.requests: list[SampleRequest] = []

    def next_response(self) -> bytes | None:
        with self._changed:
            self._wait(lambda: self._is_planned_end or bool(self._waiting) or self._is_half_closed)
            if self._is_planned_end or not self._waiting:
                self._end()
                return None
            if (response := self._planned_response()) is not None:
                return response
            return encode_samples(self._next_samples())

    def _take(self, message: bytes) -> None:
        request = decode_sample_request(message)
        self.requests.append(request)
        self._waiting.append(request)
        self._changed.notify_all()

    def _next_samples(self) -> list[Sampled]:
        request = self._waiting[0]
        if request.samples < 1:
            raise Refused("INVALID_ARGUMENT", "`num_samples` must be > 0.")
        self._table(request.table)  # else refused
        self._wait(lambda: self._table(request.table).may_be_sampled, request.timeout_seconds)
        table = self._table(request.table)
        most = self._most(min(request.samples, self.plan.at_once))
        taken: list[Sampled] = []
        while len(taken) < most and table.may_be_sampled:
            size, item = len(table.items), table.sample()
            taken.append(Sampled(item.key, item.priority, item.times_sampled, table.drawn_with, size, item.values))
            self.sent.append(item.key)
        self._waiting.popleft()
        if request.samples > len(taken):
            self._waiting.appendleft(request.without(len(taken)))
        self._changed.notify_all()
        return taken

    def _wait(self, claim: Callable[[], bool], seconds: float | None = None) -> None:
        end = None if seconds is None else time.monotonic() + seconds

        def is_over() -> bool:
            return self.over or self._refused is not None or (claim() and not self._is_silent)

        while not is_over():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise _TIMED_OUT
            self._changed.wait(left)
        if self.over:
            raise CANCELLED
        if self._refused is not None:
            raise self._refused
