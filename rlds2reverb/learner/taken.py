"""How many samples a server can have taken that never came: no more than its own counts say."""

from __future__ import annotations

import time

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.messages import ServerInfo, TableInfo

_ANSWER_SECONDS = 1.0
_LOOK_SECONDS = 0.005


def lost_on_the_way(transport: Transport, info: ServerInfo, table: TableInfo, received: int, awaited: int) -> int:
    """How many of the awaited samples may have been taken: no more than all learners took, without those that came.

    Args:
      transport: asked once more for its tables, and not waited for for long.
      info, table: as they were before the first sample was asked for.
      received: samples that came.
      awaited: samples that were asked for and did not come.
    """
    now = _asked(transport) if awaited else None
    if now is None or now.state_id != info.state_id or table.name not in now.tables:
        return awaited
    taken = now.tables[table.name].rate_limiter.samples - table.rate_limiter.samples
    return (
        awaited if taken < received else min(awaited, taken - received)
    )  # fewer: the table was emptied, and counts anew


def _asked(transport: Transport) -> ServerInfo | None:
    """The server's tables; None when no answer comes soon."""
    try:
        pending = transport.ask_server_info()
        end = time.monotonic() + _ANSWER_SECONDS
        while not pending.is_over:
            if time.monotonic() > end:
                pending.drop()
                return None
            time.sleep(_LOOK_SECONDS)
        return pending.answer()
    except Rlds2ReverbError:  # what is not known is taken to be lost
        return None
