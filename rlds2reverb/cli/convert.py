"""`rlds2reverb convert`: a dataset in another format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from rlds2reverb.cli import output, progress, without_collecting
from rlds2reverb.cli.options import json_option, options_from, quiet_option, source_argument, suggest
from rlds2reverb.cli.sections import Command
from rlds2reverb.conversion.convert import ConvertOptions, planned
from rlds2reverb.conversion.report import ConvertReport, lines
from rlds2reverb.formats.source import Source
from rlds2reverb.look.accounts import conversion_fields
from rlds2reverb.text import counted

_CONTINUES = "the same command continues after the {kept} on disk; --restart begins anew"
_COMPLETE = "the dataset was complete before the interruption"
_NOTHING_KEPT = "nothing of it was put on disk; the same command begins anew"


@click.command(
    "convert",
    cls=Command,
    examples={
        "A folder that LeRobot reads": "rlds2reverb convert tfds:my_set lerobot:/data/my_set",
        "Refuse every loss, and compare what was written": "rlds2reverb convert d4rl:hopper.hdf5 minari:hopper/expert-v0 --strict --verify",
        "Smaller images": "rlds2reverb convert tfds:my_set tfds:/data/small --transform resize=observation/image:64x64",
    },
)
@source_argument
@click.argument("destination", metavar="DEST", shell_complete=suggest("destinations"))
@options_from(ConvertOptions)
@quiet_option
@json_option
def command(source: str, destination: str, quiet: bool, as_json: bool, **given: Any) -> None:
    """Write a dataset in another format. It appears at DEST when all of it is written.

    Stopped by an error, Ctrl-C or a kill, the same command continues where it was. What the format of DEST cannot hold is printed before
    anything is written; --strict refuses it, and advice as well.
    """
    convert(source, destination, quiet, as_json, **given)


def convert(source: str | Source, destination: str, quiet: bool, as_json: bool, **given: Any) -> None:
    """Converts, with progress; prints losses before, and the report. `given` are options of the conversion."""
    with _report_when_stopped(as_json), progress.on_progress(quiet) as on_progress:
        with without_collecting():
            conversion = planned(source, destination, on_progress=on_progress, **given)
        for line in lines(conversion.job.losses):
            output.talk(("lost", "advice"), f" {line}")
        report = conversion.run()
    print_report(as_json, report)


@contextmanager
def _report_when_stopped(as_json: bool) -> Iterator[None]:
    """Prints the account of a conversion that an error or an interruption stops, and raises it."""
    try:
        yield
    except BaseException as error:
        report = getattr(error, "report", None)
        if isinstance(report, ConvertReport) and report.episodes_read:
            with suppress(OSError):  # of a full disk; what stopped it is raised
                print_report(as_json, report)
                kept = counted(report.episodes_kept, "episode")
                if not report.stopped:
                    output.talk(_COMPLETE)
                else:
                    output.talk(_CONTINUES.format(kept=kept) if report.episodes_kept else _NOTHING_KEPT)
        raise


def print_report(as_json: bool, report: ConvertReport) -> None:
    """The account on stdout; without losses of all episodes, which were printed before."""
    if as_json:
        output.print_json(report)
    else:
        output.print_fields(conversion_fields(report), kinds=output.OUTCOMES)
        of_some = [loss for loss in report.losses if loss.episodes is not None]
        for line in lines(of_some):
            output.print_line(("lost", "advice"), f" {line}")
        output.print_notices(report.notices)
