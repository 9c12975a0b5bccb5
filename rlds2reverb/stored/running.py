"""A running server's table -> a snapshot: by a checkpoint that the server writes, or by sampling until every item was seen.

Every sample counts in an item's times_sampled and in the table's rate limiter. So a table whose items leave after so many samples, or
whose limiter weighs samples against inserts, is refused unless the caller allows it to be disturbed; one whose sampler gives the same
item over and over cannot be read at all.

The result is the table at one moment if no items were inserted or removed meanwhile: the server's counts must be the same before and after.
"""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rlds2reverb.client import connect
from rlds2reverb.episode import note
from rlds2reverb.errors import SourceError, TransportError
from rlds2reverb.stored.checkpoint import DONE, Checkpoint, choose_table, find_newest
from rlds2reverb.stored.rows import ChunkBuilder, Items, Snapshot, reader_of
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.wire.codec import encode_sample_request
from rlds2reverb.wire.messages import SampleRequest, TableInfo, samples_allowed

_RANDOM = ("uniform", "prioritized")
_AT_ONCE = 1 << 14  # samples of a request, at most: between two requests it is seen whether an item is still missing
_LIMITER_SECONDS = 10.0
_SILENT_SECONDS = 60.0  # gRPC has no bound of its own for a stream that is open and says nothing
_SURE = 12  # one uniform sampling in e^12 does not see every item in the samples that are allowed
_PATIENCE = 8  # prioritized tables get so many times the samples of uniform ones


def why_not(table: TableInfo) -> str:
    """Why sampling a table would change it for its other users; "" if it would not."""
    if table.max_times_sampled > 0:
        return f"its items leave after {table.max_times_sampled} samples, so that reading it takes them out"
    limiter = table.rate_limiter
    if samples_allowed(table) < _most_samples(table) or limiter.max_diff < 1e300:
        return "its rate limiter weighs samples against inserts, and would count those that are read"
    return ""


def sample_table(transport: Transport, people: str, table: TableInfo, may_disturb: bool) -> Snapshot:
    """Samples a table, as it is now, until every item was seen.

    Raises:
      SourceError: sampling cannot show every item, or would disturb other users; or the table changed meanwhile, or items never came.
      TransportError: the server is gone, or sent nothing for a minute.
    """
    where = f'{people}: table "{table.name}"'
    if not table.current_size:
        raise SourceError(f"{where} holds no items")
    _check(where, table, may_disturb)
    before = transport.server_info()
    taker, item_count = SampleTaker(where), table.current_size
    most, taken = _most_samples(table), 0
    while len(taker.seen) < item_count and taken < most:
        samples = max(1, min(most - taken, _AT_ONCE, table.current_size))
        taken += taker.take(transport, SampleRequest(table.name, samples, _LIMITER_SECONDS))
    after = transport.server_info()
    now = after.tables.get(table.name)
    if now is None or after.state_id != before.state_id or now.rate_limiter.inserts != table.rate_limiter.inserts:
        raise SourceError(f"{where} was written to while it was sampled; stop the writers, or use through=checkpoint")
    if len(taker.seen) != item_count or (table.max_times_sampled <= 0 and now.current_size != item_count):
        raise SourceError(
            f"{where}: {len(taker.seen):,} of {item_count:,} items came in {taken:,} samples; items of priority 0 never do, and others "
            "may have been removed meanwhile; use through=checkpoint"
        )
    taker.items.close_writing()
    text = f"table sampled until each of its {item_count:,} items was seen: {taken:,} samples, which count in times_sampled"
    return Snapshot(
        people, table.name, table.signature, taker.chunks.build(), taker.items, (note("read_by_sampling", text, taken),)
    )


