"""How a push looks: the plan of one, the account of a finished one and of one that was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

import click

from rlds2reverb.cli import output
from rlds2reverb.destinations.report import ConvertReport
from rlds2reverb.errors import reason_of, report_of
from rlds2reverb.push.plan import PushPlan, TablePlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.specs import spec_texts
from rlds2reverb.wording import counted, rate

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
        output.print_fields(_fields(report))
        output.print_fields({address: _of_server(one) for address, one in report.servers.items()}, "  ")
        output.print_lines([remark.line for remark in report.remarks])


def _of_server(report: PushReport) -> str:
    """The account of one of several servers."""
    parts = [
        counted(report.episodes_pushed, "episode"),
        _confirmed(report),
        report.episodes_resumed and f"{counted(report.episodes_resumed, 'episode')} confirmed before",
        report.episodes_unconfirmed and f"{counted(report.episodes_unconfirmed, 'episode')} not confirmed",
        report.episodes_duplicate and f"{counted(report.episodes_duplicate, 'duplicate')} not stored",
        report.episodes_left_out and f"{counted(report.episodes_left_out, 'episode')} left out",
    ]
    told = ", ".join(part for part in parts if part)
    return f"{told}  (missing: {report.stopped})" if report.stopped else told


def print_plan(as_json: bool, plan: PushPlan) -> None:
    """Every table, its room, and what its items are, on stdout."""
    if as_json:
        output.print_json(plan.as_dict())
        return
    episodes = "" if plan.episodes is None else f"  ({counted(plan.episodes, 'episode')})"
    output.print_fields({"source": f"{plan.source.name}{episodes}"})
    for operation, text in plan.options.chosen_transform.lines().items():
        output.print_fields({operation: text})
    if plan.filled:
        output.print_fields({"filled": ", ".join(plan.filled)})
    output.print_lines([remark.line for remark in plan.remarks])
    for table in plan.tables:
        click.echo(f"table {table.name}  (view {table.view}; makes {table.items_in_words}; {_room(table)})")
        output.print_fields(spec_texts(table.signature), "  ")
    if len(plan.names) > 1:
        output.print_fields({address: _of_plan(plan, address) for address in plan.names}, "  ")


def _of_plan(plan: PushPlan, address: str) -> str:
    """What one of several servers has in its tables."""
    if address in plan.missing:
        return "missing; its episodes are left out"
    return ", ".join(f"{table.name} {table.size:,} of {table.max_size:,}" for table in plan.server_tables[address])


def _room(table: TablePlan) -> str:
    """The room of a table. Items of the push that it holds already need none, so nobody can say whether it is enough."""
    if table.waits_when_full:
        return f"{table.size:,} of at most {counted(table.max_size, 'item')}; when full, inserts wait for samples"
    held = "" if table.free else ", besides those of this push that are there"
    return f"{table.size:,} of at most {counted(table.max_size, 'item')}, so {table.free:,} more fit{held}"


def _fields(report: PushReport) -> dict[str, str]:
    fields = {
        "source": report.source,
        "tables": f"{', '.join(report.tables)}  (view {report.view})",
        "read": f"{counted(report.episodes_read, 'episode')}, {counted(report.steps_read, 'step')}",
        "pushed": f"{counted(report.episodes_pushed, 'episode')}, {counted(report.steps_pushed, 'step')}",
        "confirmed": _confirmed(report),
        "speed": f"{rate(report.items_per_second)} items/s, {report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s",
    }
    optional = {
        "left out": report.episodes_left_out
        and f"{counted(report.episodes_left_out, 'episode')} of servers that are missing; run the same push again when they are back",
        "moved": report.items_moved
        and f"{counted(report.items_moved, 'item')} taken out of servers where they do not belong any more",
        "not stored": _not_stored(report),
        "rejected": _codes(report.rejected)
        and f"{_codes(report.rejected)}  ({counted(report.steps_rejected, 'step')})",
        "repaired": _codes(report.repaired),
        "advice": _codes(report.advice),
        "ends": report.ends_mended and f"{counted(report.ends_mended, 'last observation')} not as recorded",
        "ends late": report.ends_found_late
        and f"{counted(report.ends_found_late, 'episode')} stored whose end is not its own: remark ends_found_late",
        "filled": ", ".join(report.filled),
        "resumed": report.episodes_resumed and f"{counted(report.episodes_resumed, 'episode')} confirmed before",
        "duplicates": report.episodes_duplicate
        and f"{counted(report.episodes_duplicate, 'episode')} equal to earlier ones, not stored",
        "items made": len(report.tables) > 1
        and f"{_codes(report.items_made)}{', those of resumed episodes included' if report.episodes_resumed else ''}",
        "no items": _codes(report.without_items, "episode"),
        "left over": _codes(report.left_over, "step")
        and f"{_codes(report.left_over, 'step')} at the end of the stream",
        "reconnects": report.reconnects or "",
        "workers": report.workers and workers_line(report),
    }
    return {**fields, **{name: str(text) for name, text in optional.items() if text}}


def workers_line(report: PushReport | ConvertReport) -> str:
    """How many worked, and what was begun anew."""
    again = f", {counted(report.parts_again, 'part')} begun anew, for the worker was lost" if report.parts_again else ""
    return f"{report.workers:,} at a time{again}"


def _confirmed(report: PushReport) -> str:
    new = "" if report.items_new is None else f", {report.items_new:,} new"
    return f"{counted(report.items_confirmed, 'item')}{new}"


def _not_stored(report: PushReport) -> str:
    """What a stopped push may have stored in part or not at all, and what it never read."""
    if not report.stopped:
        unknown = report.episodes_unconfirmed  # of a server that was lost, and may be missing
        return f"{counted(unknown, 'episode')} sent and not confirmed" if unknown else ""
    unread = "the rest of the source" if report.episodes_unread is None else counted(report.episodes_unread, "episode")
    return f"{counted(report.episodes_unconfirmed, 'episode')} read and not confirmed, {unread} not read"


def _codes(counts: Mapping[str, int], noun: str = "") -> str:
    return ", ".join(f"{code} {counted(count, noun) if noun else f'{count:,}'}" for code, count in counts.items())
