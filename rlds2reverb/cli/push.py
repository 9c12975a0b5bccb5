"""`rlds2reverb push`: a dataset into the tables of a running server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.interrupts import ends_when_interrupted_twice
from rlds2reverb.cli.opening import opened
from rlds2reverb.cli.options import (
    ANSWERS_H,
    chosen_view,
    into_option,
    json_option,
    limit_option,
    push_options,
    quiet_option,
    source_argument,
    suggested,
    view_option,
    views_of_tables,
    with_options,
)
from rlds2reverb.cli.reports import print_plan, print_report, told_when_stopped
from rlds2reverb.errors import ConfigError
from rlds2reverb.push.options import PushOptions, option_fields
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.run import Push
from rlds2reverb.scale.pushing import DistributedPush
from rlds2reverb.scale.sources import Named
from rlds2reverb.sources.base import Source, first_episodes
from rlds2reverb.sources.mix import MixOf
from rlds2reverb.views.base import View

pushing_options = with_options(
    server_options,
    click.option(
        "--table",
        multiple=True,
        shell_complete=suggested("tables"),
        help="Table to fill; repeat it to fill several from one pass.",
    ),
    view_option,
    into_option,
    push_options(),
    limit_option,
    click.option(
        "--dry-run",
        is_flag=True,
        help="Send nothing. Print each table's signature and room, make all checks that a push makes before it reads an episode, and say what only reading can tell.",
    ),
    quiet_option,
    json_option,
)
"""The options of a command that pushes."""


@click.command("push", context_settings=ANSWERS_H)
@source_argument
@pushing_options
def command(source: str, **given: Any) -> None:
    """Store a dataset's items in one or more tables, each item exactly once.

    Run again, the same push adds nothing: item keys are a function of the data. Items that would evict others are refused. A push that
    is stopped, by an error or by Ctrl-C, prints what is stored and what is not, as a finished one does.

    With several servers (--server A,B,...) every episode goes to one of them, the same one each time; see docs/scale.md.
    """
    push(lambda: (opened(source), source), **given)


def push(
    open_data: Callable[[], tuple[Source, str | MixOf]],
    *,
    limit: int | None,
    dry_run: bool,
    as_json: bool,
    tell: Callable[[], object] = lambda: None,
    **given: Any,
) -> None:
    """Pushes, or shows what a push would do; prints the report.

    Args:
      open_data: opens what is pushed, and says by what workers open the same: its name, or a mix by names; called when the options are checked
        and a server is found.
      limit, dry_run, as_json: see `pushing_options`.
      tell: called before the report is printed, of a push that was stopped as well.
      given: the other `pushing_options`.
    """
    quiet = given.pop("quiet")
    chosen = {field.name: given.pop(field.name) for field in option_fields()}
    named = {name: given.pop(name) for name in ("table", "view", "view_config", "into")}
    options = PushOptions(*_tables_and_view(*named.values()), **chosen)
    options.check_files()  # all before TensorFlow is imported or a server is asked
    if dry_run:
        with open_client(**given) as client:
            source, known_as = open_data()
            plan = client.planned(first_episodes(source, limit), options, Named(known_as, limit))
            client.pusher(plan)  # what cannot be pushed by workers is refused here
            _show(as_json, plan)
        return
    begun: list[Push | DistributedPush] = []
    with (
        told_when_stopped(as_json, options.again, lambda: begun[0].report() if begun else None),
        open_client(**given) as client,
    ):
        source, known_as = open_data()
        plan = client.planned(first_episodes(source, limit), options, Named(known_as, limit))
        _tell_left_out(plan)
        try:
            with ends_when_interrupted_twice(), progress.told(quiet) as on_progress:
                begun.append(client.pusher(plan.telling(on_progress)))
                report = begun[0].run()
        finally:
            tell()
    print_report(as_json, report)


def _tables_and_view(
    tables: tuple[str, ...], view: str | None, view_config: Path | None, into: Sequence[str]
) -> tuple[tuple[str, ...] | dict[str, View], View | None]:
    """What `PushOptions` takes, from either pair of options."""
    if views := views_of_tables(into, tables, view, view_config):
        return views, None
    if not tables:
        raise ConfigError("name the tables to fill: --table TABLE, or --into TABLE=VIEW")
    return tables, chosen_view(view, view_config)


def _show(as_json: bool, plan: PushPlan) -> None:
    """What a push would do."""
    _tell_left_out(plan)
    output.talk("the tables take these items; nothing was sent")
    unsure = [table.name for table in plan.tables if table.fits is None]
    if unsure:
        output.talk(
            f"not known before the push: whether all items have room in {', '.join(unsure)}; it stops with exit code 4 where one has none"
        )
    print_plan(as_json, plan)


def _tell_left_out(plan: PushPlan) -> None:
    """One sentence about the step columns that the tables' items do not hold; nothing when they hold all."""
    tables: dict[tuple[str, ...], list[str]] = {}
    for name, paths in plan.not_in_items.items():
        tables.setdefault(paths, []).append(name)
    parts = [f"{', '.join(names)}: {', '.join(paths)}" for paths, names in tables.items()]
    if [*tables.values()] == [[table.name for table in plan.tables]]:
        output.talk(f"not in the items: {', '.join(*tables)}")
    elif parts:
        output.talk(f"not in the items of {'; of '.join(parts)}")
