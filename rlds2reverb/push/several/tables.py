"""The tables of several servers as those of one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlds2reverb.errors import ConfigError, SpecMismatch
from rlds2reverb.specs import differences
from rlds2reverb.wire.messages import ServerInfo, TableInfo


def merged(infos: Mapping[str, ServerInfo]) -> ServerInfo:
    """What several servers (address -> what it tells) tell together: sizes and counts add up, all else is as the first says.

    Raises:
      SpecMismatch: a table's signature is not the same on all servers that have it.
      ConfigError: its sampler is not.
    """
    names = dict.fromkeys(name for info in infos.values() for name in info.tables)
    tables = {
        name: merged_table([(address, info.tables[name]) for address, info in infos.items() if name in info.tables])
        for name in names
    }
    state = functools.reduce(operator.xor, (info.state_id for info in infos.values()), 0)
    return ServerInfo(state, tables)


def merged_table(found: Sequence[tuple[str, TableInfo]]) -> TableInfo:
    """One table of several servers, each with its address. Raises as `merged`."""
    (address, first), *others = found
    for other_address, other in others:
        _check_same((address, first), (other_address, other))
    tables = [table for _, table in found]

    def total(name: str) -> int:
        return int(sum(getattr(table, name) for table in tables))

    limiter = replace(
        first.rate_limiter,
        inserts=sum(table.rate_limiter.inserts for table in tables),
        samples=sum(table.rate_limiter.samples for table in tables),
    )
    return replace(
        first,
        rate_limiter=limiter,
        max_size=total("max_size"),
        current_size=total("current_size"),
        episodes=total("episodes"),
        deleted_episodes=total("deleted_episodes"),
        unique_samples=total("unique_samples"),
    )


def _check_same(one: tuple[str, TableInfo], other: tuple[str, TableInfo]) -> None:
    (address, first), (other_address, second) = one, other
    where = f'table "{first.name}" of {other_address}, beside that of {address}'
    if (first.signature is None) != (second.signature is None):
        without = address if first.signature is None else other_address
        raise ConfigError(f"{where}: on {without} it has no signature; give the table the same on both")
    lines = differences(second.signature, first.signature) if first.signature is not None else []
    lines = lines or (differences(first.signature, second.signature) if first.signature is not None else [])
    if lines:
        raise SpecMismatch(where, lines, "servers that are sampled together need tables of one signature")
    if first.sampler != second.sampler:
        raise ConfigError(f"{where}: samplers {second.sampler} and {first.sampler}; expected the same on both")