def _check(where: str, table: TableInfo, may_disturb: bool) -> None:
    is_random = table.sampler.startswith(_RANDOM)
    if not is_random and table.max_times_sampled < 1 and table.current_size > 1:
        raise SourceError(
            f"{where}: its sampler {table.sampler} gives the same item over and over; use through=checkpoint"
        )
    why = why_not(table)
    if why and not may_disturb:
        raise SourceError(f"{where}: {why}; use through=checkpoint, or allow it with disturb=yes")
    if why and table.rate_limiter.min_size_to_sample > 1 and table.max_times_sampled > 0:
        raise SourceError(
            f"{where}: its rate limiter gives none of the last {table.rate_limiter.min_size_to_sample - 1:,} items; use through=checkpoint"
        )
    if samples_allowed(table) < table.current_size:
        raise SourceError(
            f"{where}: its rate limiter allows {samples_allowed(table):,} samples of {table.current_size:,} items; use through=checkpoint"
        )


def _most_samples(table: TableInfo) -> int:
    """The number of samples after which an item that was never seen is assumed unreachable."""
    size = table.current_size
    if table.max_times_sampled > 0:
        return size * table.max_times_sampled
    most = math.ceil(size * (math.log(max(1, size)) + _SURE))
    return most * (1 if table.sampler == "uniform" else _PATIENCE)


class SampleTaker:
    def __init__(self, where: str) -> None:
        self._where = where
        self.seen: set[int] = set()
        self.items, self.chunks = Items(where), ChunkBuilder()
        self._read = reader_of("Samples", where)
        self._item_begun: Any = None

    def take(self, transport: Transport, request: SampleRequest) -> int:
        """Requests samples on a stream of their own, reads it to its end, and returns their number.

        Raises:
          SourceError: none came, or more than were requested.
          TransportError: the stream broke.
        """
        count = 0
        stream = transport.sample_stream(iter([encode_sample_request(request)]))
        try:
            with _cancel_when_silent(stream) as received:
                for message in stream:
                    received()
                    count += self._take(message)
                    if count > request.samples:
                        break
        finally:
            stream.end()
        if not 0 < count <= request.samples:
            raise SourceError(
                f"{self._where}: {request.samples:,} samples were requested, and {count:,} came; is that a Reverb server?"
            )
        return count

    def _take(self, message: bytes) -> int:
        count = 0
        for entry in self._read(message).entries:
            for chunk in entry.data:
                self.chunks.add(chunk)
            if entry.HasField("info"):
                self._item_begun = entry.info.item
            if entry.end_of_sequence and self._item_begun is not None:
                item, self._item_begun = self._item_begun, None
                count += 1
                if item.key not in self.seen:
                    self.seen.add(item.key)
                    self.items.add(item.SerializeToString())
        return count


@contextmanager
def _cancel_when_silent(stream: Stream) -> Iterator[Callable[[], None]]:
    """Inside the block a stream that is silent for a minute is cancelled, so that reading it raises an error.

    Yields:
      a function to call whenever something arrives.
    """
    over, last = threading.Event(), [time.monotonic()]

    def received() -> None:
        last[0] = time.monotonic()

    def watch() -> None:
        while not over.wait(1.0):
            if time.monotonic() - last[0] > _SILENT_SECONDS:
                stream.cancel()
                return

    threading.Thread(target=watch, name="rlds2reverb-stored", daemon=True).start()
    try:
        yield received
    finally:
        over.set()


# A running server -> a table's snapshot: by a checkpoint that it writes, or by sampling.
#
# | through | what it does |
# | --- | --- |
# | checkpoint | The server writes a checkpoint, and its folder is read here. Inserts, samples and updates wait meanwhile. |
# | sampling | See above. |
# | not given | The first when the server is on this machine. The second where the folder cannot be read from here, and sampling changes nothing but times_sampled. |

CHECKPOINT, SAMPLING = "checkpoint", "sampling"
WAYS = (CHECKPOINT, SAMPLING)
ELSEWHERE = "elsewhere"
"""In place of a way: none was given, and the server is on another machine, whose checkpoint would probably be unreadable here."""

_ADDRESS = re.compile(r"(?P<address>(?:\[[0-9A-Fa-f:.%]+\]|[^/\\:\[\]]+):\d{1,5})(?:/(?P<table>.*))?", re.DOTALL)
_CHECKPOINT_SECONDS = 3600.0
_ATTEMPTS = 3


