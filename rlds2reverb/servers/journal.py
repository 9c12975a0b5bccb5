"""The journal of a server: an entry for every push, delete, reset and writer session. `rlds2reverb serve` keeps it in a table of its own.

An entry is written when the work begins, and again with what came of it when the work ends. So a process that was killed leaves an
entry without an end. The table is part of each checkpoint, so the journal comes back with the data that it describes.
"""

from __future__ import annotations

import functools
import getpass
import os
import secrets
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from rlds2reverb.errors import TransportError, WireError
from rlds2reverb.plain import Count
from rlds2reverb.servers.own_tables import MOST_ITEMS, delete_records, encode_record, read_records, tidy, write_records
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.versions import FormatVersion, program_version
from rlds2reverb.wire.messages import JOURNAL, ServerInfo

VERSION = FormatVersion("an entry of a journal", 1)

State = Literal["done", "stopped", "running", "cut off"]


class JournalEntry(Struct, frozen=True, kw_only=True):
    """What one push, writer session, delete or reset has done to the tables of a server.

    Attributes:
      id: of the work; the entries of one push on all of its servers have the same.
      kind: of the work.
      server: address of the server that has the entry.
      began, ended: Unix times; `ended` is null while it runs, or when it was killed.
      stopped: the error that ended it, on one line; "" for none.
      source: the dataset.
      view: how episodes became items.
      tables: their names.
      options: those that differ from their defaults, each as text, or as JSON where it is none.
      note: given with it (`--note`).
      user, host, process: who did it, and where.
      process_space: where on that host `process` is a process's number; "" if that is not known.
      program: version of rlds2reverb.
      server_process: number of the server's process, in hex digits.
      episodes: stored whole.
      steps: of these.
      episodes_known: skipped, because the ledger had them.
      refused: code -> episodes that were rejected.
      items: confirmed, over all tables, or deleted.
      items_new: items that the tables did not have before; null where that is not known.
      bytes: sent.
    """

    id: str
    kind: Literal["push", "write", "delete", "restore", "reset"]
    began: float
    server: str = ""
    ended: float | None = None
    stopped: str = ""
    source: str = ""
    view: str = ""
    tables: tuple[str, ...] = ()
    options: dict[str, str] = {}
    note: str = ""
    user: str = ""
    host: str = ""
    process: Count = 0
    process_space: str = ""
    program: str = ""
    server_process: str = ""
    episodes: Count = 0
    steps: Count = 0
    episodes_known: Count = 0
    refused: dict[str, int] = {}
    items: Count = 0
    items_new: Count | None = None
    bytes: Count = 0
    format: Annotated[int, Meta(description="of the entry")] = VERSION.version

    def find_state(self, server_process: str = "") -> State:
        """How it ended. One without an end was cut off if its server process, or on this machine its own, is gone; else it may still run.

        Args:
          server_process: the server's process now, as in the entry; "" if that is not known.
        """
        if self.ended is not None:
            return "stopped" if self.stopped else "done"
        is_of_other_server = server_process not in ("", self.server_process)
        is_of_here = (self.host, self.process_space) == (socket.gethostname(), _process_space())
        is_gone = is_of_here and not _is_alive(self.process)
        return "cut off" if is_of_other_server or is_gone else "running"


@functools.cache
def _process_space() -> str:
    """Where a process's number means the same process: containers share the host's name on its network, but each may count by itself.

    The boot of a kernel and the namespace in it. Source: Linux, pid_namespaces(7), random(4).
    """
    boot, namespace = "", ""
    with suppress(OSError):  # another system, or one that does not show them
        namespace = str(Path("/proc/self/ns/pid").readlink())
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {namespace}".strip()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def new_entry(kind: Literal["push", "write", "delete", "restore", "reset"], **fields: Any) -> JournalEntry:
    """An entry of work that begins now, by this user and process."""
    user_number = getattr(os, "getuid", None)  # which Windows lacks
    user = "" if user_number is None else str(user_number())
    with suppress(Exception):  # KeyError or OSError where the user has no name, as in a container
        user = getpass.getuser()
    return JournalEntry(
        id=secrets.token_hex(6),
        kind=kind,
        began=time.time(),
        user=user,
        host=socket.gethostname(),
        process=os.getpid(),
        process_space=_process_space(),
        program=program_version(),
        **fields,
    )


def process_text(state_id: int) -> str:
    """The number of a server's process as entries have it."""
    return f"{state_id:032x}"


def write_entry(transport: Transport, entry: JournalEntry, seconds: float = Deadlines.call) -> None:
    """Writes an entry; one that has ended takes the place of what was written at its beginning.

    Raises:
      TransportError: it was not confirmed within `seconds`.
    """
    record = encode_record(entry)
    if entry.ended is None:
        write_records(transport, JOURNAL, {_name_at_begin(entry): [record]}, seconds)
        return
    write_records(transport, JOURNAL, {f"{entry.id} ended": [record]}, seconds)
    with suppress(TransportError):  # a reader takes the one that has ended; `tidy_journal` joins both
        delete_records(transport, JOURNAL, [_name_at_begin(entry)])


def _name_at_begin(entry: JournalEntry) -> str:
    return f"{entry.id} began"


def tidy_journal(transport: Transport, info: ServerInfo) -> None:
    """Joins entries when there were many at an earlier answer of the server; see `own_tables.tidy`."""
    if info.own_tables[JOURNAL].current_size >= MOST_ITEMS:
        tidy(transport, JOURNAL)


def read_journal(transport: Transport, seconds: float = 60.0) -> list[JournalEntry]:
    """All entries of a server, in the order of their beginnings; [] for one without a journal.

    Raises:
      TransportError: the server does not answer, or not all entries came in time.
      WireError: an entry is none, or of a newer format.
    """
    items = read_records(transport, JOURNAL, seconds)
    return entries_of((record for records in items.values() for record in records), transport.address)


def entries_of(records: Iterable[bytes], address: str) -> list[JournalEntry]:
    """The entries of these records, in the order of their beginnings; raises WireError as `read_journal`."""
    return join_entries(_decode(record, address) for record in records)


def join_entries(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Of the entries of one server: each once, with its end where it has one, in the order of their beginnings."""
    by_id: dict[str, JournalEntry] = {}
    for entry in entries:
        if entry.id not in by_id or entry.ended is not None:
            by_id[entry.id] = entry
    return sorted(by_id.values(), key=lambda entry: (entry.began, entry.id))


class _Head(Struct):
    """What the entries of all versions have."""

    format: Any
    program: Any = ""


def _decode(record: bytes, address: str) -> JournalEntry:
    where = f"server {address}: its journal"
    try:
        head = msgspec.json.decode(record, type=_Head)
        if refusal := VERSION.refusal(where, head.format, head.program):
            raise WireError(refusal)
        entry = msgspec.json.decode(record, type=JournalEntry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{where}: {record[:80]!r} is no entry ({error})") from error
    return msgspec.structs.replace(entry, server=address)
