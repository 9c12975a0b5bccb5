"""`rlds2reverb validate`: every episode checked; exit 1 when something is wrong."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.cli import documents, output, progress
from rlds2reverb.cli.inspect import print_findings
from rlds2reverb.cli.options import (
    ANSWERS_H,
    chosen_executor,
    conventions_options,
    encoded_option,
    json_option,
    judging_options,
    limit_option,
    opened,
    quiet_option,
    scale_options,
    source_argument,
    transform_option,
)
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.inspection.inspection import validate_source
from rlds2reverb.inspection.workers import Wanted, validated
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.policy import RAISE, check_choices
from rlds2reverb.text import counted


@click.command("validate", context_settings=ANSWERS_H)
@source_argument
@judging_options
@conventions_options
@encoded_option
@transform_option
@limit_option
@scale_options
@quiet_option
@json_option
def command(
    source: str,
    allow: tuple[str, ...],
    strict: bool,
    encoded: tuple[str, ...],
    transform: tuple[str, ...],
    limit: int | None,
    quiet: bool,
    as_json: bool,
    workers: int | None,
    ray: str | None,
    **conventions: Any,
) -> None:
    """Check every episode. Exit 0 when all are good, 1 when some are not.

    What only a view finds (no_items, view_refused) is told by inspect.
    """
    check_choices(RAISE, None, allow)  # refuses codes that a push would refuse
    options = EpisodeOptions(encoded=encoded, transform=transform, **conventions)
    execute = chosen_executor(workers, ray)
    with progress.on_progress(quiet) as on_progress:
        if execute is None:
            episodes, findings = validate_source(opened(source), limit, options, on_progress)
        else:
            asked = Wanted(NamedSource(source), {}, limit, options)
            episodes, findings = validated(asked, execute, on_progress=on_progress)
    rejecting = findings.codes(strict, allow)
    if as_json:
        output.print_json(documents.Findings(episodes, not rejecting, findings.as_dict(), list(findings.notices)))
    else:
        print_findings(findings)
    output.talk(f"{counted(episodes, 'episode')}: {'bad: ' + ', '.join(rejecting) if rejecting else 'good'}")
    if rejecting:
        raise click.exceptions.Exit(1)
