"""Configs that a server would start from, and that can never be filled or sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from replay_server.limiters import DeadEnd
from replay_server.tables import TableConfig
from rlds2reverb.errors import ConfigError


def check(tables: Sequence[TableConfig]) -> None:
    """Refuses tables that are dead ends.

    Raises:
      ConfigError: one line per table and reason, with its path.
    """
    lines = [
        f'table "{table.name}": {reason} - at `$.tables[{index}].{key}`'
        for index, table in enumerate(tables)
        for key, reason in dead_ends(table)
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def dead_ends(table: TableConfig) -> Iterator[DeadEnd]:
    """Everything that keeps the table from ever being filled or sampled."""
    for key, reason in table.rate_limiter.dead_ends(table.max_size, table.max_times_sampled):
        yield DeadEnd(f"rate_limiter.{key}", reason)
