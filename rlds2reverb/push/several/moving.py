"""Takes items out of the servers where they do not belong any more, once they are stored where they do.

Keys do not say on which server an item is, so every server is told the keys of all others; those that it does not have are passed
over. A push does it at its end, when all is confirmed and its own account of the tables is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.transport.base import Transport

_MOST_KEYS = 1 << 16
"""Of one call: 0.6 MB, and a table stands still for a few milliseconds."""


def take_out(transport: Transport, keys: Mapping[str, Sequence[Array]]) -> int:
    """Takes items out of a server; how many fewer its tables have then. Somebody else who fills them makes it fewer.

    Args:
      transport: the way to it.
      keys: table -> arrays of keys.

    Raises:
      TransportError: the server does not answer; some items may be there still, and the same push moves them.
    """
    before = _sizes(transport, keys)
    for table, parts in keys.items():
        all_keys = np.concatenate(parts)
        for start in range(0, len(all_keys), _MOST_KEYS):
            transport.delete_items(table, all_keys[start : start + _MOST_KEYS])
    return max(0, before - _sizes(transport, keys))


def _sizes(transport: Transport, tables: Mapping[str, object]) -> int:
    info = transport.server_info()
    return sum(info.tables[name].current_size for name in tables)