class Place(NamedTuple):
    """A table of a server; None for its only one."""

    address: str
    table: str | None

    @property
    def is_here(self) -> bool:
        """Whether its host is one of this machine's names."""
        host = self.address.rpartition(":")[0]
        return host in ("localhost", "[::1]", socket.gethostname()) or host.startswith("127.")


def place_of(text: str) -> Place | None:
    """What "HOST:PORT/TABLE" names; None for any other text."""
    match = _ADDRESS.fullmatch(text)
    return None if match is None else Place(match["address"], match["table"] or None)


def read_from(people: str, place: Place, through: str | None, may_disturb: bool) -> Snapshot:
    """Connects, and reads a table.

    Raises:
      SourceError: no such table, or it cannot be read in the requested way; the message says how to continue.
      TransportError: the server cannot be reached, or went away.
    """
    with connect(place.address) as client:
        if through is None and not place.is_here:
            through = ELSEWHERE
        return take_snapshot(client.transport, people, place.table, through, may_disturb)


def take_snapshot(
    transport: Transport, people: str, name: str | None, through: str | None = None, may_disturb: bool = False
) -> Snapshot:
    """Reads a table of a server; raises as `read_from`."""
    tables = transport.server_info().tables
    table = tables[choose_table(people, name, {info.name: info.current_size for info in tables.values()})]
    if through == SAMPLING:
        return sample_table(transport, people, table, may_disturb)
    why = "the server is on another machine, where its checkpoints may not be readable from here (through=checkpoint tries)"
    if through != ELSEWHERE:
        try:
            return _by_checkpoint(transport, people, table)
        except _NotHereError as error:
            if through == CHECKPOINT:
                raise SourceError(f"{people}: {error}; read its folder where it is, or use through=sampling") from error
            why = str(error)
    if reason := why_not(table):
        raise SourceError(f"{people}: {why}; and the table is not sampled unasked: {reason}. See through=sampling")
    return sample_table(transport, people, table, may_disturb)


class _NotHereError(Exception):
    """The server's checkpoint cannot be read on this machine; the message says why."""


def _by_checkpoint(transport: Transport, people: str, table: TableInfo) -> Snapshot:
    """Has the server write a checkpoint, and reads it.

    Raises:
      _NotHereError: the server writes none, or its folder is not there.
      SourceError: the checkpoint cannot be read.
    """
    with _write_checkpoint(transport) as checkpoint:
        text = f"the server wrote a checkpoint for this, in {checkpoint.folder}; inserts and samples waited meanwhile"
        return checkpoint.snapshot(people, table.name, (note("read_by_checkpoint", text),))


def read_tables(transport: Transport, people: str, tables: Sequence[str]) -> dict[str, Snapshot]:
    """Reads tables of a server by one checkpoint; raises SourceError."""
    try:
        with _write_checkpoint(transport) as checkpoint:
            return {table: checkpoint.snapshot(people, table) for table in tables}
    except _NotHereError as error:
        raise SourceError(f"{people}: {error}") from error


def _write_checkpoint(transport: Transport) -> Checkpoint:
    """Has the server write a checkpoint, once more where its folder is gone before it is read. Raises `_NotHereError`."""
    attempts = 0
    while True:
        attempts += 1
        try:
            folder = Path(transport.checkpoint(_CHECKPOINT_SECONDS))
        except TransportError as error:
            if error.retryable:
                raise
            raise _NotHereError(f"the server writes no checkpoint ({error})") from error
        try:
            return _open_checkpoint(folder)
        except _NotHereError:
            if attempts == _ATTEMPTS or not _is_gone(folder):
                raise


def _is_gone(folder: Path) -> bool:
    """Whether a later checkpoint has taken the place of this one, in a folder that can be read from here."""
    try:
        return folder.parent.is_dir() and not folder.exists()
    except OSError:
        return False


def _open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint that a server has just written, and that it may move or delete at any time. Raises `_NotHereError`."""
    for place in (folder, folder.parent.parent / "taken" / folder.name):
        try:
            if (place / DONE).is_file():
                return Checkpoint(find_newest(place))
        except (SourceError, OSError):  # it is being moved, or may not be read
            continue
    raise _NotHereError(f"the server's checkpoint {folder} cannot be read from here")
