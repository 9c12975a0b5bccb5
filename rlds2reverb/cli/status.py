"""`rlds2reverb status`: the tables of a running server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.options import ANSWERS_H, json_option
from rlds2reverb.errors import SpecError
from rlds2reverb.push.several.tables import merged
from rlds2reverb.specs import spec_texts, view_in
from rlds2reverb.wire.limiter import insert_wait, sample_wait, sentence
from rlds2reverb.wire.messages import ServerInfo, TableInfo
from rlds2reverb.wording import counted


@click.command("status", context_settings=ANSWERS_H)
@server_options
@json_option
def command(as_json: bool, **connection: Any) -> None:
    """Show every table: size, selectors, rate limiter in words, signature.

    Of several servers, sizes and counts are sums; every server's own are beside them.
    """
    with open_client(**connection) as client:
        infos = client.servers()
    tables = merged(infos).tables
    if len(client.addresses) == 1:
        infos = {}
    if as_json:
        output.print_json({name: {**_as_dict(table), **_shares(infos, name)} for name, table in sorted(tables.items())})
        return
    for name in sorted(tables):
        _print(tables[name], {address: info.tables[name] for address, info in infos.items() if name in info.tables})


def _shares(infos: Mapping[str, ServerInfo], name: str) -> dict[str, Any]:
    """A table's state on each of several servers; nothing for one server."""
    if not infos:
        return {}
    return {"servers": {address: _as_dict(info.tables[name]) for address, info in infos.items() if name in info.tables}}


def _print(table: TableInfo, servers: Mapping[str, TableInfo]) -> None:
    """A table; and what it is on each of several servers, each with a rate limiter of its own."""
    output.print_line(table.name)
    limit = (
        f"at most {counted(table.max_times_sampled, 'time')}" if table.max_times_sampled > 0 else "any number of times"
    )
    output.print_fields(
        {
            "items": f"{table.current_size:,} of {table.max_size:,}, {counted(table.episodes, 'episode')}",
            "selectors": f"sampler {table.sampler}, remover {table.remover}, each item sampled {limit}",
            **(_waits(table) if not servers else {}),
        },
        "  ",
    )
    for address, one in servers.items():
        output.print_line(f"  on {address}")
        output.print_fields({"items": f"{one.current_size:,} of {one.max_size:,}", **_waits(one)}, "    ")
    if table.signature is None:
        click.echo("  no signature: the table takes anything")
    else:
        view = view_in(table.signature)
        output.print_line(f"  signature, for items of view {view}" if view else "  signature")
        output.print_fields(_columns(table), "    ")


def _waits(table: TableInfo) -> dict[str, str]:
    """What the rate limiter lets through, in words."""
    return {"inserts": sentence(insert_wait(table)), "samples": sentence(sample_wait(table))}


def _as_dict(table: TableInfo) -> dict[str, Any]:
    limiter = table.rate_limiter
    return {
        "size": table.current_size,
        "max_size": table.max_size,
        "sampler": table.sampler,
        "remover": table.remover,
        "max_times_sampled": table.max_times_sampled,
        "episodes": table.episodes,
        "deleted_episodes": table.deleted_episodes,
        "unique_samples": table.unique_samples,
        "rate_limiter": {
            "samples_per_insert": limiter.samples_per_insert,
            "min_size_to_sample": limiter.min_size_to_sample,
            "min_diff": limiter.min_diff,
            "max_diff": limiter.max_diff,
            "inserts": limiter.inserts,
            "samples": limiter.samples,
            "insert_state": sentence(insert_wait(table)),
            "sample_state": sentence(sample_wait(table)),
        },
        "signature": None if table.signature is None else _columns(table),
        "view": view_in(table.signature) or None,
    }


def _columns(table: TableInfo) -> dict[str, str]:
    """The signature's columns in words, by path."""
    try:
        return spec_texts(table.signature)
    except SpecError as error:
        raise SpecError(f'table "{table.name}": its signature: {error}; create it with other names') from error
