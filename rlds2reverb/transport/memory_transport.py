"""The way to a server in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlds2reverb.episodes import Array
from rlds2reverb.errors import TransportError
from rlds2reverb.transport.memory_server import MemoryServer
from rlds2reverb.transport.memory_side import MemoryStream, ServerSide
from rlds2reverb.transport.memory_tables import MemoryTable
from rlds2reverb.transport.statuses import INSERTING, SAMPLING, call_error, refused_call
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.wire.insert.receiving import Refused
from rlds2reverb.wire.messages import ServerInfo


class MemoryTransport:
    """The way to a server in memory; see `base.Transport`. What takes time over gRPC happens at once.

    Args:
      server: where it leads.
      address: what messages call the server.
      call_seconds: what messages say that a call lasted which was not answered.
    """

    def __init__(self, server: MemoryServer, address: str = "memory", call_seconds: float = Deadlines.call) -> None:
        self.address = address
        self._server, self._call_seconds = server, call_seconds
        self._streams: set[MemoryStream] = set()
        self._is_closed = False

    def server_info(self, at_once: bool = False) -> ServerInfo:
        """All tables; see `base.Transport`."""
        with self._server.changed:
            self._call("asking for its tables")
            return self._server.server_info()

    def ask_server_info(self) -> MemoryPendingInfo:
        """All tables, asked without waiting; see `base.Transport`."""
        with self._server.changed:
            self._check_open()
            try:
                self._server.answer_call()
            except Refused:
                return MemoryPendingInfo(self._server, None)
            return MemoryPendingInfo(self._server, self._server.server_info())

    def delete_items(self, table: str, item_keys: Array) -> None:
        """Takes items out of a table; see `base.Transport`."""
        with self._server.changed:
            self._call("taking items out")
            self._on_table(table, "taking items out").delete(item_keys.tolist())
            self._server.changed.notify_all()

    def update_priorities(self, table: str, item_keys: Array, priorities: Array) -> None:
        """Gives items other priorities; see `base.Transport`."""
        with self._server.changed:
            self._call("updating priorities")
            updated = self._on_table(table, "updating priorities")
            try:
                updated.update(zip(item_keys.tolist(), priorities.tolist()))
            except Refused as refused:
                raise self._error("updating priorities", refused) from refused

    def reset(self, table: str) -> None:
        """Empties a table; see `base.Transport`."""
        with self._server.changed:
            self._call("emptying a table")
            self._on_table(table, "emptying a table").reset()
            self._server.changed.notify_all()

    def checkpoint(self, seconds: float) -> str:
        """Where a checkpoint is said to be; see `base.Transport`."""
        with self._server.changed:
            self._call("writing a checkpoint")
            if self._server.checkpoint_path is None:
                refused = Refused("INVALID_ARGUMENT", "no Checkpointer configured for the replay service.")
                raise self._error("writing a checkpoint", refused)
            return self._server.checkpoint_path

    def insert_stream(self, messages: Iterator[bytes]) -> MemoryStream:
        """Opens an insert stream; see `base.Transport`."""
        return self._open(self._server.opened_stream, INSERTING, messages)

    def sample_stream(self, messages: Iterator[bytes]) -> MemoryStream:
        """Opens a sample stream; see `base.Transport`."""
        return self._open(self._server.opened_samples, SAMPLING, messages)

    def _open(self, opened: Callable[[], ServerSide], doing: str, messages: Iterator[bytes]) -> MemoryStream:
        with self._server.changed:
            self._check_open()
            stream = MemoryStream(opened(), self.address, doing, messages, self._streams.discard)
            self._streams.add(stream)
            return stream

    def _on_table(self, table: str, doing: str) -> MemoryTable:
        try:
            return self._server.table(table)
        except Refused as refused:
            raise self._error(doing, refused) from refused

    def close(self) -> None:
        """Closes everything; streams under way end with an error."""
        with self._server.changed:
            self._is_closed = True
            for stream in tuple(self._streams):
                stream.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise refused_call(self.address, "it is closed")

    def _call(self, doing: str) -> None:
        self._check_open()
        try:
            self._server.answer_call()
        except Refused as refused:
            raise self._error(doing, refused) from refused

    def _error(self, doing: str, refused: Refused) -> TransportError:
        return call_error(self.address, doing, refused.status, refused.details, self._call_seconds)


class MemoryPendingInfo:
    """See `base.PendingInfo`. It was answered when it was asked.

    Args:
      server: which counts the question.
      info: the answer; None for none.
    """

    is_over = True

    def __init__(self, server: MemoryServer, info: ServerInfo | None) -> None:
        self._server, self._info = server, info
        self._count(1)

    def answer(self) -> ServerInfo | None:
        """What the server said; None when it gave no answer."""
        self._count(-1)
        return self._info

    def drop(self) -> None:
        """Says that the answer is not wanted any more."""
        self._count(-1)

    def _count(self, questions: int) -> None:
        with self._server.changed:
            self._server.questions += questions
