"""`rlds2reverb convert`: a dataset in another format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.loading import without_collecting
from rlds2reverb.cli.options import (
    ANSWERS_H,
    json_option,
    limit_option,
    push_options,
    quiet_option,
    scale_options,
    source_argument,
    suggested,
    with_options,
)
from rlds2reverb.cli.reports import workers_line
from rlds2reverb.conversion import Conversion, planned
from rlds2reverb.destinations.losing import lines
from rlds2reverb.destinations.registry import DESTINATIONS
from rlds2reverb.destinations.report import ConvertReport
from rlds2reverb.prepare.options import EPISODE_OPTIONS
from rlds2reverb.wording import counted, rate

_GOES_ON = "the same command goes on behind the {kept} on disk; --restart begins anew"
_NOTHING_KEPT = "nothing of it was put on disk; the same command begins anew"

_OF_A_PUSH = tuple(name for name in EPISODE_OPTIONS if name not in ("strict", "encoded"))

_own_options = with_options(
    click.option("--strict", is_flag=True, help="Refuse advice (terminal_discount, last_reward, ...), and losses."),
    click.option(
        "--encoded",
        multiple=True,
        metavar="PATH",
        help='Path of an image column, or "all": fail unless the bytes of its JPEG or PNG files are kept. Without this option they are '
        "kept where both formats can; may be repeated.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace the dataset that is at DEST, when all is done."),
    click.option("--restart", is_flag=True, help="Begin anew, whatever a run that was stopped has done."),
    click.option(
        "--decode", is_flag=True, help="Decode images also where both formats could hold the bytes of their files."
    ),
    click.option(
        "--verify",
        is_flag=True,
        help="Read back what was written and compare it with SOURCE, before it appears at DEST.",
    ),
    click.option(
        "--allow-loss", multiple=True, metavar="CODE", help='Losses that --strict lets pass, or "all"; may be repeated.'
    ),
)


@click.command(
    "convert",
    context_settings=ANSWERS_H,
    epilog=f"\b\nDEST is one of\n{DESTINATIONS.help()}",
)
@source_argument
@click.argument("destination", metavar="DEST", shell_complete=suggested("destinations"))
@_own_options
@push_options(*_OF_A_PUSH)
@scale_options
@limit_option
@quiet_option
@json_option
def command(source: str, destination: str, quiet: bool, as_json: bool, **given: Any) -> None:
    """Write a dataset in another format. It appears at DEST when all of it is written.

    Stopped by an error, Ctrl-C or a kill, the same command goes on where it was. What the format of DEST cannot hold is told before
    anything is written; --strict refuses it, and advice as well.
    """
    with _told_when_stopped(as_json), progress.told(quiet) as on_progress:
        with without_collecting():
            conversion = planned(source, destination, on_progress=on_progress, **given)
        _tell_losses(conversion)
        report = conversion.run()
    print_report(as_json, report)


def _tell_losses(conversion: Conversion) -> None:
    for line in lines(conversion.job.losses):
        output.talk(f"lost {line}")


@contextmanager
def _told_when_stopped(as_json: bool) -> Iterator[None]:
    """Prints how far a conversion came that an error or an interruption stops; it is raised all the same."""
    try:
        yield
    except BaseException as error:
        report = getattr(error, "report", None)
        if isinstance(report, ConvertReport) and report.episodes_read:
            with suppress(OSError):  # a full disk: what stopped it is what is told
                print_report(as_json, report)
                kept = counted(report.episodes_kept, "episode")
                output.talk(_GOES_ON.format(kept=kept) if report.episodes_kept else _NOTHING_KEPT)
        raise


def print_report(as_json: bool, report: ConvertReport) -> None:
    """The account on stdout; without losses of all episodes, which were told before."""
    if as_json:
        output.print_json(report.as_dict())
    else:
        output.print_fields(_fields(report))
        told = [loss for loss in report.losses if loss.episodes is not None]
        output.print_lines([f"lost {line}" for line in lines(told)])
        output.print_lines([remark.line for remark in report.remarks])


def _fields(report: ConvertReport) -> dict[str, str]:
    seconds, read = max(report.seconds, 1e-9), report.episodes_read - report.episodes_resumed
    resumed = f", {report.episodes_resumed:,} of them by runs before" if report.episodes_resumed else ""
    fields = {
        "source": report.source,
        "destination": report.path,
        "read": f"{counted(report.episodes_read, 'episode')}, {counted(report.steps_read, 'step')}{resumed}",
        "written": f"{counted(report.episodes_written, 'episode')}, {counted(report.steps_written, 'step')}",
        "size": f"{report.bytes / 1e6:,.1f} MB of columns; {report.seconds:.2f} s, {rate(read / seconds)} episodes/s",
    }
    optional = {
        "rejected": _codes(report.rejected)
        and f"{_codes(report.rejected)}  ({counted(report.steps_rejected, 'step')})",
        "repaired": _codes(report.repaired),
        "advice": _codes(report.advice),
        "ends": report.ends_mended and f"{counted(report.ends_mended, 'last observation')} not as recorded",
        "files kept": ", ".join(report.encoded),
        "lost": ", ".join(dict.fromkeys(loss.code for loss in report.losses)),
        "verified": _verified(report),
        "workers": report.workers and workers_line(report),
        "stopped": report.stopped,
    }
    return {**fields, **{name: str(text) for name, text in optional.items() if text}}


def _verified(report: ConvertReport) -> str:
    if report.verified is None:
        return ""
    but = " but for what is told as lost" if report.losses else ""
    return f"{counted(report.verified, 'episode')}, equal to the source{but}"


def _codes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{code} {count:,}" for code, count in counts.items())
