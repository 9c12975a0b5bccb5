"""Text -> HTML: escaped, shortened, and in the notebook's own colours, be they light or dark.

Two rules. `Html` with text in it is made here only, where all text is escaped; others join what they got. A card takes parts as long as there is room, so
that no object makes a large page.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NewType

from rlds2reverb.wording import line_of, visible

Html = NewType("Html", str)
"""Markup. Text is none before it is escaped."""

MOST_CHARACTERS = 200
"""Of one text."""
MOST_ROWS = 40
"""Of one table."""
MOST_CARD = 200_000
"""Characters of a card, without its pictures."""

_LINE = "1px solid rgba(128,128,128,.35)"  # a grey that shows on white and on black
_CARD = f"display:inline-block;box-sizing:border-box;max-width:100%;overflow-x:auto;border:{_LINE};border-radius:6px;padding:.5em .8em;text-align:left;line-height:1.45"
_CELL = f"text-align:left;vertical-align:top;border:0;border-top:{_LINE};padding:.15em .8em .15em 0;overflow-wrap:break-word;white-space:normal;max-width:36em"
_NAME = f"{_CELL};opacity:.75;font-weight:normal"
_TABLE = "border-collapse:collapse;border:0;font-size:inherit;color:inherit;margin:.3em 0;background:none;width:auto;table-layout:auto"


def text(value: object) -> Html:
    """A text on one line, shortened; what cannot be seen, or turns the direction of writing, is written out: `\\u202e`."""
    plain = str(value)
    shown = visible(plain[:MOST_CHARACTERS]) + ("..." if len(plain) > MOST_CHARACTERS else "")
    return Html(f"<bdi>{html.escape(shown)}</bdi>")


def quiet(value: object) -> Html:
    """A text that stands back."""
    return Html(f'<span style="opacity:.7">{text(value)}</span>')


def listed(values: Sequence[object] | Iterable[object], count: int, most: int = 10) -> Html:
    """The first few of many texts, and how many more there are.

    Args:
      values: the texts.
      count: how many.
      most: to show.
    """
    shown = ", ".join(text(value) for value in islice(values, most))
    more = quiet(f"and {count - most:,} more") if count > most else ""
    return Html(f"{shown} {more}".strip())


def joined(parts: Iterable[Html], separator: str = " ") -> Html:
    """One after the other; the separator is text."""
    return Html(html.escape(separator).join(parts))


def guarded(make: Callable[[], Html]) -> Html:
    """What is made; or, in its place, why it cannot be shown. A notebook must not fail over what it shows."""
    try:
        return make()
    except Exception as error:
        return quiet(f"cannot be shown: {type(error).__name__}: {line_of(error)}")


def fields(rows: Mapping[str, Callable[[], Html] | Html]) -> Html:
    """A table of names and values; a value that is empty is left out, one that cannot be made says why."""
    made = {name: guarded(value) if callable(value) else value for name, value in rows.items()}
    cells = (
        f'<tr><th scope="row" style="{_NAME}">{text(name)}</th>{_cell(one)}</tr>' for name, one in made.items() if one
    )
    return _table("".join(cells))


def rows(heads: Sequence[str], count: int, made: Iterable[Sequence[Html]], noun: str) -> Html:
    """A table with a head; at most `MOST_ROWS` rows, and how many more there are.

    Args:
      heads: of the columns.
      count: rows there are.
      made: their cells; no more of them are asked for than are shown.
      noun: what a row is: "column".
    """
    head = "".join(f'<th scope="col" style="{_NAME}">{text(one)}</th>' for one in heads)
    body = "".join(f"<tr>{''.join(map(_cell, cells))}</tr>" for cells in islice(made, MOST_ROWS))
    more = f"and {count - MOST_ROWS:,} more {noun}s" if count > MOST_ROWS else ""
    last = f'<tr><td colspan="{len(heads)}" style="{_CELL}">{quiet(more)}</td></tr>' if more else ""
    return _table(f"<thead><tr>{head}</tr></thead><tbody>{body}{last}</tbody>")


def _cell(content: Html) -> str:
    return f'<td style="{_CELL}">{content}</td>'


def _table(content: str) -> Html:
    return Html(f'<table style="{_TABLE}">{content}</table>' if content else "")


def folded(summary: Html, content: Html, is_open: bool = False) -> Html:
    """Something that opens when it is clicked, without a script."""
    mark = " open" if is_open else ""
    return Html(f'<details{mark}><summary style="cursor:pointer">{summary}</summary>{content}</details>')


def line(content: Html) -> Html:
    """A line of its own."""
    return Html(f"<div>{content}</div>")


def card(kind: str, name: object, parts: Iterable[Callable[[], Html]], pictures: Html = Html("")) -> Html:
    """What a notebook shows of one object.

    Args:
      kind: what it is: "Episode".
      name: which one.
      parts: what is told of it; those for which there is no room are left out, which is said.
      pictures: at the end; they have a bound of their own.
    """
    heading = f"<div><strong>{text(kind)}</strong> {text(name)}</div>"
    kept, left = [heading], MOST_CARD - len(heading)
    for part in parts:
        made = guarded(part)
        if len(made) > left:
            kept.append(line(quiet("and more, which is too long for a notebook")))
            break
        kept.append(made)
        left -= len(made)
    return Html(f'<div style="{_CARD}">{"".join(kept)}{pictures}</div>')
