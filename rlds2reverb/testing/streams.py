"""Insert and sample streams of a server in memory, seen from both sides.

Every sampled item comes with one chunk of its own, which holds one row per column: the item's value. Samples are taken when the
client reads, not ahead of it. Source of the rules: docs/wire.md; `tests/contract/samples.py` holds them to a real server.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.testing.tables import MemoryTable, ReceivedStream, Refused, Stored, StoredItem
from rlds2reverb.transport.base import stream_error
from rlds2reverb.varint import bytes_field
from rlds2reverb.wire import codec, tensors
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.schema import message_class

CANCELLED = Refused("CANCELLED", "Locally cancelled by application!")


class ServerSide(ABC):
    """What the server does with a stream. Thread-safe.

    Args:
      changed: the server's lock and condition.

    Attributes:
      over: whether it has ended, on either side.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
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
        """Takes a message of the client. With the lock held.

        Raises:
          Refused: it breaks the rules.
          WireError: it is no such message.
        """

    def read(self, messages: Iterator[bytes]) -> None:
        """Takes the client's messages to their end; in a thread of its own."""
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
        """Ends it with a status, after what can be answered."""
        with self._changed:
            self._refused = self._refused or refused
            self._changed.notify_all()

    def cut(self) -> None:
        """Ends it at once, from the client's side."""
        with self._changed:
            self.over = True
            self._changed.notify_all()


class MemoryStream:
    """The client's side; see `base.Stream`.

    Args:
      side: the server's.
      address: what messages call the server.
      doing: what the stream is for, such as `statuses.INSERTING`.
      messages: what the client sends; taken in a thread.
      ended: called by `end`.
    """

    def __init__(
        self,
        side: ServerSide,
        address: str,
        doing: str,
        messages: Iterator[bytes],
        ended: Callable[[MemoryStream], None],
    ) -> None:
        self._side, self._address, self._doing, self._ended = side, address, doing, ended
        threading.Thread(target=side.read, args=(messages,), name="rlds2reverb-memory", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        """The server's messages, until it ends the stream; see `base.Stream`."""
        try:
            while (response := self._side.next_response()) is not None:
                yield response
        except Refused as refused:
            raise stream_error(self._address, self._doing, refused.status, refused.details) from refused

    def cancel(self) -> None:
        """Ends it on this side, at once."""
        self._side.cut()

    def end(self) -> None:
        """Says that it was read to its end, or is not wanted any more. Call it once."""
        self.cancel()
        self._ended(self)

    def abandon(self) -> None:
        """Cancels it; there is no connection that could be dead."""
        self.cancel()


@dataclass
class StreamPlan:
    """How one insert stream goes.

    Attributes:
      items: it ends after so many confirmed items; None: when the client ends it.
      status: with this status; None: without an error.
      response: sent in place of the first confirmation.
      empty_answers: while there is nothing to confirm, confirmations without a key come again and again.
      silent_after: after so many confirmed items nothing is taken or confirmed any more, as on a half-open connection.
    """

    items: int | None = None
    status: str | None = None
    response: bytes | None = None
    empty_answers: bool = False
    silent_after: int | None = None


class Gate:
    """What all streams of a server have in common. Under the server's lock.

    Args:
      tables: by name.
      batch: most items that one answer confirms.

    Attributes:
      admitted: items that are let in yet; None for no bound.
      requests: messages with items that were taken.
      fails_after: so many are taken, and every later one ends its stream with `failure`; None for no bound.
      failure: see there.
    """

    def __init__(self, tables: Mapping[str, MemoryTable], batch: int) -> None:
        self.tables = tables
        self.admitted: int | None = None
        self.requests = 0
        self.fails_after: int | None = None
        self.failure = Refused("DATA_LOSS", "as planned")
        self.batch = batch

    def check(self, stored: list[Stored]) -> None:
        """Takes note of a message.

        Raises:
          Refused: no such table, or requests fail by now.
        """
        for item, _ in stored:
            if item.table not in self.tables:
                raise Refused("NOT_FOUND", f"Priority table {item.table} was not found")
        if stored:
            if self.requests == self.fails_after:
                raise self.failure
            self.requests += 1

    def insert(self, waiting: deque[Stored], most: int) -> list[int]:
        """Stores what comes first and is let in; its keys."""
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


class ServerStream(ServerSide):
    """The server's side. Thread-safe.

    Args:
      changed: the server's lock and condition.
      gate: the server's.
      plan: how it goes; may be replaced at any time.

    Attributes:
      messages: as they came.
      confirmed: keys in the order in which they were confirmed.
      waiting: items that came and are not confirmed.
      most_waiting: the largest number of them so far.
    """

    def __init__(self, changed: threading.Condition, gate: Gate, plan: StreamPlan) -> None:
        super().__init__(changed)
        self._gate, self.plan = gate, plan
        self._rules = ReceivedStream()
        self.messages: list[bytes] = []
        self.confirmed: list[int] = []
        self.waiting: deque[Stored] = deque()
        self.most_waiting = 0

    def next_response(self) -> bytes | None:
        """Waits for the next answer; see `ServerSide`."""
        with self._changed:
            while not self.over:
                if (response := self._response()) is not None:
                    self._changed.notify_all()
                    return response
                if self._is_at_end():
                    self.over = True
                    self._changed.notify_all()
                    self._end()
                    return None
                self._changed.wait(0.01 if self.plan.empty_answers else None)
                if self.plan.empty_answers and not self.over:
                    return b""
        raise CANCELLED

    def _take(self, message: bytes) -> None:
        self.messages.append(message)
        if self._is_silent:
            return
        stored = self._rules.feed(message)
        self._gate.check(stored)
        self.waiting.extend(stored)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        self._changed.notify_all()

    def _response(self) -> bytes | None:
        """What can be answered now."""
        if self._is_silent or self._is_planned_end():
            return None
        if self.plan.response is not None and self.waiting:
            response, self.plan.response = self.plan.response, None
            return response
        ends = (end for end in (self.plan.items, self.plan.silent_after) if end is not None)
        keys = self._gate.insert(
            self.waiting, min((end - len(self.confirmed) for end in ends), default=len(self.waiting))
        )
        self.confirmed += keys
        return codec.encode_confirmed_keys(keys) if keys else None

    @property
    def _is_silent(self) -> bool:
        return self.plan.silent_after is not None and len(self.confirmed) >= self.plan.silent_after

    def _is_planned_end(self) -> bool:
        return self.plan.items is not None and len(self.confirmed) >= self.plan.items

    def _is_at_end(self) -> bool:
        if self._is_planned_end() or self._refused is not None:
            return True
        return self._is_half_closed and not self.waiting and not self._is_silent

    def _end(self) -> None:
        """Raises the status with which it ends, if it does."""
        if self._refused is not None:
            raise self._refused
        if self._is_planned_end() and self.plan.status is not None:
            raise Refused(self.plan.status, "as planned")


TIMED_OUT = "Rate Limiter: Timeout exceeded before the right to insert was acquired."
"""What Reverb 0.14 says of samples, too."""


class Sampled(NamedTuple):
    """One sample, as the server tells of it; `values` are the item's, one array per column."""

    key: int
    priority: float
    times_sampled: int
    probability: float
    table_size: int
    values: tuple[Array, ...]


def decode_sample_request(message: bytes) -> SampleRequest:
    """The other way of `encode_sample_request`.

    Raises:
      WireError: not such a message.
    """
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
                tensors.tensor_header(row.dtype, row.shape) + _content_field(tensors.content_bytes(row))
            )
        content = chunk.SerializeToString()
        chunk_key = _key_of(content)
        entry.data.add(chunk_key=chunk_key, data=content)
        item.flat_trajectory = _trajectory(chunk_key, len(sample.values))
    data: bytes = response.SerializeToString()
    return data


