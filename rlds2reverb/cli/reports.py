"""How a push looks: the plan of one, the account of a finished one and of one that was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import click

from rlds2reverb.cli import output
from rlds2reverb.errors import reason_of, report_of
from rlds2reverb.look.accounts import plan_fields, planned_servers, push_fields, server_line, table_plan
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.specs import spec_texts

_AFTER = "what the server confirmed stays; the same push, run again, adds the rest"
_AFTER_AGAIN = "what the server confirmed stays; another push with --again stores it once more"
_NOTHING = "stopped before anything was sent; nothing of this push is stored"
"""What an interruption leaves behind."""


@contextmanager
def told_when_stopped(
    as_json: bool, again: bool, account: Callable[[], PushReport | None] = lambda: None
) -> Iterator[None]:
    """Prints what is stored and what is not when an error or an interruption stops a push; it is raised all the same.

    Args:
      as_json: how.
      again: the push makes new item keys, so another run of it stores everything once more.
      account: of a push that is interrupted before or after it reads and sends; None when there is none yet.
    """
    try:
        yield
    except BaseException as error:
        report = report_of(error)
        if isinstance(error, KeyboardInterrupt) and report is None:
            if (found := account()) is None:
                output.talk(_NOTHING)
            else:
                report = replace(found, stopped=reason_of(error))
        if report is not None:
            with suppress(OSError):  # a full disk: what stopped the push is what is told
                print_report(as_json, report)
            if isinstance(error, KeyboardInterrupt):
                output.talk(_AFTER_AGAIN if again else _AFTER)
        raise


def print_report(as_json: bool, report: PushReport) -> None:
    """The account on stdout."""
    if as_json:
        output.print_json(report.as_dict())
    else:
        output.print_fields(push_fields(report))
        output.print_fields({address: server_line(one) for address, one in report.servers.items()}, "  ")
        output.print_lines([remark.line for remark in report.remarks])


def print_plan(as_json: bool, plan: PushPlan) -> None:
    """Every table, its room, and what its items are, on stdout."""
    if as_json:
        output.print_json(plan.as_dict())
        return
    for name, text in plan_fields(plan).items():
        output.print_fields({name: text})
    output.print_lines([remark.line for remark in plan.remarks])
    for table in plan.tables:
        click.echo(f"table {table.name}  ({table_plan(table)})")
        output.print_fields(spec_texts(table.signature), "  ")
    output.print_fields(planned_servers(plan), "  ")
