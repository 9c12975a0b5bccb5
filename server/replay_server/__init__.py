"""The replay server: DeepMind Reverb in a process of its own."""

from rlds2reverb.extras import needing

with needing("the replay server", "server", ModuleNotFoundError):
    from replay_server.embedded import EmbeddedServer
    from replay_server.tables import TableConfig

__all__ = ["EmbeddedServer", "TableConfig"]
