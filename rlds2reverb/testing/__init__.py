"""A server in memory, and the transport to it: the rules of Reverb without sockets, for tests of code above a transport.

>>> import numpy as np
>>> from rlds2reverb.client import Client
>>> from rlds2reverb.episode import Episode
>>> from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
>>> steps = np.arange(5)
>>> columns = {"observation": steps, "action": steps, "reward": steps * 0.5, "discount": np.ones(5)}
>>> flags = {"is_first": steps == 0, "is_last": steps == 4, "is_terminal": steps == 4}
>>> server = MemoryServer(table_info("replay", max_size=100))
>>> with Client(MemoryTransport(server)) as client:
...     report = client.push([Episode({**columns, **flags})], table="replay", allow=["terminal_discount"])
>>> report.items_confirmed, len(server.contents("replay"))
(4, 4)

It decodes the bytes that a real server would receive. One suite of tests (`tests/support/contract/transport.py`) runs over this transport and,
over gRPC, over a real server. Faults can be planned: streams break, nothing is let in, calls are refused, another process
answers. Signatures are reported, not checked.
"""

from __future__ import annotations

from rlds2reverb.testing.server import MemoryServer, MemoryTransport
from rlds2reverb.testing.streams import SamplePlan, StreamPlan
from rlds2reverb.wire.messages import FREE_LIMITER, table_info

__all__ = ["FREE_LIMITER", "MemoryServer", "MemoryTransport", "SamplePlan", "StreamPlan", "table_info"]
