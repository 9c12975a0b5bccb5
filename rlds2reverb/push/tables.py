"""Tables of servers: found by name, compared with the items of a push, and merged over servers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlds2reverb.errors import CapacityError, ConfigError, SpecError, SpecMismatch
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.specs import Nest, differences, flatten, with_view
from rlds2reverb.text import did_you_mean
from rlds2reverb.wire.messages import ServerInfo, TableInfo, waits_when_full


def table_of(info: ServerInfo, name: str) -> TableInfo:
    """Raises ConfigError if the server has no table of that name."""
    if name not in info.tables:
        known = ", ".join(sorted(info.tables)) or "none"
        raise ConfigError(f'the server has no table "{name}"; it has {known}{did_you_mean(name, info.tables)}')
    return info.tables[name]


def check_tables(output: Output, signature: Nest, info: ServerInfo, allow_other_views: bool = False) -> None:
    """Compares every table's signature with that of the output's items, leaf by leaf; before the first byte is sent.

    Args:
      allow_other_views: take a table that says it is for another view, where the leaves fit.

    Raises:
      ConfigError: the server has no such table.
      SpecMismatch: the signatures differ, or the table is for another view.
    """
    items = signature if allow_other_views else with_view(signature, output.view_name)
    for name in output.tables:
        table = table_of(info, name)
        if table.signature is not None and (lines := differences(items, table.signature)):
            way_out = (
                _way_out(signature, table.signature)
                if differences(signature, table.signature)
                else _other_view(output, table)
            )
            raise SpecMismatch(f'table "{name}"', lines, way_out)


def _other_view(output: Output, table: TableInfo) -> str:
    ways = (
        "push by the table's view, choose another table, or let this one hold items of both views with allow_other_views=True "
        "(--allow-other-views)"
    )
    if table.current_size:
        return ways
    return (
        f"the table is empty: to make it anew for this view, write view: {output.view_name} into its signature in the server's config "
        f"and start the server again (`rlds2reverb inspect SOURCE --view VIEW --server-config` prints such a config); or {ways}"
    )


def _way_out(items: Nest, table: Nest) -> str:
    """Advice if the table has encoded images that the items have decoded; "" for any other difference."""
    decoded = {path for path, leaf in flatten(items).items() if leaf.dtype.kind != "O"}
    try:
        paths = [path for path, leaf in flatten(table).items() if leaf.image is not None and path in decoded]
    except SpecError:  # two columns of one name: the difference says so
        return ""
    if not paths:
        return ""
    return (
        f'the table holds encoded images in {", ".join(paths)}: push with encoded="all" (--encoded all), or with the paths '
        "that the dataset has for these; or choose another table"
    )


def check_size(output: Output, info: ServerInfo, items_per_table: int, how: str) -> None:
    """Raises CapacityError if a push is larger than a table, unless inserts into a full table wait. `how` words the number of items."""
    for table in (info.tables[name] for name in output.tables):
        if items_per_table > table.max_size and not waits_when_full(table):
            raise CapacityError(
                f'table "{table.name}": max_size {table.max_size} is smaller than the push ({how} '
                "items), so the oldest would be evicted; make the table larger, push less "
                "(a split such as train[:10%]), or allow it with allow_eviction=True (--allow-eviction)"
            )


def merged(infos: Mapping[str, ServerInfo]) -> ServerInfo:
    """The tables of servers (by address) together: sizes and counts add up, all else is of the first server.

    Raises:
      SpecMismatch: a table's signature differs between servers.
      ConfigError: its sampler does.
    """
    names = dict.fromkeys(name for info in infos.values() for name in info.tables)
    tables = {
        name: merged_table([(address, info.tables[name]) for address, info in infos.items() if name in info.tables])
        for name in names
    }
    state = functools.reduce(operator.xor, (info.state_id for info in infos.values()), 0)
    return ServerInfo(state, tables)


def merged_table(found: Sequence[tuple[str, TableInfo]]) -> TableInfo:
    """One table of many servers, each with its address. Raises as `merged`."""
    address, first = found[0]
    for other_address, other in found[1:]:
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
