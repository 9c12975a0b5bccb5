"""The tables that the server keeps for itself, beside those of its config."""

from __future__ import annotations

from replay_server.tables import MOST, TableConfig
from rlds2reverb.servers.journal import JOURNAL
from rlds2reverb.servers.own_tables import SIGNATURE

OWN_TABLES = tuple(TableConfig(name, SIGNATURE, max_size=MOST) for name in (JOURNAL,))
"""Nothing is ever evicted from them, and no rate limiter makes anybody wait."""
