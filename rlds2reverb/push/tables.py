"""Whether the tables of a server take the items of an output, and are large enough for them."""

from __future__ import annotations

from rlds2reverb.errors import CapacityError, ConfigError, SpecError, SpecMismatch
from rlds2reverb.push.outputs import Output
from rlds2reverb.specs import Nest, differences, flatten
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


def check_tables(output: Output, signature: Nest, info: ServerInfo) -> None:
    """Compares every table's signature with that of the output's items, leaf by leaf; before the first byte is sent.

    Raises:
      ConfigError: the server has no such table.
      SpecMismatch: the signatures differ.
    """
    for name in output.tables:
        found = table_of(info, name).signature
        if found is not None and (lines := differences(signature, found)):
            raise SpecMismatch(f'table "{name}"', lines, _way_out(signature, found))


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
