"""`rlds2reverb schema`: what a command's --json prints, as a JSON Schema."""

from __future__ import annotations

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.documents import DOCUMENTS, schema_of
from rlds2reverb.cli.sections import Command


@click.command(
    "schema",
    cls=Command,
    examples={
        "What push prints with --json": "rlds2reverb schema push",
        "Keep it as a file": "rlds2reverb schema push > push.schema.json",
        "What status prints": "rlds2reverb schema status",
    },
)
@click.argument("of", metavar="COMMAND", type=click.Choice(list(DOCUMENTS)))
def command(of: str) -> None:
    """Print the JSON Schema (2020-12) of what a command prints with --json."""
    output.print_json(schema_of(of))
