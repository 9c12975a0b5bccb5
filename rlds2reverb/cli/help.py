"""`rlds2reverb help`: all commands, one of them, or a topic that several have in common."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from rlds2reverb import cli
from rlds2reverb.cli import COMMANDS, TOPICS
from rlds2reverb.cli.options import suggest
from rlds2reverb.cli.sections import Command, HelpContext
from rlds2reverb.formats.operations import OPERATIONS
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES, Formats
from rlds2reverb.formats.transform import OPTIONS, shipped_transforms
from rlds2reverb.prepare.problems import CODES, Code
from rlds2reverb.text import did_you_mean
from rlds2reverb.views import FROM_CONFIG_ONLY, PURPOSES, VIEWS


@click.command(
    "help",
    cls=Command,
    examples={
        "A command": "rlds2reverb help push",
        "How datasets are named": "rlds2reverb help sources",
        "How episodes become items": "rlds2reverb help views",
    },
)
@click.argument("topic", required=False, shell_complete=suggest("topics"))
@click.pass_context
def command(context: click.Context, topic: str | None) -> None:
    """Print the help of a command, or about a topic; without either, list all of them."""
    root = context.find_root()
    if topic is None:
        click.echo(cli.cli.get_help(root))
    elif topic in WRITERS:
        formatter = context.make_formatter()
        WRITERS[topic](formatter)
        click.echo(formatter.getvalue().strip("\n"))
    elif (found_command := cli.cli.get_command(root, topic)) is not None:
        click.echo(found_command.get_help(HelpContext(found_command, info_name=topic, parent=root)))
    else:
        listed = f"; there are {', '.join(TOPICS)}, and all commands"
        raise click.UsageError(f'No such topic "{topic}"{did_you_mean(topic, (*TOPICS, *COMMANDS)) or listed}')


def _sources(formatter: click.HelpFormatter) -> None:
    _write_forms(formatter, "SOURCE", "reads", SOURCES)
    formatter.write_paragraph()
    formatter.write_text(
        "A path may be in a bucket or on the Hugging Face hub: tfds:gs://BUCKET/FOLDER, lerobot:hf://datasets/ORG/NAME. SPLIT "
        "is a split or a part of one: train[:10%]. OPTIONS are NAME=VALUE,NAME=VALUE. Brackets, ?, *, | and ; mean something to "
        "the shell: put the name in quotes, 'bundled:cartpole@train[:5]'."
    )


def _write_forms(formatter: click.HelpFormatter, name: str, verb: str, formats: Formats[Any]) -> None:
    with formatter.section(f"{name}, and what it {verb}"):
        formatter.write_dl(formats.rows())


def _transforms(formatter: click.HelpFormatter) -> None:
    with formatter.section('Operations of make, as in --transform "make=PATH:OPERATION(x, VALUE)"'):
        formatter.write_dl([(operation.form, operation.effect) for operation in OPERATIONS.values()])
    formatter.write_paragraph()
    formatter.write_text(
        "x is the path of a column, some of its numbers (PATH[:6], PATH[-1:], PATH[0]), or another operation. Further options of a "
        f"transform are {', '.join(option for option in OPTIONS if option != 'make')}."
    )
    with formatter.section("Transforms of sets of Open X-Embodiment, as OpenVLA standardises them"):
        formatter.write_text(", ".join(shipped_transforms()))


def _views(formatter: click.HelpFormatter) -> None:
    with formatter.section("VIEW with the defaults of its options, and what a learner gets"):
        formatter.write_dl([(_spell_view(name), purpose) for name, purpose in PURPOSES.items()])
    formatter.write_paragraph()
    formatter.write_text(
        "Without options a view has these defaults. Every view takes priority, a number or the path of a column, and extras, the "
        f"path of a column that its items have as well. {', '.join(FROM_CONFIG_ONLY)} is for --view-config FILE. A table is for "
        "one view: rlds2reverb inspect SOURCE --view VIEW prints its signature."
    )


def _spell_view(view: str) -> str:
    """A view as --view takes it, with its own options."""
    shared = inspect.signature(VIEWS["two_step"]).parameters
    own = [
        parameter for parameter in inspect.signature(VIEWS[view]).parameters.values() if parameter.name not in shared
    ]
    options = ",".join(
        f"{parameter.name}={str(parameter.default).lower()}"
        for parameter in own
        if parameter.default is not parameter.empty
    )
    return f"{view}:{options}" if options else view


def _codes(formatter: click.HelpFormatter) -> None:
    kinds: dict[str, Callable[[Code], bool]] = {
        "Problems, which reject an episode": lambda code: not code.is_advice,
        "Advice, which rejects one with --strict": lambda code: code.is_advice and not code.is_of_dataset,
        "Advice about a dataset as a whole": lambda code: code.is_advice and code.is_of_dataset,
    }
    for title, is_of in kinds.items():
        with formatter.section(title):
            mends = {False: "", True: " (--on-invalid repair mends it)"}
            codes = [
                (name, f"{code.meaning}{mends[code.is_repairable]}") for name, code in CODES.items() if is_of(code)
            ]
            formatter.write_dl(codes)
    formatter.write_paragraph()
    formatter.write_text("--allow CODE tolerates one; see also --on-invalid in rlds2reverb help push.")


def _exit_codes(formatter: click.HelpFormatter) -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", cli.__doc__ or "", re.MULTILINE)
    with formatter.section("Exit codes"):
        formatter.write_dl(rows)


WRITERS: Mapping[str, Callable[[click.HelpFormatter], None]] = {
    "sources": _sources,
    "destinations": lambda formatter: _write_forms(formatter, "DEST", "writes", DESTINATIONS),
    "transforms": _transforms,
    "views": _views,
    "codes": _codes,
    "exit-codes": _exit_codes,
}
"""Topic -> what writes it."""
