"""Servers in memory that keep tables for themselves, as `rlds2reverb serve` does."""

from __future__ import annotations

from rlds2reverb.servers.journal import JournalEntry, read_journal
from rlds2reverb.servers.own_tables import SIGNATURE
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import OWN_TABLES as NAMES
from tests.support.push.in_memory import Server

OWN_TABLES = tuple(table_info(name, SIGNATURE, 1 << 20) for name in NAMES)


def server_with_own_tables(*tables: str, state_id: int = 7) -> Server:
    """A server with these tables, by default "replay", and those of its own."""
    infos = {name: table_info(name) for name in tables or ("replay",)}
    return Server({**infos, **{info.name: info for info in OWN_TABLES}}, state_id)


def entries_of(server: MemoryServer) -> list[JournalEntry]:
    """The entries of its journal."""
    return read_journal(MemoryTransport(server))
