"""`rlds2reverb inspect`: what is in a dataset, and which table it needs."""

from __future__ import annotations

from pathlib import Path

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.options import chosen_view, json_option, limit_option, source_argument, view_option
from rlds2reverb.conventions import filled_spec
from rlds2reverb.errors import ConfigError
from rlds2reverb.inspection import Findings, Inspection, Range, inspect_source, summary
from rlds2reverb.sources import open_source
from rlds2reverb.specs import Nest
from rlds2reverb.validation import CODES


@click.command("inspect")
@source_argument
@view_option
@limit_option
@click.option(
    "--server-config", is_flag=True, help="Print a config for `rlds2reverb serve` instead, with a table for all items."
)
@click.option("--table", default="replay", show_default=True, help="The table's name in that config.")
@json_option
def command(
    source: str,
    view: str | None,
    view_config: Path | None,
    limit: int | None,
    server_config: bool,
    table: str,
    as_json: bool,
) -> None:
    """Show a dataset's step spec, the trajectory data spec of its items, counts, ranges and problems."""
    chosen, opened = chosen_view(view, view_config), open_source(source)
    inspection = inspect_source(opened, chosen, limit)
    if server_config:
        signature = chosen.signature(filled_spec(opened.spec()))
        click.echo(_config_text(source, _as_option(view, view_config), table, inspection.items, signature), nl=False)
    elif as_json:
        output.print_json(inspection.as_dict())
    else:
        _print(inspection)


def _as_option(view: str | None, view_config: Path | None) -> str:
    """How the view is written for a push."""
    return f"--view {view or 'two_step'}" if view_config is None else f"--view-config {view_config}"


def _config_text(source: str, view: str, table: str, items: int, signature: Nest) -> str:
    try:
        from replay_server.template import config_text
    except ImportError as error:
        raise ConfigError(f'--server-config: {error}; install with: pip install "rlds2reverb[server]"') from error
    return config_text(source, view, table, items, signature)


def _print(inspection: Inspection) -> None:
    counts = f"{len(inspection.lengths):,} episodes, {sum(inspection.lengths):,} steps, {inspection.step_bytes:,} bytes a step"
    output.print_fields(
        {
            "source": inspection.source,
            "counts": counts,
            "episode length": _summary(inspection.lengths),
            "return": _summary(inspection.returns),
            "view": f"{inspection.view}: {inspection.items:,} items",
            "filled": ", ".join(inspection.filled) or "nothing: all seven RLDS fields are there",
        }
    )
    click.echo("\nstep spec")
    output.print_fields(
        {path: f"{spec!s:<16}  {_range(inspection.ranges[path])}" for path, spec in inspection.step_spec.items()},
        "  ",
    )
    click.echo("\ntrajectory data spec (the table's signature)")
    output.print_fields({path: str(spec) for path, spec in inspection.signature.items()}, "  ")
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
