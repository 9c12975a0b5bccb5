"""`rlds2reverb delete`: episodes out of the tables of running servers, for good; and in again."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.options import (
    choose_view,
    into_option,
    json_option,
    limit_option,
    open_dataset,
    options_from,
    quiet_option,
    suggest,
    view_option,
    views_of_tables,
)
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError
from rlds2reverb.keywords import command_options
from rlds2reverb.push.deleting import DeleteReport
from rlds2reverb.push.options import PushOptions
from rlds2reverb.text import counted

_OF_PUSHES = (
    "ledger",
    "resume",
    "again",
    "move",
    "allow_eviction",
    "workers",
    "ray",
    "quarantine",
    "stall_seconds",
    "chunk_length",
    "note",
)
"""Options of a push that do not change what its episodes are called."""


@click.command(
    "delete",
    cls=Command,
    examples={
        "An episode by its name, from all tables": "rlds2reverb delete --server localhost:8000 --episode content:0a1b",
        "The 17th episode of a dataset": "rlds2reverb delete 'tfds:my_set@train[17:18]' --server localhost:8000 --table replay",
        "What a push has stored; first see what would go": "rlds2reverb delete --server localhost:8000 --push 5ff7bd846040 --dry-run",
        "Let in again what a delete took out; the same push then stores it": "rlds2reverb delete --server localhost:8000 --restore --push 1c09a17f3b2e",
    },
)
@click.argument("source", metavar="[SOURCE]", required=False, shell_complete=suggest("sources"))
@server_options
@click.option(
    "--table",
    multiple=True,
    metavar="TABLE",
    shell_complete=suggest("tables"),
    help="Delete from this table alone; repeat it for several. By default from all.",
)
@click.option(
    "--episode", "episodes", multiple=True, metavar="NAME", help="Episodes of this name; repeat it for several."
)
@click.option(
    "--push",
    "pushes",
    multiple=True,
    metavar="ID",
    help="Episodes of this push, or of this delete, by the ID that `rlds2reverb journal` shows; of a delete from its tables. Repeat it for several.",
)
@click.option(
    "--dataset",
    metavar="NAME",
    help="Episodes of all pushes of this dataset, or of this part of one, as the journal names it; nothing is read.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would go.")
@click.option("--restore", is_flag=True, help="Let the episodes in again: the same push stores them anew.")
@click.option(
    "--checkpoint/--no-checkpoint",
    default=True,
    help="Have the servers write a checkpoint at the end (the default), so that a crash does not bring the episodes back.",
)
@click.option("--note", default="", metavar="TEXT", help="Say why, for the journal.")
@view_option
@into_option
@options_from(PushOptions, without=_OF_PUSHES)
@limit_option
@quiet_option
@json_option
def command(
    source: str | None,
    table: tuple[str, ...],
    episodes: tuple[str, ...],
    pushes: tuple[str, ...],
    dataset: str | None,
    dry_run: bool,
    restore: bool,
    checkpoint: bool,
    note: str,
    view: str | None,
    view_config: Any,
    into: tuple[str, ...],
    limit: int | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Delete episodes from tables, on all servers, so that they stay out: a push that gives them the same names does not bring them back, with
    or without a ledger, after a restart either.

    With SOURCE it is about the episodes of a dataset, which are read for their names: give what the push was given, and say which episodes by
    SOURCE itself or by a filter. An episode goes with all of its copies, whatever push or dataset has brought it. Without SOURCE, servers know the episodes by the pushes that they list. Of what is given, all must hold.

    \b
    Exit codes:
      0  done, also where a server is missing (--allow-missing) or wrote no checkpoint: `missing` and `unsaved` say which
      2  no episode was chosen, as by the ID of no push; items of a table hold several episodes; or an option makes no sense
      3  the source cannot be opened or read, or its name makes no sense, options behind the "?" included; or a bucket does not answer or refuses
      5  a server cannot be reached, or failed meanwhile: run the delete again
    """
    options = {name: given.pop(name) for name in command_options(PushOptions) if name in given}
    chosen: dict[str, Any] = {
        name: value for name, value in options.items() if value not in ((), getattr(PushOptions, name, None))
    }
    tables: Any = views_of_tables(into, table, view, view_config) or table
    how: dict[str, Any] = {"episodes": episodes or None, "pushes": pushes, "dataset": dataset}
    with open_client(**given) as client, progress.reporting(quiet or source is None, "reading the names of episodes"):
        if source is None:
            if chosen or view or view_config or into or limit:
                raise ConfigError("options that say how a source is read need SOURCE")
        else:
            if not tables:
                raise ConfigError("name the tables that the push has filled: --table TABLE, or --into TABLE=VIEW")
            chosen["view"] = choose_view(source, view, view_config) if not into else None
        opened = None if source is None else open_dataset(source).first(limit)
        how |= {"dry_run": dry_run, "restore": restore, "checkpoint": checkpoint, "note": note}
        report = client.delete_episodes(opened, tables, **how, **chosen)
    _print(report, as_json)


def _print(report: DeleteReport, as_json: bool) -> None:
    if as_json:
        output.print_json(report)
        return
    if report.dry_run:
        output.talk("nothing was changed")
    items = ", ".join(f"{table} {count:,}" for table, count in sorted(report.items.items()))
    fields = {
        "episodes": f"{report.episodes:,}" + (" let in again" if report.restored else ""),
        "items": "" if report.restored else f"{items}{' at most' if report.dry_run else ''}",
        "not listed": f"{counted(len(report.unknown), 'name')} that no push has listed as stored"
        if report.unknown
        else "",
        "missing": "; ".join(f"{address}: {reason}" for address, reason in report.missing.items()),
        "no checkpoint": "; ".join(f"{address}: {reason}" for address, reason in report.unsaved.items()),
        "id": report.entry,
        "names": ", ".join(report.names[:_SHOWN])
        + (f", and {len(report.names) - _SHOWN:,} more" if len(report.names) > _SHOWN else ""),
    }
    output.print_fields({name: text for name, text in fields.items() if text})
    if report.missing:
        output.talk(
            "run the same command again when the missing servers are back: until then they keep what they hold, and the episodes that only they list "
            "of a push or dataset are not deleted"
        )
    if report.unsaved:
        output.talk("it holds from the next checkpoint on: a crash before that undoes it")
    if report.restored and not report.dry_run:
        output.talk("the same push stores them anew")


_SHOWN = 5
