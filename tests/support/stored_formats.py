"""Everything of ours that outlives a process, as earlier releases have written it (tests/data/versions), and how it is read.

What a reading gives is plain values, so that those of a release can be kept beside its files.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from replay_server import history, uploads
from replay_server.choosing import find_checkpoint
from replay_server.errors import CheckpointError
from replay_server.files import read_small
from replay_server.store import CheckpointStore

import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.conversion import place
from rlds2reverb.conversion.convert import convert
from rlds2reverb.errors import ConfigError, LedgerError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.numbers import forms
from rlds2reverb.numbers.statistics import DatasetStatistics
from rlds2reverb.plain import members
from rlds2reverb.push import ledger
from rlds2reverb.push.ledger import SqliteLedger, known_sources
from rlds2reverb.servers import journal
from rlds2reverb.servers.episodes import read_deletions, read_pages
from rlds2reverb.servers.own_tables import write_records
from rlds2reverb.stored import checkpoint
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.versions import FormatVersion
from rlds2reverb.wire.messages import DELETED, EPISODES
from tests.support import gated
from tests.support.releases import BUNDLED, set_member
from tests.support.servers.own import server_with_own_tables

COUNT = 3


def episodes() -> list[Episode]:
    return [gated.episode(number) for number in range(COUNT)]


def contents_of(source: Any) -> Any:
    """Of each episode: path -> dtype, shape and a digest of the values."""
    return [
        {
            path: [str(column.dtype), list(column.shape), xxhash.xxh3_64_hexdigest(column.tobytes())]
            for path, column in sorted(episode.columns.items())
        }
        for episode in source
    ]


def name_of(number: int) -> str:
    """The name of an episode in the ledger."""
    return f"content:{number + 1:032x}"


def read_ledger(folder: Path) -> Any:
    path, name = folder / "ledger.db", "push 1"
    names = [name_of(number) for number in range(COUNT)]
    sources = known_sources(path, name, lambda: names)
    with SqliteLedger(path, name, "2f", "a:8000") as opened:
        confirmed = [opened.confirmed.get(name) for name in names]
        here = [opened.here.get(name) for name in names]
    return {"sources": sources, "confirmed": confirmed, "here": here}


def read_history(folder: Path) -> Any:
    return history.decode(read_small(folder / "server" / history.HISTORY, 1 << 20))


def read_checkpoint(folder: Path) -> Any:
    chosen = find_checkpoint(folder / "server").folder
    source = open_source(f"reverb:{folder / 'server'}?table=replay")
    return {"number": chosen.name, "episodes": contents_of(source)}


def read_left_out(folder: Path) -> Any:
    rows = CheckpointStore(folder / "server", 3).left_out()
    return [msgspec.structs.replace(row, folder=Path(row.folder).name) for row in rows]


def own_records(folder: Path, table: str) -> list[bytes]:
    """The records of a server's own table, from the newest checkpoint."""
    items = open_source(f"reverb:{folder / 'server'}?table={table},as=items,columns=record")
    records = [record for episode in items for record in episode.columns["record"].tolist()]
    return [record.encode() if isinstance(record, str) else record for record in records]


def read_journal(folder: Path) -> Any:
    return journal.entries_of(own_records(folder, "rlds2reverb.journal"), "a:8000")


def server_of_lists(*records: bytes, table: str) -> MemoryTransport:
    """A server with these records in one of its own tables."""
    transport = MemoryTransport(server_with_own_tables())
    write_records(transport, table, {str(number): [record] for number, record in enumerate(records)})
    return transport


def read_lists(folder: Path) -> Any:
    pages = server_of_lists(*own_records(folder, EPISODES), table=EPISODES)
    deleted = server_of_lists(*own_records(folder, DELETED), table=DELETED)
    pages_read, pushes = read_pages(pages, 60)
    return {"pages": pages_read, "pushes": pushes, "deleted": read_deletions(deleted, 60)}


def read_statistics(folder: Path) -> Any:
    return members(DatasetStatistics.read(folder / "statistics.json"))


def local() -> Any:
    return rlds2reverb.local(BUNDLED, "transition", 16, shuffle=40, seed=3, epochs=2)


def mix() -> Any:
    return rlds2reverb.mix(
        {local(): 3, rlds2reverb.local("bundled:cartpole@train[4:6]", "transition", 16): 1}, 16, seed=1
    )


def _next_keys(batches: Any, folder: Path, name: str) -> list[int]:
    batches.restore(json.loads((folder / "states" / name).read_bytes()))
    return next(iter(batches)).info.key.tolist()


def read_local(folder: Path) -> Any:
    return _next_keys(local(), folder, "local.json")


def read_mix(folder: Path) -> Any:
    return _next_keys(mix(), folder, "mix.json")


def read_progress(folder: Path) -> Any:
    """The conversion is continued, and what it has written read."""
    name = f"tfds:{folder / 'conversion/own'}"
    report = convert(gated.Gated(folder, COUNT), name)
    return {"resumed": report.episodes_resumed, "episodes": contents_of(open_source(f"{name}/1.0.0"))}


def read_place_owner(folder: Path) -> Any:
    path = folder / "bucket" / uploads.OWNER
    return uploads.decode_owner(path.read_bytes(), path)


def set_pragma(path: Path, version: object, program: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA user_version = {version if isinstance(version, int) else 0}")
        database.execute("UPDATE program SET version = ?", (program,))


@dataclass(frozen=True)
class StoredFormat:
    """A file of ours that has a version.

    Attributes:
      version: its versions in the code.
      file: in a release's folder; of several the newest.
      read: reads it from a copy of that folder.
      error: of one that is not read; None where a damaged one counts as none.
      set_version: puts another version, and the program that wrote it, into the file.
    """

    version: FormatVersion
    file: str
    read: Callable[[Path], Any]
    error: type[Exception] | None
    set_version: Callable[[Path, object, str], None] = set_member

    def path(self, folder: Path) -> Path:
        return max(folder.glob(self.file))


FORMATS = {
    "ledger": StoredFormat(ledger.VERSION, "ledger.db", read_ledger, LedgerError, set_pragma),
    "checkpoint": StoredFormat(
        checkpoint.VERSION, "server/generations/*/MANIFEST.json", read_checkpoint, CheckpointError
    ),
    "history": StoredFormat(history.VERSION, "server/HISTORY.json", read_history, CheckpointError),
    "place owner": StoredFormat(uploads.OWNER_VERSION, "bucket/OWNER.json", read_place_owner, None),
    "statistics": StoredFormat(
        forms.VERSION,
        "statistics.json",
        read_statistics,
        SourceError,
        lambda path, version, program: set_member(path, version, program, "statistics of rlds2reverb"),
    ),
    "progress": StoredFormat(
        place.PROGRESS_VERSION, "conversion/own/.converting-1.0.0/progress.json", read_progress, ConfigError
    ),
}

STATES = {"local": read_local, "mix": read_mix}
"""Kind of a saved state -> how it is restored; those of torch's datasets are in tests/systems/learners."""

UNMARKED = {"journal": read_journal, "lists of episodes": read_lists, "left out": read_left_out}
"""What has its version in each record, or none."""
