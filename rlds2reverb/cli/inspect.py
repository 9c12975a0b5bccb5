"""`rlds2reverb inspect`: what is in a dataset, and which table it needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.options import (
    chosen_view,
    into_option,
    json_option,
    limit_option,
    source_argument,
    view_option,
    views_of_tables,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.inspection import Findings, Inspection, Range, inspect_source, summary
from rlds2reverb.sources import open_source
from rlds2reverb.specs import flatten
from rlds2reverb.validation import CODES


@click.command("inspect")
@source_argument
@view_option
@into_option
@limit_option
@click.option(
    "--server-config", is_flag=True, help="Print a config for `rlds2reverb serve` instead, with a table for all items."
)
@click.option("--table", help="The table's name in that config; replay without it.")
@json_option
def command(
    source: str,
    view: str | None,
    view_config: Path | None,
    into: tuple[str, ...],
    limit: int | None,
    server_config: bool,
    table: str | None,
    as_json: bool,
) -> None:
    """Show a dataset's step spec, the trajectory data spec of its items, counts, ranges and problems."""
    name = table or "replay"
    views = views_of_tables(into, table, view, view_config) or {name: chosen_view(view, view_config)}
    inspection = inspect_source(open_source(source), views, limit)
    if server_config:
        arguments = _as_options(into) if into else f"--table {shlex.quote(name)} {_as_option(view, view_config)}"
        click.echo(_config_text(source, arguments, inspection, limit), nl=False)
    elif as_json:
        output.print_json(inspection.as_dict())
    else:
        _print(inspection)


def _as_option(view: str | None, view_config: Path | None) -> str:
    """How the view is written for a push."""
    return (
        f"--view {shlex.quote(view or 'two_step')}"
        if view_config is None
        else f"--view-config {shlex.quote(str(view_config))}"
    )


def _as_options(into: Sequence[str]) -> str:
    return " ".join(f"--into {shlex.quote(text)}" for text in into)


def _config_text(source: str, arguments: str, inspection: Inspection, limit: int | None) -> str:
    try:
        from replay_server.template import Wanted, config_text
    except ImportError as error:
        raise ConfigError(f'--server-config: {error}; install with: pip install "rlds2reverb[server]"') from error
    tables = {name: Wanted(need.items, need.signature, need.by_priority) for name, need in inspection.tables.items()}
    episodes = len(inspection.lengths)
    return config_text(source, arguments, tables, episodes if limit == episodes else None)


def _print(inspection: Inspection) -> None:
    counts = f"{len(inspection.lengths):,} episodes, {sum(inspection.lengths):,} steps, {inspection.step_bytes:,} bytes a step"
    output.print_fields(
        {
            "source": inspection.source,
            "counts": counts,
            "episode length": _summary(inspection.lengths),
            "return": _summary(inspection.returns),
            "filled": ", ".join(inspection.filled) or "nothing: all seven RLDS fields are there",
        }
    )
    click.echo("\nstep spec")
    output.print_fields(
        {path: f"{spec!s:<16}  {_range(inspection.ranges[path])}" for path, spec in inspection.step_spec.items()},
        "  ",
    )
    for name, need in inspection.tables.items():
        click.echo(f"\ntable {name}: {need.items:,} items of view {need.view}, trajectory data spec (its signature)")
        if need.without_items:
            click.echo(f"  {need.without_items:,} valid episodes give it no item")
        if need.left_over:
            click.echo(f"  {need.left_over:,} steps at the end are left over")
        output.print_fields({path: str(spec) for path, spec in flatten(need.signature).items()}, "  ")
    click.echo("")
    print_findings(inspection.findings)


def print_findings(findings: Findings) -> None:
    """Every problem found, with examples, on stdout."""
    if not findings.episodes:
        click.echo("no problems")
        return
    for code in CODES:
        if code not in findings.episodes:
            continue
        kind = "advice" if CODES[code].is_advice else "problem"
        click.echo(f"{kind} {code}: {findings.episodes[code]:,} episodes: {CODES[code].meaning}")
        for episode, problem in findings.examples[code]:
            where = f'column "{problem.path}": ' if problem.path else ""
            click.echo(f"  {episode}: {where}{problem.detail}")


def _summary(values: list[int] | list[float]) -> str:
    numbers = summary(values)
    if numbers is None:
        return "-"
    return "  ".join(f"{name} {output.number(value)}" for name, value in numbers.items())


def _range(span: Range) -> str:
    if span.minimum is None:
        return ""
    bad = f", {span.not_finite:,} not finite" if span.not_finite else ""
    return f"{output.number(span.minimum)} to {output.number(span.maximum)}, mean {output.number(span.mean)}{bad}"
