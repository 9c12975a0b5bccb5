"""`rlds2reverb status`: the tables of a running server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click
from msgspec import UNSET

from rlds2reverb.cli import documents, output
from rlds2reverb.cli.connecting import open_client, optional_server_options
from rlds2reverb.cli.options import json_option
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import SpecError, WireError
from rlds2reverb.look.accounts import next_command, table_fields
from rlds2reverb.servers.tables import merge_infos
from rlds2reverb.specs import spec_texts, view_in
from rlds2reverb.text import duration, size
from rlds2reverb.transport.http import KeptCheckpoints, ServerHttp, Status
from rlds2reverb.views import shorten_view
from rlds2reverb.wire.messages import ServerInfo, TableInfo, insert_wait, sample_wait, sentence, waiting


@click.command(
    "status",
    cls=Command,
    examples={
        "A line for each table": "rlds2reverb status --server localhost:8000",
        "With signatures and rate limiters, in words": "rlds2reverb status --server localhost:8000 --verbose",
        "The checkpoints that a server keeps": "rlds2reverb status --checkpoints --http http://localhost:8080",
        "Servers that are used as one": "rlds2reverb status --server host-a:8000,host-b:8000",
    },
)
@optional_server_options
@click.option(
    "--checkpoints",
    is_flag=True,
    help="Show the kept checkpoints of an `rlds2reverb serve` instead: when, how large, why each is kept. --start-from of serve takes their numbers.",
)
@click.option(
    "--http",
    "url",
    default="http://127.0.0.1:8080",
    show_default=True,
    envvar="RLDS2REVERB_HTTP",
    show_envvar=True,
    metavar="URL",
    help="The server's HTTP address, for --checkpoints.",
)
@click.option(
    "--verbose", is_flag=True, help="Show signatures, too, and what each rate limiter lets through, in words."
)
@json_option
def command(as_json: bool, verbose: bool, checkpoints: bool, url: str, **connection: Any) -> None:
    """Show every table on a line: size, selectors, the view of its signature, and why its rate limiter makes clients wait.

    With more than one server, sizes and counts are sums; those of every server are beside them.
    """
    if checkpoints:
        files = [connection[name] for name in _FILES.values()]
        _show_checkpoints(ServerHttp(url, *files).status(connection["timeout"]), url, as_json)
        return
    if connection["server"] is None:
        context = click.get_current_context()
        server = next(option for option in context.command.params if option.name == "server")
        raise click.MissingParameter(ctx=context, param=server)
    with open_client(**connection) as client:
        infos = client.servers()
    tables = merge_infos(infos).tables
    if len(client.addresses) == 1:
        infos = {}
    if as_json:
        output.print_json({name: _document(table, _on_each(infos, name)) for name, table in sorted(tables.items())})
        return
    if not tables:
        output.talk("the server has no tables")
        return
    if verbose:
        for name in sorted(tables):
            _print(tables[name], _on_each(infos, name))
    else:
        _print_lines(tables, infos)
    if not connection["header"]:  # it may be a secret
        words = next_command(tables.values(), connection["server"])
        files = [(option, connection[name]) for option, name in _FILES.items() if connection[name] is not None]
        output.propose([*words, *(word for option, path in files for word in (option, str(path)))])


def _show_checkpoints(status: Status, url: str, as_json: bool) -> None:
    """A line per kept checkpoint, newest first."""
    kept = status.checkpoints.all
    if kept is None:
        raise WireError(f"{url}: a server of an older version, which does not list its checkpoints")
    if as_json:
        output.print_json(KeptCheckpoints(kept))
        return
    if not kept:
        output.talk("the server has no checkpoint yet")
        return
    rows: list[list[output.Part]] = [[(name, "aside") for name in _CHECKPOINT_HEAD]]
    for checkpoint in kept:
        written = (
            "-" if checkpoint.created is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(checkpoint.created))
        )
        items = ", ".join(f"{table} {count:,}" for table, count in sorted(checkpoint.items.items()))
        rows.append(
            [
                (checkpoint.name, "name"),
                written,
                "-" if checkpoint.age_seconds is None else duration(checkpoint.age_seconds),
                items or "-",
                "-" if checkpoint.bytes is None else size(checkpoint.bytes),
                ", ".join(checkpoint.kept) or "until the next one",
                "yes" if checkpoint.valid else (f"no: {checkpoint.problem}", "advice"),
            ]
        )
    output.print_columns(rows, has_heads=True)


_CHECKPOINT_HEAD = ("CHECKPOINT", "WRITTEN", "AGE", "ITEMS", "SIZE", "KEPT AS", "VALID")
_FILES = {"--tls-ca": "tls_ca", "--tls-cert": "tls_cert", "--tls-key": "tls_key"}


def _on_each(infos: Mapping[str, ServerInfo], name: str) -> dict[str, TableInfo]:
    """Address -> the table there; {} for one server."""
    return {address: info.tables[name] for address, info in infos.items() if name in info.tables}


_HEAD = ("TABLE", "ITEMS", "EPISODES", "SAMPLER", "REMOVER", "VIEW", "WAITS")


def _print_lines(tables: Mapping[str, TableInfo], infos: Mapping[str, ServerInfo]) -> None:
    """A line a table; below it one of each server, where there are several."""
    rows: list[list[output.Part]] = [[(name, "aside") for name in _HEAD]]
    for name in sorted(tables):
        servers = _on_each(infos, name)
        if tables[name].signature is not None:
            _columns(tables[name])  # raises for a signature that is wrong
        rows.append(_row(tables[name], (name, "name"), has_waits=not servers))
        rows += [_row(part, f"  on {address}") for address, part in servers.items()]
    output.print_columns(rows, has_heads=True)


def _row(table: TableInfo, name: output.Part, has_waits: bool = True) -> list[output.Part]:
    blocked = filter(None, map(waiting, (insert_wait(table), sample_wait(table)))) if has_waits else ()
    waits = "; ".join(blocked)
    return [
        name,
        f"{table.current_size:,} of {table.max_size:,}",
        f"{table.episodes:,}",
        table.sampler,
        table.remover,
        shorten_view(view_in(table.signature)) or "-",
        (waits, "advice") if waits else "-",
    ]


def _print(table: TableInfo, servers: Mapping[str, TableInfo]) -> None:
    """A table; and its part on each server, where it has a rate limiter of its own."""
    output.print_line((table.name, "name"))
    output.print_fields(table_fields(table, has_waits=not servers), "  ")
    for address, part in servers.items():
        output.print_line(f"  on {address}")
        fields = table_fields(part)
        items = f"{part.current_size:,} of {part.max_size:,}"
        output.print_fields({"items": items, "inserts": fields["inserts"], "samples": fields["samples"]}, "    ")
    if table.signature is None:
        click.echo("  no signature: the table takes anything")
    else:
        view = shorten_view(view_in(table.signature))
        output.print_line(f"  signature, for items of view {view}" if view else "  signature")
        output.print_fields(_columns(table), "    ")


def _document(table: TableInfo, servers: Mapping[str, TableInfo]) -> documents.Table:
    states = {"insert_state": sentence(insert_wait(table)), "sample_state": sentence(sample_wait(table))}
    return documents.document_of(
        documents.Table,
        table,
        size=table.current_size,
        rate_limiter=documents.document_of(documents.RateLimiter, table.rate_limiter, **states),
        signature=None if table.signature is None else _columns(table),
        view=view_in(table.signature) or None,
        servers={address: _document(part, {}) for address, part in servers.items()} if servers else UNSET,
    )


def _columns(table: TableInfo) -> dict[str, str]:
    try:
        return spec_texts(table.signature)
    except SpecError as error:
        raise SpecError(f'table "{table.name}": its signature: {error}; create it with other names') from error
