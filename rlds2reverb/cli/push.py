"""`rlds2reverb push`: a dataset into the tables of a running server."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import click

from rlds2reverb.cli import EXIT_INTERRUPTED, output, progress
from rlds2reverb.cli.connecting import open_client, server_options
from rlds2reverb.cli.options import (
    choose_view,
    into_option,
    json_option,
    limit_option,
    open_dataset,
    options_from,
    quiet_option,
    source_argument,
    suggest,
    view_option,
    views_of_tables,
    with_options,
)
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError, reason_of, report_of
from rlds2reverb.formats.mix import MixOf, NamedSource
from rlds2reverb.formats.source import Source
from rlds2reverb.interrupts import is_default
from rlds2reverb.keywords import command_options
from rlds2reverb.look.accounts import plan_fields, planned_servers, push_fields, server_line, table_plan
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import RunnablePush
from rlds2reverb.text import counted

_STDERR = 2
_STOPPING = b"rlds2reverb: stopping: waiting for what is on its way to the server; Ctrl-C again ends at once\n"


@contextmanager
def ends_when_interrupted_twice() -> Iterator[None]:
    """The first SIGINT raises KeyboardInterrupt, as usual, and says what happens next; the second ends the process."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or not is_default(before) or threading.current_thread() is not threading.main_thread():
        yield  # somebody else's business, or switched off (nohup, a shell's background job)
        return

    def end(*_: Any) -> None:
        os._exit(EXIT_INTERRUPTED)

    def stop(*given: Any) -> None:
        signal.signal(signal.SIGINT, end)
        with suppress(OSError):  # past sys.stderr, in the middle of whose writing the signal may have come
            os.write(_STDERR, _STOPPING)
        before(*given)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# What an interruption leaves behind.
_AFTER = "what the server confirmed stays; the same push, run again, adds the rest"
_AFTER_AGAIN = "what the server confirmed stays; another push with --again stores it once more"
_NOTHING = "stopped before anything was sent; nothing of this push is stored"


@contextmanager
def report_when_stopped(
    as_json: bool, again: bool, account: Callable[[], PushReport | None] = lambda: None
) -> Iterator[None]:
    """Prints what is stored and what is not when an error or an interruption stops a push, and raises it.

    With `again` the push makes new item keys, so another run stores everything once more. `account` reports on a push that is
    interrupted before or after it reads and sends; None when it has not begun.
    """
    try:
        yield
    except BaseException as error:
        report = report_of(error, PushReport)
        if isinstance(error, KeyboardInterrupt) and report is None:
            if (stopped_report := account()) is None:
                output.talk(_NOTHING)
            else:
                report = replace(stopped_report, stopped=reason_of(error))
        if report is not None:
            with suppress(OSError):  # of a full disk; what stopped the push is raised
                print_report(as_json, report)
            if isinstance(error, KeyboardInterrupt):
                output.talk(_AFTER_AGAIN if again else _AFTER)
        raise


def print_report(as_json: bool, report: PushReport) -> None:
    if as_json:
        output.print_json(report)
    else:
        output.print_fields(push_fields(report), kinds=output.OUTCOMES)
        output.print_fields({address: server_line(part) for address, part in report.servers.items()}, "  ")
        output.print_notices(report.notices)


def print_plan(as_json: bool, plan: PushPlan) -> None:
    if as_json:
        output.print_json(plan)
        return
    for name, text in plan_fields(plan).items():
        output.print_fields({name: text})
    output.print_notices(plan.notices)
    for table in plan.tables:
        click.echo(f"table {table.name}  ({table_plan(table)})")
        output.print_fields(table.columns, "  ")
    output.print_fields(planned_servers(plan), "  ")


