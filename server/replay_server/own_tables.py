"""The tables that the server keeps for itself, beside those of its config."""

from __future__ import annotations

from replay_server.tables import MOST, TableConfig
from rlds2reverb.servers.own_tables import SIGNATURE
from rlds2reverb.wire.messages import OWN_TABLES as NAMES

OWN_TABLES = tuple(TableConfig(name, SIGNATURE, max_size=MOST) for name in NAMES)
"""Nothing is ever evicted from them, and no rate limiter makes anybody wait."""
