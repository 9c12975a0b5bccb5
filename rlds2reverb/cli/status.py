"""`rlds2reverb status`: the tables of a running server."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.options import json_option, open_client, server_options
from rlds2reverb.specs import flatten
from rlds2reverb.wire.limiter import explain_inserts, explain_samples
from rlds2reverb.wire.messages import TableInfo


@click.command("status")
@server_options
@json_option
def command(as_json: bool, **connection: Any) -> None:
    """Show every table: size, selectors, rate limiter in words, signature."""
    with open_client(**connection) as client:
        tables = client.server_info().tables
    if as_json:
        output.print_json({name: _as_dict(table) for name, table in sorted(tables.items())})
        return
    for name in sorted(tables):
        _print(tables[name])


def _print(table: TableInfo) -> None:
    click.echo(f"{table.name}")
    limit = f"at most {table.max_times_sampled} times" if table.max_times_sampled > 0 else "any number of times"
    output.print_fields(
        {
            "items": f"{table.current_size:,} of {table.max_size:,}, {table.episodes:,} episodes",
            "selectors": f"sampler {table.sampler}, remover {table.remover}, each item sampled {limit}",
            "inserts": explain_inserts(table),
            "samples": explain_samples(table),
        },
        "  ",
    )
    click.echo("  signature" if table.signature is not None else "  no signature: the table takes anything")
    if table.signature is not None:
        output.print_fields({path: str(spec) for path, spec in flatten(table.signature).items()}, "    ")


def _as_dict(table: TableInfo) -> dict[str, Any]:
    limiter = table.rate_limiter
    signature = table.signature
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
            "insert_state": explain_inserts(table),
            "sample_state": explain_samples(table),
        },
        "signature": None if signature is None else {path: str(spec) for path, spec in flatten(signature).items()},
    }
