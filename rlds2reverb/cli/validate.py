"""`rlds2reverb validate`: every episode checked; exit 1 when something is wrong."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.cli import documents, output
from rlds2reverb.cli.inspect import inspect_dataset, print_findings
from rlds2reverb.cli.options import (
    choose_executor,
    json_option,
    judging_options,
    limit_option,
    making_options,
    option_words,
    quiet_option,
    scale_options,
    source_argument,
)
from rlds2reverb.cli.sections import Command
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.policy import RAISE, check_choices
from rlds2reverb.text import counted
from rlds2reverb.views.base import propose_names, renaming


@click.command(
    "validate",
    cls=Command,
    examples={
        "What is wrong with a dataset": "rlds2reverb validate tfds:my_set",
        "Treat advice as a problem, too": "rlds2reverb validate tfds:my_set --strict",
        "What is left to mend when these conventions are": "rlds2reverb validate tfds:my_set --last-reward shift --terminal-discount transition",
    },
)
@source_argument
@judging_options
@making_options
@limit_option
@click.option("--verbose", is_flag=True, help="Show three examples of each problem, not one.")
@scale_options
@quiet_option
@json_option
def command(
    source: str,
    allow: tuple[str, ...],
    strict: bool,
    limit: int | None,
    quiet: bool,
    as_json: bool,
    verbose: bool,
    workers: int | None,
    ray: str | None,
    **making: Any,
) -> None:
    """Check every episode. Exit 0 when all are good, 1 when some are not.

    What only a view finds (no_items, view_refused) is reported by inspect.
    """
    check_choices(RAISE, None, allow)  # refuses codes that a push would refuse
    options = EpisodeOptions(**making)
    inspection = inspect_dataset({}, limit, options, None, choose_executor(workers, ray), quiet, None, source)
    episodes, findings = inspection.episodes, inspection.findings
    rejecting = findings.codes(strict, allow)
    if as_json:
        output.print_json(documents.Findings(episodes, not rejecting, findings.as_dict(), findings.notices))
        output.talk(f"{counted(episodes, 'episode')}: {'bad: ' + ', '.join(rejecting) if rejecting else 'good'}")
    else:
        print_findings(findings, episodes, strict, allow, verbose)
        mended = findings.mending(episodes, options.conventions, strict, allow)
        part = [] if limit is None else ["--limit", str(limit)]
        if names := propose_names(dict.fromkeys(path.split("/")[0] for path in inspection.step_spec)):
            making["transform"] = (*making["transform"], renaming(names))
        chosen_words = [*part, *option_words({**making, "strict": strict, "allow": allow, **(mended or {})})]
        if mended is not None:
            push = ["rlds2reverb", "push", source, "--server", "localhost:8000", "--table", "replay"]
            output.propose([*push, *chosen_words])
        elif not verbose:
            output.propose(["rlds2reverb", "validate", source, *chosen_words, "--verbose"])
    if rejecting:
        raise click.exceptions.Exit(1)
