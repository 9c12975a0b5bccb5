"""Configs that a server would start from, and that can never be filled or sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from replay_server.limiters import Prefill, Queue, SampleToInsertRatio, Stack
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
    limiter = table.rate_limiter
    if isinstance(limiter, Prefill):
        if limiter.items < 1:
            yield "rate_limiter.items", f"needs at least 1 item before the first sample, got {limiter.items}"
        if limiter.items > table.max_size:
            yield "rate_limiter.items", f"can never hold {limiter.items} items, its max_size is {table.max_size}"
        yield from ((f"rate_limiter.then.{key}", reason) for key, reason in _settled(table.filled()))
    elif isinstance(limiter, (Queue, Stack)):
        if limiter.size < 1:
            yield "rate_limiter.size", f"takes no item at all, its size is {limiter.size}"
    else:
        yield from ((f"rate_limiter.{key}", reason) for key, reason in _settled(table))


def _settled(table: TableConfig) -> Iterator[tuple[str, str]]:
    min_size = table.rate_limiter.bounds().min_size_to_sample
    if min_size < 1:
        yield "min_size", f"needs at least 1 item before the first sample, got {min_size}"
    if min_size > table.max_size:
        yield "min_size", _too_small(min_size, table.max_size)
    yield from _ratio(table)


def _too_small(min_size: int, max_size: int) -> str:
    return f"can never be sampled: it needs {min_size} items and holds at most {max_size}"


def _ratio(table: TableConfig) -> Iterator[tuple[str, str]]:
    limiter = table.rate_limiter
    if not isinstance(limiter, SampleToInsertRatio):
        return
    ratio = limiter.samples_per_insert
    if not (ratio > 0 and isfinite(ratio)):
        yield "samples_per_insert", f"must be positive and finite, got {ratio:g}"
        return
    least = max(1.0, ratio)
    if not isfinite(limiter.error_buffer):
        yield "error_buffer", f"must be finite, got {limiter.error_buffer:g}; min_size is the limiter without a ratio"
    elif limiter.error_buffer < least:
        yield "error_buffer", f"{limiter.error_buffer:g} leaves no room for one insert or sample; at least {least:g}"
    if 0 < table.max_times_sampled < ratio:
        yield (
            "samples_per_insert",
            f"can never be kept: inserts wait for {ratio:g} samples an item, and an item is removed after "
            f"max_times_sampled = {table.max_times_sampled}; soon none passes but below min_size = {limiter.min_size}",
        )
