"""Configs that a server would start from, and that can never be filled or sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from replay_server.limiters import Prefill, SampleToInsertRatio
from replay_server.tables import TableConfig
from rlds2reverb.errors import ConfigError


def check(tables: Sequence[TableConfig]) -> None:
    """Refuses tables that are dead ends.

    Raises:
      ConfigError: one line for every table and reason, with its path.
    """
    lines = [
        f'table "{table.name}": {reason} - at `$.tables[{index}].{key}`'
        for index, table in enumerate(tables)
        for key, reason in dead_ends(table)
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def dead_ends(table: TableConfig) -> Iterator[tuple[str, str]]:
    """(key, reason) of everything that keeps the table from ever being filled or sampled."""
    if isinstance(table.rate_limiter, Prefill):
        if table.rate_limiter.items > table.max_size:
            yield (
                "rate_limiter.items",
                f"can never hold {table.rate_limiter.items} items, its max_size is {table.max_size}",
            )
        if table.rate_limiter.then.min_size > table.max_size:
            yield "rate_limiter.then.min_size", _too_small(table.rate_limiter.then.min_size, table.max_size)
        yield from ((f"rate_limiter.then.{key}", reason) for key, reason in _ratio(table.filled()))
        return
    bounds = table.rate_limiter.bounds()
    if bounds.min_size_to_sample < 1:
        yield "rate_limiter.min_size", f"needs at least 1 item before the first sample, got {bounds.min_size_to_sample}"
    if bounds.min_size_to_sample > table.max_size:
        yield "rate_limiter.min_size", _too_small(bounds.min_size_to_sample, table.max_size)
    if bounds.max_diff <= 0:
        yield "rate_limiter.size", f"takes no item at all, its size is {bounds.max_diff:g}"
    yield from ((f"rate_limiter.{key}", reason) for key, reason in _ratio(table))


def _too_small(min_size: int, max_size: int) -> str:
    return f"can never be sampled: it needs {min_size} items and holds at most {max_size}"


def _ratio(table: TableConfig) -> Iterator[tuple[str, str]]:
    limiter = table.rate_limiter
    if not isinstance(limiter, SampleToInsertRatio):
        return
    ratio = limiter.samples_per_insert
    if not ratio > 0:
        yield "samples_per_insert", f"must be positive, got {ratio:g}"
        return
    least = max(1.0, ratio)
    if limiter.error_buffer < least:
        yield "error_buffer", f"{limiter.error_buffer:g} leaves no room for one insert or sample; at least {least:g}"
    if 0 < table.max_times_sampled < ratio:
        yield (
            "samples_per_insert",
            f"inserts stop for good: they wait for {ratio:g} samples an item, and an item is removed after "
            f"max_times_sampled = {table.max_times_sampled}",
        )
