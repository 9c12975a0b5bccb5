"""A running server -> a table's snapshot: by a checkpoint that it writes, or by sampling.

| through | what it does |
| --- | --- |
| checkpoint | The server writes a checkpoint, and its folder is read here. Inserts, samples and updates wait meanwhile. |
| sampling | See `sampling`. |
| neither said | The first when the server is on this machine. The second where the folder cannot be read from here, and sampling changes nothing but times_sampled. |
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import NamedTuple

from rlds2reverb.connecting import connect
from rlds2reverb.errors import SourceError, TransportError
from rlds2reverb.remarks import note
from rlds2reverb.stored.checkpoint import DONE, Checkpoint, newest_in, table_named
from rlds2reverb.stored.sampling import sampled, why_not
from rlds2reverb.stored.snapshot import Snapshot
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.messages import TableInfo

CHECKPOINT, SAMPLING = "checkpoint", "sampling"
WAYS = (CHECKPOINT, SAMPLING)
ELSEWHERE = "elsewhere"
"""In place of a way: none was said, and the server is on another machine, so that it is not asked for a checkpoint in vain."""

_ADDRESS = re.compile(r"(?P<address>(?:\[[0-9A-Fa-f:.%]+\]|[^/\\:\[\]]+):\d{1,5})(?:/(?P<table>.*))?", re.DOTALL)
_CHECKPOINT_SECONDS = 3600.0


class Place(NamedTuple):
    """A table of a server; None for its only one."""

    address: str
    table: str | None

    @property
    def is_here(self) -> bool:
        """Whether its name is one of this machine's."""
        host = self.address.rpartition(":")[0]
        return host in ("localhost", "[::1]", socket.gethostname()) or host.startswith("127.")


def place_of(text: str) -> Place | None:
    """What "HOST:PORT/TABLE" names; None when it is no such text."""
    found = _ADDRESS.fullmatch(text)
    return None if found is None else Place(found["address"], found["table"] or None)


def read_from(people: str, place: Place, through: str | None, may_disturb: bool) -> Snapshot:
    """Connects, and reads a table.

    Raises:
      SourceError: no such table, or it cannot be read in the way that is asked for; says how to go on.
      TransportError: the server cannot be reached, or went away.
    """
    with connect(place.address) as client:
        if through is None and not place.is_here:
            through = ELSEWHERE
        return snapshot_of(client.transport, people, place.table, through, may_disturb)


def snapshot_of(
    transport: Transport, people: str, name: str | None, through: str | None = None, may_disturb: bool = False
) -> Snapshot:
    """Reads a table of a server; raises as `read_from`."""
    tables = transport.server_info().tables
    table = tables[table_named(people, name, {one.name: one.current_size for one in tables.values()})]
    if through == SAMPLING:
        return sampled(transport, people, table, may_disturb)
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
    return sampled(transport, people, table, may_disturb)


class _NotHereError(Exception):
    """The server's checkpoint cannot be read from here; says why."""


def _by_checkpoint(transport: Transport, people: str, table: TableInfo) -> Snapshot:
    """Has the server write a checkpoint, and reads it.

    Raises:
      _NotHereError: the server writes none, or its folder is not there.
      SourceError: what is there cannot be read.
    """
    try:
        folder = Path(transport.checkpoint(_CHECKPOINT_SECONDS))
    except TransportError as error:
        if error.retryable:
            raise
        raise _NotHereError(f"the server writes no checkpoint ({error})") from error
    text = f"the server wrote a checkpoint for this, in {folder}; inserts and samples waited meanwhile"
    with _opened(folder) as checkpoint:
        return checkpoint.snapshot(people, table.name, (note("read_by_checkpoint", text),))


def _opened(folder: Path) -> Checkpoint:
    """The checkpoint that a server has just written, and that it may move or delete at any time.

    Raises:
      _NotHereError: it is not there.
    """
    for place in (folder, folder.parent.parent / "taken" / folder.name):
        if (place / DONE).is_file():
            try:
                return Checkpoint(newest_in(place))
            except SourceError:  # it is being moved
                continue
    raise _NotHereError(f"the server's checkpoint {folder} cannot be read from here")
