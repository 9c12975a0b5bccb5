"""HTML from elements: every text is escaped and made visible, because nothing else can be put in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape, unescape
from itertools import repeat
from pathlib import Path
from typing import Any

from rlds2reverb.text import shortened, visible

LONGEST = 400  # characters of a text that are shown by default

ASSETS = Path(__file__).with_name("assets")
_EMPTY = frozenset(("br", "img", "input", "meta"))


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


NOTHING = Html("")


def text(value: object, most: int = LONGEST) -> Html:
    """A text as HTML: escaped, shortened, with invisible characters written out."""
    return Html(escape(visible(shortened(str(value), most))))


def element(name: str, /, *children: str | None, **attributes: str | int | bool) -> Html:
    """An element. Children are escaped unless they are HTML; an attribute `class_` is `class`, `data_x` is `data-x`.

    >>> element("p", "a < b", element("br"), class_="quiet")
    '<p class="quiet">a &lt; b<br></p>'
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not False}
    head = "".join(
        f" {key}" if value is True else f' {key}="{escape(visible(str(value)))}"' for key, value in named.items()
    )
    if name in _EMPTY:
        return Html(f"<{name}{head}>")
    return Html(f"<{name}{head}>{together(children)}</{name}>")


def together(children: Iterable[str | None]) -> Html:
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child is not None))


def plain(html: str) -> str:
    """What a reader sees of HTML: a text without elements.

    >>> plain(element("p", "a < b", element("br")))
    'a < b'
    """
    return unescape(re.sub("<[^>]*>", "", html)) if isinstance(html, Html) else html


def lines(content: str, most: int) -> Html:
    """A text of several lines, at most `most` of them."""
    all_lines = content.splitlines()
    kept = [text(line) for line in all_lines[:most]]
    more = [f"... and {len(all_lines) - most:,} more lines"] if len(all_lines) > most else []
    return Html("\n".join([*kept, *more]))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Sequence[int] = (),
    attributes: Iterable[Mapping[str, str]] = repeat({}),
) -> Html:
    """A table that scrolls by itself where the screen is narrow; `head` may be (), `numeric` are the columns of numbers, `attributes` those of each row."""
    top = [_row("th", head, numeric, {})] if head else []
    below = (_row("td", row, numeric, own) for row, own in zip(rows, attributes))
    return element("div", element("table", *top, *below), class_="scroll")


def _row(cell: str, cells: Sequence[str], numeric: Sequence[int], attributes: Mapping[str, str]) -> Html:
    kinds = ({"class_": "n"} if at in numeric else {} for at in range(len(cells)))
    names = (cell if content else "td" for content in cells)  # an empty cell heads nothing
    return element(
        "tr", *(element(name, child, **kind) for name, child, kind in zip(names, cells, kinds)), **attributes
    )


def document(title: str, style: str, script: str, data: tuple[str, Any], body: Html) -> str:
    """A page that needs nothing else, and may do nothing else than run its script and show what it holds. The script is a module; it reads `data`: id of an element, and its content, plain values."""
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    name, values = data
    as_json = json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")  # ends no script
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(style)),
    )
    held = element("script", Html(as_json), type="application/json", id=name)
    run = element("script", Html(script), type="module")
    return f"<!doctype html>\n{element('html', head, element('body', body, held, run), lang='en')}\n"


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


@cache
def asset(name: str) -> str:
    """A file of the folder `assets`."""
    return (ASSETS / name).read_text(encoding="utf-8")
