"""The server in memory and the transport to it: tables, streams, other clients, and planned faults."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rlds2reverb.episode import Array
from rlds2reverb.testing.streams import (
    Gate,
    MemoryStream,
    SamplePlan,
    ServerSamples,
    ServerSide,
    ServerStream,
    StreamPlan,
)
from rlds2reverb.testing.tables import MemoryTable, Refused, StoredItem
from rlds2reverb.transport.base import CHECKPOINT_ATTEMPTS, INSERTING, SAMPLING, call_error, refused_call
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.wire.messages import ServerInfo, TableInfo, table_info


class MemoryServer:
    """A server in memory. Thread-safe; hold `changed` over several steps.

    Args:
      tables: their descriptions, or names of plain tables.
      state_id: of the server's process.
      batch: most items that one answer confirms.

    Attributes:
      changed: the lock and condition over the server's state.
      tables: by name.
      state_id: see `restart`.
      streams: every insert stream so far.
      plans: of the next insert streams, in order; later streams have no faults.
      sampled: every sample stream so far.
      sample_plans: of the next sample streams.
      refusals: statuses with which the next short calls end, such as "PERMISSION_DENIED".
      is_away: no short call is answered.
      checkpoint_path: returned by `checkpoint`; None for a server without checkpointer.
      questions: number of requests without waiting that are neither answered nor dropped.
    """

    def __init__(self, *tables: TableInfo | str, state_id: int = 1, batch: int = 1000) -> None:
        infos = [table_info(table) if isinstance(table, str) else table for table in tables or ("replay",)]
        self.changed = threading.Condition(threading.RLock())
        self.tables = {info.name: MemoryTable(info) for info in infos}
        self.state_id = state_id
        self.streams: list[ServerStream] = []
        self.plans: deque[StreamPlan] = deque()
        self.sampled: list[ServerSamples] = []
        self.sample_plans: deque[SamplePlan] = deque()
        self.refusals: deque[str] = deque()
        self.is_away = False
        self.checkpoint_path: str | None = None
        self.questions = 0
        self._gate = Gate(self.tables, batch)

    @property
    def requests(self) -> int:
        """Number of accepted messages with items."""
        return self._gate.requests

    def server_info(self) -> ServerInfo:
        """The server's description of its tables."""
        with self.changed:
            return ServerInfo.of(self.state_id, [table.info for table in self.tables.values()])

    def contents(self, table: str = "replay") -> list[tuple[Array, ...]]:
        """The values of a table's items, in the order of insertion; one array per column."""
        with self.changed:
            return [item.values for item in self.tables[table].items.values()]

    # Other clients.

    def put(self, table: str, key: int, values: Iterable[Array] = (), priority: float = 1.0) -> None:
        """Inserts an item as another client does, without a stream and without the limiter."""
        with self.changed:
            self.tables[table].put(key, values, priority)
            self.changed.notify_all()

    def sample(self, table: str = "replay", seconds: float = 10.0) -> StoredItem:
        """Draws a sample as a learner does, when the limiter allows it.

        Raises:
          TimeoutError: it did not within `seconds`.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: self.tables[table].may_be_sampled, seconds):
                raise TimeoutError(f'table "{table}": no sample could be taken for {seconds:g} s')
            item = self.tables[table].sample()
            self.changed.notify_all()
            return item

    # Faults.

    def hold(self, items: int = 0) -> None:
        """Stores so many more items, and holds later ones back without an answer."""
        with self.changed:
            self._gate.admitted = items
            self.changed.notify_all()

    def release(self) -> None:
        """Ends `hold`."""
        with self.changed:
            self._gate.admitted = None
            self.changed.notify_all()

    def fail_after(self, requests: int | None, status: str = "DATA_LOSS") -> None:
        """Accepts so many more requests; every later one ends its stream with the status. None ends this fault."""
        with self.changed:
            self._gate.fails_after = None if requests is None else self._gate.requests + requests
            self._gate.failure = Refused(status, "as planned")

    def break_streams(self, status: str = "UNAVAILABLE") -> None:
        """Ends the open streams with a status."""
        with self.changed:
            for stream in self.streams:
                stream.plan = StreamPlan(len(stream.confirmed), status)
            for samples in self.sampled:
                samples.refuse(Refused(status, "as planned"))
            self.changed.notify_all()

    def silence_streams(self) -> None:
        """Makes the open streams silent, like half-open connections. New ones work."""
        with self.changed:
            for stream in self.streams:
                stream.plan = StreamPlan(silent_after=0)
            for samples in self.sampled:
                samples.plan = SamplePlan(silent_after=0)

    def restart(self) -> None:
        """Becomes another process: another state id, empty tables, all streams broken."""
        with self.changed:
            self.state_id += 1
            for name, table in self.tables.items():
                self.tables[name] = table.emptied()
            self.break_streams()

    def until(self, claim: Callable[[], bool], seconds: float = 10.0) -> None:
        """Waits until the claim is true, checked at every change.

        Raises:
          TimeoutError: it was not within `seconds`.
        """
        with self.changed:
            if not self.changed.wait_for(claim, seconds):
                raise TimeoutError(f"not within {seconds:g} s")

    # Called by transports.

    def opened_stream(self) -> ServerStream:
        """The server's side of a new insert stream."""
        with self.changed:
            stream = ServerStream(self.changed, self._gate, self.plans.popleft() if self.plans else StreamPlan())
            self.streams.append(stream)
            self.changed.notify_all()
            return stream

    def opened_samples(self) -> ServerSamples:
        """The server's side of a new sample stream."""
        with self.changed:
            plan = self.sample_plans.popleft() if self.sample_plans else SamplePlan()
            samples = ServerSamples(self.changed, self.table, plan)
            self.sampled.append(samples)
            self.changed.notify_all()
            return samples

    def answer_call(self) -> None:
        """Called first by every short call.

        Raises:
          Refused: the call is not answered.
        """
        with self.changed:
            if self.is_away:
                raise Refused("UNAVAILABLE", "the server is away")
            if self.refusals:
                raise Refused(self.refusals.popleft(), "as planned")

    def table(self, name: str) -> MemoryTable:
        """Returns a table by name.

        Raises:
          Refused: no such table.
        """
        if name not in self.tables:
            raise Refused("NOT_FOUND", f"Priority table {name} was not found")
        return self.tables[name]