def _key_of(content: bytes) -> int:
    """Another content has another key: what an item holds may change, a chunk never does."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _trajectory(chunk_key: int, columns: int) -> bytes:
    """The first row of every tensor of one chunk, squeezed."""
    trajectory = message_class("FlatTrajectory")()
    for number in range(columns):
        trajectory.columns.add(squeeze=True).chunk_slices.add(chunk_key=chunk_key, length=1, index=number)
    data: bytes = trajectory.SerializeToString()
    return data


def _content_field(content: bytes) -> bytes:
    return bytes_field(4, content)


_TIMED_OUT = Refused("DEADLINE_EXCEEDED", TIMED_OUT)


@dataclass
class SamplePlan:
    """How one sample stream goes.

    Attributes:
      samples: it ends after so many; None: when the client ends it.
      status: with this status; None: without an error.
      response: sent in place of the first samples.
      silent_after: after so many samples nothing is taken or sent any more, as on a half-open connection.
      at_once: samples in one answer at most.
    """

    samples: int | None = None
    status: str | None = None
    response: bytes | None = None
    silent_after: int | None = None
    at_once: int = 128


class ServerSamples(ServerSide):
    """The server's side. Thread-safe.

    Args:
      changed: the server's lock and condition.
      table: a table by name; raises `Refused` when there is none.
      plan: how it goes; may be replaced at any time.

    Attributes:
      requests: as they came.
      sent: keys of the samples, in their order.
    """

    def __init__(self, changed: threading.Condition, table: Callable[[str], MemoryTable], plan: SamplePlan) -> None:
        super().__init__(changed)
        self._table, self.plan = table, plan
        self._waiting: deque[SampleRequest] = deque()
        self.requests: list[SampleRequest] = []
        self.sent: list[int] = []

    def next_response(self) -> bytes | None:
        """Waits for the next samples; see `ServerSide`."""
        with self._changed:
            self._wait(lambda: self._is_planned_end or bool(self._waiting) or self._is_half_closed)
            if self._is_planned_end or not self._waiting:
                self._end()
                return None
            if self.plan.response is not None:
                response: bytes = self.plan.response
                self.plan.response = None
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
        taken = self._taken(self._table(request.table), min(request.samples, self._most))
        self._waiting.popleft()
        if request.samples > len(taken):
            self._waiting.appendleft(request.without(len(taken)))
        self._changed.notify_all()
        return taken

    @property
    def _most(self) -> int:
        """Samples of the next answer at most."""
        ends = (end for end in (self.plan.samples, self.plan.silent_after) if end is not None)
        return min([self.plan.at_once, *(end - len(self.sent) for end in ends)])

    def _taken(self, table: MemoryTable, most: int) -> list[Sampled]:
        taken: list[Sampled] = []
        while len(taken) < most and table.may_be_sampled:
            size, item = len(table.items), table.sample()
            taken.append(_sampled(table, item, size))
            self.sent.append(item.key)
        return taken

    @property
    def _is_silent(self) -> bool:
        return self.plan.silent_after is not None and len(self.sent) >= self.plan.silent_after

    @property
    def _is_planned_end(self) -> bool:
        return self.plan.samples is not None and len(self.sent) >= self.plan.samples

    def _end(self) -> None:
        """The end that the server gives it, which may be a status."""
        self.over = True
        self._changed.notify_all()
        if self._is_planned_end and self.plan.status is not None:
            raise Refused(self.plan.status, "as planned")

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


def _sampled(table: MemoryTable, item: StoredItem, size: int) -> Sampled:
    """As the server tells of it; the probability is that of the moment before."""
    return Sampled(item.key, item.priority, item.times_sampled, table.drawn_with, size, item.values)
