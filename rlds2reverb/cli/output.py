"""How results look. Data to stdout, talk to stderr."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from rlds2reverb.cli.answers import Answer, document, one_line
from rlds2reverb.wording import visible


def print_json(value: Any) -> None:
    """One JSON document on stdout, when the command has ended; infinities and NaN, which JSON lacks, become null.

    An error that comes later is told in it: see `answers.Answer`.
    """
    context = click.get_current_context(silent=True)
    answer = None if context is None else context.find_object(Answer)
    if answer is None:
        click.echo(document(value))
    else:
        answer.hold(value)


def print_json_line(value: Any) -> None:
    """A JSON document on a line of its own on stdout, now."""
    click.echo(one_line(value))


def print_fields(fields: Mapping[str, Any], indent: str = "") -> None:
    """Aligned "name  value" lines on stdout."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print_line(f"{indent}{name:<{width}}  {value}")


def print_columns(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Aligned rows of text on stdout; the last column is as long as it is."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        aligned = (f"{text:<{width}}" for text, width in zip(row, widths))
        print_line(f"{indent}{'  '.join(aligned).rstrip()}")


def print_lines(lines: Iterable[str]) -> None:
    """One after the other on stdout."""
    for line in lines:
        print_line(line)


def print_line(text: str) -> None:
    """A line on stdout. What names of datasets and servers hold beside letters is written out: it moves no cursor."""
    click.echo(visible(text))


def talk(text: str) -> None:
    """A line on stderr."""
    click.echo(text, err=True)
