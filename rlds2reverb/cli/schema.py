"""`rlds2reverb schema`: what a command's --json prints, as a JSON Schema."""

from __future__ import annotations

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.documents import DOCUMENTS, schema_of
from rlds2reverb.cli.options import ANSWERS_H


@click.command("schema", context_settings=ANSWERS_H)
@click.argument("of", metavar="COMMAND", type=click.Choice(list(DOCUMENTS)))
def command(of: str) -> None:
    """Print the JSON Schema (2020-12) of what a command prints with --json.

    \b
    COMMAND is one of those that have --json:
      rlds2reverb schema push > push.schema.json
    """
    output.print_json(schema_of(of))
