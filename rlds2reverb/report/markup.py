"""HTML from elements: every text is escaped and shown as it is, because nothing else can be put in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from rlds2reverb.report.shown import clipped, shown

LONGEST = 400
"""Characters of a text from a dataset that a page shows."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


NOTHING = Html("")


def element(name: str, /, *children: str | None, **attributes: str | int | bool) -> Html:
    """An element. Children are escaped unless they are HTML; an attribute `class_` is `class`, `data_x` is `data-x`.

    >>> element("p", "a < b", element("br"), class_="quiet")
    '<p class="quiet">a &lt; b<br></p>'
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not False}
    head = "".join(f" {key}" if value is True else f' {key}="{escape(str(value))}"' for key, value in named.items())
    if name in _EMPTY:
        return Html(f"<{name}{head}>")
    return Html(f"<{name}{head}>{together(children)}</{name}>")


_EMPTY = frozenset(("br", "img", "input", "meta"))


def together(children: Iterable[str | None]) -> Html:
    """Several pieces, one after the other."""
    return Html("".join(one if isinstance(one, Html) else _text(one) for one in children if one is not None))


def lines(text: str, most: int) -> Html:
    """A text of several lines, at most `most` of them."""
    all_lines = text.splitlines()
    kept = [_text(line) for line in all_lines[:most]]
    more = [f"... and {len(all_lines) - most:,} more lines"] if len(all_lines) > most else []
    return Html("\n".join([*kept, *more]))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> Html:
    """A table that scrolls by itself where the screen is narrow.

    Args:
      head: of the columns; () for none.
      rows: of cells.
      numeric: columns of numbers.
    """
    top = [_row("th", head, numeric)] if head else []
    return element("div", element("table", *top, *(_row("td", row, numeric) for row in rows)), class_="scroll")


def _row(cell: str, cells: Sequence[str], numeric: Sequence[int]) -> Html:
    kinds = ({"class_": "n"} if at in numeric else {} for at in range(len(cells)))
    return element("tr", *(element(cell, one, **kind) for one, kind in zip(cells, kinds)))


def _text(text: str) -> str:
    return escape(clipped(shown(text), LONGEST))
