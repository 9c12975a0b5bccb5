"""A server in memory that writes checkpoints as Reverb does, of what its tables hold at that moment."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

from rlds2reverb.testing import MemoryServer
from rlds2reverb.transport.base import CHECKPOINT_ATTEMPTS
from rlds2reverb.wire.codec import encode_signature
from tests.support.stored.folders import MESSAGES, Listening, write_checkpoint

_PRIORITY = b"\x29"  # field 5, 8 bytes; the last one of an item counts


class Keeping(Listening):
    """A way to the server, which writes its checkpoints into a folder.

    Args:
      address: on this machine, so that its checkpoints are read.
    """

    def __init__(self, server: MemoryServer, folder: Path, address: str = "localhost:1") -> None:
        super().__init__(server)
        self.address = address
        self._tables, self._changed = server.tables, server.changed
        self._folder, self._numbers = folder, itertools.count()

    def checkpoint(self, seconds: float, attempts: int = CHECKPOINT_ATTEMPTS) -> str:
        tables, items = [], []
        with self._changed:
            for name, table in self._tables.items():
                signature = table.info.signature
                tables.append(
                    MESSAGES["Table"](
                        table_name=name,
                        rate_limiter={"insert_count": len(table.items)},
                        signature=b"" if signature is None else encode_signature(signature).SerializeToString(),
                    ).SerializeToString()
                )
                items += [
                    self.sent.items[key] + _PRIORITY + struct.pack("<d", item.priority)
                    for key, item in table.items.items()
                ]
        folder = self._folder / f"{next(self._numbers):04d}"
        return str(write_checkpoint(folder, tables, items, self.sent.chunks.values()))
