"""The replay server: DeepMind Reverb in a process of its own."""

from replay_server.embedded import EmbeddedServer
from replay_server.tables import TableConfig

__all__ = ["EmbeddedServer", "TableConfig"]
