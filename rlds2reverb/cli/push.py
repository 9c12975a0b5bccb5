"""`rlds2reverb push`: a dataset into the tables of a running server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.options import (
    SECONDS,
    chosen_view,
    into_option,
    json_option,
    judging_options,
    open_client,
    server_options,
    source_argument,
    view_option,
    views_of_tables,
)
from rlds2reverb.conventions import LAST_REWARDS, TERMINAL_DISCOUNTS, filled_spec
from rlds2reverb.errors import ConfigError
from rlds2reverb.outputs import Output, TableViews, outputs_of
from rlds2reverb.report import PushReport
from rlds2reverb.sources import open_source
from rlds2reverb.specs import Nest, flatten
from rlds2reverb.validation.policy import ACTIONS
from rlds2reverb.views.base import View


@click.command("push")
@source_argument
@server_options
@click.option("--table", multiple=True, help="Table to fill; repeat it to fill several from one pass.")
@view_option
@into_option
@click.option("--on-invalid", type=click.Choice(ACTIONS), default="raise", show_default=True,
              help="What to do with a bad episode.")  # fmt: skip
@click.option("--quarantine", type=click.Path(dir_okay=False, path_type=Path),
              help="JSON-lines report of bad episodes, for --on-invalid quarantine.")  # fmt: skip
@judging_options
@click.option("--terminal-discount", type=click.Choice(TERMINAL_DISCOUNTS), default="as_recorded", show_default=True,
              help='"transition": discount 0 on the step that leads into a terminal one.')  # fmt: skip
@click.option("--last-reward", type=click.Choice(LAST_REWARDS), default="as_recorded", show_default=True,
              help='"shift": every reward moves one step back.')  # fmt: skip
@click.option("--ledger", type=click.Path(dir_okay=False, path_type=Path),
              help="SQLite file of confirmed episodes; a killed push goes on from it.")  # fmt: skip
@click.option("--resume/--no-resume", default=True, show_default=True, help="Skip episodes that the ledger has.")
@click.option("--again", is_flag=True, help="New item keys: store everything once more.")
@click.option("--allow-eviction", is_flag=True, help="Go on when the push is larger than a table.")
@click.option("--chunk-length", type=click.IntRange(min=1), help="Rows a chunk; by default chosen from a row's bytes.")
@click.option("--stall-timeout", type=SECONDS, default=300.0, show_default=True,
              help="Give up when nothing was confirmed for so many seconds.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check source, view and tables; send nothing.")
@json_option
def command(
    source: str,
    table: tuple[str, ...],
    view: str | None,
    view_config: Path | None,
    into: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    stall_timeout: float,
    **options: Any,
) -> None:
    """Store a dataset's items in one or more tables, each item exactly once.

    Run again, the same push adds nothing: item keys are a function of the data.
    """
    connection = {name: options.pop(name) for name in ("server", "tls_ca", "tls_cert", "tls_key", "header", "timeout")}
    tables, chosen = _tables_and_view(table, view, view_config, into)
    with open_client(**connection) as client:
        opened = open_source(source)
        if dry_run:
            client.push(opened, tables, chosen, stall_seconds=stall_timeout, dry_run=True, **options)
            output.talk("the tables take these items; nothing was sent")
            _print_signatures(as_json, outputs_of(tables, chosen), filled_spec(opened.spec()))
            return
        with output.progress_bar(quiet=as_json) as on_progress:
            report = client.push(
                opened, tables, chosen, stall_seconds=stall_timeout, on_progress=on_progress, **options
            )
    _print(as_json, report.as_dict() if as_json else _fields(report))


def _tables_and_view(
    tables: tuple[str, ...], view: str | None, view_config: Path | None, into: Sequence[str]
) -> tuple[tuple[str, ...] | TableViews, View | None]:
    """What `Client.push` takes, from either pair of options."""
    if views := views_of_tables(into, tables, view, view_config):
        return views, None
    if not tables:
        raise ConfigError("name the tables to fill: --table TABLE, or --into TABLE=VIEW")
    return tables, chosen_view(view, view_config)


def _print_signatures(as_json: bool, outputs: Sequence[Output], spec: Nest) -> None:
    """Every table and what its items are."""
    found = {
        table: {path: str(leaf) for path, leaf in flatten(one.view.signature(spec)).items()}
        for one in outputs
        for table in one.tables
    }
    if as_json:
        output.print_json(found)
        return
    for table, leaves in found.items():
        click.echo(f"table {table}")
        output.print_fields(leaves, "  ")


def _print(as_json: bool, fields: dict[str, Any]) -> None:
    if as_json:
        output.print_json(fields)
    else:
        output.print_fields(fields)


def _fields(report: PushReport) -> dict[str, str]:
    fields = {
        "source": report.source,
        "tables": f"{', '.join(report.tables)}  (view {report.view})",
        "read": f"{report.episodes_read:,} episodes, {report.steps_read:,} steps",
        "pushed": f"{report.episodes_pushed:,} episodes, {report.steps_pushed:,} steps",
        "confirmed": f"{report.items_confirmed:,} items"
        + (f"  ({_codes(report.items_made)})" if len(report.tables) > 1 else ""),
        "speed": f"{report.items_per_second:,.0f} items/s, {report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s",
    }
    optional = {
        "rejected": _codes(report.rejected) and f"{_codes(report.rejected)}  ({report.steps_rejected:,} steps)",
        "repaired": _codes(report.repaired),
        "advice": _codes(report.advice),
        "filled": ", ".join(report.filled),
        "resumed": report.episodes_resumed and f"{report.episodes_resumed:,} episodes were confirmed before",
        "no items": _codes(report.without_items) and f"{_codes(report.without_items)} episodes",
        "left over": _codes(report.left_over) and f"{_codes(report.left_over)} steps at the end of the stream",
        "reconnects": report.reconnects or "",
    }
    return {**fields, **{name: str(text) for name, text in optional.items() if text}}


def _codes(counts: Any) -> str:
    return ", ".join(f"{code} {count:,}" for code, count in counts.items())