pushing_options = with_options(
    server_options,
    click.option(
        "--table",
        multiple=True,
        metavar="TABLE",
        shell_complete=suggest("tables"),
        help="Table to fill; repeat it to fill several from one pass.",
    ),
    view_option,
    into_option,
    options_from(PushOptions),
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


@click.command(
    "push",
    cls=Command,
    examples={
        "Fill a table with pairs of steps, the default view": "rlds2reverb push tfds:my_set --server localhost:8000 --table replay",
        "Fill two tables by two views, from one pass": "rlds2reverb push tfds:my_set --server localhost:8000 "
        "--into replay=n_step:n=5 --into sequences=sequence:length=8",
        "Leave out bad episodes; after a stop, resume where it was": "rlds2reverb push tfds:my_set --server localhost:8000 "
        "--table replay --on-invalid skip --ledger my_set.sqlite",
    },
)
@source_argument
@pushing_options
def command(source: str, **given: Any) -> None:
    """Store a dataset's items in one or more tables, each item exactly once.

    Run again, the same push adds nothing: item keys are a function of the data. Items that would evict others are refused. A push that
    is stopped, by an error or by Ctrl-C, prints what is stored and what is not, as a finished one does.

    With several servers (--server A,B,...) every episode goes to one of them, the same one each time.
    """
    push(lambda: (open_dataset(source), source), source=source, **given)


def push(
    open_data: Callable[[], tuple[Source, str | MixOf]],
    *,
    limit: int | None,
    dry_run: bool,
    as_json: bool,
    source: str = "",
    tell: Callable[[], object] = lambda: None,
    **given: Any,
) -> None:
    """Pushes, or shows what a push would do; prints the report.

    Args:
      open_data: returns the source, and by what workers open the same: its name, or a mix by names. Called when the options are checked
        and a server answers.
      source: its name, if it has one: a mixture file may say the view.
      tell: called before the report is printed, also when the push was stopped.
      limit, dry_run, as_json, given: `pushing_options`.
    """
    quiet = given.pop("quiet")
    chosen = {name: given.pop(name) for name in command_options(PushOptions)}
    tables, view, view_config, into = (given.pop(name) for name in ("table", "view", "view_config", "into"))
    if views := views_of_tables(into, tables, view, view_config):
        options = PushOptions(views, None, **chosen)
    elif tables:
        options = PushOptions(tables, choose_view(source, view, view_config), **chosen)
    else:
        raise ConfigError("name the tables to fill: --table TABLE, or --into TABLE=VIEW")
    options.check_files()  # all before TensorFlow is imported or a server is asked
    if dry_run:
        with open_client(**given) as client:
            opened, known_as = open_data()
            plan = client.planned(opened.first(limit), options, NamedSource(known_as, limit))
            client.pusher(plan)  # what cannot be pushed by workers is refused here
        _tell_left_out(plan)
        output.talk("the tables take these items; nothing was sent")
        if unsure := ", ".join(table.name for table in plan.tables if table.fits is None):
            output.talk(
                f"not known before the push: whether all items fit in {unsure}; it stops with exit code 4 where one does not"
            )
        for table in plan.tables if options.ledger is None else ():
            if table.size and table.size == table.least_items == table.most_items:
                output.talk(
                    f"{table.name} has {counted(table.size, 'item')} already, as many as this push makes. A table cannot be asked which: items of "
                    "the same episodes are not stored again; of data converted or encoded again, all are (--identity)"
                )
        print_plan(as_json, plan)
        return
    begun: list[RunnablePush] = []
    with (
        report_when_stopped(as_json, options.again, lambda: begun[0].report() if begun else None),
        open_client(**given) as client,
    ):
        opened, known_as = open_data()
        plan = client.planned(opened.first(limit), options, NamedSource(known_as, limit))
        _tell_left_out(plan)
        for notice in plan.found_before:
            output.talk(notice.line)
        try:
            with ends_when_interrupted_twice(), progress.on_progress(quiet) as on_progress:
                begun.append(client.pusher(plan.with_progress(on_progress)))
                report = begun[0].run()
        finally:
            tell()
    print_report(as_json, report)


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
