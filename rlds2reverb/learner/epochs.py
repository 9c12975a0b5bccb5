"""Passes over a table: `epochs=n` where the table hands out every item n times, and then removes it.

The server counts, not the client. So it is exact with several learners, too: all of them together get every item n times. The
table must have `max_times_sampled: n` and a rate limiter that lets all of that through. Any sampler will do:

| sampler | the n times of an item |
| --- | --- |
| fifo, max_times_sampled 1 | one pass, in the order of insertion |
| uniform, max_times_sampled 1 | one pass, shuffled: sampling without replacement |
| fifo, max_times_sampled n | n times in a row, item after item, in the order of insertion |
| uniform, max_times_sampled n | n times in all, anywhere |

It ends when as many samples came as the table owed at the start: n for every item that it held. Where others take some of them,
where items were sampled before, or where a stream broke, fewer come. Then it ends when the table is empty: it was so at two looks
in a row, some seconds apart, and nothing came in between.
"""

from __future__ import annotations

from collections.abc import Callable

from rlds2reverb.errors import ConfigError, TransportError
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.limiter import samples_allowed
from rlds2reverb.wire.messages import TableInfo

LOOK_SECONDS = 2.5
"""How long nothing comes before the table is looked at; longer than learners wait until they are told why."""


def owed(table: TableInfo, epochs: int) -> int:
    """Samples that a table owes, when none of its items was sampled before.

    Raises:
      ConfigError: it does not hand out every item so often, or its rate limiter keeps some back, or it is empty.
    """
    where = f'table "{table.name}": epochs={epochs}'
    if table.max_times_sampled != epochs:
        limit = "no limit" if table.max_times_sampled < 1 else f"max_times_sampled {table.max_times_sampled}"
        raise ConfigError(
            f"{where}: the table has {limit}; expected max_times_sampled: {epochs}, for the server counts how often an item was"
            " sampled. A table with other counts is sampled with samples=, for ever, or with end_after_seconds"
        )
    if not table.current_size:
        raise ConfigError(f"{where}: the table is empty; fill it first, for an epoch is over the items that are there")
    least = table.rate_limiter.min_size_to_sample
    if least > 1:
        raise ConfigError(
            f"{where}: items leave with their last sample, and the rate limiter lets none be taken below {least} items, so the last"
            f" {least - 1} would never come; expected min_size 1"
        )
    count = table.current_size * epochs
    allowed = samples_allowed(table)
    if allowed < count:
        raise ConfigError(
            f"{where}: the rate limiter allows {allowed:,} more samples, of {count:,} that {table.current_size:,} items give; expected"
            " one that never holds samples back, such as {kind: min_size, min_size: 1}"
        )
    return count


def look_at(transport: Transport, table: TableInfo) -> TableInfo | None:
    """The table as the server tells of it now, None when it is gone; as it was at first when the server does not answer.

    Streams wait for a server that is away as long as they may, and a table that cannot be seen is not an empty one.
    """
    try:
        return transport.server_info().tables.get(table.name)
    except TransportError as error:
        if not error.retryable:
            raise
        return table


class Drained:
    """Tells when a table is empty for good. Ask it when nothing came for `LOOK_SECONDS`.

    Args:
      look: the table, as the server tells of it now; None when it is gone.

    Attributes:
      was_over: what it said last.
    """

    def __init__(self, look: Callable[[], TableInfo | None]) -> None:
        self._look = look
        self._received_when_empty: int | None = None
        self.was_over = False

    def is_over(self, received: int) -> bool:
        """Whether it was empty at the look before, too, and no sample came in between.

        Args:
          received: samples that have come so far.
        """
        table = self._look()
        was = self._received_when_empty
        self._received_when_empty = received if table is None or not table.current_size else None
        self.was_over = self._received_when_empty is not None and was == received
        return self.was_over
