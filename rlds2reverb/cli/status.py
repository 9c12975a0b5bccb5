"""`rlds2reverb status`: the tables of a running server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from msgspec import UNSET

from rlds2reverb.cli import documents, output
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.options import ANSWERS_H, json_option
from rlds2reverb.errors import SpecError
from rlds2reverb.look.accounts import table_fields
from rlds2reverb.push.tables import merged
from rlds2reverb.specs import spec_texts, view_in
from rlds2reverb.wire.messages import ServerInfo, TableInfo, insert_wait, sample_wait, sentence


@click.command("status", context_settings=ANSWERS_H)
@server_options
@json_option
def command(as_json: bool, **connection: Any) -> None:
    """Show every table: size, selectors, rate limiter in words, signature.

    With more than one server, sizes and counts are sums; those of every server are beside them.
    """
    with open_client(**connection) as client:
        infos = client.servers()
    tables = merged(infos).tables
    if len(client.addresses) == 1:
        infos = {}
    if as_json:
        output.print_json({name: _document(table, _on_each(infos, name)) for name, table in sorted(tables.items())})
        return
    for name in sorted(tables):
        _print(tables[name], _on_each(infos, name))


def _on_each(infos: Mapping[str, ServerInfo], name: str) -> dict[str, TableInfo]:
    """Address -> the table there; {} for one server."""
    return {address: info.tables[name] for address, info in infos.items() if name in info.tables}


def _print(table: TableInfo, servers: Mapping[str, TableInfo]) -> None:
    """A table; and its part on each server, where it has a rate limiter of its own."""
    output.print_line(table.name)
    output.print_fields(table_fields(table, has_waits=not servers), "  ")
    for address, one in servers.items():
        output.print_line(f"  on {address}")
        fields = table_fields(one)
        items = f"{one.current_size:,} of {one.max_size:,}"
        output.print_fields({"items": items, "inserts": fields["inserts"], "samples": fields["samples"]}, "    ")
    if table.signature is None:
        click.echo("  no signature: the table takes anything")
    else:
        view = view_in(table.signature)
        output.print_line(f"  signature, for items of view {view}" if view else "  signature")
        output.print_fields(_columns(table), "    ")


def _document(table: TableInfo, servers: Mapping[str, TableInfo]) -> documents.Table:
    states = {"insert_state": sentence(insert_wait(table)), "sample_state": sentence(sample_wait(table))}
    return documents.made(
        documents.Table,
        table,
        size=table.current_size,
        rate_limiter=documents.made(documents.RateLimiter, table.rate_limiter, **states),
        signature=None if table.signature is None else _columns(table),
        view=view_in(table.signature) or None,
        servers={address: _document(one, {}) for address, one in servers.items()} if servers else UNSET,
    )


def _columns(table: TableInfo) -> dict[str, str]:
    try:
        return spec_texts(table.signature)
    except SpecError as error:
        raise SpecError(f'table "{table.name}": its signature: {error}; create it with other names') from error
