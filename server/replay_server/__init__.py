"""The replay server: DeepMind Reverb in a process of its own.

Public are an embedded server, its tables and their rate limiters; the long-running service is run by `rlds2reverb serve`.
"""

from replay_server.embedded import EmbeddedServer
from replay_server.tables import MinSize, Prefill, Queue, SampleToInsertRatio, Stack, TableConfig

__all__ = ["EmbeddedServer", "MinSize", "Prefill", "Queue", "SampleToInsertRatio", "Stack", "TableConfig"]