class MemoryTransport:
    """A transport to a server in memory; see `base.Transport`. Calls that take time over gRPC return at once.

    Args:
      server: to call.
      address: for messages.
      call_seconds: for messages, the duration of a call that was not answered.
    """

    def __init__(self, server: MemoryServer, address: str = "memory", call_seconds: float = Deadlines.call) -> None:
        self.address = address
        self._server, self._call_seconds = server, call_seconds
        self._streams: set[MemoryStream] = set()
        self._is_closed = False

    def server_info(self, at_once: bool = False) -> ServerInfo:
        """All tables; see `base.Transport`."""
        with self._call("asking for its tables"):
            return self._server.server_info()

    def ask_server_info(self) -> MemoryPendingInfo:
        """All tables, requested without waiting; see `base.Transport`."""
        info = None
        with self._server.changed, suppress(Refused):
            self._check_open()
            self._server.answer_call()
            info = self._server.server_info()
        return MemoryPendingInfo(self._server, info)

    def delete_items(self, table: str, item_keys: Array) -> None:
        """Removes items from a table; see `base.Transport`."""
        with self._call("taking items out"):
            self._server.table(table).delete(item_keys.tolist())

    def update_priorities(self, table: str, item_keys: Array, priorities: Array) -> None:
        """Changes priorities; see `base.Transport`."""
        with self._call("updating priorities"):
            self._server.table(table).update(zip(item_keys.tolist(), priorities.tolist()))

    def reset(self, table: str) -> None:
        """Empties a table; see `base.Transport`."""
        with self._call("emptying a table"):
            self._server.table(table).reset()

    def checkpoint(self, seconds: float, attempts: int = CHECKPOINT_ATTEMPTS) -> str:
        """Returns `MemoryServer.checkpoint_path`; see `base.Transport`."""
        with self._call("writing a checkpoint"):
            if self._server.checkpoint_path is None:
                raise Refused("INVALID_ARGUMENT", "no Checkpointer configured for the replay service.")
            return self._server.checkpoint_path

    def insert_stream(self, messages: Iterator[bytes]) -> MemoryStream:
        """Opens an insert stream; see `base.Transport`."""
        return self._open(self._server.opened_stream, INSERTING, messages)

    def sample_stream(self, messages: Iterator[bytes]) -> MemoryStream:
        """Opens a sample stream; see `base.Transport`."""
        return self._open(self._server.opened_samples, SAMPLING, messages)

    def _open(self, open_side: Callable[[], ServerSide[Any]], doing: str, messages: Iterator[bytes]) -> MemoryStream:
        with self._server.changed:
            self._check_open()
            stream = MemoryStream(open_side(), self.address, doing, messages, self._streams.discard)
            self._streams.add(stream)
            return stream

    def close(self) -> None:
        """Closes the transport; open streams end with an error."""
        with self._server.changed:
            self._is_closed = True
            for stream in tuple(self._streams):
                stream.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise refused_call(self.address, "it is closed")

    @contextmanager
    def _call(self, doing: str) -> Iterator[None]:
        """A short call, with the lock held; raises TransportError where the server refuses it."""
        with self._server.changed:
            self._check_open()
            try:
                self._server.answer_call()
                yield
            except Refused as refused:
                raise call_error(self.address, doing, refused.status, refused.details, self._call_seconds) from refused
            self._server.changed.notify_all()


class MemoryPendingInfo:
    """See `base.PendingInfo`. It was answered at the request; `info` is None for no answer."""

    is_over = True

    def __init__(self, server: MemoryServer, info: ServerInfo | None) -> None:
        self._server, self._info = server, info
        self._count(1)

    def answer(self) -> ServerInfo | None:
        self._count(-1)
        return self._info

    def drop(self) -> None:
        self._count(-1)

    def _count(self, questions: int) -> None:
        with self._server.changed:
            self._server.questions += questions
