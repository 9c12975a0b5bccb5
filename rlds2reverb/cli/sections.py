"""How the help of a command looks: what it does, examples, its options in sections, and where names are explained.

A command's own options come first. Those that several commands have stand below the same heading in each of them (`SECTIONS`).
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from rlds2reverb.cli.output import has_colour

OWN = "Options"
"""Heading of the options that `SECTIONS` does not name."""

SECTIONS: dict[str, frozenset[str]] = {
    "Server": frozenset(
        [
            *("server", "servers", "allow_missing", "urls", "url", "token", "token_file"),
            *("tls_ca", "tls_cert", "tls_key", "header", "timeout", "wait"),
        ]
    ),
    "Tables and views": frozenset(["table", "view", "view_config", "into"]),
    "Environment": frozenset(),
    "Destination": frozenset(),
    "Data": frozenset(["limit"]),
    "Filters": frozenset(),
    "Bad data": frozenset(),
    "Exactly once": frozenset(),
    "Speed": frozenset(),
    "Output": frozenset(["dry_run", "verbose", "quiet", "as_json"]),
}
"""Heading -> names of the options' parameters, in the order in which help has them. Fields of options name theirs (`keywords.CommandOption`)."""


class FieldOption(click.Option):
    """An option that is a field of a dataclass, which says below which heading help has it."""

    def __init__(self, *arguments: Any, section: str, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.section = section


_TOPICS = {"SOURCE": "sources", "DEST": "destinations", "VIEW": "views", "CODE": "codes"}
"""What an argument or a value is called -> the topic of `rlds2reverb help` that explains it."""


def section_of(option: click.Parameter) -> str:
    """The heading below which help has it."""
    if isinstance(option, FieldOption):
        return option.section or OWN
    return next((title for title, names in SECTIONS.items() if option.name in names), OWN)


_HYPHEN = "\N{NON-BREAKING HYPHEN}"  # while lines are made: no name of an option is broken


class _Formatter(click.HelpFormatter):
    def write(self, string: str) -> None:
        super().write(string.replace(_HYPHEN, "-"))

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows], col_max, col_spacing)

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True) if has_colour(sys.stdout) else heading)


class HelpContext(click.Context):
    formatter_class = _Formatter


_VALUE = re.compile(r"( (?:--?[\w-]+|>)) (?!-)")
_NO_BREAK = "\N{NO-BREAK SPACE}"  # between an option, or a shell's ">", and its value


class Command(click.Command):
    """A command whose help has examples, and that answers -h wherever it is run from.

    Attributes:
      examples: what each of them is for -> a command line.
    """

    context_class = HelpContext

    def __init__(self, *arguments: Any, examples: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.context_settings = {"help_option_names": ["-h", "--help"], **self.context_settings}
        self.examples = examples or {}
        for option in self.params:
            if isinstance(option.type, click.IntRange) and option.metavar is None:
                option.metavar = "N"

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it does, in its first paragraph; examples; all else."""
        first, _, description = inspect.cleandoc(self.help or "").partition("\n\n")
        _write_text(formatter, first)
        if self.examples:
            with formatter.section("Examples"):
                for purpose, line in self.examples.items():
                    formatter.write(_in_lines(f"# {purpose}", formatter, "# ", ""))
                    kept = _in_lines(_VALUE.sub(rf"\1{_NO_BREAK}", line), formatter, "    ", " \\")
                    formatter.write(kept.replace(_NO_BREAK, " "))
        _write_text(formatter, description)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed: dict[str, list[tuple[str, str]]] = {title: [] for title in (OWN, *SECTIONS)}
        *options, of_help = self.get_params(ctx)
        for option in options:
            listed[section_of(option)] += _record(option, ctx)
        shown = {title: records for title, records in listed.items() if records} or {OWN: []}
        shown[[*shown][-1]] += _record(of_help, ctx)
        for title, records in shown.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Where the names that it takes are explained."""
        named = dict.fromkeys((parameter.metavar or "").removesuffix("...") for parameter in self.params)
        if topics := [(name, f"rlds2reverb help {_TOPICS[name]}") for name in named if name in _TOPICS]:
            with formatter.section("More help"):
                formatter.write_dl(topics)


def _record(option: click.Parameter, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """How an option is written, and what it does; nothing for an argument, which the text is about."""
    record = None if isinstance(option, click.Argument) else option.get_help_record(ctx)
    if record is not None:
        yield record


def _write_text(formatter: click.HelpFormatter, text: str) -> None:
    if text:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)


def _in_lines(text: str, formatter: click.HelpFormatter, begin: str, end: str) -> str:
    """A text in indented lines; those after the first start with `begin`, those before the last finish with `end`."""
    indent = " " * formatter.current_indent
    lines = textwrap.wrap(
        text,
        formatter.width - len(end),
        initial_indent=indent,
        subsequent_indent=f"{indent}{begin}",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{end}\n".join(lines) + "\n"
