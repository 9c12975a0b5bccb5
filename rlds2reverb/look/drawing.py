"""What a view makes of an episode, drawn: stored rows as boxes, and the rows that some items hold as bars.

Everything in a drawing comes from the cut itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut, Field
from rlds2reverb.episode import Array
from rlds2reverb.images import JPEG_START, PNG_START
from rlds2reverb.text import number, shortened, visible

_LEFT, _TOP, _MARGIN = 150, 58, 14
_BOX_HEIGHT, _GAP = 24, 6
_LANE, _BAR, _BETWEEN = 11, 6, 16
_FEWEST_BOXES = 7


@dataclass(frozen=True, eq=False)
class Drawing:
    """What to draw.

    Attributes:
      title: on top.
      described: for those who do not see it.
      cut: of one episode.
      columns: the stored columns to show.
      items: their numbers, at most three: there are classes i0, i1 and i2.
      rows: the stored rows to show; bars end where these do.
      text: a value -> the text in its box.
      name: a path -> the text left of its boxes or bars.
      box: width of a box, in pixels.
    """

    title: str
    described: str
    cut: Cut
    columns: Sequence[str]
    items: Sequence[int]
    rows: range
    text: Callable[[Any], str]
    name: Callable[[str], str] = str
    box: int = 42


def draw(drawing: Drawing, style: str = "") -> str:
    """The drawing as SVG, with a style sheet of its own; "" where the page has one for `svg.cut`."""
    body: list[str] = []
    top = _TOP
    for column in drawing.columns:
        fields = {path: field for path, field in drawing.cut.fields.items() if field.column == column}
        body += _boxes(drawing, column, top)
        top += _BOX_HEIGHT + _GAP
        for path, field in fields.items():
            body += _lanes(drawing, path, field, top)
            top += _LANE * len(drawing.items) + _GAP
        top += _BETWEEN - _GAP
    width, height = _LEFT + drawing.box * max(len(drawing.rows), _FEWEST_BOXES) + _MARGIN, top
    kind = "" if style else ' class="cut"'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = [
        f'<svg{kind} xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(drawing.described)}</title>",
        *([f"<style>{style}\n</style>"] if style else []),
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="{_MARGIN}" y="22">{escape(drawing.title)}</text>',
        f'<text class="quiet" x="{_MARGIN}" y="44">items</text>',
    ]
    for place, item in enumerate(drawing.items):
        left = _LEFT + 84 * place
        head.append(f'<rect class="i{place}" x="{left}" y="37" width="16" height="{_BAR}" rx="2"/>')
        head.append(f'<text class="quiet" x="{left + 22}" y="44">item {item}</text>')
    return "\n".join([*head, *body, "</svg>", ""])


def _boxes(drawing: Drawing, name: str, top: int) -> list[str]:
    """A stored column: its name, and a box a row."""
    column: Array = drawing.cut.rows[name]
    lines = [f'<text x="{_MARGIN}" y="{top + 16}">{escape(drawing.name(name))}</text>']
    for place, row in enumerate(drawing.rows):
        left = _LEFT + drawing.box * place
        lines.append(f'<rect class="box" x="{left}" y="{top}" width="{drawing.box}" height="{_BOX_HEIGHT}"/>')
        middle = left + drawing.box // 2
        text = escape(drawing.text(column[row]))
        lines.append(f'<text x="{middle}" y="{top + 16}" text-anchor="middle">{text}</text>')
    return lines


def _lanes(drawing: Drawing, path: str, field: Field, top: int) -> list[str]:
    """A field: its name, and for every item a lane with a bar a window."""
    middle = top + _LANE * len(drawing.items) // 2 + 3
    lines = [f'<text class="quiet" x="{_MARGIN + 12}" y="{middle}">{escape(drawing.name(path))}</text>']
    anchors = drawing.cut.anchors if field.anchors is None else field.anchors
    for place, item in enumerate(drawing.items):
        for window in field.windows:
            anchor = int(anchors[item]) - drawing.rows.start
            start, stop = max(0, anchor + window.start), min(len(drawing.rows), anchor + window.stop)
            if stop > start:
                left, width = _LEFT + drawing.box * start + 3, drawing.box * (stop - start) - 6
                at = top + _LANE * place + 2
                lines.append(f'<rect class="i{place}" x="{left}" y="{at}" width="{width}" height="{_BAR}" rx="2"/>')
    return lines


_ROWS = 10
_COLUMNS = 8
_BOX = 62
_LABEL, _VALUE = 18, 8  # characters left of the boxes, and in a box


def items_drawing(title: str, cut: Cut) -> tuple[str, str]:
    """The first two items of a cut (of one episode, with at least one item) within its first rows, under the name of the view; and what is left out, in words."""
    columns = list(dict.fromkeys(field.column for field in cut.fields.values()))
    rows = range(min(_ROWS, cut.row_count))
    items = [item for item in range(min(len(cut.anchors), 2)) if int(cut.anchors[item]) in rows] or [0]
    heading = shortened(visible(title), 60)
    described = f"{heading}: stored rows as boxes, and the rows that items hold as bars"
    drawing = Drawing(heading, described, cut, columns[:_COLUMNS], items, rows, _value, _label, _BOX)
    left_out = [f"rows 0 to {len(rows) - 1} of {cut.row_count:,}"] if len(rows) < cut.row_count else []
    if len(columns) > _COLUMNS:
        left_out.append(f"{_COLUMNS} of {len(columns):,} columns")
    return draw(drawing), ", ".join(left_out)


def _label(path: str) -> str:
    text = visible(path)
    return text if len(text) <= _LABEL else f"…{text[1 - _LABEL :]}"  # paths differ at their ends


def _value(value: Any) -> str:
    """The text in a box: a number, a text, or the first value of many."""
    array: Array = np.asarray(value)
    if not array.size:
        return "-"
    first = array.ravel()[0]
    if isinstance(first, bytes) and first.startswith((JPEG_START, PNG_START)):
        text = "image"
    elif isinstance(first, (bytes, str)):
        text = visible(first)
    elif isinstance(first, np.bool_):
        text = "yes" if first else "no"
    else:
        text = str(first) if np.iscomplexobj(first) else number(float(first), 3)
    return f"{text[: _VALUE - 1]}…" if array.size > 1 or len(text) > _VALUE else text
