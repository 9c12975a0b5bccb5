"""Whether the tables of a server take the items of an output, and are large enough for them."""

from __future__ import annotations

from rlds2reverb.errors import CapacityError, ConfigError, SpecError, SpecMismatch
from rlds2reverb.push.outputs import Output
from rlds2reverb.specs import Nest, differences, flatten, with_view
from rlds2reverb.wire.limiter import waits_when_full
from rlds2reverb.wire.messages import ServerInfo, TableInfo


def table_of(info: ServerInfo, name: str) -> TableInfo:
    """A table by name.

    Raises:
      ConfigError: the server has none of that name.
    """
    if name not in info.tables:
        known = ", ".join(sorted(info.tables)) or "none"
        raise ConfigError(f'the server has no table "{name}"; it has {known}')
    return info.tables[name]


def check_tables(output: Output, signature: Nest, info: ServerInfo, allow_other_views: bool = False) -> None:
    """Compares every table's signature with that of the output's items, leaf by leaf; before the first byte is sent.

    Args:
      output: whose tables.
      signature: of its items.
      info: the server's tables.
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
    """What to do where a table is for another view, and would take the items otherwise."""
    others = (
        "push by the table's view, choose another table, or let this one hold items of both views with allow_other_views=True "
        "(--allow-other-views)"
    )
    if table.current_size:
        return others
    return (
        f"the table is empty: to make it anew for this view, write view: {output.view_name} into its signature in the server's config "
        f"and start the server again (`rlds2reverb inspect SOURCE --view VIEW --server-config` prints such a config); or {others}"
    )


def _way_out(items: Nest, table: Nest) -> str:
    """What to do where the table holds images encoded that the items have decoded; "" for any other difference."""
    decoded = {path for path, leaf in flatten(items).items() if leaf.dtype.kind != "O"}
    try:
        paths = [path for path, leaf in flatten(table).items() if leaf.image is not None and path in decoded]
    except SpecError:  # two columns of one name, which is told
        return ""
    if not paths:
        return ""
    return (
        f'the table holds encoded images in {", ".join(paths)}: push with encoded="all" (--encoded all), or with the paths '
        "that the dataset has for these; or choose another table"
    )


def check_size(output: Output, info: ServerInfo, items_per_table: int, how: str) -> None:
    """Refuses a push that is larger than a table, whatever the table holds. A table that lets inserts wait takes any push.

    Args:
      output: whose tables.
      info: the tables before the push.
      items_per_table: what the push makes, as far as it is known.
      how: what to say about that number.

    Raises:
      CapacityError: a table is too small.
    """
    for table in (info.tables[name] for name in output.tables):
        if items_per_table > table.max_size and not waits_when_full(table):
            raise CapacityError(
                f'table "{table.name}": max_size {table.max_size} is smaller than the push ({how} '
                "items), so the oldest would be evicted; make the table larger, push less "
                "(a split such as train[:10%]), or allow it with allow_eviction=True (--allow-eviction)"
            )
