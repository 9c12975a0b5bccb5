"""`rlds2reverb migrate`: a table's episodes into a new table, by another view or transform."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.options import (
    choose_view,
    into_option,
    json_option,
    options_from,
    quiet_option,
    suggest,
    view_option,
    views_of_tables,
)
from rlds2reverb.cli.push import ends_when_interrupted_twice, print_plan, report_when_stopped
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError
from rlds2reverb.keywords import command_options
from rlds2reverb.look.accounts import push_fields
from rlds2reverb.push.options import PushOptions
from rlds2reverb.stored.migration import (
    CHECKED_ITEMS,
    INCOMPLETE,
    NOT_OF_MIGRATIONS,
    UNLISTED,
    MigrateReport,
    Migration,
    TableMissing,
)
from rlds2reverb.text import counted


@click.command(
    "migrate",
    cls=Command,
    examples={
        "Another view, between tables of one server; first see what would be done": "rlds2reverb migrate replay --server localhost:8000 "
        "--table sequences --view sequence:length=8 --dry-run",
        "From a checkpoint, without a camera": "rlds2reverb migrate '/data/checkpoints?table=replay' --server localhost:8000 "
        "--table slim --transform drop=observation/wrist_image",
        "From another server; a killed one goes on where it was": "rlds2reverb migrate localhost:8000/replay --server new-host:8000 "
        "--table replay --ledger migration.sqlite",
    },
)
@click.argument("source", metavar="OLD_TABLE", shell_complete=suggest("tables"))
@server_options
@click.option(
    "--table",
    multiple=True,
    metavar="TABLE",
    shell_complete=suggest("tables"),
    help="New table to fill; repeat it to fill several from one pass.",
)
@view_option
@into_option
@click.option(
    "--incomplete",
    type=click.Choice(INCOMPLETE),
    default=INCOMPLETE[0],
    show_default=True,
    help="Episodes that have lost rows in the old table: refuse sends nothing, skip leaves them out.",
)
@click.option(
    "--unlisted",
    type=click.Choice(UNLISTED),
    default=UNLISTED[0],
    show_default=True,
    help="Episodes that no push has listed, where the old server keeps a list: refuse sends nothing, skip leaves them out, content names them by "
    "what the table holds of them, for tables that other programs have filled.",
)
@click.option(
    "--check-items",
    type=click.IntRange(min=0),
    default=CHECKED_ITEMS,
    show_default=True,
    metavar="N",
    help="Items of each new table whose values are compared at the end. That all items are there is looked at in any case.",
)
@options_from(PushOptions, without=NOT_OF_MIGRATIONS)
@click.option("--dry-run", is_flag=True, help="Read the old table, make all checks, and send nothing.")
@quiet_option
@json_option
def command(
    source: str,
    table: tuple[str, ...],
    view: str | None,
    view_config: Any,
    into: tuple[str, ...],
    incomplete: str,
    unlisted: str,
    check_items: int,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Move the episodes that a table holds into a new table, by another view or transform: each item exactly once, under the episodes' old names.

    OLD_TABLE is HOST:PORT/TABLE of a running server, FOLDER?table=TABLE of a checkpoint, or a table of the --server itself. It is read at one
    moment, and left as it is. Run again, the same migration adds what is missing. Episodes that were deleted from the old table stay out of the
    new one. At the end the new table is read back and compared.
    """
    chosen = {name: given.pop(name) for name in command_options(PushOptions) if name in given}
    if views := views_of_tables(into, table, view, view_config):
        options = PushOptions(views, None, **chosen)
    elif table:
        options = PushOptions(table, choose_view("", view, view_config), **chosen)
    else:
        raise ConfigError("name the new table: --table TABLE, or --into TABLE=VIEW")
    begun: list[Migration] = []
    with (
        report_when_stopped(as_json, False, lambda: begun[0].push_report() if begun else None),
        open_client(**given) as client,
    ):
        try:
            with progress.reporting(quiet, "reading the old table"):
                migration = Migration.open(source, client, options, incomplete, check_items, unlisted)
        except TableMissing as missing:
            text = _config_of(missing)
            if as_json:
                missing.problems = (text,) if text else ()
            elif text:
                output.talk("put this below tables: of the config; sampler and rate limiter are the defaults")
                click.echo(text)
            raise
        if dry_run:
            report = migration.outlook()
            output.talk("the tables take these items; nothing was sent")
        else:
            with ends_when_interrupted_twice(), progress.on_progress(quiet) as on_progress:
                begun.append(migration)
                report = migration.run(on_progress)
    if as_json:
        output.print_json(report)
        return
    _print(report)
    if dry_run:
        print_plan(False, migration.plan)


def _config_of(missing: TableMissing) -> str:
    """The entries that the config needs; "" where what writes them is not installed."""
    try:
        from replay_server.template import TableDraft, tables_text
    except ImportError:
        return ""
    return tables_text(
        {
            name: TableDraft(table.view, table.items, table.signature, table.by_priority, max(1, table.old_size))
            for name, table in missing.tables.items()
        }
    ).rstrip()


def _print(report: MigrateReport) -> None:
    names = f"{report.listed:,} under the names of their pushes" if report.listed else "named by their content"
    fields = {
        "old table": f"{report.source}  ({counted(report.old_items, 'item')})",
        "episodes": f"{report.episodes:,}, {names}",
        "incomplete": f"{counted(report.incomplete, 'episode')} with lost rows, left out" if report.incomplete else "",
        "unlisted": f"{counted(report.unlisted, 'episode')} of no push, left out" if report.unlisted else "",
        "deleted": f"{counted(report.deleted, 'name')}, kept out of the new table" if report.deleted else "",
        "priorities": f"{counted(report.priorities, 'item')} got those of the old table" if report.priorities else "",
        "proof": report.proof,
        "compared": f"{counted(report.items_compared, 'item')}: their values are those that were sent"
        if report.items_compared
        else "",
    }
    if report.push is not None:
        fields |= {name: text for name, text in push_fields(report.push).items() if name != "source"}
    output.print_fields({name: text for name, text in fields.items() if text}, kinds=output.OUTCOMES)
    output.print_notices(report.notices)
    if report.push is not None:
        output.print_notices(report.push.notices)
