"""The tables of a server compared with the items of a push: signatures, and sizes."""

from __future__ import annotations

from rlds2reverb.errors import CapacityError, SpecError, SpecMismatch
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import JPEG, PNG, Nest, differences, flatten, with_view
from rlds2reverb.views.trajectory import name_of
from rlds2reverb.wire.messages import ServerInfo, TableInfo, waits_when_full


def check_tables(output: Output, signature: Nest, info: ServerInfo, allow_other_views: bool = False) -> None:
    """Compares every table's signature with that of the output's items, leaf by leaf; before the first byte is sent.

    Args:
      allow_other_views: take a table that says it is for another view, where the leaves fit.

    Raises:
      ConfigError: the server has no such table.
      SpecMismatch: the signatures differ, or the table is for another view.
    """
    items = signature if allow_other_views else with_view(signature, name_of(output.view))
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
        images = {
            path: leaf.image for path, leaf in flatten(table).items() if leaf.image is not None and path in decoded
        }
    except SpecError:  # two columns of one name: the difference says so
        return ""
    if not images:
        return ""
    made = PNG if all(image.format == PNG for image in images.values()) else JPEG
    return (
        f'the table holds encoded images in {", ".join(images)}: push with encoded="all" (--encoded all), or with the paths '
        f'that the dataset has for these, or make files of frames with encode="{made}" (--encode {made}); or choose another table'
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
