"""The server in memory: its tables, what others do to them, and the faults that it is told to have."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from rlds2reverb.episodes import Array
from rlds2reverb.transport.memory_samples import SamplePlan, ServerSamples
from rlds2reverb.transport.memory_stream import Gate, ServerStream, StreamPlan
from rlds2reverb.transport.memory_tables import MemoryTable, StoredItem
from rlds2reverb.wire.insert.receiving import Refused
from rlds2reverb.wire.messages import ServerInfo, TableInfo, table_info


class MemoryServer:
    """Tables, and what becomes of streams and calls. Thread-safe; hold `changed` over several steps.

    Args:
      tables: what they are, or names of plain ones.
      state_id: of the server's process.
      batch: most items that one answer confirms.

    Attributes:
      changed: the lock and condition over everything here.
      tables: by name.
      state_id: see `restart`.
      streams: every insert stream so far.
      plans: how the next insert streams go, in order; those after them go well.
      sampled: every sample stream so far.
      sample_plans: how the next sample streams go.
      refusals: statuses with which the next short calls end, such as "PERMISSION_DENIED".
      is_away: no short call is answered.
      checkpoint_path: where a checkpoint is said to be; None for a server without checkpointer.
      questions: asked without waiting, and neither answered nor dropped.
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
        """Messages with items that were taken."""
        return self._gate.requests

    def server_info(self) -> ServerInfo:
        """What the server tells of itself."""
        with self.changed:
            return ServerInfo(self.state_id, {name: table.info for name, table in self.tables.items()})

    def contents(self, table: str = "replay") -> list[tuple[Array, ...]]:
        """The values of a table's items, in the order of insertion; one array per column."""
        with self.changed:
            return [item.values for item in self.tables[table].items.values()]

    # What others do.

    def put(self, table: str, key: int, values: Iterable[Array] = (), priority: float = 1.0) -> None:
        """Inserts as another client does, without a stream and whatever the limiter says."""
        with self.changed:
            self.tables[table].put(key, values, priority)
            self.changed.notify_all()

    def sample(self, table: str = "replay", seconds: float = 10.0) -> StoredItem:
        """Takes a sample as a learner does, when the limiter allows it.

        Raises:
          TimeoutError: it did not, for so long.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: self.tables[table].may_be_sampled, seconds):
                raise TimeoutError(f'table "{table}": no sample could be taken for {seconds:g} s')
            item = self.tables[table].sample()
            self.changed.notify_all()
            return item

    # Faults.

    def hold(self, items: int = 0) -> None:
        """Lets only so many more items in, and says nothing of it."""
        with self.changed:
            self._gate.admitted = items
            self.changed.notify_all()

    def release(self) -> None:
        """Lets everything in."""
        with self.changed:
            self._gate.admitted = None
            self.changed.notify_all()

    def fail_after(self, requests: int | None, status: str = "DATA_LOSS") -> None:
        """Takes so many more requests; every later one ends its stream with the status. None: all go well again."""
        with self.changed:
            self._gate.fails_after = None if requests is None else self._gate.requests + requests
            self._gate.failure = Refused(status, "as planned")

    def break_streams(self, status: str = "UNAVAILABLE") -> None:
        """Ends the streams that are open."""
        with self.changed:
            for stream in self.streams:
                stream.plan = StreamPlan(len(stream.confirmed), status)
            for samples in self.sampled:
                samples.refuse(Refused(status, "as planned"))
            self.changed.notify_all()

    def silence_streams(self) -> None:
        """Makes the open streams carry nothing any more, as half-open connections do. New ones go well."""
        with self.changed:
            for stream in self.streams:
                stream.plan = StreamPlan(silent_after=0)
            for samples in self.sampled:
                samples.plan = SamplePlan(silent_after=0)

    def restart(self) -> None:
        """Another process: another state id, nothing stored, all streams broken."""
        with self.changed:
            self.state_id += 1
            for name, table in self.tables.items():
                self.tables[name] = table.emptied()
            self.break_streams()

    def until(self, claim: Callable[[], bool], seconds: float = 10.0) -> None:
        """Waits until the claim holds; looks whenever something changes.

        Raises:
          TimeoutError: it did not.
        """
        with self.changed:
            if not self.changed.wait_for(claim, seconds):
                raise TimeoutError(f"not within {seconds:g} s")

    # What transports call.

    def opened_stream(self) -> ServerStream:
        """The server's side of a new stream."""
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
        """A table by name.

        Raises:
          Refused: there is none.
        """
        if name not in self.tables:
            raise Refused("NOT_FOUND", f"Priority table {name} was not found")
        return self.tables[name]
