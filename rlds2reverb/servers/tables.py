"""Tables of servers: found by name, and merged over servers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlds2reverb.errors import ConfigError, SpecMismatch
from rlds2reverb.specs import differences
from rlds2reverb.text import did_you_mean
from rlds2reverb.wire.messages import ServerInfo, TableInfo


def table_of(info: ServerInfo, name: str) -> TableInfo:
    """Raises ConfigError if the server has no table of that name."""
    if name not in info.tables:
        tables = ", ".join(sorted(info.tables)) or "none"
        raise ConfigError(f'the server has no table "{name}"; it has {tables}{did_you_mean(name, info.tables)}')
    return info.tables[name]


def merge_infos(infos: Mapping[str, ServerInfo]) -> ServerInfo:
    """The tables of servers (by address) together: sizes and counts add up, all else is of the first server.

    Raises:
      SpecMismatch: a table's signature differs between servers.
      ConfigError: its sampler does.
    """
    by_name: dict[str, list[tuple[str, TableInfo]]] = {}
    for address, info in infos.items():
        for name, table in (info.tables | info.own_tables).items():
            by_name.setdefault(name, []).append((address, table))
    state = functools.reduce(operator.xor, (info.state_id for info in infos.values()), 0)
    return ServerInfo.of(state, map(merge_table, by_name.values()))


def merge_table(tables_by_address: Sequence[tuple[str, TableInfo]]) -> TableInfo:
    """One table of many servers, each with its address. Raises as `merge_infos`."""
    address, first = tables_by_address[0]
    for other_address, other in tables_by_address[1:]:
        where = f'table "{first.name}" of {other_address}, beside that of {address}'
        if (first.signature is None) != (other.signature is None):
            without = address if first.signature is None else other_address
            raise ConfigError(f"{where}: on {without} it has no signature; give the table the same on both")
        if first.signature is not None and other.signature is not None:
            lines = differences(other.signature, first.signature) or differences(first.signature, other.signature)
            if lines:
                raise SpecMismatch(where, lines, "servers that are sampled together need tables of one signature")
        if first.sampler != other.sampler:
            raise ConfigError(f"{where}: samplers {other.sampler} and {first.sampler}; expected the same on both")
    tables = [table for _, table in tables_by_address]

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
