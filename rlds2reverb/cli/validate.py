"""`rlds2reverb validate`: every episode checked; exit 1 when something is wrong."""

from __future__ import annotations

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.inspect import print_findings
from rlds2reverb.cli.options import json_option, judging_options, limit_option, source_argument
from rlds2reverb.inspection import validate_source
from rlds2reverb.sources import open_source
from rlds2reverb.validation import Policy


@click.command("validate")
@source_argument
@judging_options
@limit_option
@json_option
def command(source: str, allow: tuple[str, ...], strict: bool, limit: int | None, as_json: bool) -> None:
    """Check every episode. Exit 0 when all are good, 1 when some are not.

    What only a view finds (no_items, view_refused) is told by inspect; what only a shift of rewards does (first_reward_lost), by a push.
    """
    Policy(allow=allow, strict=strict)  # refuses codes that a push would refuse
    episodes, findings = validate_source(open_source(source), limit)
    rejecting = findings.codes(strict, allow)
    if as_json:
        output.print_json({"episodes": episodes, "valid": not rejecting, "problems": findings.as_dict()})
    else:
        print_findings(findings)
    output.talk(f"{episodes:,} episodes: {'bad: ' + ', '.join(rejecting) if rejecting else 'good'}")
    if rejecting:
        raise click.exceptions.Exit(1)
